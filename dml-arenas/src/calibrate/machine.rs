//! What a measurement must know of the machine: how large its caches are, and how much memory is free.

use std::fs;
use std::path::Path;

/// The size of the last-level cache of a machine that does not tell it, in bytes.
const DEFAULT_CACHE_BYTES: u64 = 32 << 20;
/// The free memory of a machine that does not tell it, in bytes.
const DEFAULT_FREE_BYTES: u64 = 1 << 30;
/// Where Linux describes the caches of the first core.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";
/// Where Linux keeps the limits of this process's control group.
const CONTROL_GROUP: &str = "/sys/fs/cgroup";

/// The figures of the machine that a measurement depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The size of the last-level cache, in bytes.
    pub(super) cache_bytes: u64,
    /// The memory that can be allocated without harm to others, in bytes.
    pub(super) free_bytes: u64,
}

impl Machine {
    /// Asks the operating system, and takes defaults for what it does not tell.
    pub(super) fn here() -> Self {
        let available = fs::read_to_string("/proc/meminfo").ok().and_then(|text| available_bytes(&text));
        let machine = available.unwrap_or(DEFAULT_FREE_BYTES);
        let group = free_of_group(Path::new(CONTROL_GROUP)).unwrap_or(u64::MAX);
        let cache_bytes = last_level_bytes(Path::new(CACHES)).unwrap_or(DEFAULT_CACHE_BYTES);
        Self { cache_bytes, free_bytes: machine.min(group) }
    }
}

/// Returns the size of the largest cache that a folder describes, in bytes.
fn last_level_bytes(folder: &Path) -> Option<u64> {
    let entries = fs::read_dir(folder).ok()?;
    let sizes = entries.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("size")).ok());
    sizes.filter_map(|text| size_bytes(&text)).max()
}

/// Returns the bytes of a size such as `32768K`.
fn size_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit_bytes) = match text.strip_suffix(['K', 'M', 'G']) {
        Some(number) if text.ends_with('K') => (number, 1 << 10),
        Some(number) if text.ends_with('M') => (number, 1 << 20),
        Some(number) => (number, 1 << 30),
        None => (text, 1),
    };
    number.parse::<u64>().ok()?.checked_mul(unit_bytes).filter(|bytes| *bytes > 0)
}

/// Returns the available memory that `/proc/meminfo` tells, in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1 << 10)
}

/// Returns what the control group of a folder may still allocate, in bytes, if it has a limit.
fn free_of_group(folder: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(folder.join(name)).ok()?.trim().parse::<u64>().ok();
    Some(read("memory.max")?.saturating_sub(read("memory.current")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    #[test]
    fn sizes_of_caches_parse() {
        assert_eq!(size_bytes("32768K\n"), Some(32 << 20));
        assert_eq!(size_bytes("3M"), Some(3 << 20));
        assert_eq!(size_bytes("2G"), Some(2 << 30));
        assert_eq!(size_bytes("512"), Some(512));
        for wrong in ["", "K", "0K", "-1K", "many", "99999999999999999999K"] {
            assert_eq!(size_bytes(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn the_available_memory_is_found() {
        let meminfo = "MemTotal:       24684000 kB\nMemFree:  1 kB\nMemAvailable:   23911440 kB\n";
        assert_eq!(available_bytes(meminfo), Some(23_911_440 << 10));
        assert_eq!(available_bytes("MemTotal: 1 kB\n"), None);
    }

    /// Makes a folder with these files, which goes when it is dropped.
    fn folder(files: &[(&str, &str)]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let path = folder.path().join(file);
            fs::create_dir_all(path.parent().expect("in the folder")).unwrap();
            fs::write(path, text).unwrap();
        }
        folder
    }

    #[test]
    fn the_largest_cache_counts() {
        let sizes = [
            ("index0/size", "48K\n"),
            ("index2/size", "1M\n"),
            ("index3/size", "512K\n"),
            ("index4/level", "9"),
        ];
        assert_eq!(last_level_bytes(folder(&sizes).path()), Some(1 << 20));
        assert_eq!(last_level_bytes(folder(&[("index0/level", "9")]).path()), None);
    }

    #[test]
    fn a_group_may_have_what_it_does_not_have_yet() {
        let free = |max: &str, current: &str| {
            free_of_group(folder(&[("memory.max", max), ("memory.current", current)]).path())
        };
        assert_eq!(free("1000\n", "300\n"), Some(700));
        assert_eq!(free("1000\n", "1001\n"), Some(0));
        assert_eq!(free("max\n", "300\n"), None, "it has no limit");
    }

    #[test]
    fn a_machine_that_tells_nothing_has_defaults() {
        let nowhere = Path::new("/nonexistent");
        assert_eq!((last_level_bytes(nowhere), free_of_group(nowhere)), (None, None));
        let here = Machine::here();
        assert!(here.cache_bytes > 0 && here.free_bytes > 0);
    }
}
