//! RAPL counters from the powercap framework of Linux: a folder for each zone, with files in it.
//!
//! ```text
//!  intel-rapl:0      name package-0    counted
//!  intel-rapl:0:0    name core         a part of its package
//!  intel-rapl:0:1    name dram         counted: the memory lies outside of the package
//!  intel-rapl:1      name psys         the whole platform, packages included
//!  intel-rapl-mmio:0 name package-0    the same package through another interface
//! ```
//! AMD's processors appear under the same names.

use crate::{EnergyCounter, EnergyError};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Update interval of a processor's counters.
const STEP: Duration = Duration::from_millis(1);
/// Maximum size of a counter's file, in bytes.
const LARGEST_FILE_BYTES: u64 = 4096;
/// Prefix of the folder name of a zone.
const PREFIX: &str = "intel-rapl:";

/// A zone whose energy counts.
#[derive(Debug)]
struct Zone {
    name: String,
    folder: PathBuf,
    range_uj: Option<u64>,
}

impl EnergyCounter for Zone {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn read_uj(&self) -> Result<u64, String> {
        number(&self.folder.join("energy_uj"))
    }

    fn range_uj(&self) -> Option<u64> {
        self.range_uj
    }

    fn step(&self) -> Duration {
        STEP
    }
}

/// Returns the counters of the packages and of their memory, in the order of their zones' numbers.
pub(super) fn counters(root: &Path) -> Result<Vec<Arc<dyn EnergyCounter>>, EnergyError> {
    let none = |reason: String| EnergyError::NoPackages { folder: root.to_owned(), reason };
    let mut found = Vec::new();
    for entry in fs::read_dir(root).map_err(|error| none(why(&error)))? {
        let entry = entry.map_err(|error| none(why(&error)))?;
        if let Some(numbers) = numbers(&entry.file_name().to_string_lossy()) {
            let name = text(&entry.path().join("name")).map_err(&none)?;
            found.push((numbers, name, entry.path()));
        }
    }
    found.sort();
    let package = |of: u64| {
        let is_it = |(numbers, ..): &&(Vec<u64>, _, _)| **numbers == [of];
        found.iter().find(is_it).map_or_else(|| format!("zone {of}"), |(_, name, _)| name.clone())
    };
    let mut counters: Vec<Arc<dyn EnergyCounter>> = Vec::new();
    for (numbers, name, folder) in &found {
        let name = match numbers[..] {
            [_] if name.starts_with("package") => name.clone(),
            [of, _] if name == "dram" => format!("dram of {}", package(of)),
            _ => continue,
        };
        // A counter without a range is accepted until it decreases.
        let range_uj = number(&folder.join("max_energy_range_uj")).ok();
        counters.push(Arc::new(Zone { name, folder: folder.clone(), range_uj }));
    }
    if counters.is_empty() { Err(none("it has no zone of a package".to_owned())) } else { Ok(counters) }
}

/// Returns the numbers of a zone: its package's number, and its own within the package. Returns `None` for
/// other folders.
fn numbers(folder: &str) -> Option<Vec<u64>> {
    folder.strip_prefix(PREFIX)?.split(':').map(|number| number.parse().ok()).collect()
}

fn text(file: &Path) -> Result<String, String> {
    let read = || {
        // Reading a pipe or a device might never end.
        if !fs::metadata(file)?.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
        }
        let mut bytes = Vec::new();
        fs::File::open(file)?.take(LARGEST_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error| format!("{}: {}", file.display(), why(&error)))?;
    Ok(String::from_utf8_lossy(&bytes).trim().to_owned())
}

fn number(file: &Path) -> Result<u64, String> {
    let text = text(file)?;
    text.parse().map_err(|_| format!("{}: {text:?} is no number", file.display()))
}

/// Returns why a file or folder cannot be read, and what to do about it.
fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "permission denied: by default, only root can read it; root can let others read it".to_owned()
        }
        io::ErrorKind::NotFound => "there is no such file or folder".to_owned(),
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_known_by_their_numbers() {
        assert_eq!(numbers("intel-rapl:0"), Some(vec![0]));
        assert_eq!(numbers("intel-rapl:12:3"), Some(vec![12, 3]));
        for other in ["intel-rapl", "intel-rapl-mmio:0", "intel-rapl:x", "dtpm", "intel-rapl:0:"] {
            assert_eq!(numbers(other), None, "{other}");
        }
    }

    #[test]
    fn a_file_of_root_alone_is_told_as_such() {
        assert!(why(&io::Error::from(io::ErrorKind::PermissionDenied)).contains("only root"));
        assert!(why(&io::Error::from(io::ErrorKind::NotFound)).contains("no such"));
    }
}
