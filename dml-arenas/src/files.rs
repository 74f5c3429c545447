//! Files of users and of caches: bounded reads, atomic writes, and whether two names are one file.
//!
//! 1. A read has a limit, refuses devices, and waits for a pipe only while a program has it open for writing.
//! 2. A reader of a written file sees the old contents or the new ones. A write that fails leaves the old
//!    ones.
//! 3. Standard output and files that are not regular (a terminal, a pipe, `/dev/null`) are written directly,
//!    because there is nothing to replace.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Maximum length of a chain of symbolic links that is followed, as in Linux.
const MOST_LINKS: usize = 40;

/// The kinds of files that may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// Only regular files.
    File,
    /// Regular files and pipes, such as those of a shell's `<(command)`.
    FileOrPipe,
}

/// Opens a regular file for reading, without blocking.
///
/// # Errors
/// The operating system's error; a folder, a device or a pipe.
pub fn open(path: &Path) -> io::Result<File> {
    opened(path, Source::File)
}

/// Reads a whole file of at most `limit_bytes`.
///
/// # Errors
/// The operating system's error; a folder, a device, a pipe that `source` excludes or that no program writes
/// to; more bytes than the limit.
pub fn read(path: &Path, source: Source, limit_bytes: u64) -> io::Result<Vec<u8>> {
    let file = opened(path, source)?;
    let metadata = file.metadata()?;
    let too_large = |bytes: &str| {
        let why = format!("it has {bytes} bytes; at most {limit_bytes} are read");
        Err(io::Error::new(ErrorKind::FileTooLarge, why))
    };
    if metadata.len() > limit_bytes {
        return too_large(&metadata.len().to_string());
    }
    let mut bytes = Vec::new();
    if !metadata.is_file() {
        bytes.extend(first_byte(&file)?);
    }
    let left_bytes = (limit_bytes - bytes.len().min(1) as u64).saturating_add(1);
    file.take(left_bytes).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit_bytes {
        return too_large("more");
    }
    Ok(bytes)
}

/// Writes a file atomically: it is complete, or unchanged.
///
/// The contents go to a new file in the same folder, which then replaces the old one by a rename. It gets the
/// permissions of the file that it replaces. A link stays, and the file that it leads to is replaced. If the
/// folder admits no new file, the file itself is overwritten.
///
/// # Errors
/// The error of `contents`, or of the operating system.
pub fn write<E: From<io::Error>>(
    path: &Path,
    contents: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let (path, old) = match place(path)? {
        Place::Itself(file) => return fill(&file, contents),
        Place::Named { path, old } => (path, old),
    };
    let (beside, file) = match (create_beside(&path), &old) {
        (Ok(created), _) => created,
        (Err(error), Some(old))
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) =>
        {
            old.set_len(0)?;
            return fill(old, contents);
        }
        (Err(error), _) => return Err(error.into()),
    };
    let written = old.as_ref().map_or(Ok(()), |old| take_after(&file, old)).map_err(E::from);
    let written = written.and_then(|()| fill(&file, contents));
    let written = written.and_then(|()| Ok(replace(&beside, &path, old)?));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Returns whether two paths lead to one file, or would once it is created, through links of any kind.
/// Devices and pipes do not count.
#[must_use]
pub fn are_same(one: &Path, other: &Path) -> bool {
    identity(one).is_some_and(|one| Some(one) == identity(other))
}

/// Opens a file that may be read, without blocking. Reads from a pipe do not block either.
fn opened(path: &Path, source: Source) -> io::Result<File> {
    // Opening a device may have an effect, so its kind is checked first.
    expect(&fs::metadata(path)?, source)?;
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
    let file = options.open(path)?;
    expect(&file.metadata()?, source)?;
    Ok(file)
}

fn expect(metadata: &Metadata, source: Source) -> io::Result<()> {
    let kind = metadata.file_type();
    let what = match source {
        _ if kind.is_file() => return Ok(()),
        Source::FileOrPipe if is_pipe(metadata) => return Ok(()),
        _ if kind.is_dir() => "a folder",
        _ if is_pipe(metadata) => "a pipe",
        _ => "a device",
    };
    Err(io::Error::other(format!("it is no regular file but {what}")))
}

#[cfg(target_os = "linux")]
fn is_pipe(metadata: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type())
}

/// Other systems cannot open a pipe without waiting for its other end.
#[cfg(not(target_os = "linux"))]
fn is_pipe(_metadata: &Metadata) -> bool {
    false
}

/// Reads the first byte of a pipe; `None` if it is empty and has a writer. Later reads block.
fn first_byte(mut pipe: &File) -> io::Result<Option<u8>> {
    let mut byte = [0];
    let found = match pipe.read(&mut byte) {
        Ok(0) => return Err(io::Error::other("the pipe is empty, and no program has it open for writing")),
        Ok(_) => Some(byte[0]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        Err(error) => return Err(error),
    };
    wait_from_now_on(pipe)?;
    Ok(found)
}

/// Makes reads and writes of a pipe block.
fn wait_from_now_on(pipe: &File) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        // SAFETY: the file is open. The call only changes whether its reads and writes block.
        let set = unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(pipe), libc::F_SETFL, 0) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
    }
    let _ = pipe;
    Ok(())
}

