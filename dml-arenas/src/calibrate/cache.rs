//! Measured figures that outlive the process: one file for each machine, in the user's cache folder.
//!
//! ```text
//!   measure ──▶ Calibration ──store──▶ ~/.cache/dml/links-<digest of the machine>.json
//!                    ▲                            │
//!                    └───────────load─────────────┘  or why the file is ignored
//!   PlatformBuilder ◀──price── Calibration
//! ```
//!
//! 1. Nothing here measures, and only [`Calibration::store`] writes.
//! 2. A reader sees a whole file or none, because a file is written under another name and then renamed.
//! 3. Figures are used only if everything that they depend on is unchanged: the machine for the file, the two
//!    ends for a link.

use super::Measured;
use super::fingerprint::{CalibratedLink, LinkEnd, MachineFingerprint};
use super::priced::{MapChanges, Priced};
use super::table::LinkTable;
use crate::files::{self, Source};
use dml_core::{ArenaDesc, ArenaId, DeviceDesc, Link, LinkId, Platform, PlatformBuilder};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use thiserror::Error;

/// Version of the file's format. Files of other versions are ignored.
pub const FORMAT: u32 = 1;
/// Maximum size of a file that is read, in bytes.
const LARGEST_FILE_BYTES: u64 = 4 << 20;
/// Maximum number of links that a file keeps. The oldest measurements are dropped first.
const MOST_LINKS: usize = 1024;

/// Measured figures of the links of one machine.
///
/// # Examples
/// ```
/// use dml_arenas::calibrate::{Calibration, measure};
/// use dml_arenas::{Discover, DiscoverOptions};
/// use dml_core::Platform;
///
/// let options = DiscoverOptions::default().only(["cpu"]);
/// let platform = Platform::builder().discover_with(&options)?.build()?;
/// let calibration = Calibration::of(&platform, &measure(&platform));
/// let mut builder = Platform::builder().discover_with(&options)?;
/// assert_eq!(calibration.price(&mut builder), 0, "main memory has no links");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    format: u32,
    machine: MachineFingerprint,
    links: Vec<CalibratedLink>,
}

/// The figures by which discovery prices links.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub enum CalibrationSource {
    /// Guesses that are the same on every machine. Plans then depend on the platform alone.
    #[default]
    Guesses,
    /// The figures in the user's cache folder, see [`Calibration::cache_file`]. Without a file, links are
    /// priced by guesses. If a file is ignored, the platform's list of what is unavailable has the reason.
    UserCache,
    /// The figures in this file, as for [`CalibrationSource::UserCache`].
    File(PathBuf),
    /// These figures.
    Figures(Calibration),
}

/// Why cached figures cannot be used or stored.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum CacheError {
    /// The user has no cache folder.
    #[error(
        "no folder to keep measured link speeds in: neither XDG_CACHE_HOME nor the home folder is an absolute path"
    )]
    NoFolder,
    /// The file exists and cannot be read.
    #[error("cannot read {}: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: String,
    },
    /// The file holds no figures, or impossible ones.
    #[error("{} is ignored: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// The file has another format.
    #[error("{} is ignored: it has format {found}, not {FORMAT}", path.display())]
    OtherFormat {
        /// The file.
        path: PathBuf,
        /// The format of the file.
        found: u32,
    },
    /// The figures belong to another machine.
    #[error("{} is ignored: it was measured on another machine ({found}), not on this one ({here})", path.display())]
    OtherMachine {
        /// The file.
        path: PathBuf,
        /// The machine of the file.
        found: Box<MachineFingerprint>,
        /// This machine.
        here: Box<MachineFingerprint>,
    },
    /// The file cannot be written.
    #[error("cannot write {}: {reason}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        reason: String,
    },
}

/// The part of a file that is the same in every format.
#[derive(Deserialize)]
struct Header {
    format: u32,
}

