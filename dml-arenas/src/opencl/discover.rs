//! Adds the OpenCL devices of the machine to a platform, as devices with arenas.

use super::arena::OpenClArena;
use super::cross::{self, Locking, Sharing, Side};
use super::device::{Found, Sort, list};
use super::session::Session;
use super::svm;
use crate::kit::Backend;
use crate::locked::ScratchPool;
use crate::main_mem::PageLockBudget;
use crate::options::{DiscoverError, DiscoverOptions, Mechanisms};
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, DeviceDesc, DeviceKind, PlatformBuilder, Unavailable};

const BACKEND: &str = "opencl";

/// The devices of the machine, before any is opened.
#[derive(Debug)]
pub(crate) struct Candidates {
    found: &'static [Found],
    notes: Vec<Unavailable>,
}

impl Candidates {
    /// Queries every driver. A missing loader and a broken driver become notes, not errors.
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

    /// Opens the selected devices, and adds each with its arena and its links to main memory. A device that
    /// cannot be opened is noted as unavailable, unless the options name it.
    ///
    /// # Errors
    /// [`DiscoverError::BadLimit`], [`DiscoverError::BadSharing`] and [`DiscoverError::Unusable`], for
    /// devices named in the options.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        let budget = PageLockBudget::new(options.page_lock_limit());
        let scratch = ScratchPool::new(options.locked_scratch_limit(), &budget);
        let mut discrete: Vec<(ArenaId, &Found, Arc<Session>)> = Vec::new();
        let mut any_fine_grained = options.sharing.any_fine_grained();
        self.notes.iter().for_each(|note| builder.add_unavailable(note.clone()));
        for (index, found) in self.found.iter().enumerate() {
            let name = name_of(index);
            if !options.wants(&name) {
                continue;
            }
            if let Some(other) = same_hardware(builder, found).filter(|_| !options.names(&name)) {
                let reason =
                    format!("{name}, {}: same device as {other}; name it to use both", found.description);
                builder.add_unavailable(Unavailable { backend: BACKEND, reason });
                continue;
            }
            match open(found, &name, options)? {
                Ok(_) if options.sharing.is_fine_grained(&name) && !found.is_fine_grained => {
                    let reason = "its driver offers no fine-grained shared virtual memory".to_owned();
                    return Err(DiscoverError::BadSharing { device: name, reason });
                }
                Ok(session) => {
                    let session = Arc::new(session);
                    let locking = found.is_discrete.then_some((&budget, &scratch));
                    // Shared virtual memory of a discrete device would be across a link from the host.
                    let is_chosen =
                        found.is_fine_grained && !found.is_discrete && std::mem::take(&mut any_fine_grained);
                    let side = (found, &session, is_chosen || options.sharing.is_fine_grained(&name));
                    let arena = add_device(builder, main, side, &name, (options, locking));
                    if found.is_discrete {
                        discrete.push((arena, found, session));
                    }
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
        if options.mechanisms == Mechanisms::All {
            relay_between(builder, &discrete, (&budget, &scratch));
        }
        Ok(())
    }
}

/// Links each pair of these devices.
fn relay_between(
    builder: &mut PlatformBuilder,
    devices: &[(ArenaId, &Found, Arc<Session>)],
    locking: Locking<'_>,
) {
    let sides: Vec<_> = devices
        .iter()
        .map(|(arena, found, session)| Side {
            arena: *arena,
            sort: found.sort,
            session,
            locking: Some(locking),
        })
        .collect();
    for (index, one) in sides.iter().enumerate() {
        for other in &sides[..index] {
            cross::relay(builder, [other, one], locking.1);
        }
    }
}

fn name_of(index: usize) -> String {
    format!("{BACKEND}:{index}")
}

/// Returns an identifier of a device's hardware, if its driver reports the PCI address.
fn hardware(found: &Found) -> Option<String> {
    found.pci.as_ref().map(|pci| format!("pci {pci}"))
}

/// Returns the name of another framework's device that is the same hardware, if there is one.
fn same_hardware(builder: &PlatformBuilder, found: &Found) -> Option<String> {
    let hardware = hardware(found)?;
    let is_same =
        |desc: &&DeviceDesc| desc.hardware.as_ref() == Some(&hardware) && !desc.name.starts_with(BACKEND);
    builder.devices().iter().find(is_same).map(|desc| desc.name.to_string())
}

/// Opens the device, or returns why it cannot be used. The outer error is a bad limit in the options.
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
    (found, session, is_fine_grained): (&Found, &Arc<Session>, bool),
    name: &str,
    (options, locking): (&DiscoverOptions, Option<Locking<'_>>),
) -> ArenaId {
    let kind = match found.sort {
        Sort::Gpu => DeviceKind::Gpu,
        // It has the cores of device 0, the host, but behind OpenCL and with its own memory.
        Sort::Cpu => DeviceKind::Cpu,
        Sort::Other => DeviceKind::Accelerator,
    };
    let part = if session.part.is_sub_device { ", a part" } else { "" };
    let mut desc = DeviceDesc::new(name, kind)
        .with_description(format!("{}{part}", found.description))
        .with_driver(found.driver.clone())
        .with_model(found.description.clone())
        .with_compute_units(session.part.units);
    desc.hardware = hardware(found);
    let native = builder.add_device(desc);
    let host = builder.native(main);
    let arena = OpenClArena::new(session.clone(), name, native, host);
    let arena = builder.add_arena(Arc::new(if is_fine_grained { arena.fine_grained() } else { arena }));
    let side = Side { arena, sort: found.sort, session, locking };
    let mechanisms = if is_fine_grained { Mechanisms::Staged } else { options.mechanisms };
    let measured = options.measured_bytes_per_s(builder, [main, arena]);
    cross::join(builder, main, &side, (mechanisms, measured));
    let sharing = match shared(builder, name, options) {
        Some(shared) => Sharing::Preferred(shared),
        None if options.sharing.is_bound(name) => Sharing::Preferred(main),
        None if options.sharing.is_bindable(name) => Sharing::OnRequest(main),
        None => Sharing::Never,
    };
    cross::share(builder, &side, sharing);
    if is_fine_grained {
        let svm = builder.add_arena(Arc::new(svm::arena(session.clone(), host)));
        cross::unify(builder, main, svm, arena);
    }
    arena
}

/// Returns the shared memory that the device prefers to be bound to, if any.
#[cfg(all(feature = "offload", target_os = "linux"))]
fn shared(builder: &PlatformBuilder, name: &str, options: &DiscoverOptions) -> Option<ArenaId> {
    crate::shared::discover::Shared::of(builder)
        .filter(|_| options.sharing.shares(name))
        .map(|shared| shared.arena)
}

/// Returns `None`: there is no shared memory without workers.
#[cfg(not(all(feature = "offload", target_os = "linux")))]
fn shared(_builder: &PlatformBuilder, _name: &str, _options: &DiscoverOptions) -> Option<ArenaId> {
    None
}
