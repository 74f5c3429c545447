//! The devices that a benchmark uses, and how devices on the same cores share them.

use crate::cli::{MachineOptions, Memory};
use crate::failure::Failure;
use crate::json;
use crate::speeds::Cache;
use dml::arenas::DiscoverError;
use dml::core::{ArenaKind, DeviceId, DeviceKind, Unavailable};
use dml::prelude::*;

/// A platform with all limits applied, and the devices to use on it.
pub(crate) struct Machine {
    pub(crate) platform: Platform,
    pub(crate) devices: Vec<DeviceId>,
    /// Note to the user about shared cores and devices left out.
    pub(crate) note: Option<String>,
    /// The origin of the link prices.
    pub(crate) link_prices: json::LinkPrices,
    /// The backends and devices that are unavailable, with reasons.
    pub(crate) unavailable: Vec<Unavailable>,
}

impl Machine {
    /// Opens the devices that the options name, or all devices of the machine.
    ///
    /// # Errors
    /// A device or limit is unavailable.
    pub(crate) fn of(options: &MachineOptions) -> Result<Self, Failure> {
        let cache = Cache::open();
        let mut wanted = options.workers.discover_options().calibration(cache.source());
        if !options.devices.is_empty() {
            wanted = wanted.only(&options.devices);
        }
        for limit in &options.limit {
            wanted = wanted.limit(&limit.device, limit.value);
        }
        if options.memory == Memory::Auto {
            wanted = wanted.sharing(Sharing::in_place());
        }
        let mut platform = discover(&wanted)?;
        if let Some(limit_bytes) = options.pinned.pinned {
            (wanted, platform) = page_locked(wanted, platform, limit_bytes)?;
        }
        let is_locked = options.pinned.pinned.is_some() && has_gpu(&platform);
        let mut unavailable = platform.unavailable().to_vec();
        unavailable.retain(|missing| missing.backend != CALIBRATION);
        let mut names = match options.devices.is_empty() {
            true => {
                let all = platform.devices().iter().map(|device| device.name.to_string());
                // Other devices cannot use page-locked memory in place.
                all.filter(|name| !is_locked || options.memory != Memory::Bound || uses_locked(name))
                    .collect()
            }
            false => options.devices.clone(),
        };
        if let Some(index) = (1..names.len()).find(|&index| names[..index].contains(&names[index])) {
            return Err(Failure::Usage(format!("device {} is named twice", names[index])));
        }
        for worker in (0..options.workers.offload.unwrap_or(0)).map(|number| format!("offload:{number}")) {
            // If devices are named, workers that are not among them need not start.
            if options.devices.is_empty() && !names.contains(&worker) {
                let why: Vec<_> = unavailable.iter().map(ToString::to_string).collect();
                return Err(Failure::Usage(format!("{worker} is unavailable: {}", why.join("; "))));
            }
        }
        let shares = Shares::of(&on_cores(&platform, &names, options), cores(), !options.devices.is_empty());
        let note = shares.as_ref().map(Shares::to_string);
        if let Some(shares) = &shares {
            names.retain(|name| !shares.left_out.contains(name));
            for (name, units) in &shares.given {
                wanted = wanted.limit(name, *units);
            }
        }
        if options.memory == Memory::Bound {
            let sharing = match options.pinned.pinned.filter(|_| is_locked) {
                Some(limit_bytes) => bound_to_locked(limit_bytes, &names)?,
                None => {
                    check_unbound(&names)?;
                    bound(&names)
                }
            };
            wanted = wanted.sharing(sharing);
        }
        if shares.is_some() || options.memory == Memory::Bound {
            // Ends the workers before the next discovery starts new ones.
            drop(platform);
            platform = discover(&wanted.only(&names))?;
        }
        let devices = names
            .iter()
            .map(|name| platform.device(name).map_err(Failure::usage))
            .collect::<Result<_, _>>()?;
        let link_prices = link_prices(cache, &platform);
        let machine = Self { platform, devices, note, link_prices, unavailable };
        machine.check_used(options.limit.iter().map(|limit| &*limit.device))?;
        Ok(machine)
    }

    /// Checks that all named devices are used.
    pub(crate) fn check_used<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> Result<(), Failure> {
        let used = || self.devices.iter().map(|device| &*self.platform.device_desc(*device).name);
        let Some(name) = names.find(|name| used().all(|used| used != *name)) else { return Ok(()) };
        let used = used().collect::<Vec<_>>().join(", ");
        Err(Failure::Usage(format!("device {name} is not used; the devices are {used}")))
    }
}