impl Calibration {
    /// Creates a calibration from measurements of this platform. Links that could not be measured are left
    /// out, and so are figures of arenas that the platform does not have.
    #[must_use]
    pub fn of(platform: &Platform, measured: &[Measured]) -> Self {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let is_there = |arena: &ArenaId| usize::from(arena.0) < platform.arenas().len();
        let end = |arena| {
            Some(arena)
                .filter(is_there)
                .and_then(|arena| LinkEnd::of(platform.devices(), platform.desc(arena)))
        };
        let link = |one: &Measured| {
            Some(CalibratedLink {
                from: end(one.from)?,
                to: end(one.to)?,
                mechanism: one.mechanism.clone(),
                measured_unix_s: now,
                classes: one.table.as_ref().ok()?.clone(),
            })
        };
        let links = measured.iter().filter_map(link).collect();
        Self { format: FORMAT, machine: MachineFingerprint::here(), links }
    }

    /// Returns the file that keeps this machine's figures: `dml/links-<digest>.json` in `$XDG_CACHE_HOME`, or
    /// in `.cache` of the home folder.
    ///
    /// # Errors
    /// [`CacheError::NoFolder`] if there is neither.
    pub fn cache_file() -> Result<PathBuf, CacheError> {
        let folder = crate::user_cache::folder().ok_or(CacheError::NoFolder)?;
        Ok(folder.join(format!("links-{}.json", MachineFingerprint::here().digest())))
    }

    /// Reads the figures of this machine from a file; `None` if there is no file.
    ///
    /// # Errors
    /// - [`CacheError::Unreadable`] if the file cannot be read.
    /// - [`CacheError::Malformed`] if it is damaged, has more than 4 MiB, or contains impossible figures.
    /// - [`CacheError::OtherFormat`] if it has another format.
    /// - [`CacheError::OtherMachine`] if it was measured on another machine.
    pub fn load(path: &Path) -> Result<Option<Self>, CacheError> {
        let Some(bytes) = read(path)? else { return Ok(None) };
        let malformed = |error: serde_json::Error| CacheError::Malformed {
            path: path.to_owned(),
            reason: error.to_string(),
        };
        let header: Header = serde_json::from_slice(&bytes).map_err(malformed)?;
        if header.format != FORMAT {
            return Err(CacheError::OtherFormat { path: path.to_owned(), found: header.format });
        }
        let calibration: Self = serde_json::from_slice(&bytes).map_err(malformed)?;
        let here = MachineFingerprint::here();
        if calibration.machine != here {
            let (found, here) = (Box::new(calibration.machine), Box::new(here));
            return Err(CacheError::OtherMachine { path: path.to_owned(), found, here });
        }
        Ok(Some(calibration))
    }

    /// Writes the figures to a file, and creates its folder if that is missing. Links of an older valid file
    /// that were not measured now are kept. Of two concurrent writers, one may lose the links that the other
    /// added.
    ///
    /// # Errors
    /// [`CacheError::Unwritable`]. An older file is then unchanged.
    pub fn store(&self, path: &Path) -> Result<(), CacheError> {
        let mut all = self.clone();
        if let Ok(Some(older)) = Self::load(path) {
            let is_new = |old: &CalibratedLink| self.figures(&old.from, &old.to, &old.mechanism).is_some();
            all.links.extend(older.links.into_iter().filter(|old| !is_new(old)));
        }
        // The sort is stable: among links measured in the same second, those of this measurement come first.
        all.links.sort_by_key(|link| std::cmp::Reverse(link.measured_unix_s));
        all.links.truncate(MOST_LINKS);
        let unwritable =
            |error: io::Error| CacheError::Unwritable { path: path.to_owned(), reason: error.to_string() };
        let text = serde_json::to_string_pretty(&all).map_err(|error| unwritable(error.into()))?;
        replace(path, (text + "\n").as_bytes()).map_err(unwritable)
    }

    /// Returns the figures of every link.
    #[must_use]
    pub fn links(&self) -> &[CalibratedLink] {
        &self.links
    }

    /// Returns the machine that the figures were measured on.
    #[must_use]
    pub fn machine(&self) -> &MachineFingerprint {
        &self.machine
    }

