//! Elements of a part by their indices in the whole buffer.
//!
//! ```text
//!   buffer   0 1 2 3 4 5 6 7 8 9          elements[4]: the same element in every package that has it,
//!   part         └───────┘                wherever the part begins
//! ```

use std::ops::{Index, IndexMut, Range};

/// The elements of a part by their indices in the buffer, for reading.
#[derive(Clone, Debug)]
pub struct Elements<'a, T> {
    argument: usize,
    runs: Runs<&'a [T]>,
}

/// The elements of a part by their indices in the buffer, for reading and writing.
#[derive(Debug)]
pub struct ElementsMut<'a, T> {
    argument: usize,
    runs: Runs<&'a mut [T]>,
}

/// Slices of consecutive elements, ascending, each with the index of its first one.
type Runs<S> = Vec<(u64, S)>;

/// Returns the run of an element, and its place in the run.
#[inline]
fn find<T, S: AsRef<[T]>>(runs: &[(u64, S)], index: u64) -> Option<(usize, usize)> {
    let run = match runs.len() {
        1 => 0,
        _ => runs.partition_point(|(first, _)| *first <= index).checked_sub(1)?,
    };
    let (first, slice) = &runs[run];
    let at = index.checked_sub(*first)?;
    (at < slice.as_ref().len() as u64).then_some((run, at as usize))
}

fn ranges<T, S: AsRef<[T]>>(runs: &[(u64, S)]) -> impl Iterator<Item = Range<u64>> + '_ {
    runs.iter().map(|(first, slice)| *first..*first + slice.as_ref().len() as u64)
}

#[cold]
fn missing<T, S: AsRef<[T]>>(argument: usize, runs: &[(u64, S)], index: u64) -> ! {
    let has: Vec<_> = ranges(runs).collect();
    panic!("element {index} of argument {argument} is not among those of this package: {has:?}");
}

macro_rules! reading {
    ($type:ident) => {
        impl<T> $type<'_, T> {
            /// Returns an element; `None` if the package does not have it.
            #[inline]
            #[must_use]
            pub fn get(&self, index: u64) -> Option<&T> {
                let (run, at) = find(&self.runs, index)?;
                Some(&self.runs[run].1[at])
            }

            /// Returns the indices of the elements, ascending.
            pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
                ranges(&self.runs)
            }
        }

        /// # Panics
        /// When the package does not have the element.
        impl<T> Index<u64> for $type<'_, T> {
            type Output = T;

            #[inline]
            fn index(&self, index: u64) -> &T {
                self.get(index).unwrap_or_else(|| missing(self.argument, &self.runs, index))
            }
        }
    };
}

reading!(Elements);
reading!(ElementsMut);

impl<'a, T> Elements<'a, T> {
    pub(super) fn new(argument: usize, runs: Runs<&'a [T]>) -> Self {
        Self { argument, runs }
    }
}

impl<'a, T> ElementsMut<'a, T> {
    pub(super) fn new(argument: usize, runs: Runs<&'a mut [T]>) -> Self {
        Self { argument, runs }
    }

    /// Returns an element, for changing; `None` if the package does not have it.
    #[inline]
    pub fn get_mut(&mut self, index: u64) -> Option<&mut T> {
        let (run, at) = find(&self.runs, index)?;
        Some(&mut self.runs[run].1[at])
    }
}

/// # Panics
/// When the package does not have the element.
impl<T> IndexMut<u64> for ElementsMut<'_, T> {
    #[inline]
    fn index_mut(&mut self, index: u64) -> &mut T {
        match find(&self.runs, index) {
            Some((run, at)) => &mut self.runs[run].1[at],
            None => missing(self.argument, &self.runs, index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_has_its_index_in_the_buffer() {
        let (low, high) = ([10, 11, 12], [20, 21]);
        let elements = Elements::new(2, vec![(10, &low[..]), (20, &high[..])]);
        for index in 0..30 {
            let expected = matches!(index, 10..13 | 20..22).then_some(index);
            assert_eq!(elements.get(index).copied(), expected);
        }
        assert_eq!(elements.ranges().collect::<Vec<_>>(), [10..13, 20..22]);
        assert_eq!(Elements::<u8>::new(0, vec![]).get(0), None);
    }

    #[test]
    fn elements_are_changed_where_they_are() {
        let (mut low, mut high) = ([0; 3], [0; 2]);
        let mut elements = ElementsMut::new(0, vec![(10, &mut low[..]), (20, &mut high[..])]);
        elements[12] = 7;
        *elements.get_mut(20).unwrap() = elements[12] + 1;
        assert!(elements.get_mut(13).is_none());
        assert_eq!((low, high), ([0, 0, 7], [8, 0]));
    }

    #[test]
    #[should_panic(expected = "element 13 of argument 2 is not among those of this package: [10..13]")]
    fn what_a_package_does_not_have_is_told() {
        let elements = Elements::new(2, vec![(10, &[0_u8; 3][..])]);
        let _ = elements[13];
    }
}
