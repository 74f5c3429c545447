//! The pure machine, every step of every plan an operation by itself, held against its invariants and against
//! what the storages really hold.

#![no_main]

use dml_verify::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::counted("machine", fuzz::machine(bytes)));