    /// Returns the figures of a link of a platform, or `None` if it was not measured between the same ends.
    ///
    /// # Panics
    /// When the platform has no link with this id.
    #[must_use]
    pub fn figures_of(&self, platform: &Platform, link: LinkId) -> Option<&CalibratedLink> {
        let Link { from, to, .. } = platform.links()[usize::from(link.0)];
        let end = |arena| LinkEnd::of(platform.devices(), platform.desc(arena));
        self.figures(&end(from)?, &end(to)?, platform.cross_arena(link).name())
    }

    /// Prices the links of a platform under construction by these figures, and returns the number of measured
    /// links. Links that were not measured keep their prices.
    ///
    /// The links that [`PlatformBuilder::build`] adds itself are priced by the sum of the links to the host
    /// and from it.
    pub fn price(&self, builder: &mut PlatformBuilder) -> usize {
        let (devices, descs) = (builder.devices().to_vec(), builder.descs().to_vec());
        let mut priced = 0;
        builder.replace_mechanisms(|link, mechanism| {
            match self.table(&devices, &descs, link, mechanism.name()) {
                Some((table, contained)) => {
                    priced += 1;
                    Arc::new(Priced::new(mechanism, table, contained))
                }
                None => mechanism,
            }
        });
        priced
    }

    /// Returns a sentence for each measured device that has changed: its model, driver or number of units
    /// differs.
    #[must_use]
    pub fn changed_devices(&self, devices: &[DeviceDesc], arenas: &[ArenaDesc]) -> Vec<String> {
        let changed = arenas.iter().filter_map(|arena| {
            let end = LinkEnd::of(devices, arena)?;
            let measured = self.links.iter().flat_map(|link| [&link.from, &link.to]);
            let measured: Vec<_> = measured.filter(|other| other.arena == end.arena).collect();
            let (name, is, was) = (&end.device.name, &end.device, &measured.first()?.device);
            let is_known = measured.contains(&&end);
            (!is_known)
                .then(|| format!("the speeds of {name} are guesses: measured as {was}, it is now {is}"))
        });
        changed.collect()
    }

    fn table(
        &self,
        devices: &[DeviceDesc],
        descs: &[ArenaDesc],
        link: &Link,
        mechanism: &str,
    ) -> Option<(LinkTable, MapChanges)> {
        // The builder has not checked its links yet.
        let (from, to) = (descs.get(usize::from(link.from.0))?, descs.get(usize::from(link.to.0))?);
        let figures = self.figures(&LinkEnd::of(devices, from)?, &LinkEnd::of(devices, to)?, mechanism)?;
        Some((figures.classes.clone(), MapChanges::of(link, from, to)))
    }

    fn figures(&self, from: &LinkEnd, to: &LinkEnd, mechanism: &str) -> Option<&CalibratedLink> {
        self.links.iter().find(|link| link.is_of(from, to, mechanism))
    }
}

impl CalibrationSource {
    fn load(&self) -> Result<Option<Calibration>, CacheError> {
        match self {
            Self::Guesses => Ok(None),
            Self::UserCache => Calibration::cache_file().and_then(|path| Calibration::load(&path)),
            Self::File(path) => Calibration::load(path),
            Self::Figures(figures) => Ok(Some(figures.clone())),
        }
    }

    /// Returns the measured rate of copies by the framework's calls between two arenas of a builder: that of
    /// the faster direction, because the slower one may have been staged.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    pub(crate) fn bytes_per_s(&self, builder: &PlatformBuilder, ends: [ArenaId; 2]) -> Option<u64> {
        let calibration = self.load().ok()??;
        let end = |arena: ArenaId| LinkEnd::of(builder.devices(), builder.descs().get(usize::from(arena.0))?);
        let [one, other] = [end(ends[0])?, end(ends[1])?];
        let measured =
            [(&one, &other), (&other, &one)].map(|(from, to)| calibration.figures(from, to, "staged"));
        measured.into_iter().flatten().map(|link| link.classes.speed().bytes_per_s).max()
    }

    /// Prices the links of a platform under construction. Returns why figures were ignored.
    pub(crate) fn price(&self, builder: &mut PlatformBuilder) -> Vec<String> {
        match self.load() {
            Ok(Some(calibration)) => {
                calibration.price(builder);
                calibration.changed_devices(builder.devices(), builder.descs())
            }
            Ok(None) => Vec::new(),
            Err(error) => vec![error.to_string()],
        }
    }
}