/// Discovers the requested devices. The error of a missing device names what its backend lacks.
pub(crate) fn discover(options: &DiscoverOptions) -> Result<Platform, Failure> {
    let builder = Platform::builder().discover_with(options).map_err(not_found)?;
    builder.build().map_err(Failure::work)
}

/// Converts a discovery error. Adds the reason from a missing device's backend.
pub(crate) fn not_found(error: DiscoverError) -> Failure {
    let backend = match &error {
        DiscoverError::UnknownDevice { name, .. } => name.split(':').next().map(str::to_owned),
        _ => None,
    };
    let plain = DiscoverOptions::default().only(["cpu"]).offload(0);
    let found = Platform::builder().discover_with(&plain).ok().and_then(|builder| builder.build().ok());
    let missing = found.iter().flat_map(|platform| platform.unavailable());
    match missing.into_iter().find(|missing| Some(missing.backend) == backend.as_deref()) {
        Some(missing) => Failure::Usage(format!("{error}; {missing}")),
        None => Failure::usage(error),
    }
}

/// Discovers again with page-locked buffers of main memory if the platform has a CUDA GPU. Otherwise prints a
/// note. Returns the options and the platform.
pub(crate) fn page_locked(
    wanted: DiscoverOptions,
    platform: Platform,
    limit_bytes: u64,
) -> Result<(DiscoverOptions, Platform), Failure> {
    if !has_gpu(&platform) {
        eprintln!("dml: {}", no_gpu(&platform));
        return Ok((wanted, platform));
    }
    let wanted = wanted.sharing(Sharing::page_locked(limit_bytes));
    // Ends the workers before the next discovery starts new ones.
    drop(platform);
    let platform = discover(&wanted)?;
    Ok((wanted, platform))
}

/// Returns whether a CUDA GPU is open.
fn has_gpu(platform: &Platform) -> bool {
    platform.arenas().iter().any(|arena| arena.desc().kind == ArenaKind("cuda"))
}

/// Returns the note that `--pinned` has no effect, with the reason.
pub(crate) fn no_gpu(platform: &Platform) -> String {
    let missing = platform.unavailable().iter().find(|missing| missing.backend == "cuda");
    let why =
        missing.map_or_else(|| "none is among the devices".to_owned(), |missing| missing.reason.clone());
    format!("--pinned has no effect without a CUDA GPU: {why}")
}

/// Returns the maximum number of bytes of page-locked memory, or `None` if main memory is not page-locked.
pub(crate) fn pinned_bytes(platform: &Platform) -> Option<u64> {
    let pinned = platform.arenas().iter().find(|arena| &*arena.desc().name == "cuda_pinned")?;
    pinned.downcast_ref().map(dml::arenas::HostArena::capacity_bytes)
}

/// Makes the memories of these devices share one storage: shared memory if there are workers, otherwise main
/// memory.
fn bound(names: &[String]) -> Sharing {
    let of = |kind: &'static str| names.iter().filter(move |name| name.starts_with(kind)).cloned();
    if of("offload:").next().is_none() {
        return of("opencl:").fold(Sharing::default(), Sharing::bind);
    }
    Sharing::memory(["cpu".to_owned()].into_iter().chain(of("offload:")).chain(of("opencl:")))
}

/// Checks that no device needs page-locked memory to be bound.
fn check_unbound(names: &[String]) -> Result<(), Failure> {
    if let Some(name) = names.iter().find(|name| name.starts_with("cuda:")) {
        let why = "can be bound only to page-locked memory: set its size with --pinned, or omit the device with --devices";
        return Err(Failure::Usage(format!("--memory bound: {name} {why}")));
    }
    Ok(())
}

/// Returns whether a device can use CUDA's page-locked memory in place.
fn uses_locked(name: &str) -> bool {
    name == "cpu" || name.starts_with("cuda:")
}

/// Binds CUDA GPUs to page-locked main memory, which they use in place.
fn bound_to_locked(limit_bytes: u64, names: &[String]) -> Result<Sharing, Failure> {
    if let Some(name) = names.iter().find(|name| !uses_locked(name)) {
        let why = "does not use CUDA's page-locked memory in place: name only cpu and CUDA GPUs";
        return Err(Failure::Usage(format!("--pinned with --memory bound: {name} {why}")));
    }
    let gpus = names.iter().filter(|name| *name != "cpu");
    Ok(gpus.fold(Sharing::page_locked(limit_bytes), Sharing::bind))
}

/// Backend name of discovery's notes about ignored calibrations.
const CALIBRATION: &str = "calibration";

