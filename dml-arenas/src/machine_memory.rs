//! The memory that this process may use: that of the machine, or less if a control group limits it.
//!
//! ```text
//!   /proc/self/mountinfo ─┐
//!   /proc/self/cgroup ────┴─▶ folders of the group and its ancestors ─▶ the lowest of their limits
//! ```
//! Version 1 of control groups has `memory.limit_in_bytes`, version 2 `memory.max`. A machine may have both
//! mounted.

use std::fs;
use std::path::{Path, PathBuf};

/// Assumed memory of a machine that does not report it, in bytes.
const UNKNOWN_BYTES: u64 = 2 << 30;

/// Returns the memory that this process may use, in bytes; a small default if the system does not report it.
#[must_use]
pub fn total_bytes() -> u64 {
    physical_bytes().unwrap_or(UNKNOWN_BYTES).min(Limits::here().total_bytes)
}

/// Returns the memory that can be allocated without starving other processes, in bytes, if the system reports
/// it.
#[cfg_attr(not(feature = "calibration"), allow(dead_code, reason = "measurements alone ask"))]
pub(crate) fn free_bytes() -> Option<u64> {
    let machine = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text))?;
    Some(machine.min(Limits::here().free_bytes))
}

fn physical_bytes() -> Option<u64> {
    #[cfg(target_os = "linux")]
    // SAFETY: these calls only read values of the system.
    let (pages, page_bytes) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    #[cfg(not(target_os = "linux"))]
    let (pages, page_bytes) = (-1, -1);
    u64::try_from(pages).ok()?.checked_mul(u64::try_from(page_bytes).ok()?)
}

/// Returns the available memory in `/proc/meminfo`, in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// The limits of this process's control groups; `u64::MAX` without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    total_bytes: u64,
    free_bytes: u64,
}

impl Limits {
    fn here() -> Self {
        let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let groups = groups(&text("/proc/self/mountinfo"), &text("/proc/self/cgroup"));
        Self::of(&groups, |file| fs::read_to_string(file).ok())
    }

    /// Returns the lowest limits of some groups, whose files `read` reads.
    fn of(groups: &[Group], read: impl Fn(&Path) -> Option<String>) -> Self {
        let number = |group: &Group, name: &str| read(&group.folder.join(name))?.trim().parse::<u64>().ok();
        let mut limits = Self { total_bytes: u64::MAX, free_bytes: u64::MAX };
        for group in groups {
            let [limit, used, cached] = group.version.names();
            let Some(limit_bytes) = number(group, limit) else { continue };
            let stat = read(&group.folder.join("memory.stat")).unwrap_or_default();
            let mut stat = stat.lines().filter_map(|line| line.strip_prefix(cached)?.trim().parse().ok());
            // The kernel reclaims cached pages of files before it runs out of memory.
            let used_bytes = number(group, used).unwrap_or(0).saturating_sub(stat.next().unwrap_or(0));
            limits.total_bytes = limits.total_bytes.min(limit_bytes);
            limits.free_bytes = limits.free_bytes.min(limit_bytes.saturating_sub(used_bytes));
        }
        limits
    }
}

/// A version of control groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    /// Returns the names of the files with the limit and the usage, and the key of reclaimable file pages in
    /// `memory.stat`.
    const fn names(self) -> [&'static str; 3] {
        match self {
            Self::One => ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "],
            Self::Two => ["memory.max", "memory.current", "inactive_file "],
        }
    }
}

/// A control group whose limit applies to this process.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    version: Version,
    folder: PathBuf,
}

/// Returns the mounted groups of a process, from the contents of its `mountinfo` and `cgroup` files.
fn groups(mountinfo: &str, cgroup: &str) -> Vec<Group> {
    let mut groups = Vec::new();
    for line in mountinfo.lines() {
        // 36 35 98:0 ROOT MOUNT_POINT OPTIONS [OTHERS] - TYPE SOURCE OPTIONS
        let Some((mount, system)) = line.split_once(" - ") else { continue };
        let mut mount = mount.split(' ').skip(3);
        let (Some(root), Some(point)) = (mount.next(), mount.next()) else { continue };
        let system: Vec<&str> = system.split(' ').collect();
        let version = match system[..] {
            ["cgroup2", ..] => Version::Two,
            ["cgroup", _, options] if options.split(',').any(|option| option == "memory") => Version::One,
            _ => continue,
        };
        let Some(path) = path_of(version, cgroup) else { continue };
        let (root, point) = (plain(root), PathBuf::from(plain(point)));
        // A container may see only its own group, as the root of the mount.
        let below = Path::new(path).strip_prefix(&root).unwrap_or(Path::new(""));
        let own = point.join(below);
        let folders = own.ancestors().take_while(|folder| folder.starts_with(&point));
        groups.extend(folders.map(|folder| Group { version, folder: folder.to_owned() }));
    }
    groups
}

