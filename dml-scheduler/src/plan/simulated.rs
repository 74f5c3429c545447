//! Plans of runs on simulated devices: the planning and learning of a co-executor, without a platform.

use crate::base::package::Package;
use crate::base::package::UnitId;
use crate::model::{Knowledge, Member, Ran, name_of};
use crate::plan::{Moved, Moving, Planner, chosen, leave_out, width};
use crate::policy::{Blueprint, Computed, Plan, PolicyError, Splitter};
use crate::report::{CalledUp, PackageRecord, Reason};
use dml_core::{DeviceDesc, DeviceId};
use std::time::Duration;

/// A simulated device, and its transfers if it computes all items.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name, kind and units.
    pub desc: DeviceDesc,
    /// Whether it computes in the memory of the host.
    pub is_host: bool,
    /// Bytes that move for all items: in, and out.
    pub bytes: [f64; 2],
    /// Transfer time per byte, in seconds.
    pub per_byte: f64,
}

/// A planned run.
#[derive(Clone, Debug)]
pub struct Planned {
    kernel: String,
    items: u64,
    local_size: u64,
    members: Vec<Member>,
    plan: Plan,
    reasons: Vec<Option<Reason>>,
    without_exploring: Option<f64>,
}

impl Planned {
    /// Plans a run of `items` items in work-groups of `local_size`; devices of kind `cpu` share `cores`
    /// cores.
    #[must_use]
    pub fn of(
        knowledge: &Knowledge,
        kernel: &str,
        [items, local_size]: [u64; 2],
        cores: u32,
        devices: &[Device],
    ) -> Self {
        let moved = |bytes: f64, device: &Device| Moved { bytes, seconds: bytes * device.per_byte };
        let moving = |device: &Device| Moving {
            inward: moved(device.bytes[0], device),
            outward: moved(device.bytes[1], device),
            is_host: device.is_host,
            ..Moving::default()
        };
        let member = |(index, device): (usize, &Device)| Member {
            device: DeviceId(index as u16),
            name: name_of(&device.desc, false),
            bytes: [0.0, device.bytes.iter().sum()],
            per_byte: device.per_byte,
            width: width(&device.desc, local_size, 1),
            is_host: device.is_host,
            has_launched: true,
        };
        let members: Vec<Member> = devices.iter().enumerate().map(member).collect();
        let planner = Planner {
            items,
            local_size,
            is_undivided: false,
            powers: None,
            cores,
            descs: devices.iter().map(|device| &device.desc).collect(),
            are_there: vec![true; devices.len()],
            moving: devices.iter().map(moving).collect(),
            members: &members,
        };
        let (plan, reasons, without_exploring) = knowledge.with(kernel, |model| planner.plan(model));
        Self { kernel: kernel.to_owned(), items, local_size, members, plan, reasons, without_exploring }
    }

    /// Returns the splitter of the run.
    ///
    /// # Errors
    /// [`PolicyError`] if a work-group has no items.
    pub fn splitter(&self) -> Result<Splitter, PolicyError> {
        let units = self.members.len();
        let blueprint =
            Blueprint::new(self.items, self.local_size, vec![String::new(); units], self.plan.clone());
        let mut splitter = Splitter::new(blueprint.build()?, units, self.items, self.local_size)?;
        leave_out(&mut splitter, &self.reasons);
        Ok(splitter)
    }

    /// Learns from the run's packages, and from the times at which units were called up.
    ///
    /// # Panics
    /// If the work-groups have no items.
    pub fn learn(
        &self,
        knowledge: &Knowledge,
        packages: &[(Package, Computed)],
        called_up: &[(UnitId, Duration)],
    ) {
        let device = |unit: UnitId| DeviceId(unit.0 as u16);
        let record = |(package, computed): &(Package, Computed)| PackageRecord {
            package: package.clone(),
            device: device(package.unit()),
            start: computed.handed,
            begun: computed.begun,
            computed: computed.ended,
            noticed_late: false,
            end: computed.done,
        };
        let packages: Vec<PackageRecord> = packages.iter().map(record).collect();
        let called_up: Vec<CalledUp> =
            called_up.iter().map(|&(unit, at)| CalledUp { device: device(unit), at }).collect();
        let devices: Vec<DeviceId> = self.members.iter().map(|member| member.device).collect();
        let splitter = self.splitter().expect("the planned run has a splitter");
        let chosen = chosen(&devices, |unit| splitter.is_benched(unit));
        let run = Ran {
            kernel: &self.kernel,
            items: self.items,
            duration: packages.iter().map(|record| record.end).max().unwrap_or_default(),
            packages: &packages,
            called_up: &called_up,
            chosen: &chosen,
            is_alone: matches!(self.plan, Plan::Packages(_)),
            without_exploring: self.without_exploring,
        };
        knowledge.learn(&self.members, &run);
    }
}
