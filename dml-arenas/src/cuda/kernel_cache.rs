//! Compiled kernels that outlive the process: one file each, in the user's cache folder.
//!
//! ```text
//!   dml/cuda/<digest>.bin    the key's length, the key, the code's length, the code
//! ```
//! 1. A file holds the whole key (source, options, target, versions of driver and compiler), so a collision
//!    of digests is harmless.
//! 2. A file is written to a temporary name and renamed, so a reader never sees a partial file. Damaged files
//!    are ignored.
//! 3. The cache only saves time: if it fails, the kernel is compiled.

use crate::files::{self, Source};
use crate::user_cache;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// The first bytes of each file.
const MAGIC: &[u8] = b"dml-cuda-kernel 1\n";

/// Maximum size of a cache file, in bytes. Larger files are ignored.
const LARGEST_FILE_BYTES: u64 = 256 << 20;

/// Everything that determines the code of a compiled kernel.
#[derive(Debug)]
pub(super) struct Key(String);

impl Key {
    pub(super) fn new(parts: &[&str]) -> Self {
        let sized: Vec<String> = parts.iter().map(|part| format!("{}:{part}", part.len())).collect();
        Self(sized.join("\n"))
    }

    fn file(&self, folder: &Path) -> PathBuf {
        let mut digest = DefaultHasher::new();
        self.0.hash(&mut digest);
        folder.join(format!("{:016x}.bin", digest.finish()))
    }
}

fn folder() -> Option<PathBuf> {
    user_cache::folder().map(|folder| folder.join("cuda"))
}

/// Returns the cached code of a key.
pub(super) fn load(key: &Key) -> Option<Vec<u8>> {
    load_from(&folder()?, key)
}

/// Caches the code of a key.
pub(super) fn store(key: &Key, code: &[u8]) {
    if let Some(folder) = folder() {
        let _ = store_in(&folder, key, code);
    }
}

fn load_from(folder: &Path, key: &Key) -> Option<Vec<u8>> {
    let bytes = files::read(&key.file(folder), Source::File, LARGEST_FILE_BYTES).ok()?;
    let rest = bytes.strip_prefix(MAGIC)?;
    let (found, rest) = part(rest)?;
    let (code, rest) = part(rest)?;
    (found == key.0.as_bytes() && rest.is_empty() && !code.is_empty()).then(|| code.to_vec())
}

/// Splits off a part that is preceded by its length.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<8>()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)
}

fn store_in(folder: &Path, key: &Key, code: &[u8]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    files::write(&key.file(folder), |file| {
        let key = key.0.as_bytes();
        let parts = [MAGIC, &(key.len() as u64).to_le_bytes(), key, &(code.len() as u64).to_le_bytes(), code];
        parts.into_iter().try_for_each(|part| file.write_all(part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_by_its_whole_key_and_damaged_ones_are_not_used() {
        let folder = std::env::temp_dir().join(format!("dml-kernel-cache-{}", std::process::id()));
        let (key, code) = (Key::new(&["source", "-O", "sm_90"]), b"\x7fELF and more".to_vec());
        assert!(load_from(&folder, &key).is_none());
        store_in(&folder, &key, &code).unwrap();
        assert_eq!(load_from(&folder, &key), Some(code.clone()));
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1, "nothing lies beside it");
        // Another key with the same digest.
        let other = Key::new(&["source-", "O", "sm_90"]);
        assert_ne!(other.0, key.0);
        std::fs::copy(key.file(&folder), other.file(&folder)).unwrap();
        assert!(load_from(&folder, &other).is_none());
        let whole = std::fs::read(key.file(&folder)).unwrap();
        for length in 0..whole.len() {
            std::fs::write(key.file(&folder), &whole[..length]).unwrap();
            assert!(load_from(&folder, &key).is_none(), "{length} bytes of {}", whole.len());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
