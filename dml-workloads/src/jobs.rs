//! How the host kernels divide a package among the threads of the current rayon pool.

/// Returns the elements of a job: at most `most`, and fewer where a package has too few for all threads.
///
/// A multiple of `lanes`, which `most` is too. Packages are small while nobody knows what a kernel takes; computed by one thread,
/// they would make the host look slower than it is.
pub(crate) fn length(elements: usize, most: usize, lanes: usize) -> usize {
    elements.div_ceil(rayon::current_num_threads()).clamp(1, most).next_multiple_of(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_a_job_and_none_has_too_long_a_one() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        pool.install(|| {
            assert_eq!(length(0, 512, 16), 16);
            assert_eq!(length(48, 512, 16), 16);
            assert_eq!(length(49, 512, 16), 32);
            assert_eq!(length(7, 32, 1), 3);
            assert_eq!(length(1 << 20, 512, 16), 512);
        });
    }
}
