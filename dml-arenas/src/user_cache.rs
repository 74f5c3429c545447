//! The folder of the user's caches.

use std::path::PathBuf;

/// Returns `dml` in `$XDG_CACHE_HOME`, or in `.cache` of the home folder; `None` if there is neither.
pub(crate) fn folder() -> Option<PathBuf> {
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || std::env::home_dir().filter(|path| path.is_absolute()).map(|home| home.join(".cache"));
    Some(given.or_else(home)?.join("dml"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_is_where_the_environment_says() {
        let of = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = std::env::home_dir().filter(|path| path.is_absolute());
        let expected = of("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
        assert_eq!(folder(), expected.map(|folder| folder.join("dml")));
    }
}
