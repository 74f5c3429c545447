//! `--by-hand`: times the same kernel written by hand against the device's framework, in the same run as DML.

use crate::failure::Failure;
use crate::figures;
use crate::machine::pinned_bytes;
use dml::core::{DeviceId, Platform};
use dml_workloads::by_hand::{HostMemory, Program};
use dml_workloads::prepare::Prepared;

/// Returns the kind of memory that DML transfers for a device, for programs by hand beside it.
pub(crate) fn memory(platform: &Platform, device: DeviceId) -> HostMemory {
    let is_gpu = platform.device_desc(device).name.starts_with("cuda:");
    if is_gpu && pinned_bytes(platform).is_some() { HostMemory::Suited } else { HostMemory::Ordinary }
}

/// A hand-written program and its times.
pub(crate) struct ByHand {
    program: Program,
    seconds: Vec<f64>,
}

impl ByHand {
    /// Creates the program for a device of the platform, with as many units as the device has there. Returns
    /// `None` for a device without a hand-written form, and if there are no items.
    pub(crate) fn of(
        platform: &Platform,
        device: DeviceId,
        memory: HostMemory,
        prepared: &dyn Prepared,
    ) -> Result<Option<Self>, Failure> {
        if prepared.items() == 0 {
            return Ok(None);
        }
        let program = prepared.by_hand(platform, device, memory).map_err(Failure::work)?;
        Ok(program.map(|program| Self { program, seconds: Vec::new() }))
    }

    pub(crate) fn run(&mut self, counts: bool) -> Result<(), Failure> {
        let duration = self.program.run().map_err(Failure::work)?;
        if counts {
            self.seconds.push(duration.as_secs_f64());
        }
        Ok(())
    }

    /// Checks the result, and returns the median time in seconds.
    pub(crate) fn summary(&self, prepared: &dyn Prepared) -> Result<f64, Failure> {
        let wrong =
            |error| Failure::Work(format!("the result of the hand-written program is wrong: {error}"));
        let outputs: Vec<&[u8]> =
            (0..prepared.outputs().len()).map(|index| self.program.output(index)).collect();
        prepared.verify_plain(&outputs).map_err(wrong)?;
        Ok(figures::median(self.seconds.iter().copied()))
    }
}
