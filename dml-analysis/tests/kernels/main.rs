//! Kernels of the project, kernels that mislead a reader, and texts that are none.

#![allow(clippy::single_range_in_vec_init, reason = "a part is a list of ranges")]

mod bodies;
mod cases;
mod declared;
mod misleading;
mod oracle;
mod robust;