fn link_prices(cache: Cache, platform: &Platform) -> json::LinkPrices {
    let (measured, guessed, measured_unix_s) = cache.known(platform);
    let ignored = platform.unavailable().iter().filter(|missing| missing.backend == CALIBRATION);
    let notes = cache.notes.into_iter().chain(ignored.map(|missing| missing.reason.clone())).collect();
    json::LinkPrices { measured, guessed, measured_unix_s, notes }
}

/// Returns the number of threads that this process may use at once.
fn cores() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// A device that computes on the processor's cores, and its limit, in units.
type OnCores = (String, Option<u32>);

fn on_cores(platform: &Platform, names: &[String], options: &MachineOptions) -> Vec<OnCores> {
    let is_on_cores = |name: &&String| {
        let device = platform.devices().iter().find(|device| *device.name == ***name);
        device.is_some_and(|device| device.kind == DeviceKind::Cpu)
    };
    names.iter().filter(is_on_cores).map(|name| (name.clone(), limit_of(name, options))).collect()
}

/// Returns a device's limit from the options, in units.
fn limit_of(name: &str, options: &MachineOptions) -> Option<u32> {
    let limit = options.limit.iter().rev().find(|limit| limit.device == name).map(|limit| limit.value);
    // A worker pinned to cores has one thread for each of them.
    let pins = options.workers.pin.iter().rev().find(|pin| pin.device == name);
    limit.or_else(|| pins.map(|pin| pin.value.count()))
}

/// How devices on the same cores share them.
#[derive(Debug, PartialEq, Eq)]
struct Shares {
    cores: u32,
    /// The units of the devices without a limit.
    given: Vec<(String, u32)>,
    /// Devices that the options do not name and for which there are too few cores.
    left_out: Vec<String>,
}

impl Shares {
    /// Divides the cores that limits leave evenly among the devices without a limit, at least a unit each.
    ///
    /// Unless the options name the devices, no more devices are used than cores. OpenCL devices are left out
    /// first, because the others compute on the same cores without a driver. Returns `None` if no two devices
    /// share cores, or all have limits.
    fn of(devices: &[OnCores], cores: u32, are_named: bool) -> Option<Self> {
        let (mut is_first, mut least, mut left_out) = (true, 0_u32, Vec::new());
        let (by_driver, others): (Vec<&OnCores>, Vec<&OnCores>) =
            devices.iter().partition(|device| device.0.starts_with("opencl:"));
        for (name, limit) in others.into_iter().chain(by_driver) {
            let more = least.saturating_add(limit.unwrap_or(1));
            if are_named || is_first || limit.is_some() || more <= cores {
                (is_first, least) = (false, more);
            } else {
                left_out.push(name.clone());
            }
        }
        let used: Vec<&OnCores> = devices.iter().filter(|(name, _)| !left_out.contains(name)).collect();
        let without: Vec<_> = used.iter().filter(|(_, limit)| limit.is_none()).collect();
        if left_out.is_empty() && (used.len() < 2 || without.is_empty()) {
            return None;
        }
        let limited: u32 = used.iter().filter_map(|(_, limit)| *limit).fold(0, u32::saturating_add);
        let (free, sharers) = (cores.saturating_sub(limited), without.len() as u32);
        let share = |index: u32| (free / sharers.max(1) + u32::from(index < free % sharers.max(1))).max(1);
        let given = (0..).zip(without).map(|(index, (name, _))| (name.clone(), share(index))).collect();
        Some(Self { cores, given, left_out })
    }
}

