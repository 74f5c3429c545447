//! Offload devices with the worker that ships, and a library in C.

#![cfg(all(feature = "offload", target_os = "linux", not(dml_loom)))]

#[path = "../common/mod.rs"]
mod common;
mod fork;
#[path = "../common/forks.rs"]
mod forks;
mod functions;
mod losses;
mod owner;
mod rig;
mod shared;
