//! The production engine over test arenas, with faults, held against the reference model.

#![no_main]

use dml_verify::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::counted("reference", fuzz::reference(bytes)));
