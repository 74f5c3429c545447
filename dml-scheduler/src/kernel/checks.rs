//! Kernels that a run refuses: wrong platform, arguments that a launcher rejects, short buffers, shared
//! writes.

use super::footprint::{self, Footprint};
use super::{Argument, How, Kernel};
use crate::base::guard::guarded;
use crate::report::RunError;
use dml_core::Platform;
use std::ops::Range;

impl Kernel {
    /// Checks that the kernel was made for the platform: its buffers, and the variants chosen by a device
    /// property.
    pub(crate) fn check_platform(&self, platform: &Platform) -> Result<(), RunError> {
        let foreign = |what: String| Err(RunError::OtherPlatform { kernel: self.name.clone(), what });
        if let Some(index) = self.arguments.iter().position(|argument| !platform.owns(argument.buffer())) {
            return foreign(format!("the buffer of argument {}", self.position(index)));
        }
        // Every platform has its own device list, so its address identifies the platform.
        if self.platforms.iter().any(|other| !std::ptr::eq(other.devices(), platform.devices())) {
            return foreign("a variant for a kind of devices or arenas".to_owned());
        }
        Ok(())
    }

    /// Repeats the check of each launcher that was added before the kernel's last change.
    pub(crate) fn check_launchers(&self, platform: &Platform) -> Result<(), RunError> {
        for (device, how) in &self.devices {
            let How::Launcher(launcher, checked) = how else { continue };
            if *checked == (self.parameters.len(), self.shape) {
                continue;
            }
            let told = guarded(|| {
                let told =
                    launcher.check(&self.signature()).and_then(|()| launcher.check_groups(&self.shape));
                told.map_err(|misfit| misfit.to_string())
            });
            let told = told.unwrap_or_else(|message| Err(format!("the launcher panicked: {message}")));
            told.map_err(|cause| {
                let desc = platform.devices().get(usize::from(device.0));
                let device = desc.map_or_else(|| device.to_string(), |desc| desc.name.to_string());
                RunError::Misfit { kernel: self.name.clone(), device, cause }
            })?;
        }
        Ok(())
    }

    /// Checks that the buffers have bytes for all items, if the kernel has a launcher.
    ///
    /// No footprint covers what a framework's kernel does past the end of its buffers. A variant is
    /// responsible for its own bounds.
    pub(crate) fn check_items(&self, items: u64) -> Result<(), RunError> {
        if !self.devices.iter().any(|(_, how)| matches!(how, How::Launcher(..))) {
            return Ok(());
        }
        for (index, argument) in self.arguments.iter().enumerate() {
            match argument.footprint().holds(argument.buffer().len()) {
                Some(holds) if holds < items => {
                    let (kernel, index) = (self.name.clone(), self.position(index));
                    let buffer = argument.buffer().name();
                    return Err(RunError::TooManyItems { kernel, index, buffer, holds, items });
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Checks that no two packages write the same bytes, because packages run concurrently.
    ///
    /// It compares adjacent work-groups at a sample of places, which is exact for the named footprints.
    pub(crate) fn check_writes(&self, items: u64) -> Result<(), RunError> {
        for (index, argument) in self.arguments.iter().enumerate() {
            let (place, name) = (self.position(index), || (self.name.clone(), argument.buffer().name()));
            if let Some(bytes) = argument.part_of_buffer() {
                let (kernel, buffer) = name();
                return Err(RunError::PartOfBuffer { kernel, index: place, buffer, bytes });
            }
            if argument.access().writes() && argument.buffer().is_held_here() {
                let (kernel, buffer) = name();
                return Err(RunError::HeldByCaller { kernel, index: place, buffer });
            }
            let before = self.arguments[..index].iter().position(|other| other.buffer() == argument.buffer());
            if let Some(first) = before
                && (argument.access().writes() || self.arguments[first].access().writes())
            {
                let (kernel, first) = (self.name.clone(), self.position(first));
                return Err(RunError::OneBufferTwice { kernel, first, second: place });
            }
        }
        if self.is_undivided {
            return Ok(());
        }
        let is_shared = |argument: &Argument| argument.access().writes() && !argument.is_reduced();
        let written = self.arguments.iter().enumerate().filter(|(_, argument)| is_shared(argument));
        for (index, argument) in written {
            let (index, buffer) = (self.position(index), argument.buffer().name());
            if matches!(argument.footprint(), Footprint::Whole) {
                return Err(RunError::WholeWrite { kernel: self.name.clone(), index, buffer });
            }
            for (first, second) in neighbours(self.grain(), items) {
                // An invalid footprint fails its packages later.
                let ranges = |items: &Range<u64>| argument.ranges(items.clone()).unwrap_or_default();
                if let Some(bytes) = footprint::shared(&ranges(&first), &ranges(&second)) {
                    let kernel = self.name.clone();
                    return Err(RunError::SharedWrites { kernel, index, buffer, first, second, bytes });
                }
            }
        }
        Ok(())
    }
}

/// Returns pairs of adjacent work-groups among `items` items: the first few, the last, and some between.
fn neighbours(local: u64, items: u64) -> impl Iterator<Item = (Range<u64>, Range<u64>)> {
    const PLACES: u64 = 16;
    let places = items.saturating_sub(1) / local;
    let some =
        (1..=places.min(PLACES)).chain((1..=PLACES).map(move |part| places / PLACES * part)).chain([places]);
    some.filter(|&place| place > 0).map(move |place| {
        let between = place * local;
        (between - local..between, between..between.saturating_add(local).min(items))
    })
}
