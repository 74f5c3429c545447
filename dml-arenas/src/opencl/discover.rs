//! Adds the OpenCL devices of the machine to a platform, as devices with arenas.

use super::arena::OpenClArena;
use super::cross::{self, Sharing, Side};
use super::device::{Found, Sort, list};
use super::session::Session;
use crate::kit::Backend;
use crate::main_mem::PageLockBudget;
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::sync::Arc;
use dml_core::{ArenaId, DeviceDesc, DeviceKind, PlatformBuilder, Unavailable};

const BACKEND: &str = "opencl";

/// The devices of the machine, before any is opened.
#[derive(Debug)]
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
}

impl Backend for Candidates {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn devices(&self) -> Vec<String> {
        (0..self.found.len()).map(name_of).collect()
    }

    /// Opens the wanted devices, and adds each with its arena and its links to main memory. A device that cannot be opened is noted as unavailable, unless the options
    /// name it.
    ///
    /// # Errors
    /// [`DiscoverError::BadLimit`] and [`DiscoverError::Unusable`], for devices named in the options.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        let budget = PageLockBudget::new(options.page_lock_limit());
        self.notes.iter().for_each(|note| builder.add_unavailable(note.clone()));
        for (index, found) in self.found.iter().enumerate() {
            let name = name_of(index);
            if !options.wants(&name) {
                continue;
            }
            match open(found, &name, options)? {
                Ok(session) => add_device(builder, main, (found, session), &name, (options, &budget)),
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
    main: ArenaId,
    (found, session): (&Found, Session),
    name: &str,
    (options, budget): (&DiscoverOptions, &Arc<PageLockBudget>),
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
    let (host, session) = (builder.native(main), Arc::new(session));
    let arena = builder.add_arena(Arc::new(OpenClArena::new(session.clone(), name, native, host)));
    let budget = found.is_discrete.then_some(budget);
    let side = Side { arena, sort: found.sort, session: &session, budget };
    cross::join(builder, main, &side, options.mechanisms);
    let sharing = match shared(builder, name, options) {
        Some(shared) => Sharing::Preferred(shared),
        None if options.is_bound(name) => Sharing::Preferred(main),
        None if options.is_bindable(name) => Sharing::OnRequest(main),
        None => Sharing::Never,
    };
    cross::share(builder, &side, sharing);
}

/// Returns the shared memory that the device is to use, if any.
#[cfg(all(feature = "offload", target_os = "linux"))]
fn shared(builder: &PlatformBuilder, name: &str, options: &DiscoverOptions) -> Option<ArenaId> {
    crate::shared::discover::Shared::of(builder).filter(|_| options.shares(name)).map(|shared| shared.arena)
}

/// There is no shared memory without workers.
#[cfg(not(all(feature = "offload", target_os = "linux")))]
fn shared(_builder: &PlatformBuilder, _name: &str, _options: &DiscoverOptions) -> Option<ArenaId> {
    None
}
