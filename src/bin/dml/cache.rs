//! Files in the user's cache folder, beside that of the link speeds, whose name tells machines apart.

use dml::arenas::calibrate::Calibration;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes.
const LARGEST_FILE_BYTES: u64 = 16 << 20;

/// The file of this machine for what `name` says, with an ending; `None` if the user has no cache folder.
pub(crate) fn file(name: &str, ending: &str) -> Option<PathBuf> {
    Some(beside(&Calibration::cache_file().ok()?, name, ending))
}

fn beside(links: &Path, name: &str, ending: &str) -> PathBuf {
    let stem = links.file_stem().map(|stem| stem.to_string_lossy().replacen("links", name, 1));
    links.with_file_name(format!("{}.{ending}", stem.unwrap_or_else(|| name.to_owned())))
}

/// The text of a file; `None` if there is no file.
///
/// # Errors
/// Why it cannot be read, for people.
pub(crate) fn read(file: &Path) -> Result<Option<String>, String> {
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error.to_string()),
        // Reading from a pipe waits for its other end.
        Ok(data) if !data.is_file() => return Err("it is no regular file".to_owned()),
        Ok(data) if data.len() > LARGEST_FILE_BYTES => {
            return Err(format!("{} bytes are too long", data.len()));
        }
        Ok(_) => {}
    }
    fs::read_to_string(file).map(Some).map_err(|error| error.to_string())
}

/// Writes under another name first, so that a reader sees a whole file or none.
pub(crate) fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let other = file.with_extension(format!("{}.tmp", std::process::id()));
    let written =
        fs::File::create(&other).and_then(|mut new| new.write_all(text.as_bytes())).and_then(|()| {
            // The last step, so that nobody sees half a file.
            fs::rename(&other, file)
        });
    if written.is_err() {
        let _ = fs::remove_file(&other);
    }
    written
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
        // What cannot take the file's place leaves nothing behind.
        assert!(write(&folder.join("suites-0.json").join("below"), "three").is_err());
        assert!(
            fs::create_dir(folder.join("taken")).is_ok() && write(&folder.join("taken"), "four").is_err()
        );
        let left: Vec<_> = fs::read_dir(&folder).expect("it was made here").flatten().collect();
        assert_eq!(left.len(), 2, "{left:?}");
        fs::remove_dir_all(&folder).expect("it was made here");
    }
}
