//! File of learned knowledge, one per machine.

use super::{Book, DeviceModel, Knowledge, Shared};
use dml_core::internal::sync::Mutex;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use thiserror::Error;

/// Version of the file format.
const VERSION: u32 = 3;
/// Maximum size of a file, in bytes.
const LARGEST_BYTES: u64 = 64 << 20;

/// Error of a file of knowledge. Nothing in the file is used then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KnowledgeError {
    /// The file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a file of knowledge, or it is damaged.
    #[error("{}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The fault and its position.
        what: String,
    },
    /// The file has the format of another version.
    #[error("{}: written by another version: format {found}, not {VERSION}", path.display())]
    Outdated {
        /// The file.
        path: PathBuf,
        /// The format version of the file.
        found: u32,
    },
    /// The file belongs to another machine.
    #[error("{}: written on another machine: {found:?}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The machine that the file names.
        found: String,
    },
}

/// A file of knowledge.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// The contents that this process last read or wrote.
    saved: Mutex<Book>,
    /// Error that keeps the file's contents from being used.
    ignored: Option<KnowledgeError>,
}

#[derive(Serialize, Deserialize)]
struct Contents<B> {
    version: u32,
    machine: String,
    book: B,
}

/// The first fields, which every version has.
#[derive(Deserialize)]
struct Heading {
    version: u32,
    machine: String,
}

impl Knowledge {
    /// Returns the knowledge of this machine, from `dml/knowledge-*.json` in the user's cache folder.
    ///
    /// The folder is `$XDG_CACHE_HOME` or `~/.cache`; without one nothing is saved. The file is read once,
    /// however often this is called, and saved when the last clone is dropped. An unusable file is
    /// [ignored](Self::ignored), and replaced when something is learned. If two processes save, the last one
    /// wins. All programs share the file and tell kernels apart by name.
    #[must_use]
    pub fn of_this_machine() -> Self {
        static SHARED: std::sync::Mutex<Weak<Shared>> = std::sync::Mutex::new(Weak::new());
        let Some(path) = path_of(&machine()) else { return Self::new() };
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        match shared.upgrade() {
            Some(known) => Self(known),
            None => {
                let known = Self::of_file(path);
                *shared = Arc::downgrade(&known.0);
                known
            }
        }
    }

    /// Returns the knowledge in a file.
    ///
    /// It is saved there when the last clone is dropped, if something was learned or forgotten. Each call
    /// reads the file. If two of them save, the last one wins.
    #[must_use]
    pub fn of_file(path: impl Into<PathBuf>) -> Self {
        let path = path.into();
        let (book, ignored) = match load(&path) {
            Ok(book) => (book, None),
            Err(error) => (Book::default(), Some(error)),
        };
        let file = File { path, saved: Mutex::new(book.clone()), ignored };
        Self(Arc::new(Shared { book: Mutex::new(book), file: Some(file) }))
    }

    /// Returns the file that this is saved to; `None` if it is not saved.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_ref().map(|file| file.path.as_path())
    }

    /// Returns why the file's contents are not used: it is damaged, unreadable, or from another machine or
    /// version.
    #[must_use]
    pub fn ignored(&self) -> Option<&KnowledgeError> {
        self.0.file.as_ref()?.ignored.as_ref()
    }

    /// Saves the knowledge now. Does nothing without a file, or if nothing changed.
    ///
    /// # Errors
    /// [`KnowledgeError::File`] if the file cannot be written. The save at the last clone's drop ignores this
    /// error.
    pub fn save(&self) -> Result<(), KnowledgeError> {
        self.0.save()
    }
}

impl Shared {
    fn save(&self) -> Result<(), KnowledgeError> {
        let Some(File { path, saved, .. }) = &self.file else { return Ok(()) };
        let mut saved = saved.lock();
        let book = self.book.lock().clone();
        if book == *saved {
            return Ok(());
        }
        let contents = Contents { version: VERSION, machine: machine(), book: &book };
        let written = (|| {
            let folder = path.parent().unwrap_or(Path::new("."));
            std::fs::create_dir_all(folder)?;
            let mut file = tempfile::NamedTempFile::new_in(folder)?;
            file.write_all(&serde_json::to_vec(&contents)?)?;
            file.persist(path).map_err(|error| error.error)?;
            Ok(())
        })();
        written.map_err(|source| KnowledgeError::File { path: path.clone(), source })?;
        *saved = book;
        Ok(())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A drop cannot return an error.
        _ = self.save();
    }
}

/// Reads a file; returns an empty book if there is none.
fn load(path: &Path) -> Result<Book, KnowledgeError> {
    let failed = |source| KnowledgeError::File { path: path.to_owned(), source };
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
        metadata => metadata.map_err(failed)?,
    };
    let corrupt = |what: String| KnowledgeError::Corrupt { path: path.to_owned(), what };
    if !metadata.is_file() || metadata.len() > LARGEST_BYTES {
        return Err(corrupt(format!("not a regular file of at most {LARGEST_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(path).map_err(failed)?;
    let heading: Heading = serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
    if heading.version != VERSION {
        return Err(KnowledgeError::Outdated { path: path.to_owned(), found: heading.version });
    }
    if heading.machine != machine() {
        return Err(KnowledgeError::Foreign { path: path.to_owned(), found: heading.machine });
    }
    let Contents { book, .. }: Contents<Book> =
        serde_json::from_str(&text).map_err(|error| corrupt(error.to_string()))?;
    if let Some((kernel, _)) = book.kernels.iter().find(|(_, model)| !model.has_valid_strips()) {
        return Err(corrupt(format!("kernel {kernel:?} has invalid strips")));
    }
    let mut devices = book
        .kernels
        .iter()
        .flat_map(|(kernel, model)| model.devices.iter().map(move |(device, known)| (kernel, device, known)));
    match devices.find(|(.., known)| !DeviceModel::is_valid(known)) {
        Some((kernel, device, _)) => {
            Err(corrupt(format!("kernel {kernel:?} on {device:?} has an invalid time")))
        }
        None => Ok(book),
    }
}

/// Returns the identity of this machine: its processor and number of threads. Host names change between
/// containers.
fn machine() -> String {
    let processor = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(": ")?.1.to_owned())
    });
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{threads} threads of {}", processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

/// Returns the file of a machine; `None` if the user has no cache folder.
pub(super) fn path_of(machine: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(set("HOME")?.join(".cache")))?;
    // FNV-1a keeps the file's name the same with every version of the compiler.
    let hash = machine.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(folder.join("dml").join(format!("knowledge-{hash:016x}.json")))
}