/// Reads a file of at most [`LARGEST_FILE_BYTES`]; `None` if there is no file.
fn read(path: &Path) -> Result<Option<Vec<u8>>, CacheError> {
    let (of, reason) = match files::read(path, Source::File, LARGEST_FILE_BYTES) {
        Ok(bytes) => return Ok(Some(bytes)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => (error.kind(), error.to_string()),
    };
    let path = path.to_owned();
    Err(match of {
        io::ErrorKind::FileTooLarge => CacheError::Malformed { path, reason },
        _ => CacheError::Unreadable { path, reason },
    })
}

/// Replaces a file atomically: other processes see the old contents or the new ones.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
    files::write(path, |file| file.write_all(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A copy to a device may have been staged, and one from it not.
    #[cfg(any(feature = "cuda", feature = "opencl"))]
    #[test]
    fn the_rate_of_a_link_is_that_of_the_faster_direction() {
        use super::super::SizeClass;
        use crate::{MainMem, Null};
        use dml_core::{ArenaKind, DeviceId, DeviceKind, LinkSpeed};

        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let main = builder.add_arena(Arc::new(MainMem::new(DeviceId(0))));
        let arenas = [1, 2].map(|number| {
            let device = builder.add_device(DeviceDesc::new(&format!("gpu:{number}"), DeviceKind::Gpu));
            let desc = ArenaDesc::new(&format!("gpu:{number}"), ArenaKind("null"), device);
            let arena = builder.add_arena(Arc::new(Null::backed(desc)));
            crate::kit::join_staged(&mut builder, main, arena, LinkSpeed::default());
            arena
        });
        let platform = builder.clone().build().unwrap();
        let measured = platform
            .links()
            .iter()
            .zip(0..)
            .filter(|(link, _)| !link.from.eq(&arenas[1]) && link.to != arenas[1]);
        let measured = measured.map(|(link, id)| {
            let mebibyte_ns = if link.from == main { 100_000 } else { 20_000 };
            let classes =
                [(1, 10), (1 << 20, mebibyte_ns)].map(|(bytes, copy_ns)| SizeClass { bytes, copy_ns });
            Measured::new(&platform, LinkId(id), Ok(LinkTable::new(classes.to_vec()).unwrap()))
        });
        let figures = Calibration::of(&platform, &measured.collect::<Vec<_>>());
        let rate = |source: &CalibrationSource, arena| source.bytes_per_s(&builder, [main, arena]);
        let source = CalibrationSource::Figures(figures);
        let found = rate(&source, arenas[0]).expect("it was measured");
        assert!((50_000_000_000..55_000_000_000).contains(&found), "{found}");
        assert_eq!(rate(&source, arenas[1]), None, "it was not measured");
        assert_eq!(rate(&CalibrationSource::Guesses, arenas[0]), None);
    }

    #[test]
    fn a_file_is_read_up_to_the_largest_size() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("figures");
        let file = fs::File::create(&path).unwrap();
        let of = |bytes| {
            file.set_len(bytes).unwrap();
            read(&path)
        };
        assert_eq!(of(0).unwrap().map(|bytes| bytes.len()), Some(0));
        let most = LARGEST_FILE_BYTES;
        assert_eq!(of(most).unwrap().map(|bytes| bytes.len() as u64), Some(most));
        for bytes in [most + 1, most + 2, 100 * most] {
            let error = of(bytes).unwrap_err();
            assert!(matches!(&error, CacheError::Malformed { path: of, .. } if *of == path), "{error}");
        }
        // A path below a regular file is unreadable, not missing.
        let within = read(&path.join("figures.json"));
        fs::remove_file(&path).unwrap();
        assert!(matches!(within, Err(CacheError::Unreadable { .. })), "{within:?}");
        assert!(matches!(read(&path), Ok(None)));
    }
}
