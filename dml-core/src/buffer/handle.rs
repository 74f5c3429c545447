//! What keeps a buffer alive: the program's handles, and the pins of grants and copies.
//!
//! ```text
//!   handles: RawBuffer and its clones ──the last is dropped──▶ no pins: the buffer is dropped
//!                                                        └──▶ pins: the buffer keeps itself ──last pin──▶ dropped
//! ```
//! A request borrows a handle. In the common case, its grant holds a pin, which is counted in the same rounds
//! of the buffer's lock. So an acquire and a release change no count that all threads share. Other grants and
//! plans hold handles: another round of the lock would cost more, and multiply the interleavings of models.
//!
//! All handles together own one strong reference of the buffer's `Arc`. It passes to the buffer itself
//! ([`Rare::keeper`](super::locked::Rare)) when the last handle is dropped before the last pin.

#![allow(unsafe_code)]

use crate::base::id::OwnerId;
use crate::base::sync::Arc;
use crate::buffer::RawBuffer;
use crate::buffer::lock::BufferInner;
use crate::buffer::storage::Handout;
use crate::state::OneClaim;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::Ordering;

/// Number of handles beyond which the process is aborted, as an `Arc` does.
const MOST_HANDLES: u32 = u32::MAX / 2;

/// A copy of the pointer of an `Arc`, which owns no reference.
type Shared = ManuallyDrop<Arc<BufferInner>>;

/// The program's reference to a buffer.
pub(crate) struct Handle(Shared);

/// What a grant or a plan keeps its buffer alive by.
pub(crate) struct Pin(Kind);

enum Kind {
    /// A reference that is counted under the buffer's lock, as those of grants in the common case are. It is
    /// counted down with the grant, or else when it is dropped.
    Counted(Shared),
    /// A handle, because another round of the lock would take longer.
    Handle(Handle),
    Ended,
}

/// The reference that a buffer kept of itself, once its last pin is gone. It is dropped without the lock.
pub(crate) type Kept = Option<Arc<BufferInner>>;

impl Handle {
    /// Makes the first handle of a buffer.
    pub(crate) fn new(inner: Arc<BufferInner>) -> Self {
        inner.handles.store(1, Ordering::Relaxed);
        Self(ManuallyDrop::new(inner))
    }

    /// Returns a copy of the pointer.
    #[inline(always)]
    fn copy(&self) -> Shared {
        // SAFETY: the copy is never dropped as an `Arc`, except by the last handle.
        unsafe { std::ptr::read(&raw const self.0) }
    }

    /// Requests a grant in the common case. Returns it with its pin and what it is handed.
    #[inline(always)]
    pub(crate) fn grant_at_once(
        &self,
        request: OneClaim,
        origin: &'static Location<'static>,
    ) -> Option<(Pin, OwnerId, Option<Handout>)> {
        let (grant, handout) = self.0.grant_at_once(request, origin)?;
        Some((Pin(Kind::Counted(self.copy())), grant, handout))
    }
}

impl Deref for Handle {
    type Target = BufferInner;

    #[inline(always)]
    fn deref(&self) -> &BufferInner {
        &self.0
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        if self.0.handles.fetch_add(1, Ordering::Relaxed) > MOST_HANDLES {
            std::process::abort();
        }
        Self(self.copy())
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::Release) != 1 {
            return;
        }
        std::sync::atomic::fence(Ordering::Acquire);
        // SAFETY: this was the last handle, and handles are cloned only from handles. So the reference that
        // all handles own is taken once.
        let inner = unsafe { ManuallyDrop::take(&mut self.0) };
        let mut locked = inner.locked.lock();
        if locked.pins > 0 {
            locked.rare().keeper = Some(inner.clone());
        }
        drop(locked);
    }
}

impl Pin {
    /// Makes a pin that has ended.
    #[inline(always)]
    pub(crate) const fn none() -> Self {
        Self(Kind::Ended)
    }

    /// Returns whether the pin is counted under the lock.
    #[inline(always)]
    pub(crate) fn is_counted(&self) -> bool {
        matches!(self.0, Kind::Counted(_))
    }

    /// Returns a reference that keeps the buffer while a pin that is counted is ended under the lock.
    pub(crate) fn strong(&self) -> Kept {
        match &self.0 {
            Kind::Counted(shared) => Some(Arc::clone(shared)),
            Kind::Handle(_) | Kind::Ended => None,
        }
    }

    /// Ends the pin. If it [is counted](Self::is_counted), it was counted down under the lock.
    #[inline(always)]
    pub(crate) fn ended(&mut self) {
        let ended = std::mem::replace(&mut self.0, Kind::Ended);
        if let Kind::Handle(handle) = ended {
            drop(handle);
        }
    }

    fn shared(&self) -> &Shared {
        match &self.0 {
            Kind::Counted(shared) | Kind::Handle(Handle(shared)) => shared,
            Kind::Ended => panic!("the pin has ended"),
        }
    }
}

impl From<RawBuffer> for Pin {
    fn from(buffer: RawBuffer) -> Self {
        Self(Kind::Handle(buffer.0))
    }
}

impl Deref for Pin {
    type Target = BufferInner;

    #[inline(always)]
    fn deref(&self) -> &BufferInner {
        self.shared()
    }
}

impl Clone for Pin {
    fn clone(&self) -> Self {
        Self(match &self.0 {
            Kind::Counted(shared) => {
                shared.locked.lock().pins += 1;
                // SAFETY: the copy is never dropped as an `Arc`.
                Kind::Counted(unsafe { std::ptr::read(shared) })
            }
            Kind::Handle(handle) => Kind::Handle(handle.clone()),
            Kind::Ended => Kind::Ended,
        })
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if let Kind::Counted(inner) = &self.0 {
            let kept = inner.locked.lock().unpin();
            drop(kept);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl fmt::Debug for Pin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Counted(_) | Kind::Handle(_) => (**self).fmt(f),
            Kind::Ended => f.write_str("none"),
        }
    }
}
