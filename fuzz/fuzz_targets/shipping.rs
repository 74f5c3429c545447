//! The production engine over arenas that ship, bound pairs and sharing sets among them, held against the
//! reference model. The program is its own workers.

#![no_main]

use dml_arenas::offload::{self, Registry};
use dml_verify::fuzz;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: offload::hook(Registry::new()), |bytes: &[u8]| {
    fuzz::counted("shipping", fuzz::shipping(None, bytes));
});
