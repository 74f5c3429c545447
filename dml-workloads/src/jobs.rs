//! How the host kernels divide a package among the threads of a team.

use dml_arenas::launch::Team;

/// How many jobs each thread has at the least, where a package has elements enough.
const EACH: usize = 16;

/// Returns the elements of a job: at most `most`, and fewer where a package has too few for all threads to have some.
///
/// A multiple of `lanes`, which `most` is too. Packages are small while nobody knows what a kernel takes; computed by one thread,
/// they would make the host look slower than it is. Of several jobs, those who wake first take more.
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