/// The destination of a write.
enum Place {
    /// The open file itself.
    Itself(File),
    /// A new file of this name. `old` is the file that has the name now.
    Named { path: PathBuf, old: Option<File> },
}

fn place(path: &Path) -> io::Result<Place> {
    let metadata = match fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Place::Named { path: behind_links(path)?, old: None });
        }
        Err(error) => return Err(error),
    };
    if let Some(stream) = standard_stream(&metadata) {
        return Ok(Place::Itself(stream));
    }
    if !metadata.is_file() {
        return direct(path, &metadata).map(Place::Itself);
    }
    let target = behind_links(path)?;
    // A file that is not writable must not be replaced.
    let old = OpenOptions::new().write(true).open(path)?;
    // A link to an open file, such as in `/proc/self/fd`, may lead to a file without a name, which cannot be
    // replaced.
    if target.exists() {
        return Ok(Place::Named { path: target, old: Some(old) });
    }
    old.set_len(0)?;
    Ok(Place::Itself(old))
}

/// Opens a file that is not regular for writing. A pipe without a reader is an error, and does not block.
fn direct(path: &Path, metadata: &Metadata) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true);
    #[cfg(target_os = "linux")]
    if is_pipe(metadata) {
        std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, libc::O_NONBLOCK);
        let opened = options.open(path);
        let pipe = opened.map_err(|error| match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::other("no program has the pipe open for reading"),
            _ => error,
        })?;
        wait_from_now_on(&pipe)?;
        return Ok(pipe);
    }
    let _ = metadata;
    options.open(path)
}

/// Returns standard output or standard error, if the file is one of them. Earlier output must stay.
#[cfg(unix)]
fn standard_stream(metadata: &Metadata) -> Option<File> {
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    let of = |stream: std::os::fd::BorrowedFd<'_>| stream.try_clone_to_owned().ok().map(File::from);
    let streams = [of(io::stdout().as_fd()), of(io::stderr().as_fd())];
    let is_it = |file: &File| {
        file.metadata().is_ok_and(|of| (of.dev(), of.ino()) == (metadata.dev(), metadata.ino()))
    };
    streams.into_iter().flatten().find(is_it)
}

#[cfg(not(unix))]
fn standard_stream(_metadata: &Metadata) -> Option<File> {
    None
}

fn fill<E: From<io::Error>>(
    file: &File,
    contents: impl FnOnce(&mut dyn Write) -> Result<(), E>,
) -> Result<(), E> {
    let mut buffered = BufWriter::new(file);
    contents(&mut buffered)?;
    Ok(buffered.flush()?)
}

/// Creates a file with a unique name, in the folder of a file.
fn create_beside(path: &Path) -> io::Result<(PathBuf, File)> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    loop {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let beside = path.with_file_name(format!(".dml-{}-{number}.tmp", std::process::id()));
        match OpenOptions::new().write(true).create_new(true).open(&beside) {
            // The file is left over from a killed process with the same id.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            created => return created.map(|file| (beside, file)),
        }
    }
}

/// Gives a file the permissions of another one, and its owner if that is allowed.
fn take_after(file: &File, old: &File) -> io::Result<()> {
    let metadata = old.metadata()?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::{MetadataExt, fchown};
        let _ = fchown(file, Some(metadata.uid()), Some(metadata.gid()));
    }
    file.set_permissions(metadata.permissions())
}

/// Renames a file to its final place.
fn replace(beside: &Path, path: &Path, old: Option<File>) -> io::Result<()> {
    match (fs::rename(beside, path), old) {
        // A mount point, such as a file that is mounted into a container, cannot be replaced.
        (Err(error), Some(mut old)) if error.kind() == ErrorKind::ResourceBusy => {
            old.set_len(0)?;
            io::copy(&mut File::open(beside)?, &mut old)?;
            fs::remove_file(beside)
        }
        (renamed, _) => renamed,
    }
}

/// Follows the symbolic links of a path's last component. Returns the target, whether it exists or not.
fn behind_links(path: &Path) -> io::Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        match fs::read_link(&path) {
            Ok(to) => path = path.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => return Ok(path),
        }
    }
    Err(io::Error::other(format!("more than {MOST_LINKS} links lead to each other")))
}

/// The identity of a file, which all its paths have in common.
#[derive(PartialEq, Eq)]
enum Identity {
    #[cfg(unix)]
    Inode(u64, u64),
    Name(PathBuf),
}

