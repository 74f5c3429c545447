//! Owned OpenCL objects. The process that created an object releases it once, and ignores errors.
//!
//! A fork has the driver's state without the driver's threads, and file descriptors that act on its parent's
//! device. So a fork does not release the objects.
//!
//! The owned types of the opencl3 crate panic when a release fails, which a lost device can cause during
//! unwinding. These handles ignore the failure, because nothing is left to do. They also let several threads
//! share a buffer, which opencl3's `&mut Buffer` parameters do not.

use crate::fork::Origin;
use opencl3::command_queue::release_command_queue;
use opencl3::context::context::release_context;
use opencl3::device::release_device;
use opencl3::event::release_event;
use opencl3::kernel::release_kernel;
use opencl3::memory::release_mem_object;
use opencl3::program::release_program;
use opencl3::types::{cl_command_queue, cl_context, cl_device_id, cl_event, cl_kernel, cl_mem, cl_program};

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident($raw:ty), $release:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name {
            raw: $raw,
            origin: Origin,
        }

        // SAFETY: an OpenCL object is not tied to the thread that created it (OpenCL 1.2, appendix A.2).
        unsafe impl Send for $name {}

        impl $name {
            /// Takes ownership of an object.
            ///
            /// # Safety
            /// `raw` is a valid object, and the caller hands one reference to it over.
            pub(super) unsafe fn own(raw: $raw) -> Self {
                Self { raw, origin: Origin::here() }
            }

            /// Returns the object, valid while the handle lives.
            pub(super) fn raw(&self) -> $raw {
                self.raw
            }
        }

        impl Drop for $name {
            fn drop(&mut self) {
                if self.origin.is_here() {
                    // SAFETY: the reference owned since `own`, released only here.
                    let _ = unsafe { $release(self.raw) };
                }
            }
        }
    };
}

macro_rules! shared_handle {
    ($(#[$doc:meta])* $name:ident($raw:ty), $release:path) => {
        handle!($(#[$doc])* $name($raw), $release);

        // SAFETY: OpenCL calls on this sort of object are thread-safe (OpenCL 1.2, appendix A.2: all API
        // calls except clSetKernelArg).
        unsafe impl Sync for $name {}
    };
}

handle!(
    /// A sub-device made for this program.
    SubDevice(cl_device_id), release_device);
shared_handle!(
    /// A context.
    Context(cl_context), release_context);
shared_handle!(
    /// A command queue.
    Queue(cl_command_queue), release_command_queue);
shared_handle!(
    /// A buffer object.
    Mem(cl_mem), release_mem_object);
shared_handle!(
    /// The completion of one command.
    Event(cl_event), release_event);
shared_handle!(
    /// A program, built or not.
    Program(cl_program), release_program);
handle!(
    /// A kernel with its arguments. One thread uses it at a time, because setting an argument is not
    /// thread-safe.
    Kernel(cl_kernel), release_kernel);

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use crate::fork::testing::{child_says, fork};
    use std::sync::atomic::{AtomicUsize, Ordering};

    static RELEASED: AtomicUsize = AtomicUsize::new(0);

    unsafe fn release(object: usize) -> Result<(), i32> {
        RELEASED.fetch_add(object, Ordering::Relaxed);
        Ok(())
    }

    handle!(
        /// A thing.
        Thing(usize), release);

    #[test]
    fn what_a_fork_drops_is_not_released_there() {
        // SAFETY: there is no object; `release` only counts.
        let thing = unsafe { Thing::own(7) };
        // SAFETY: as above.
        let other = unsafe { Thing::own(100) };
        let released = move |thing| {
            drop::<Thing>(thing);
            RELEASED.load(Ordering::Relaxed)
        };
        assert!(child_says(fork, || released(other) == 0));
        RELEASED.store(0, Ordering::Relaxed);
        assert_eq!((thing.raw(), released(thing)), (7, 7));
    }
}
