//! Files in the user's cache folder, beside the file of link speeds. Their names identify the machine.

use dml::arenas::calibrate::Calibration;
use dml::arenas::files::{self, Source};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Maximum size of a file to read, in bytes.
const LARGEST_FILE_BYTES: u64 = 16 << 20;

/// Returns the path of this machine's file with a name and an extension, or `None` without a cache folder.
pub(crate) fn file(name: &str, ending: &str) -> Option<PathBuf> {
    Some(beside(&Calibration::cache_file().ok()?, name, ending))
}

fn beside(links: &Path, name: &str, ending: &str) -> PathBuf {
    let stem = links.file_stem().map(|stem| stem.to_string_lossy().replacen("links", name, 1));
    links.with_file_name(format!("{}.{ending}", stem.unwrap_or_else(|| name.to_owned())))
}

/// Reads the text of a file. Returns `None` if there is no file.
///
/// # Errors
/// A message why the file cannot be read.
pub(crate) fn read(file: &Path) -> Result<Option<String>, String> {
    match files::read(file, Source::File, LARGEST_FILE_BYTES) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(bytes) => String::from_utf8(bytes).map(Some).map_err(|error| error.to_string()),
    }
}

/// Writes a file atomically, and creates its folder if needed.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    files::write(file, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_beside_that_of_the_links() {
        let file =
            |name, ending| beside(Path::new("/home/somebody/.cache/dml/links-0123.json"), name, ending);
        assert_eq!(file("knowledge", "txt"), Path::new("/home/somebody/.cache/dml/knowledge-0123.txt"));
        assert_eq!(file("suites", "json"), Path::new("/home/somebody/.cache/dml/suites-0123.json"));
    }

    #[test]
    fn what_was_written_is_read_and_a_folder_is_no_file() {
        let folder = std::env::temp_dir().join(format!("dml-cache-{}", std::process::id()));
        let file = folder.join("suites-0.json");
        assert_eq!(read(&file), Ok(None), "there is none");
        write(&file, "one").expect("the folder of temporary files");
        write(&file, "two").expect("the folder of temporary files");
        assert_eq!(read(&file), Ok(Some("two".to_owned())));
        assert!(read(&folder).is_err_and(|error| error.contains("no regular file")));
        // A failed write leaves no temporary file.
        assert!(write(&folder.join("suites-0.json").join("below"), "three").is_err());
        assert!(
            fs::create_dir(folder.join("taken")).is_ok() && write(&folder.join("taken"), "four").is_err()
        );
        let left: Vec<_> = fs::read_dir(&folder).expect("it was made here").flatten().collect();
        assert_eq!(left.len(), 2, "{left:?}");
        fs::remove_dir_all(&folder).expect("it was made here");
    }
}
