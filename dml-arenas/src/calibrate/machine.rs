//! The properties of the machine that a measurement depends on: the size of its caches and its free memory.

use crate::machine_memory;
use std::fs;
use std::path::Path;

/// Assumed size of the last-level cache if the machine does not report it, in bytes.
const DEFAULT_CACHE_BYTES: u64 = 32 << 20;
/// Assumed free memory if the machine does not report it, in bytes.
const DEFAULT_FREE_BYTES: u64 = 1 << 30;
/// The folder in which Linux describes the caches of the first core.
const CACHES: &str = "/sys/devices/system/cpu/cpu0/cache";

/// The properties of the machine that a measurement depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Machine {
    /// The size of the last-level cache, in bytes.
    pub(super) cache_bytes: u64,
    /// Memory that can be allocated without starving other processes, in bytes.
    pub(super) free_bytes: u64,
}

impl Machine {
    /// Queries the operating system. What it does not report gets a default.
    pub(super) fn here() -> Self {
        let cache_bytes = last_level_bytes(Path::new(CACHES)).unwrap_or(DEFAULT_CACHE_BYTES);
        Self { cache_bytes, free_bytes: machine_memory::free_bytes().unwrap_or(DEFAULT_FREE_BYTES) }
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

    /// Creates a temporary folder with these files.
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
    fn a_machine_that_tells_nothing_has_defaults() {
        let nowhere = Path::new("/nonexistent");
        assert_eq!(last_level_bytes(nowhere), None);
        let here = Machine::here();
        assert!(here.cache_bytes > 0 && here.free_bytes > 0);
    }
}
