//! Adds the GPUs of NVIDIA's driver to a platform, as devices with arenas.

use super::arena::CudaArena;
use super::cross::{self, Side};
use super::device::{Found, list};
use super::pinned::{self, InPlace};
use super::session::Session;
use crate::kit::Backend;
use crate::locked::ScratchPool;
use crate::main_mem::PageLockBudget;
use crate::options::{DiscoverError, DiscoverOptions};
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, DeviceDesc, DeviceKind, PlatformBuilder, Unavailable};

const BACKEND: &str = "cuda";

/// The devices of the machine, before any is opened.
#[derive(Debug)]
pub(crate) struct Candidates {
    found: &'static [Found],
    note: Option<String>,
}

impl Candidates {
    /// Lists the driver's devices. A missing driver becomes a note, not an error.
    pub(crate) fn find() -> Self {
        match list() {
            Ok(found) => Self { found, note: None },
            Err(reason) => Self { found: &[], note: Some(reason) },
        }
    }
}

/// Returns the [`DeviceDesc::hardware`] of a device at this PCI address.
pub(crate) fn hardware(pci: &str) -> String {
    format!("pci {}", pci.to_lowercase())
}

impl Backend for Candidates {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn devices(&self) -> Vec<String> {
        (0..self.found.len()).map(name_of).collect()
    }

    /// Opens the wanted devices, and adds each with its arena and its links. A device that cannot be opened
    /// is noted as unavailable, unless the options name it.
    ///
    /// # Errors
    /// [`DiscoverError::BadLimit`] and [`DiscoverError::Unusable`], for devices named in the options.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        let note = |reason| Unavailable { backend: BACKEND, reason };
        self.note.iter().for_each(|reason| builder.add_unavailable(note(reason.clone())));
        let budget = PageLockBudget::new(options.page_lock_limit());
        let scratch = ScratchPool::new(options.locked_scratch_limit(), &budget);
        let mut opened: Vec<(ArenaId, Arc<Session>, InPlace)> = Vec::new();
        for (index, found) in self.found.iter().enumerate() {
            let name = name_of(index);
            if !options.wants(&name) {
                continue;
            }
            if let Some(units) = options.limit_of(&name).filter(|&units| units != found.units) {
                let reason =
                    format!("a CUDA device cannot be divided; it has {} multiprocessors", found.units);
                return Err(DiscoverError::BadLimit { device: name, units, reason });
            }
            match Session::open(found) {
                Ok(session) => {
                    let in_place = match (options.sharing.is_bound(&name), options.sharing.is_bindable(&name))
                    {
                        (true, _) => InPlace::Preferred,
                        (false, true) => InPlace::OnRequest,
                        (false, false) => InPlace::Never,
                    };
                    let arena = add_device(builder, found, (&session, &name), in_place);
                    let side = Side { arena, session: &session };
                    let measured = options.measured_bytes_per_s(builder, [main, arena]);
                    cross::join(builder, main, &side, (&budget, &scratch), measured);
                    for (other, of_other, _) in &opened {
                        let other = Side { arena: *other, session: of_other };
                        cross::join_devices(builder, [&other, &side], &scratch);
                    }
                    opened.push((arena, session, in_place));
                }
                Err(reason) if options.names(&name) => {
                    return Err(DiscoverError::Unusable { device: name, reason });
                }
                Err(reason) => builder.add_unavailable(note(format!("{name}, {}: {reason}", found.name))),
            }
        }
        if let Some(limit_bytes) = options.sharing.page_locked_bytes() {
            pinned::add(builder, main, &opened, limit_bytes);
        }
        Ok(())
    }
}

fn name_of(index: usize) -> String {
    format!("{BACKEND}:{index}")
}

fn add_device(
    builder: &mut PlatformBuilder,
    found: &Found,
    (session, name): (&Arc<Session>, &str),
    in_place: InPlace,
) -> ArenaId {
    let desc = DeviceDesc::new(name, DeviceKind::Gpu)
        .with_description(format!("{} ({}, {})", found.name, found.uuid, found.pci))
        .with_driver(found.driver())
        .with_compute_units(found.units)
        .with_model(found.name.clone())
        .with_hardware(hardware(&found.pci));
    let native = builder.add_device(desc);
    let arena = CudaArena::new(session.clone(), name, native);
    builder.add_arena(Arc::new(if in_place == InPlace::Never { arena } else { arena.in_place() }))
}
