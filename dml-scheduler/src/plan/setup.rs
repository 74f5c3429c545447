//! Parameters that an application chooses for its runs, and the candidate devices that follow from them.

use crate::kernel::Kernel;
use crate::model::Knowledge;
use crate::policy::PolicySpec;
use crate::report::RunError;
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

impl Setup {
    /// Returns the candidate devices of a run, after checking them and the collecting device.
    pub(crate) fn candidates(&self, kernel: &Kernel) -> Result<Vec<DeviceId>, RunError> {
        let devices = match &self.devices {
            Chosen::Every => kernel.devices().collect(),
            Chosen::Named(named) => named.clone(),
            Chosen::Passed(passed) => {
                let has_variant = |device: &DeviceId| kernel.variant_for(*device).is_some();
                let devices: Vec<DeviceId> = passed.iter().copied().filter(has_variant).collect();
                if devices.is_empty() {
                    let (passed, variants) =
                        (self.names(passed.iter().copied()), self.names(kernel.devices()));
                    return Err(RunError::NonePassed { kernel: kernel.name().to_owned(), passed, variants });
                }
                devices
            }
        };
        if devices.is_empty() {
            return Err(RunError::NoDevices { kernel: kernel.name().to_owned() });
        }
        check_devices(&self.platform, kernel, &devices)?;
        check_collecting(&self.platform, kernel, self.collect_on)?;
        Ok(devices)
    }

    /// Returns the names of devices. A device unknown to the platform is named by its number.
    fn names(&self, devices: impl IntoIterator<Item = DeviceId>) -> Vec<String> {
        let known = self.platform.devices();
        let name = |device: DeviceId| {
            known.get(usize::from(device.0)).map_or_else(|| device.to_string(), |desc| desc.name.to_string())
        };
        devices.into_iter().map(name).collect()
    }
}

/// Checks that the platform has each device, that the kernel has a variant for it, and that no device is
/// named twice.
fn check_devices(platform: &Platform, kernel: &Kernel, devices: &[DeviceId]) -> Result<(), RunError> {
    let known = platform.devices();
    check_known(platform, kernel, devices.iter().copied())?;
    for (index, &device) in devices.iter().enumerate() {
        let name = || known[usize::from(device.0)].name.to_string();
        if kernel.variant_for(device).is_none() {
            return Err(RunError::NoVariant { kernel: kernel.name().to_owned(), device: name() });
        }
        if devices[..index].contains(&device) {
            return Err(RunError::DuplicateDevice { device: name() });
        }
    }
    Ok(())
}

/// Checks that the platform has each device.
fn check_known(
    platform: &Platform,
    kernel: &Kernel,
    named: impl IntoIterator<Item = DeviceId>,
) -> Result<(), RunError> {
    let devices = platform.devices().len();
    match named.into_iter().find(|device| usize::from(device.0) >= devices) {
        Some(device) => Err(RunError::UnknownDevice { kernel: kernel.name().to_owned(), device, devices }),
        None => Ok(()),
    }
}

/// Checks that the collecting device has an arena.
///
/// Without this check the error would come only after items were computed.
fn check_collecting(
    platform: &Platform,
    kernel: &Kernel,
    collect_on: Option<DeviceId>,
) -> Result<(), RunError> {
    check_known(platform, kernel, collect_on)?;
    match collect_on.filter(|&device| platform.home(device).is_none()) {
        Some(device) => Err(RunError::NoArena {
            kernel: kernel.name().to_owned(),
            device: platform.device_desc(device).name.to_string(),
        }),
        None => Ok(()),
    }
}
