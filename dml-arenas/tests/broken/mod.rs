//! Arenas for the tests of the conformance suite: one that does everything late and has little room, and
//! broken ones.

#![allow(dead_code, reason = "each test binary uses its own part")]

pub(crate) mod link;
pub(crate) mod pool;
pub(crate) mod wrapper;
