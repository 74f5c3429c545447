//! The application's interface to buffers: acquires, grants, views, and direct operations on one buffer.

pub(crate) mod acquire;
pub(crate) mod acquisition;
pub(crate) mod behind;
pub(crate) mod course;
pub(crate) mod direct;
pub(crate) mod docket;
pub(crate) mod external;
pub(crate) mod flight;
pub(crate) mod grant;
pub(crate) mod grants;
pub(crate) mod held;
pub(crate) mod kernels;
pub(crate) mod launch;
pub(crate) mod lent;
pub(crate) mod platform;
pub(crate) mod prefetch;
pub(crate) mod region;
pub(crate) mod submit;
pub(crate) mod typed;
pub(crate) mod view;
