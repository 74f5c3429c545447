//! The rules that every arena must follow, whatever memory it wraps: one list of checks for all arenas.
//!
//! ```text
//!   Subject (platform, arena, facts) ──▶ storage   what it says of itself, blocks of every size, their bytes apart
//!                                    ──▶ transfer  copies and fills hit their bytes and no others
//!                                    ──▶ fences    waited for, polled, dropped, elsewhere, in any order; loans come back
//!                                    ──▶ threads   that share a block, and that have blocks of their own
//!                                    ──▶ memory    too much is an error, and what is freed can be had again
//!                                    ──▶ maps      who is let in sees the bytes, and what it writes stays
//!                                    ──▶ external  storage of the application comes back as it was
//!                                    ──▶ sharing   storage of main memory, or of another root, is shared without a copy
//!                                    ──▶ links     each moves its bytes and no others
//!                                    ──▶ misuse    what core never asks for is a panic that names the arena
//!                                    ──▶ layer     buffers over it, as an application uses them
//!                                    ──▶ loss      a device that goes away is reported, and no call waits for it
//!   Backend                          ──▶ discovery what it adds, and what it says of what is missing
//! ```
//! A check panics where the arena breaks its contract, and returns otherwise; where an arena does not offer
//! what a check is about, the check looks at how it declines. [`checks!`](crate::conformance_checks) makes a
//! test of every check for a subject, so that the name of a test that fails says which arena and which rule.
//!
//! # What holds here
//! 1. A check requests only what core would, except in `misuse`.
//! 2. Contents depend on their position, so that bytes in the wrong place are noticed. Checks also look at
//!    the memory around the target of a copy out.
//! 3. No check depends on the time, except that a check that hangs fails.

mod desk;
mod discovery;
mod external;
mod fences;
mod layer;
mod links;
mod loss;
mod maps;
mod memory;
mod misuse;
mod sharing;
mod storage;
mod subject;
mod threads;
mod transfer;

pub use crate::conformance_checks as checks;
pub use discovery::{a_missing_backend_is_a_note, discovery_adds_what_is_wanted};
pub use external::external_storage_comes_back;
pub use fences::{
    fences_dropped_unwaited_have_done_their_work, fences_end_in_any_order, fences_end_on_other_threads,
    fences_wake_whoever_polls_last, transfers_give_back_what_they_were_lent,
};
pub use layer::{buffers_agree_with_a_model, buffers_of_two_threads_keep_apart};
pub use links::links_move_their_bytes_alone;
pub use loss::a_lost_device_is_told_and_keeps_nobody_waiting;
pub use maps::{map_states_out_of_turn_are_bugs_of_core, mappings_show_the_bytes_and_keep_the_changes};
pub use memory::{freed_memory_can_be_had_again, fullness_is_an_error, too_much_is_an_error};
pub use misuse::{blocks_of_other_arenas_are_bugs_of_core, bytes_past_the_end_are_bugs_of_core};
pub use sharing::bound_storage_is_shared;
pub use storage::{blocks_are_as_asked_for, blocks_share_no_bytes, the_description_is_consistent};
pub use subject::{Subject, Support};
pub use threads::{threads_have_blocks_of_their_own, threads_share_a_block};
pub use transfer::{copies_hit_their_bytes_alone, fills_hit_their_bytes_alone, transfers_agree_with_a_model};

/// Passes the names of all checks to a macro of this crate. This is the only list of them.
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_list {
    ($then:ident $with:tt) => {
        $crate::$then! { $with
            the_description_is_consistent
            blocks_are_as_asked_for
            blocks_share_no_bytes
            copies_hit_their_bytes_alone
            fills_hit_their_bytes_alone
            transfers_agree_with_a_model
            fences_wake_whoever_polls_last
            fences_dropped_unwaited_have_done_their_work
            fences_end_in_any_order
            fences_end_on_other_threads
            transfers_give_back_what_they_were_lent
            threads_share_a_block
            threads_have_blocks_of_their_own
            too_much_is_an_error
            fullness_is_an_error
            freed_memory_can_be_had_again
            mappings_show_the_bytes_and_keep_the_changes
            map_states_out_of_turn_are_bugs_of_core
            external_storage_comes_back
            bound_storage_is_shared
            links_move_their_bytes_alone
            bytes_past_the_end_are_bugs_of_core
            blocks_of_other_arenas_are_bugs_of_core
            buffers_agree_with_a_model
            buffers_of_two_threads_keep_apart
            a_lost_device_is_told_and_keeps_nobody_waiting
        }
    };
}

/// Makes a module of tests, one for each check.
///
/// The macro calls `subject` with the name of the test. `subject` returns the [`Subject`],
/// or `None` if the machine lacks the device, which it should then report.
///
/// # Examples
/// ```
/// use dml_arenas::MainMem;
/// use dml_verify::conformance::{self, Support, Subject};
/// use std::sync::Arc;
///
/// fn main_mem(_test: &str) -> Option<Subject> {
///     Some(Subject::main(|cpu| Arc::new(MainMem::new(cpu))).with_external(Support::Offered))
/// }
/// conformance::checks!(main_memory, main_mem);
/// ```
#[macro_export]
macro_rules! conformance_checks {
    ($module:ident, $subject:path) => {
        mod $module {
            #[allow(unused_imports, reason = "the path of the subject may be absolute")]
            use super::*;

            $crate::conformance_list! { conformance_tests ($subject) }
        }
    };
}

/// The tests of [`conformance_checks!`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_tests {
    (($subject:path) $($check:ident)*) => {$(
        #[test]
        fn $check() {
            if let Some(subject) = $subject(concat!(module_path!(), "::", stringify!($check))) {
                $crate::conformance::$check(&subject);
            }
        }
    )*};
}

/// The entries of [`CHECKS`].
#[doc(hidden)]
#[macro_export]
macro_rules! conformance_entries {
    (() $($check:ident)*) => {
        &[$((stringify!($check), $check as Check)),*]
    };
}

/// A check: it panics if the subject breaks the rule.
pub type Check = fn(&Subject);

/// Every check with its name, for running checks by name.
pub const CHECKS: &[(&str, Check)] = crate::conformance_list! { conformance_entries () };
