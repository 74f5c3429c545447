//! Page-aligned host memory, as drivers require for memory that a device uses in place.

use bytemuck::{Pod, Zeroable};
use std::ops::{Deref, DerefMut};

/// Size of a page, in bytes.
const PAGE_BYTES: usize = 4096;

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; PAGE_BYTES]);

// SAFETY: an array of bytes without padding, because the alignment equals the size.
unsafe impl Zeroable for Page {}
// SAFETY: as above; any bytes are a valid page.
unsafe impl Pod for Page {}

/// Bytes that begin at a page boundary.
pub(crate) struct HostPages {
    pages: Vec<Page>,
    len: usize,
}

impl HostPages {
    pub(crate) fn zeroed(len: usize) -> Self {
        Self { pages: vec![Page::zeroed(); len.div_ceil(PAGE_BYTES)], len }
    }

    pub(crate) fn of(bytes: &[u8]) -> Self {
        let mut pages = Self::zeroed(bytes.len());
        pages.copy_from_slice(bytes);
        pages
    }
}

impl Deref for HostPages {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.pages)[..self.len]
    }
}

impl DerefMut for HostPages {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.pages)[..self.len]
    }
}

impl std::fmt::Debug for HostPages {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostPages({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_begin_at_a_page_and_are_those_given() {
        for len in [0, 1, 4095, 4096, 4097] {
            let bytes: Vec<u8> = (0..len).map(|index| (index * 7 % 251) as u8).collect();
            let pages = HostPages::of(&bytes);
            assert_eq!(pages.as_ptr().addr() % PAGE_BYTES, 0);
            assert_eq!(*pages, bytes[..]);
        }
    }
}
