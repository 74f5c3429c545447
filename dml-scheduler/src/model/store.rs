//! What is known, in a file: one per machine.

use super::{Book, DeviceModel, Knowledge, Shared};
use dml_core::sync::Mutex;
use serde::{Deserialize, Serialize};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use thiserror::Error;

/// The version of the file's form.
const VERSION: u32 = 3;
/// The largest file that is read, in bytes.
const LARGEST_BYTES: u64 = 64 << 20;

/// Why a file is not what this machine's runs taught. Nothing of it is used then.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KnowledgeError {
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// It is no such file, or it is damaged.
    #[error("{}: {what}", path.display())]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        what: String,
    },
    /// It has the form of another version.
    #[error("{}: written by another version: form {found}, not {VERSION}", path.display())]
    Outdated {
        /// The file.
        path: PathBuf,
        /// The form that it has.
        found: u32,
    },
    /// It is of another machine.
    #[error("{}: of another machine: {found:?}", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The machine that it names.
        found: String,
    },
}

/// A file of knowledge.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    /// What is in it, as far as this knows.
    saved: Mutex<Book>,
    /// Why what it had is not used.
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
    /// What runs on this machine taught, in `dml/knowledge-*.json` of the user's cache folder (`$XDG_CACHE_HOME` or `~/.cache`). It is
    /// read once, however often this is called, and saved when the last clone is dropped. A file that cannot be used is
    /// [ignored](Self::ignored), and replaced as soon as something is learned. Without a cache folder nothing is saved. Of two processes at
    /// once, the last one's is kept. Kernels are told apart by their names, in all programs.
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

    /// What is in a file, and is saved there when the last clone is dropped, if something was learned or forgotten. Each call reads the file:
    /// of two at once, the last one's is kept.
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

    /// The file that this is saved to; `None` if it is not saved.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        self.0.file.as_ref().map(|file| file.path.as_path())
    }

    /// Why what was in the file is not used: it is of another machine or version, or damaged.
    #[must_use]
    pub fn ignored(&self) -> Option<&KnowledgeError> {
        self.0.file.as_ref()?.ignored.as_ref()
    }

    /// Saves it now. Without a file, or if nothing changed, this does nothing.
    ///
    /// # Errors
    /// [`KnowledgeError::File`]. When the last clone is dropped, such an error has no hearer.
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
        // There is no caller who could hear of an error.
        _ = self.save();
    }
}

/// Reads a file; nothing if there is none.
fn load(path: &Path) -> Result<Book, KnowledgeError> {
    let failed = |source| KnowledgeError::File { path: path.to_owned(), source };
    let metadata = match std::fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Book::default()),
        metadata => metadata.map_err(failed)?,
    };
    let corrupt = |what: String| KnowledgeError::Corrupt { path: path.to_owned(), what };
    if !metadata.is_file() || metadata.len() > LARGEST_BYTES {
        return Err(corrupt(format!("no regular file of at most {LARGEST_BYTES} bytes")));
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
    let mut devices = book
        .kernels
        .iter()
        .flat_map(|(kernel, model)| model.devices.iter().map(move |(device, known)| (kernel, device, known)));
    match devices.find(|(.., known)| !DeviceModel::is_valid(known)) {
        Some((kernel, device, _)) => {
            Err(corrupt(format!("kernel {kernel:?} on {device:?} has a time that is none")))
        }
        None => Ok(book),
    }
}

/// What tells this machine from others: its processor, and how many threads that runs. Names of containers change.
fn machine() -> String {
    let processor = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(": ")?.1.to_owned())
    });
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{threads} threads of {}", processor.unwrap_or_else(|| std::env::consts::ARCH.to_owned()))
}

/// The file of a machine; `None` if the user has no cache folder.
pub(super) fn path_of(machine: &str) -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let folder = set("XDG_CACHE_HOME").filter(|path| path.is_absolute());
    let folder = folder.or_else(|| Some(set("HOME")?.join(".cache")))?;
    // FNV-1a, so that the name of the file stays the same with every version of the compiler.
    let hash = machine.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Some(folder.join("dml").join(format!("knowledge-{hash:016x}.json")))
}
