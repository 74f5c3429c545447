//! Arenas and the ways between them: what a backend implements, and the memory that it is lent.

pub(crate) mod arena;
pub(crate) mod block;
pub(crate) mod cross_arena;
pub(crate) mod desc;
pub(crate) mod error;
pub(crate) mod fence;
pub(crate) mod foreign;
pub(crate) mod host;
pub(crate) mod link;
pub(crate) mod map_state;
pub(crate) mod request;
pub(crate) mod staged;
