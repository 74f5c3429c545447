//! What earlier runs taught about kernels and devices, in the user's cache folder.

use crate::cache;
use dml::scheduler::Knowledge;
use std::path::{Path, PathBuf};

/// The user's file of what runs on this machine taught, and what is in it.
#[derive(Debug)]
pub(crate) struct Kept {
    file: Option<PathBuf>,
    pub(crate) knowledge: Knowledge,
}

impl Kept {
    /// Opens the file of this machine. One that cannot be used is noted on standard error, and is replaced
    /// later.
    pub(crate) fn open() -> Self {
        let Some(file) = cache::file("knowledge", "txt") else {
            return Self { file: None, knowledge: Knowledge::new() };
        };
        let knowledge = read(&file).unwrap_or_else(|error| {
            eprintln!("dml: what earlier runs taught is ignored: {}: {error}", file.display());
            Knowledge::new()
        });
        Self { file: Some(file), knowledge }
    }

    /// Writes what is known now. Returns why it could not, a sentence for people: the results stand without
    /// it.
    pub(crate) fn store(&self) -> Option<String> {
        let file = self.file.as_ref()?;
        let error = cache::write(file, &self.knowledge.to_string()).err()?;
        Some(format!("what the runs taught is not kept: {}: {error}", file.display()))
    }
}

/// What is in the file; nothing if there is none.
fn read(file: &Path) -> Result<Knowledge, String> {
    let Some(text) = cache::read(file)? else { return Ok(Knowledge::new()) };
    Knowledge::parse(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_known_is_in_the_file_afterwards_or_a_note_says_why_not() {
        let folder = std::env::temp_dir().join(format!("dml-kept-{}", std::process::id()));
        let file = folder.join("knowledge-0.txt");
        let mut kept = Kept { file: Some(file.clone()), knowledge: Knowledge::new() };
        assert_eq!(kept.store(), None);
        assert_eq!(std::fs::read_to_string(&file).ok(), Some(kept.knowledge.to_string()));
        kept.file = Some(file.join("below"));
        assert!(kept.store().is_some_and(|note| note.contains("not kept") && note.contains("below")));
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }

    #[test]
    fn a_corrupt_file_is_named_and_ignored() {
        let folder = std::env::temp_dir().join(format!("dml-knowledge-{}", std::process::id()));
        let file = folder.join("knowledge-0.txt");
        assert!(read(&file).is_ok_and(|knowledge| knowledge.pages() == 0), "there is none");
        cache::write(&file, "dml knowledge 2\npage x y\n").expect("the folder of temporary files");
        let told = read(&file).expect_err("it is corrupt");
        assert!(told.contains("line 2") && told.contains("not a size class"), "{told}");
        cache::write(&file, &Knowledge::new().to_string()).expect("the folder of temporary files");
        assert!(read(&file).is_ok());
        std::fs::remove_dir_all(&folder).expect("it was made here");
    }
}
