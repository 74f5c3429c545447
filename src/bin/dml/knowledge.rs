//! What earlier runs taught about kernels and devices, in the user's cache folder.

use dml::arenas::calibrate::Calibration;
use dml::scheduler::Knowledge;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The longest file that is read, in bytes.
const LARGEST_FILE_BYTES: u64 = 16 << 20;

/// The user's file of what runs on this machine taught, and what is in it.
#[derive(Debug)]
pub(crate) struct Kept {
    file: Option<PathBuf>,
    pub(crate) knowledge: Knowledge,
    /// Why the file is not used, if it is not; a sentence for people.
    pub(crate) note: Option<String>,
}

impl Kept {
    /// Opens the file of this machine. One that cannot be used becomes a note, and is replaced later.
    pub(crate) fn open() -> Self {
        let Ok(links) = Calibration::cache_file() else {
            return Self { file: None, knowledge: Knowledge::new(), note: None };
        };
        let file = beside(&links);
        let (knowledge, note) = match read(&file) {
            Ok(knowledge) => (knowledge, None),
            Err(error) => {
                let note = format!("what earlier runs taught is ignored: {}: {error}", file.display());
                (Knowledge::new(), Some(note))
            }
        };
        Self { file: Some(file), knowledge, note }
    }

    /// Writes what is known now. A failure becomes a note: the results stand without it.
    pub(crate) fn store(&mut self) {
        if let Some(file) = &self.file
            && let Err(error) = write(file, &self.knowledge.to_string())
        {
            self.note = Some(format!("what the runs taught is not kept: {}: {error}", file.display()));
        }
    }
}

/// The file beside that of the links, whose name tells machines apart.
fn beside(links: &Path) -> PathBuf {
    let name = links.file_stem().map(|name| name.to_string_lossy().replacen("links", "knowledge", 1));
    links.with_file_name(format!("{}.txt", name.unwrap_or_else(|| "knowledge".to_owned())))
}

/// What is in the file; nothing if there is none.
fn read(file: &Path) -> Result<Knowledge, String> {
    match fs::metadata(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Knowledge::new()),
        Err(error) => return Err(error.to_string()),
        Ok(data) if data.len() > LARGEST_FILE_BYTES => {
            return Err(format!("{} bytes are too long", data.len()));
        }
        Ok(_) => {}
    }
    let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
    Knowledge::parse(&text).map_err(|error| error.to_string())
}

/// Writes under another name first, so that a reader sees a whole file or none.
fn write(file: &Path, text: &str) -> io::Result<()> {
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder)?;
    }
    let other = file.with_extension(format!("{}.tmp", std::process::id()));
    fs::File::create(&other).and_then(|mut new| new.write_all(text.as_bytes()))?;
    fs::rename(&other, file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_beside_that_of_the_links() {
        let file = beside(Path::new("/home/somebody/.cache/dml/links-0123.json"));
        assert_eq!(file, Path::new("/home/somebody/.cache/dml/knowledge-0123.txt"));
    }

    #[test]
    fn a_corrupt_file_is_named_and_ignored() {
        let folder = std::env::temp_dir().join(format!("dml-knowledge-{}", std::process::id()));
        let file = folder.join("knowledge-0.txt");
        assert!(read(&file).is_ok_and(|knowledge| knowledge.pages() == 0), "there is none");
        write(&file, "dml knowledge 1\npage x y\n").expect("the folder of temporary files");
        let told = read(&file).expect_err("it is corrupt");
        assert!(told.contains("line 2") && told.contains("not a size class"), "{told}");
        write(&file, &Knowledge::new().to_string()).expect("the folder of temporary files");
        assert!(read(&file).is_ok());
        fs::remove_dir_all(&folder).expect("it was made here");
    }
}
