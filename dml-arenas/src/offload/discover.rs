//! Adds worker processes of this machine to a platform, as devices with arenas.

use super::arena::OffloadArena;
use super::cross;
use super::device::{OffloadDevice, TIME_LIMIT, WorkerOptions};
use super::process::WORKER;
use super::worker::is_hooked;
use crate::kit::Backend;
use crate::main_mem::discover::{default_memory, description, threads};
#[cfg(test)]
use crate::options::Workers;
use crate::options::{DiscoverError, DiscoverOptions};
use crate::shared::discover::Shared;
use dml_core::internal::sync::Arc;
use dml_core::{ArenaId, DeviceDesc, DeviceKind, MAX_ARENAS, PlatformBuilder, Unavailable};
use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

const BACKEND: &str = "offload";
/// The path at which a process finds its own program, even after the file was replaced.
const OWN_PROGRAM: &str = "/proc/self/exe";

/// The requested workers, before any is started.
#[derive(Debug)]
pub(crate) struct Candidates {
    workers: u32,
    program: Result<PathBuf, String>,
}

impl Candidates {
    /// Finds the program that the workers run.
    pub(crate) fn find(options: &DiscoverOptions) -> Self {
        let wishes = &options.workers;
        let program = wishes.program.clone().map_or_else(find_program, Ok);
        // Building a platform with too many arenas fails, so no more workers than this are started.
        Self { workers: wishes.workers.min(MAX_ARENAS as u32), program }
    }

    /// Returns the size of a worker's memory, in bytes: that of the options, or an equal share of the
    /// default.
    fn memory_bytes(&self, options: &DiscoverOptions) -> u64 {
        options.workers.memory_bytes.unwrap_or_else(|| default_memory() / u64::from(self.workers.max(1)))
    }
}

impl Backend for Candidates {
    fn name(&self) -> &'static str {
        BACKEND
    }

    fn devices(&self) -> Vec<String> {
        (0..self.workers).map(name_of).collect()
    }

    /// Starts the wanted workers, and adds each with its arena, its links to main memory and its binding. A
    /// worker that cannot be started is reported as unavailable, or as an error if the options name it.
    ///
    /// # Errors
    /// [`DiscoverError::BadLimit`], [`DiscoverError::BadPin`] and [`DiscoverError::Unusable`], for devices
    /// named in the options.
    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        let memory_bytes = self.memory_bytes(options);
        let shared_memory = Shared::of(builder);
        let mut missing: Option<String> = None;
        for name in self.devices().into_iter().filter(|name| options.wants(name)) {
            let pins = pins(&name, options)?;
            let threads = limit(&name, &pins, options)?;
            let time_limit = options.workers.time_limit.unwrap_or(Some(TIME_LIMIT));
            // The reason that stops one worker from starting stops the others too.
            let program = missing.clone().map_or_else(|| self.program.clone(), Err);
            let shared = shared_memory.as_ref().filter(|_| options.sharing.shares(&name));
            let started = program.and_then(|program| {
                let options = WorkerOptions { program, threads, pins, memory_bytes, time_limit };
                let started = match shared {
                    Some(shared) => OffloadDevice::start_sharing(&name, &options, &shared.memory),
                    None => OffloadDevice::start(&name, &options),
                };
                started.map_err(|error| error.to_string())
            });
            match started {
                Ok(device) => add_device(builder, (main, shared), &device),
                Err(reason) if options.names(&name) => {
                    return Err(DiscoverError::Unusable { device: name, reason });
                }
                Err(reason) => missing = Some(reason),
            }
        }
        if let Some(reason) = missing {
            builder.add_unavailable(Unavailable { backend: BACKEND, reason });
        }
        Ok(())
    }
}

fn name_of(index: u32) -> String {
    format!("{BACKEND}:{index}")
}

/// Returns the number of threads of a worker: its limit if the options set one, otherwise the number of its
/// cores.
fn limit(name: &str, pins: &[u32], options: &DiscoverOptions) -> Result<u32, DiscoverError> {
    let (most, why) = match pins.len() as u32 {
        0 => (threads(), "this process may use"),
        pins => (pins, "its cores allow"),
    };
    match options.limit_of(name) {
        None => Ok(most),
        Some(units) if (1..=most).contains(&units) => Ok(units),
        Some(units) => {
            let reason = format!("{why} {most} threads");
            Err(DiscoverError::BadLimit { device: name.to_owned(), units, reason })
        }
    }
}