/// Returns the path of a process's group in the hierarchy that limits memory.
fn path_of(version: Version, cgroup: &str) -> Option<&str> {
    cgroup.lines().find_map(|line| {
        // NUMBER:CONTROLLERS:PATH
        let (number, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        let is_it = match version {
            Version::One => controllers.split(',').any(|controller| controller == "memory"),
            Version::Two => number == "0" && controllers.is_empty(),
        };
        is_it.then_some(path)
    })
}

/// Decodes a path of `mountinfo`, in which whitespace and backslashes are octal escapes.
fn plain(path: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .into_iter()
        .fold(path.to_owned(), |path, (octal, plain)| path.replace(octal, plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel reserves a part of the memory that it reports as physical.
    #[cfg(target_os = "linux")]
    #[test]
    fn the_machine_has_what_it_reports() {
        let info = fs::read_to_string("/proc/meminfo").unwrap();
        let total = info.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let total = total.unwrap().parse::<u64>().unwrap() << 10;
        assert!(physical_bytes().unwrap().abs_diff(total) <= total / 8);
        assert!(total_bytes() > 0 && total_bytes() <= physical_bytes().unwrap());
    }
    use std::collections::BTreeMap;

    #[test]
    fn the_available_memory_is_found() {
        let meminfo = "MemTotal:       24684000 kB\nMemFree:  1 kB\nMemAvailable:   23911440 kB\n";
        assert_eq!(available_bytes(meminfo), Some(23_911_440 << 10));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
    }

    /// Returns the limits of a process, from the contents of the system's files.
    fn limits(mountinfo: &str, cgroup: &str, files: &[(&str, &str)]) -> (u64, u64) {
        let files: BTreeMap<&Path, &str> =
            files.iter().map(|(file, text)| (Path::new(*file), *text)).collect();
        let read = |file: &Path| files.get(file).map(|text| format!("{text}\n"));
        let limits = Limits::of(&groups(mountinfo, cgroup), read);
        (limits.total_bytes, limits.free_bytes)
    }

    const TWO: &str = "\
        22 1 0:20 / /sys rw - sysfs sysfs rw\n\
        30 22 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";
    const ONE: &str = "\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    #[test]
    fn the_lowest_limit_up_the_path_counts_in_version_2() {
        let files = [
            ("/sys/fs/cgroup/a.slice/b.scope/memory.max", "max"),
            ("/sys/fs/cgroup/a.slice/b.scope/memory.current", "100"),
            ("/sys/fs/cgroup/a.slice/memory.max", "4000"),
            ("/sys/fs/cgroup/a.slice/memory.current", "3500"),
            ("/sys/fs/cgroup/memory.max", "9000"),
            ("/sys/fs/cgroup/other/memory.max", "7"),
        ];
        assert_eq!(limits(TWO, "0::/a.slice/b.scope\n", &files), (4000, 500));
        assert_eq!(limits(TWO, "0::/\n", &files), (9000, 9000), "the usage is unknown");
        assert_eq!(limits(TWO, "0::/a.slice/b.scope/gone\n", &files), (4000, 500));
        let cached =
            [&files[..], &[("/sys/fs/cgroup/a.slice/memory.stat", "anon 9\ninactive_file 1300\nfile 7")]]
                .concat();
        assert_eq!(limits(TWO, "0::/a.slice\n", &cached), (4000, 1800));
        // The group with the least free memory need not have the lowest limit.
        let full = [&files[..], &[("/sys/fs/cgroup/memory.current", "8999")]].concat();
        assert_eq!(limits(TWO, "0::/a.slice\n", &full), (4000, 1));
    }

    #[test]
    fn the_lowest_limit_up_the_path_counts_in_version_1() {
        let cgroup = "9:name=systemd:/\n4:cpu,memory:/job/step\n0::/elsewhere\n";
        let files = [
            ("/sys/fs/cgroup/memory/job/step/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/job/step/memory.usage_in_bytes", "11"),
            ("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000"),
            ("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000"),
            ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
            ("/sys/fs/cgroup/memory/job/memory.max", "7"),
        ];
        assert_eq!(limits(ONE, cgroup, &files), (5000, 0));
        // The other hierarchy has a limit as well.
        let both = [&files[..], &[("/sys/fs/cgroup/unified/elsewhere/memory.max", "300")]].concat();
        assert_eq!(limits(ONE, cgroup, &both).0, 300);
    }

    #[test]
    fn a_container_sees_its_own_group_as_the_root() {
        let files = [("/my cgroup/memory.limit_in_bytes", "77"), ("/my cgroup/memory.usage_in_bytes", "7")];
        let mounted = |root: &str| format!("35 31 0:32 {root} /my\\040cgroup rw - cgroup cgroup rw,memory\n");
        assert_eq!(limits(&mounted("/docker/1"), "4:memory:/docker/1\n", &files), (77, 70));
        assert_eq!(limits(&mounted("/docker/1"), "4:memory:/../other\n", &files), (77, 70));
        assert_eq!(limits(&mounted("/"), "4:memory:/docker/1\n", &files), (77, 70));
    }

    #[test]
    fn a_system_that_tells_nothing_has_no_limit() {
        for (mountinfo, cgroup) in [("", ""), (TWO, ""), ("", "0::/\n"), ("a b\n - \n", "0\n4:memory\n")] {
            assert_eq!(limits(mountinfo, cgroup, &[("/memory.max", "1")]), (u64::MAX, u64::MAX));
        }
        let unreadable = [("/sys/fs/cgroup/memory.max", "-5")];
        assert_eq!(limits(TWO, "0::/\n", &unreadable), (u64::MAX, u64::MAX));
        assert!(total_bytes() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn there_is_no_more_memory_than_the_machine_has() {
        let told = fs::read_to_string("/proc/meminfo").unwrap();
        let total = told.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
        let machine_bytes = total.unwrap().parse::<u64>().unwrap() << 10;
        // The two figures have different granularities.
        let expected = machine_bytes.min(Limits::here().total_bytes);
        assert!(total_bytes().abs_diff(expected) < 1 << 20, "{} and {expected}", total_bytes());
        assert!(free_bytes().is_some_and(|free| free <= machine_bytes));
    }
}
