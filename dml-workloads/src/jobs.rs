//! Division of a package into jobs for the threads of a team.

use dml_arenas::launch::Team;

/// Approximate number of jobs per thread of a small package. Large packages have more.
const EACH: usize = 16;

/// Returns the number of elements of a job: at most `most`, and fewer in packages too small for several jobs
/// per thread.
///
/// The result is a multiple of `lanes`; so is `most`. Packages are small while the speed of a kernel is
/// unknown. On a single thread they would make the host look slower than it is. There are several jobs per
/// thread, so that threads that wake early take more of them.
pub(crate) fn length(team: &Team, elements: usize, most: usize, lanes: usize) -> usize {
    elements.div_ceil(team.threads() * EACH).clamp(1, most).next_multiple_of(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_thread_has_jobs_and_none_has_too_long_a_one() {
        let team = Team::new(3).unwrap();
        assert_eq!(length(&team, 0, 512, 16), 16);
        assert_eq!(length(&team, 768, 512, 16), 16);
        assert_eq!(length(&team, 769, 512, 16), 32);
        assert_eq!(length(&team, 97, 32, 1), 3);
        assert_eq!(length(&team, 1 << 20, 512, 16), 512);
    }
}