impl std::fmt::Display for Shares {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let given: Vec<_> = self.given.iter().map(|(name, units)| format!("{name}={units}")).collect();
        let cores = self.cores;
        write!(
            f,
            "devices on the same {cores} cores share them: {} (--limit overrides this)",
            given.join(", ")
        )?;
        if !self.left_out.is_empty() {
            write!(f, "; too few cores for {} (--devices overrides this)", self.left_out.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command};
    use clap::Parser;
    use dml::arenas::{MainMem, Null};
    use dml::core::{ArenaDesc, DeviceDesc};
    use std::sync::Arc;

    fn shares(cores: u32, are_named: bool, devices: &[(&str, Option<u32>)]) -> Option<(Vec<u32>, usize)> {
        let devices: Vec<_> = devices.iter().map(|(name, limit)| ((*name).to_owned(), *limit)).collect();
        let shares = Shares::of(&devices, cores, are_named)?;
        Some((shares.given.iter().map(|(_, units)| *units).collect(), shares.left_out.len()))
    }

    fn options(arguments: &[&str]) -> MachineOptions {
        let arguments = ["dml", "bench", "saxpy"].iter().chain(arguments);
        let Command::Bench(command) = Arguments::parse_from(arguments).command else { unreachable!() };
        command.options.machine
    }

    /// A platform with the processor, a memory of this kind, and unavailable backends.
    fn platform(kind: &'static str, missing: &[(&'static str, &str)]) -> Platform {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        builder.add_arena(Arc::new(MainMem::new(DeviceId(0))));
        builder.add_arena(Arc::new(Null::backed(ArenaDesc::store("another", ArenaKind(kind)))));
        for (backend, reason) in missing {
            builder.add_unavailable(Unavailable { backend, reason: (*reason).to_owned() });
        }
        builder.build().expect("it has all that it needs")
    }

    #[test]
    fn a_gpu_is_known_by_its_memory() {
        assert!(has_gpu(&platform("cuda", &[])));
        assert!(!has_gpu(&platform("opencl", &[])));
        assert_eq!(pinned_bytes(&platform("cuda", &[])), None, "none of it is page-locked");
    }

    #[test]
    fn why_there_is_no_gpu_is_what_its_backend_says() {
        let missing = [("opencl", "no loader"), ("cuda", "no driver"), ("offload", "no worker")];
        let told = no_gpu(&platform("opencl", &missing));
        assert_eq!(told, "--pinned has no effect without a CUDA GPU: no driver");
        let told = no_gpu(&platform("opencl", &missing[..1]));
        assert_eq!(told, "--pinned has no effect without a CUDA GPU: none is among the devices");
    }

    /// The error of a missing device contains its backend's reason, and no other backend's.
    #[test]
    fn a_missing_device_is_told_with_what_its_backend_lacks() {
        let plain = discover(&DiscoverOptions::default().only(["cpu"]).offload(0)).expect("a processor");
        let known = || vec!["cpu".to_owned()];
        for backend in ["cuda", "opencl", "tpu"] {
            let error = DiscoverError::UnknownDevice { name: format!("{backend}:99"), known: known() };
            let Failure::Usage(told) = not_found(error) else { panic!("{backend} is asked for wrongly") };
            assert!(told.contains(&format!("unknown device {backend}:99")), "{told}");
            for missing in plain.unavailable() {
                assert_eq!(told.contains(&missing.reason), missing.backend == backend, "{told}");
            }
        }
    }

    /// The notes contain ignored calibrations, and no other unavailable backends.
    #[test]
    fn links_are_priced_with_the_notes_on_their_speeds() {
        let cache = Cache::with_notes(["the file is old"]);
        let missing = [("cuda", "no driver"), (CALIBRATION, "another machine's"), ("opencl", "no loader")];
        let json::LinkPrices { measured, guessed, measured_unix_s, notes } =
            link_prices(cache, &platform("test", &missing));
        assert_eq!(notes, ["the file is old", "another machine's"]);
        assert_eq!((measured, guessed > 0, measured_unix_s), (0, true, None));
    }

    /// Workers cannot share page-locked memory. Otherwise `--pinned` is optional, and so are workers beside
    /// named devices.
    #[test]
    fn wishes_that_nobody_uses_are_no_failures() {
        let told = |arguments: &[&str]| {
            let cpu = ["--devices", "cpu", "--limit", "cpu=1"];
            Machine::of(&options(&[&cpu, arguments].concat())).map(|machine| machine.devices.len())
        };
        let pinned = ["--pinned", "1M"];
        let both = ["--pinned", "1M", "--memory", "bound"];
        for allowed in [&pinned[..], &both, &["--memory", "bound"], &["--offload", "2"]] {
            assert!(matches!(told(allowed), Ok(1)), "{allowed:?}");
        }
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let refused = bound_to_locked(1, &names(&["cpu", "cuda:0", "offload:0"]));
        let Err(Failure::Usage(told)) = refused else { panic!("{refused:?}") };
        assert!(told.starts_with("--pinned with --memory bound: offload:0 does not"), "{told}");
        let bound = bound_to_locked(1, &names(&["cpu", "cuda:0", "cuda:1"])).unwrap();
        assert_eq!(bound, Sharing::page_locked(1).bind("cuda:0").bind("cuda:1"));
    }

    #[test]
    fn who_shares_cores_and_who_has_none_is_said() {
        let given = vec![("cpu".to_owned(), 3), ("opencl:0".to_owned(), 1)];
        let all = Shares { cores: 4, given, left_out: Vec::new() };
        let text = "devices on the same 4 cores share them: cpu=3, opencl:0=1 (--limit overrides this)";
        assert_eq!(all.to_string(), text);
        let some = Shares { left_out: vec!["offload:0".to_owned(), "offload:1".to_owned()], ..all };
        let left_out = "; too few cores for offload:0, offload:1 (--devices overrides this)";
        assert_eq!(some.to_string(), format!("{text}{left_out}"));
    }

    /// A pin counts as a limit, an explicit limit overrides it, and the last of each applies.
    #[test]
    fn pins_and_limits_are_those_of_their_device() {
        let given = options(&[
            "--pin",
            "offload:0=0,2-3",
            "--pin",
            "offload:1=1",
            "--limit",
            "cpu=5",
            "--limit",
            "cpu=7",
            "--pin",
            "cpu=0",
        ]);
        let limits = ["offload:0", "offload:1", "cpu", "opencl:0"].map(|name| limit_of(name, &given));
        assert_eq!(limits, [Some(3), Some(1), Some(7), None]);
    }

    #[test]
    fn what_is_bound_depends_on_the_workers() {
        let bound = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_owned()).collect();
            bound(&names)
        };
        assert_eq!(bound(&["cpu"]), Sharing::default());
        assert_eq!(bound(&["cpu", "opencl:0", "opencl:1"]), Sharing::bound("opencl:0").bind("opencl:1"));
        let shared = Sharing::memory(["cpu", "offload:0", "opencl:0"]);
        assert_eq!(bound(&["opencl:0", "offload:0"]), shared, "the host shares, used or not");
    }

    const THREE: [(&str, Option<u32>); 3] = [("cpu", None), ("opencl:0", None), ("offload:0", None)];

    #[test]
    fn cores_are_divided_evenly() {
        assert_eq!(shares(2, false, &THREE[..2]), Some((vec![1, 1], 0)));
        assert_eq!(shares(8, false, &THREE), Some((vec![3, 3, 2], 0)));
        assert_eq!(
            shares(7, false, &[("cpu", Some(4)), ("opencl:0", None), ("offload:0", None)]),
            Some((vec![2, 1], 0))
        );
        assert_eq!(shares(4, false, &THREE[..1]), None);
        assert_eq!(shares(4, false, &[("cpu", Some(1)), ("offload:0", Some(4))]), None);
    }

    /// The processor and the workers compute on the same cores without a driver.
    #[test]
    fn opencl_devices_go_first_where_cores_are_too_few() {
        let of = |cores, names: &[&str]| {
            let devices: Vec<_> = names.iter().map(|name| ((*name).to_owned(), None)).collect();
            let shares = Shares::of(&devices, cores, false).unwrap();
            let given: Vec<_> = shares.given.into_iter().map(|(name, _)| name).collect();
            (given.join(" "), shares.left_out.join(" "))
        };
        let told = |given: &str, left_out: &str| (given.to_owned(), left_out.to_owned());
        assert_eq!(of(2, &["cpu", "opencl:0", "offload:0"]), told("cpu offload:0", "opencl:0"));
        assert_eq!(of(2, &["opencl:0", "opencl:1", "cpu"]), told("opencl:0 cpu", "opencl:1"));
        assert_eq!(
            of(3, &["cpu", "opencl:0", "offload:0", "offload:1"]),
            told("cpu offload:0 offload:1", "opencl:0")
        );
    }

    #[test]
    fn no_more_units_than_cores_unless_devices_are_named() {
        assert_eq!(shares(2, false, &THREE), Some((vec![1, 1], 1)));
        assert_eq!(shares(2, true, &THREE), Some((vec![1, 1, 1], 0)));
        assert_eq!(shares(3, false, &THREE), Some((vec![1, 1, 1], 0)));
        // A device with a limit always takes part.
        assert_eq!(
            shares(2, false, &[("cpu", Some(2)), ("opencl:0", Some(1)), ("offload:0", None)]),
            Some((vec![], 1))
        );
        assert_eq!(shares(1, false, &THREE), Some((vec![1], 2)));
        assert_eq!(shares(1, true, &THREE), Some((vec![1, 1, 1], 0)));
        for cores in 1..20 {
            for count in 1..30 {
                let names: Vec<String> = (0..count).map(|index| format!("offload:{index}")).collect();
                let devices: Vec<_> = names.iter().map(|name| (name.as_str(), None)).collect();
                if let Some((given, left_out)) = shares(cores, false, &devices) {
                    assert!(given.iter().sum::<u32>() <= cores, "{cores} cores, {count} devices: {given:?}");
                    assert_eq!(given.len() + left_out, count);
                }
            }
        }
    }
}
