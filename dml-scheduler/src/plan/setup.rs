//! Parameters that an application chooses for its runs.

use crate::model::Knowledge;
use crate::policy::PolicySpec;
use dml_core::{DeviceId, Platform};

/// The parameters of a co-execution.
#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) platform: Platform,
    pub(crate) devices: Chosen,
    /// The devices' relative powers, in their order; `None` for equal powers.
    pub(crate) powers: Option<Vec<f64>>,
    pub(crate) policy: PolicySpec,
    /// The device that collects the results; `None` to leave them where they were computed.
    pub(crate) collect_on: Option<DeviceId>,
    /// Performance model from earlier runs.
    pub(crate) knowledge: Knowledge,
    /// Number of cores that the devices of kind `cpu` share.
    pub(crate) cores: u32,
    /// Whether reports contain the policy's decisions.
    pub(crate) records: bool,
}

/// The devices that an application has chosen.
#[derive(Clone, Debug)]
pub(crate) enum Chosen {
    /// Every device that the kernel has a variant for.
    Every,
    /// These devices, in this order.
    Named(Vec<DeviceId>),
    /// Of these devices, every one that the kernel has a variant for.
    Passed(Vec<DeviceId>),
}
