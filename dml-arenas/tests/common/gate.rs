//! A gate in a queue of an OpenCL device: a barrier behind a user event holds back what is enqueued after it.

use dml_arenas::OpenClArena;
use dml_core::internal::sync::Arc;
use dml_core::{Arena, NativeHandle};
use opencl3::command_queue::enqueue_barrier_with_wait_list;
use opencl3::event::{CL_COMPLETE, create_user_event, release_event, set_user_event_status};
use opencl3::types::{cl_command_queue, cl_context, cl_event};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

fn opencl(arena: &Arc<dyn Arena>) -> &OpenClArena {
    (**arena).downcast_ref().expect("an OpenCL device has an OpenCL arena")
}

/// Holds everything back that is enqueued after it, until it is opened, or has been closed for long.
pub(crate) struct Gate {
    event: cl_event,
    /// Opens the gate after a while, so that a poll that blocks returns and the test fails.
    watch: Option<(Sender<()>, JoinHandle<()>)>,
}

pub(crate) const LONG: Duration = Duration::from_secs(30);

// SAFETY: OpenCL calls on events are thread-safe.
unsafe impl Sync for Gate {}

impl Gate {
    /// Holds back kernels and unmaps.
    pub(crate) fn kernels(arena: &Arc<dyn Arena>) -> Self {
        Self::close(arena, opencl(arena).queue())
    }

    /// Holds back transfers to the device.
    pub(crate) fn inward(arena: &Arc<dyn Arena>) -> Self {
        Self::close(arena, opencl(arena).transfer_queues()[0])
    }

    /// Holds back transfers from the device.
    pub(crate) fn outward(arena: &Arc<dyn Arena>) -> Self {
        Self::close(arena, opencl(arena).transfer_queues()[1])
    }

    fn close(arena: &Arc<dyn Arena>, queue: NativeHandle) -> Self {
        let arena = opencl(arena);
        let context = std::ptr::without_provenance_mut::<std::ffi::c_void>(arena.context().0) as cl_context;
        let queue = std::ptr::without_provenance_mut::<std::ffi::c_void>(queue.0) as cl_command_queue;
        let gate = create_user_event(context).unwrap();
        // SAFETY: the queue is live while the arena is; the list has the one event just made.
        let barrier = unsafe { enqueue_barrier_with_wait_list(queue, 1, &gate) }.unwrap();
        // SAFETY: the reference that the call handed over.
        unsafe { release_event(barrier) }.unwrap();
        let (opened, watched) = channel::<()>();
        let address = gate.expose_provenance();
        let watch = std::thread::spawn(move || {
            if watched.recv_timeout(LONG) == Err(RecvTimeoutError::Timeout) {
                let gate = std::ptr::with_exposed_provenance_mut::<std::ffi::c_void>(address);
                let _ = set_user_event_status(gate as cl_event, CL_COMPLETE);
            }
        });
        Self { event: gate, watch: Some((opened, watch)) }
    }

    pub(crate) fn open(&self) {
        set_user_event_status(self.event, CL_COMPLETE).unwrap();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A test that fails opens its gate, so that what it drops can end.
        let _ = set_user_event_status(self.event, CL_COMPLETE);
        if let Some((opened, watch)) = self.watch.take() {
            drop(opened);
            watch.join().unwrap();
        }
        // SAFETY: the reference from `create_user_event`, which the thread uses no more.
        let _ = unsafe { release_event(self.event) };
    }
}