fn identity(path: &Path) -> Option<Identity> {
    match fs::metadata(path) {
        Ok(metadata) => metadata.is_file().then(|| identity_of(&metadata, path)),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let path = behind_links(path).ok()?;
            let folder = path.parent().filter(|folder| *folder != Path::new("")).unwrap_or(Path::new("."));
            Some(Identity::Name(folder.canonicalize().ok()?.join(path.file_name()?)))
        }
        Err(_) => None,
    }
}

#[cfg(unix)]
fn identity_of(metadata: &Metadata, _path: &Path) -> Identity {
    use std::os::unix::fs::MetadataExt;
    Identity::Inode(metadata.dev(), metadata.ino())
}

#[cfg(not(unix))]
fn identity_of(_metadata: &Metadata, path: &Path) -> Identity {
    Identity::Name(path.canonicalize().unwrap_or_else(|_| path.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, b"12345").unwrap();
        assert_eq!(read(&path, Source::File, 5).unwrap(), b"12345");
        for limit_bytes in [0, 1, 4] {
            let told = read(&path, Source::File, limit_bytes).unwrap_err().to_string();
            assert!(told.contains("5 bytes") && told.contains(&format!("at most {limit_bytes}")), "{told}");
        }
        assert!(read(folder.path(), Source::File, 5).unwrap_err().to_string().contains("a folder"));
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_pipe_is_read_up_to_its_limit_while_it_has_a_writer() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let refused = |source| read(&path, source, 5).unwrap_err().to_string();
        assert!(refused(Source::File).contains("a pipe"));
        assert!(refused(Source::FileOrPipe).contains("no program"));
        assert!(write(&path, |_| Ok::<(), io::Error>(())).unwrap_err().to_string().contains("reading"));
        for (text, fits) in [(&b""[..], true), (b"12345", true), (b"123456", false)] {
            // Both ends, so that neither waits for the other to be opened.
            let mut writer = OpenOptions::new().read(true).write(true).open(&path).unwrap();
            writer.write_all(text).unwrap();
            let reader = path.clone();
            let reads = std::thread::spawn(move || read(&reader, Source::FileOrPipe, 5));
            if text.is_empty() {
                // After the first read, or before it.
                writer.write_all(b"12345").unwrap();
            }
            while !reads.is_finished() && is_full(&writer) {
                std::thread::yield_now();
            }
            drop(writer);
            let result = reads.join().unwrap();
            assert_eq!(result.is_ok_and(|bytes| bytes == b"12345"), fits, "{text:?}");
        }
    }

    /// Returns whether a pipe holds bytes.
    #[cfg(target_os = "linux")]
    fn is_full(pipe: &File) -> bool {
        let mut bytes: libc::c_int = 0;
        // SAFETY: the file is open, and `bytes` is a valid place for the number.
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(pipe), libc::FIONREAD, &mut bytes) };
        bytes > 0
    }

    /// The disk fills up during the write.
    #[test]
    fn a_write_that_fails_leaves_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let fails = |path: &Path| {
            write(path, |file| {
                file.write_all(&[7; 100_000])?;
                Err::<(), _>(io::Error::from(ErrorKind::StorageFull))
            })
        };
        let left = || fs::read_dir(&folder).unwrap().count();
        assert_eq!(fails(&path).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!(left(), 0);
        write(&path, |file| file.write_all(b"old")).unwrap();
        assert_eq!(fails(&path).unwrap_err().kind(), ErrorKind::StorageFull);
        assert_eq!((fs::read(&path).unwrap(), left()), (b"old".to_vec(), 1));
        write(&path, |file| file.write_all(b"new")).unwrap();
        assert_eq!((fs::read(&path).unwrap(), left()), (b"new".to_vec(), 1));
        assert!(write(folder.path(), |file| file.write_all(b"new")).is_err());
        assert!(write(&path.join("below"), |file| file.write_all(b"new")).is_err());
    }

    #[cfg(unix)]
    #[test]
    fn paths_of_one_file_are_known() {
        use std::os::unix::fs::symlink;

        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), b"1").unwrap();
        fs::write(path("other"), b"1").unwrap();
        fs::hard_link(path("file"), path("hard")).unwrap();
        symlink("file", path("soft")).unwrap();
        symlink("new", path("dangling")).unwrap();
        symlink("loop", path("loop")).unwrap();
        symlink(".", path("here")).unwrap();
        for (one, other, expected) in [
            ("file", "file", true),
            ("file", "hard", true),
            ("hard", "here/soft", true),
            ("file", "other", false),
            ("new", "dangling", true),
            ("new", "here/./new", true),
            ("new", "file", false),
            ("loop", "loop", false),
            ("here", "here", false),
            ("nowhere/new", "new", false),
        ] {
            assert_eq!(are_same(&path(one), &path(other)), expected, "{one} and {other}");
        }
        let null = Path::new("/dev/null");
        assert!(!are_same(null, null));
    }
}
