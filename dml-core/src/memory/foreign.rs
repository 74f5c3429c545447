//! Host memory of a foreign allocator, as storage of the application.

#![allow(unsafe_code)]

use crate::memory::host::{Storage, sealed};
use bytemuck::Pod;
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;

/// Elements in host memory that an `owner` keeps: a framework's page-locked memory, a tensor, a mapped file.
///
/// Like a vector, it is a container for [`Platform::buffer_from`](crate::Platform::buffer_from) and
/// [`Buffer::attach_external`](crate::Buffer::attach_external). The owner is dropped with it.
/// [`Buffer::into_storage`](crate::Buffer::into_storage) and then [`into_owner`](Self::into_owner) return the
/// owner.
///
/// ```
/// # use dml_core::Foreign;
/// # use std::ptr::NonNull;
/// // Any owner works if it keeps its elements in place, such as a vector.
/// let mut owner: Vec<u32> = (0..100).collect();
/// let elements = NonNull::from(&mut owner[..]).cast::<u32>();
/// // SAFETY: the vector keeps the elements in place, and no other code accesses it.
/// let foreign = unsafe { Foreign::new(elements, 100, owner) };
/// assert_eq!(foreign.as_slice()[7], 7);
/// assert_eq!(foreign.into_owner().unwrap().len(), 100);
/// ```
pub struct Foreign<T, K> {
    ptr: NonNull<T>,
    len: usize,
    kept: Kept<T, K>,
}

/// The keeper of the elements.
enum Kept<T, K> {
    Owner(K),
    /// The elements were copied, because a block of the owner's memory is still kept.
    Copy(Vec<T>),
}

// SAFETY: the pointer refers only to the elements, which the keeper owns. Keeper and elements may be sent and
// shared (the bounds below), and no method writes the elements.
unsafe impl<T: Send, K: Send> Send for Foreign<T, K> {}

// SAFETY: as above.
unsafe impl<T: Sync, K: Sync> Sync for Foreign<T, K> {}

impl<T: Pod, K> Foreign<T, K> {
    /// Names `len` elements at `ptr`, which `owner` keeps.
    ///
    /// # Safety
    /// 1. `ptr` is aligned, and valid for reads and writes of `len` initialised elements, until `owner` is
    ///    dropped. If `len` is zero, any aligned pointer serves.
    /// 2. Moving `owner` moves no element. It may be dropped on any thread.
    /// 3. From now on until `owner` is dropped or taken back by [`into_owner`](Self::into_owner), nothing
    ///    else touches the elements: no other thread, no device, and not the owner itself.
    #[must_use]
    pub unsafe fn new(ptr: NonNull<T>, len: usize, owner: K) -> Self {
        Self { ptr, len, kept: Kept::Owner(owner) }
    }

    /// Returns the elements.
    #[must_use]
    pub fn as_slice(&self) -> &[T] {
        // SAFETY: live, aligned, initialised and touched by no other code (contract of `new`), or those of a
        // vector. No code writes while `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len) }
    }

    /// Returns the owner, whose elements have the contents of [`as_slice`](Self::as_slice).
    ///
    /// # Errors
    /// A copy of the contents, if a block over the owner's memory still existed when
    /// [`Buffer::into_storage`](crate::Buffer::into_storage) returned this value. The owner is dropped with
    /// the last such block.
    pub fn into_owner(self) -> Result<K, Vec<T>> {
        match self.kept {
            Kept::Owner(owner) => Ok(owner),
            Kept::Copy(elements) => Err(elements),
        }
    }
}

impl<T, K> sealed::Sealed for Foreign<T, K> {}

// SAFETY: the owner keeps the elements in place, and no other code touches them (contract of `new`). The same
// holds for a vector.
unsafe impl<T: Pod + fmt::Debug + Send + Sync, K: Any + Send + Sync> Storage<T> for Foreign<T, K> {
    fn parts(&mut self) -> (NonNull<T>, usize) {
        (self.ptr, self.len)
    }

    fn of(mut elements: Vec<T>) -> Self {
        let (ptr, len) = (NonNull::from(elements.as_mut_slice()).cast(), elements.len());
        Self { ptr, len, kept: Kept::Copy(elements) }
    }
}

impl<T, K> fmt::Debug for Foreign<T, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Foreign({:p}, {} x {} bytes)", self.ptr, self.len, size_of::<T>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::sync::Arc;
    use crate::memory::host::Owned;

    #[test]
    fn i24_the_owner_comes_back_or_a_copy_if_somebody_keeps_it() {
        let mut owner: Vec<u16> = (0..50).map(|i| i * 3).collect();
        let ptr = NonNull::from(&mut owner[..]).cast::<u16>();
        // SAFETY: the vector keeps its elements in place, and no other code touches it.
        let foreign = unsafe { Foreign::new(ptr, 50, owner) };
        let owned = Arc::new(Owned::new(foreign));
        let kept = owned.clone();
        let copy = Owned::take_back(owned).into_owner().unwrap_err();
        assert_eq!((copy[49], copy.len()), (147, 50));
        let owner = Owned::take_back(kept).into_owner().expect("it is the last reference");
        assert_eq!((NonNull::from(&owner[..]).cast(), owner[49]), (ptr, 147));
    }
}
