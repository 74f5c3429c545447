//! Every input that the fuzzers keep, once more, without a fuzzer.
//!
//! `cargo xtask fuzz SECONDS` finds new ones. One that failed is put into the corpus with what it found
//! mended.

#![cfg(not(dml_loom))]

use dml_verify::fuzz;
use std::fs;
use std::path::Path;

/// Runs the inputs in a folder; how many there were, and how many operations they are.
fn replay(target: &str, run: fn(&[u8]) -> u64) -> (u64, u64) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = fs::read_dir(&folder)
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
        .map(|entry| entry.expect("the folder can be read").path())
        .collect();
    paths.sort();
    let mut operations = 0;
    for path in &paths {
        let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let ran = std::panic::catch_unwind(|| run(&bytes));
        operations += ran.unwrap_or_else(|panic| {
            eprintln!("{} fails", path.display());
            std::panic::resume_unwind(panic)
        });
    }
    eprintln!("corpus {target}: {} inputs, {operations} operations", paths.len());
    (paths.len() as u64, operations)
}

#[test]
fn the_corpus_of_the_machine() {
    let (inputs, operations) = replay("machine", fuzz::machine);
    assert!(inputs > 0 && operations > inputs, "an empty corpus proves nothing");
}

#[test]
fn the_corpus_of_the_reference_model() {
    let (inputs, operations) = replay("reference", fuzz::reference);
    assert!(inputs > 0 && operations > inputs, "an empty corpus proves nothing");
}

#[cfg(feature = "app")]
#[test]
fn the_corpus_of_application_files() {
    let read = |bytes: &[u8]| {
        let Ok(text) = std::str::from_utf8(bytes) else { return 0 };
        let read = dml::app::Application::from_text("app.toml", text, &dml::app::Changes::new());
        // Their sources are not there.
        u64::from(read.is_err())
    };
    let (inputs, refused) = replay("application", read);
    assert!(inputs > 0 && refused > 0, "an empty corpus proves nothing");
}

#[cfg(all(feature = "command", feature = "offload", target_os = "linux"))]
#[test]
fn the_corpus_of_arenas_that_ship() {
    let (inputs, operations) = replay("shipping", shipping);
    assert!(inputs > 0 && operations > inputs, "an empty corpus proves nothing");
}

/// The command is the workers' program.
fn shipping(bytes: &[u8]) -> u64 {
    fuzz::shipping(option_env!("CARGO_BIN_EXE_dml").map(Path::new), bytes)
}

#[test]
fn any_bytes_are_an_input() {
    let patterned = |len: usize| (0..len).map(|at| (at * 7 + at / 11) as u8).collect::<Vec<u8>>();
    for len in [0, 1, 3, 4, 5, 100, 5_000] {
        for bytes in [vec![0; len], vec![255; len], patterned(len)] {
            let _ = (fuzz::machine(&bytes), fuzz::reference(&bytes), shipping(&bytes));
        }
    }
}
