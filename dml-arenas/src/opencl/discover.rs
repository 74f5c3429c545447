//! Adds the OpenCL devices of the machine to a platform, as devices with arenas.

use super::arena::OpenClArena;
use super::cross::{self, Sharing};
use super::device::{Found, Sort, list};
use super::session::Session;
use crate::join::End;
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::sync::Arc;
use dml_core::{DeviceDesc, DeviceKind, PlatformBuilder, Unavailable};

const BACKEND: &str = "opencl";

/// The devices of the machine, before any is opened.
pub(crate) struct Candidates {
    found: &'static [Found],
    notes: Vec<Unavailable>,
}

impl Candidates {
    /// Asks every driver. A missing loader and a broken driver become notes, not errors.
    pub(crate) fn find() -> Self {
        let note = |reason| Unavailable { backend: BACKEND, reason };
        match list() {
            Err(reason) => Self { found: &[], notes: vec![note(reason)] },
            Ok(listing) => {
                let mut notes: Vec<_> =
                    listing.broken.iter().map(|broken| note(broken.reason.clone())).collect();
                if listing.found.is_empty() && notes.is_empty() {
                    notes.push(note("the OpenCL loader lists no platforms".to_owned()));
                }
                Self { found: &listing.found, notes }
            }
        }
    }

    /// The names of the devices, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = String> {
        (0..self.found.len()).map(name_of)
    }

    /// Opens the wanted devices, and adds each with its arena and its links to main memory. A device that cannot be
    /// opened is noted as unavailable, unless the options name it.
    ///
    /// # Errors
    /// [`DiscoverError::BadLimit`] and [`DiscoverError::Unusable`], for devices named in the options.
    pub(crate) fn add(
        self,
        builder: &mut PlatformBuilder,
        host: End,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        self.notes.into_iter().for_each(|note| builder.add_unavailable(note));
        for (index, found) in self.found.iter().enumerate() {
            let name = name_of(index);
            if !options.wants(&name) {
                continue;
            }
            match open(found, &name, options)? {
                Ok(session) => {
                    let sharing = Sharing::of(options, &name);
                    add_device(builder, host, found, session, (&name, sharing));
                }
                Err(reason) if options.names(&name) => {
                    return Err(DiscoverError::Unusable { device: name, reason });
                }
                Err(reason) => {
                    let reason = format!("{name}, {}: {reason}", found.description);
                    builder.add_unavailable(Unavailable { backend: BACKEND, reason });
                }
            }
        }
        Ok(())
    }
}

fn name_of(index: usize) -> String {
    format!("{BACKEND}:{index}")
}

/// Opens the device, or returns why it cannot be used.
fn open(
    found: &Found,
    name: &str,
    options: &DiscoverOptions,
) -> Result<Result<Session, String>, DiscoverError> {
    if let Some(defect) = &found.defect {
        return Ok(Err(defect.clone()));
    }
    let limit = options.limit_of(name);
    match (found.part(limit), limit) {
        (Ok(part), _) => Ok(Session::open(part)),
        (Err(reason), None) => Ok(Err(reason)),
        (Err(reason), Some(units)) => Err(DiscoverError::BadLimit { device: name.to_owned(), units, reason }),
    }
}

fn add_device(
    builder: &mut PlatformBuilder,
    host: End,
    found: &Found,
    session: Session,
    (name, sharing): (&str, Sharing),
) {
    let kind = match found.sort {
        Sort::Gpu => DeviceKind::Gpu,
        // The cores are those of device 0, the host, but behind OpenCL and with their own memory.
        Sort::Cpu => DeviceKind::Cpu,
        Sort::Other => DeviceKind::Accelerator,
    };
    let part = if session.part.is_sub_device() { ", a part" } else { "" };
    let desc = DeviceDesc::new(name, kind)
        .with_description(format!("{}{part}", found.description))
        .with_driver(found.driver.clone())
        .with_units(session.part.units);
    let native = builder.add_device(desc);
    let arena = builder.add_arena(Arc::new(OpenClArena::new(session, name, native, host.native)));
    cross::join(builder, host, End { arena, native }, found.sort);
    cross::share(builder, host, End { arena, native }, (found.sort, sharing));
}