/// Returns the cores that a worker is pinned to, without duplicates.
fn pins(name: &str, options: &DiscoverOptions) -> Result<Vec<u32>, DiscoverError> {
    let Some(cores) = options.workers.pins.get(name) else { return Ok(Vec::new()) };
    let bad =
        |reason: String| DiscoverError::BadPin { device: name.to_owned(), cores: cores.clone(), reason };
    if cores.is_empty() {
        return Err(bad("the list of cores is empty".to_owned()));
    }
    let allowed = rustix::thread::sched_getaffinity(None).map_err(|error| bad(error.to_string()))?;
    let is_allowed =
        |core: u32| (core as usize) < rustix::thread::CpuSet::MAX_CPU && allowed.is_set(core as usize);
    match cores.iter().find(|&&core| !is_allowed(core)) {
        Some(core) => Err(bad(format!("this process may not use core {core}"))),
        None => Ok(cores.iter().copied().collect::<BTreeSet<_>>().into_iter().collect()),
    }
}

fn add_device(
    builder: &mut PlatformBuilder,
    (main, shared): (ArenaId, Option<&Shared>),
    device: &Arc<OffloadDevice>,
) {
    // The worker runs on the host's cores, in a process with its own memory.
    let desc = DeviceDesc::new(device.name(), DeviceKind::Cpu)
        .with_description(format!("worker process on {}", description()))
        .with_compute_units(device.threads());
    let native = builder.add_device(desc);
    let arena = builder.add_arena(Arc::new(OffloadArena::new(device.clone(), native)));
    cross::join(builder, main, arena);
    if let Some(shared) = shared {
        shared.bind(builder, arena);
    }
}

/// Returns the program that workers run. The error says how to provide one.
fn find_program() -> Result<PathBuf, String> {
    if is_hooked() {
        return Ok(PathBuf::from(OWN_PROGRAM));
    }
    let own = std::env::current_exe().ok();
    // The worker program lies beside this program or, for tests and examples, one folder above.
    let beside = own.iter().flat_map(|own| own.ancestors().skip(1).take(2)).map(Path::to_path_buf);
    let on_path = std::env::var_os("PATH");
    let on_path = on_path.iter().flat_map(std::env::split_paths).filter(|folder| folder.is_absolute());
    let found = program_in(beside.chain(on_path));
    found.ok_or_else(|| {
        format!("no program for workers: this one does not call offload::hook, and {WORKER} is neither beside it nor on the PATH")
    })
}

/// Returns the worker program in the first of these folders that has an executable one.
fn program_in(folders: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    };
    folders.map(|folder| folder.join(WORKER)).find(is_program)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};

    #[test]
    fn a_program_is_a_file_that_can_be_started() {
        let folder = tempfile::tempdir().unwrap();
        let folders = ["none", "folder", "text", "program", "other"].map(|name| folder.path().join(name));
        folders.iter().for_each(|folder| fs::create_dir_all(folder).unwrap());
        fs::create_dir_all(folders[1].join(WORKER)).unwrap();
        for (index, mode) in [(2, 0o644), (3, 0o010), (4, 0o755)] {
            let path = folders[index].join(WORKER);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        let found = program_in(folders.iter().cloned());
        let none = program_in(folders[..3].iter().cloned());
        assert_eq!((found, none), (Some(folders[3].join(WORKER)), None));
    }

    #[test]
    fn a_program_is_found_or_said_to_be_missing() {
        match find_program() {
            Ok(path) => assert!(path.ends_with(WORKER) && path.is_file(), "{}", path.display()),
            Err(why) => assert!(why.contains(WORKER), "{why}"),
        }
    }

    #[test]
    fn workers_share_what_memory_there_is() {
        let of = |workers: Workers| {
            let options = DiscoverOptions::default().offload(workers.program("/nowhere"));
            Candidates::find(&options).memory_bytes(&options)
        };
        let all = of(Workers::new(1));
        assert_eq!(all, default_memory());
        assert_eq!([0, 2, 8].map(|workers| of(Workers::new(workers))), [all, all / 2, all / 8]);
        assert_eq!(of(Workers::new(8).memory(4096)), 4096, "each, as was said");
    }

    #[test]
    fn no_core_is_beyond_what_the_system_can_tell_of() {
        for core in [rustix::thread::CpuSet::MAX_CPU as u32, u32::MAX] {
            let told = pins(
                "offload:0",
                &DiscoverOptions::default().offload(Workers::new(1).pin("offload:0", [core])),
            );
            assert!(matches!(told, Err(DiscoverError::BadPin { .. })), "{told:?}");
        }
    }

    #[test]
    fn workers_are_called_by_their_backend_and_number() {
        let options = DiscoverOptions::default().offload(Workers::new(3).program("/nowhere"));
        let candidates = Candidates::find(&options);
        assert_eq!(
            (candidates.name(), candidates.devices()),
            ("offload", vec![name_of(0), name_of(1), name_of(2)])
        );
        assert_eq!(name_of(7), "offload:7");
        let many = DiscoverOptions::default().offload(Workers::new(u32::MAX).program("/nowhere"));
        assert_eq!(Candidates::find(&many).devices().len(), MAX_ARENAS);
    }
}
