//! Rap: the resource allocation problem, an irregular workload with integer arithmetic.
//!
//! ```text
//!   requests[items] ──┐
//!   benefits (all) ───┴─▶ dynamic programming over the activities ──▶ best[items]
//! ```
//!
//! A request has a budget of units, and a set of activities that may receive them. The table holds the
//! benefit of each activity for each number of units. The result is the maximum benefit of the budget.
//!
//! Invariants:
//!
//! 1. **Results are exact**: all numbers are integers far from the limits of their type.
//! 2. **The work of an item grows with the square of its budget** and with the number of its activities.
//!    Budgets grow along the items, so the cost of packages of one size varies widely, and the last ones are
//!    the most expensive.
//! 3. **No contents of a buffer cause an access outside a buffer**: a budget beyond the table is clamped to
//!    the table's last amount.
//!
//! # Source
//! The irregular benchmark of the co-execution papers with two buffers read and one written; 0.5 million
//! items, groups of 128. They name the problem, and do not publish the size of its tables.

use crate::check::{Mismatch, Value};
use crate::jobs;
use crate::prepare::{Arguments, Groups, Input, Kind, Outputs, PrepareError, Program, Recipe, memory_for};
use crate::random;
use dml_arenas::launch::{Call, ComputeError, Team};
use rayon::prelude::*;
use std::ops::Range;

/// Work-items of one OpenCL work-group.
pub const LOCAL_SIZE: u64 = 128;

/// The OpenCL C 1.2 program.
///
/// # Shape and units
/// Kernel arguments: `global const uint2* requests` (budget, activities as bits),
/// `global const uint* benefits` ([`ACTIVITIES`] rows of [`AMOUNTS`]), `global uint* best`, `ulong end` (the
/// kernel skips items from `end` on). The buffers are whole. The global offset is the first item of the
/// package.
pub const OPENCL_SOURCE: &str = include_str!("kernels/rap.cl");

/// The program in CUDA C. Its kernels take the arguments of the OpenCL program, then their items.
pub const CUDA_SOURCE: &str = include_str!("kernels/rap.cu");

/// The name of the kernel in [`OPENCL_SOURCE`] and in [`CUDA_SOURCE`].
pub const OPENCL_KERNEL: &str = "rap";

/// Number of activities in the table.
pub const ACTIVITIES: usize = 12;
/// Number of amounts in the table, from zero units on.
pub const AMOUNTS: usize = 64;

/// The size of a problem.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Size {
    /// Requests.
    pub items: u64,
}

/// Size for tests: takes milliseconds, and is no multiple of the local size.
pub const TINY: Size = Size { items: 1_501 };
/// Takes about a second on one core.
pub const SMALL: Size = Size { items: 300_000 };
/// The published number of items.
pub const PAPER: Size = Size { items: 500_000 };

/// Minimum budget, in units.
const LEAST_BUDGET: u64 = 8;
/// Upper bound of the position's share of the budget, in units.
const RISE: u64 = 40;
/// Number of values of the budget's random share, from zero units on.
const SPREAD: u64 = 16;
/// Maximum number of requests per job of the host kernel: so few that no straggler delays the package.
const REQUESTS_PER_JOB: usize = 32;

/// The inputs of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    requests: Vec<[u32; 2]>,
    benefits: Vec<u32>,
}

impl Problem {
    /// Draws the requests, in parallel, and the table. Each further unit has a random, positive benefit.
    ///
    /// ```
    /// use dml_arenas::launch::Team;
    /// use dml_workloads::rap::{self, Problem};
    ///
    /// let problem = Problem::generate(rap::TINY, 42);
    /// let mut best = vec![0; problem.requests().len()];
    /// rap::host(Team::global(), 0..problem.items(), problem.requests(), problem.benefits(), &mut best);
    /// problem.check(&best)?;
    /// # Ok::<(), dml_workloads::check::Mismatch>(())
    /// ```
    #[must_use]
    pub fn generate(size: Size, seed: u64) -> Self {
        let (budgets, activities) = (random::stream(seed, 1), random::stream(seed, 2));
        let request = |index: u64| {
            let rise = (u128::from(index) * u128::from(RISE) / u128::from(size.items)) as u64;
            let budget = LEAST_BUDGET + rise + random::word(budgets, index) % SPREAD;
            let any = 1 + random::word(activities, index) % ((1 << ACTIVITIES) - 1);
            [budget as u32, any as u32]
        };
        let mut benefits = Vec::with_capacity(ACTIVITIES * AMOUNTS);
        for activity in 0..ACTIVITIES as u64 {
            let seed = random::stream(seed, 3 + activity);
            let further =
                |unit: u64| if unit == 0 { 0 } else { 1 + (random::word(seed, unit) % 1000) as u32 };
            benefits.extend((0..AMOUNTS as u64).scan(0, |sum, unit| {
                *sum += further(unit);
                Some(*sum)
            }));
        }
        Self { requests: (0..size.items).into_par_iter().map(request).collect(), benefits }
    }

    /// Returns the number of items: one per request.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Returns the budget of each request, and its activities as bits.
    #[must_use]
    pub fn requests(&self) -> &[[u32; 2]] {
        &self.requests
    }

    /// Returns the benefit of each activity for each number of units: one row per activity.
    #[must_use]
    pub fn benefits(&self) -> &[u32] {
        &self.benefits
    }

    /// Compares a whole output exactly with a table for every set of activities.
    ///
    /// The table of a set extends that of a smaller set by one activity. So all tables together take no
    /// longer than some thousand requests.
    ///
    /// # Errors
    /// A [`Mismatch`] with the first wrong item, or with the lengths if they differ.
    pub fn check(&self, best: &[u32]) -> Result<(), Mismatch> {
        Mismatch::of_length("length of the rap output", self.requests.len(), best.len(), 1)?;
        let tables = self.tables();
        let wrong = best.par_iter().enumerate().find_map_first(|(item, found)| {
            let [budget, activities] = self.requests[item];
            let expected = tables[activities as usize][budget as usize];
            (expected != u64::from(*found)).then_some((item, expected, *found))
        });
        wrong.map_or(Ok(()), |(item, expected, found)| {
            let (expected, found) = (Value::Count(expected), Value::Count(found.into()));
            Err(Mismatch { item: item as u64, expected, found, what: "rap output" })
        })
    }

    /// Returns the maximum benefit of each budget, for each set of activities.
    fn tables(&self) -> Vec<[u64; AMOUNTS]> {
        let mut tables = vec![[0; AMOUNTS]; 1 << ACTIVITIES];
        for set in 1..tables.len() {
            let first = set.trailing_zeros() as usize;
            let others = tables[set & (set - 1)];
            for (given, benefit) in self.benefits[first * AMOUNTS..][..AMOUNTS].iter().enumerate() {
                for (units, brought) in others[..AMOUNTS - given].iter().enumerate() {
                    let place = &mut tables[set][units + given];
                    *place = (*place).max(brought + u64::from(*benefit));
                }
            }
        }
        tables
    }
}

/// Computes one package on the host with a team of threads.
///
/// # Shape and units
/// `items` are global item numbers; `requests` and `best` hold exactly the elements of these items.
/// `benefits` is whole.
///
/// # Panics
/// When the length of a slice differs from the one above.
pub fn host(team: &Team, items: Range<u64>, requests: &[[u32; 2]], benefits: &[u32], best: &mut [u32]) {
    let count = items.end.saturating_sub(items.start);
    assert!(
        requests.len() as u64 == count
            && best.len() as u64 == count
            && benefits.len() == ACTIVITIES * AMOUNTS,
        "rap of items {items:?}: requests has {}, best {} and benefits {} elements, not {count}, {count} and {}",
        requests.len(),
        best.len(),
        benefits.len(),
        ACTIVITIES * AMOUNTS
    );
    let per_job = jobs::length(team, requests.len(), REQUESTS_PER_JOB, 1);
    let jobs = requests.chunks(per_job).zip(best.chunks_mut(per_job));
    team.for_each(jobs, |(requests, best)| {
        for (request, best) in requests.iter().zip(best) {
            *best = most_of(*request, benefits);
        }
    });
}

/// Returns the maximum benefit of a request.
fn most_of([budget, activities]: [u32; 2], benefits: &[u32]) -> u32 {
    let budget = (budget as usize).min(AMOUNTS - 1);
    let mut brought = [0_u32; AMOUNTS];
    for (activity, benefit) in benefits.chunks_exact(AMOUNTS).enumerate() {
        if activities >> activity & 1 == 0 {
            continue;
        }
        // From the largest budget down: the smaller ones do not include this activity yet.
        for units in (1..=budget).rev() {
            let sums = brought[..=units].iter().rev().zip(benefit);
            // Sums wrap, so that arbitrary contents of a buffer make the result wrong but cause no panic.
            brought[units] = sums.map(|(rest, gain)| rest.wrapping_add(*gain)).max().unwrap_or(0);
        }
    }
    brought[budget]
}

/// Seed of the co-executed inputs. Its value is arbitrary.
const SEED: u64 = 0x2A9;
/// Maximum number of items. Their buffers still fit in a 64-bit address space.
const LARGEST_ITEMS: u64 = 1 << 40;

impl Recipe for Problem {
    const NAME: &'static str = "rap";
    const OPENCL: Program = Program { source: OPENCL_SOURCE, kernel: OPENCL_KERNEL };
    const CUDA: Option<Program> = Some(Program { source: CUDA_SOURCE, kernel: OPENCL_KERNEL });
    const KIND: Kind = Kind::Irregular;
    const LARGEST_PUBLISHED: u64 = PAPER.items;

    fn of(input: &Input<'_>) -> Result<Self, PrepareError> {
        let size = input.pick::<Self, _>([TINY, SMALL, PAPER], LARGEST_ITEMS, |items| Size { items })?;
        // The problem's requests, and every buffer.
        memory_for::<Self>(size.items.saturating_mul(5 * size_of::<u32>() as u64))?;
        Ok(Self::generate(size, SEED))
    }

    fn items(&self) -> u64 {
        self.items()
    }

    fn groups(&self) -> Groups {
        Groups::Line(LOCAL_SIZE)
    }

    fn arguments(&self) -> Arguments<'_> {
        Arguments::default().read(&self.requests).read_all(&self.benefits).write::<u32>(self.items())
    }

    fn compute(call: &mut Call<'_>) -> Result<(), ComputeError> {
        let (team, items) = (call.team(), call.items());
        let [requests, benefits, best] = call.parts([0, 1, 2])?;
        host(team, items, requests.slice()?, benefits.slice()?, best.slice_mut()?);
        Ok(())
    }

    fn judge(&self, outputs: &Outputs<'_>) -> Result<(), Mismatch> {
        self.check(&outputs.of(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages;
    use proptest::prelude::*;

    fn solve(problem: &Problem) -> Vec<u32> {
        let mut best = vec![u32::MAX; problem.requests.len()];
        host(Team::global(), 0..problem.items(), &problem.requests, &problem.benefits, &mut best);
        best
    }

    /// Tries every distribution of the budget.
    fn by_trying_all(problem: &Problem, [budget, activities]: [u32; 2]) -> u32 {
        let Some(left) = activities.checked_sub(1) else { return 0 };
        let benefit = &problem.benefits[activities.trailing_zeros() as usize * AMOUNTS..];
        let given = 0..=budget;
        let brings = |given: u32| {
            benefit[given as usize] + by_trying_all(problem, [budget - given, activities & left])
        };
        given.map(brings).max().unwrap()
    }

    #[test]
    fn requests_and_benefits_are_as_the_problem_says() {
        let problem = Problem::generate(Size { items: 5000 }, 3);
        assert_eq!(problem.requests().len() as u64, problem.items());
        let every = (1 << ACTIVITIES) - 1;
        let asked = problem.requests().iter().fold(0, |asked, [_, activities]| asked | activities);
        assert_eq!(asked, every, "every activity is requested");
        for [budget, activities] in problem.requests() {
            assert!((1..=every).contains(activities), "{activities:b}");
            assert!((1..AMOUNTS as u32).contains(budget), "{budget}");
        }
        assert_eq!(problem.benefits().len(), ACTIVITIES * AMOUNTS);
        let mut rows: Vec<_> = problem.benefits().chunks(AMOUNTS).collect();
        for row in &rows {
            assert_eq!(row[0], 0, "zero units have no benefit");
            assert!(
                row.windows(2).all(|pair| (1..=1000).contains(&(pair[1] - pair[0]))),
                "benefits increase"
            );
        }
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), ACTIVITIES, "no two activities have equal benefits");
    }

    #[test]
    fn host_output_passes_the_check_at_every_awkward_size() {
        for items in [0, 1, 31, 32, 33, 127, 128, 129, TINY.items] {
            let problem = Problem::generate(Size { items }, items);
            problem.check(&solve(&problem)).unwrap();
        }
    }

    #[test]
    fn host_and_check_find_what_trying_all_ways_finds() {
        let problem = Problem::generate(TINY, 4);
        let tables = problem.tables();
        for request in
            [[0, 1], [1, 0xFFF], [5, 0b101], [9, 0b1000_0000_0110], [12, 0b111_0000], [63, 0b10], [4, 0xFFF]]
        {
            let expected = by_trying_all(&problem, request);
            assert_eq!(most_of(request, &problem.benefits), expected, "{request:?}");
            assert_eq!(tables[request[1] as usize][request[0] as usize], u64::from(expected), "{request:?}");
        }
    }

    #[test]
    fn work_grows_along_the_items() {
        let problem = Problem::generate(TINY, 2);
        let budgets =
            |part: &[[u32; 2]]| part.iter().map(|[budget, _]| *budget).sum::<u32>() / part.len() as u32;
        let (first, last) = (&problem.requests[..100], &problem.requests[TINY.items as usize - 100..]);
        assert!(budgets(last) > 3 * budgets(first));
        let largest = problem.requests.iter().map(|[budget, _]| *budget as usize).max().unwrap();
        assert!(largest < AMOUNTS && largest > AMOUNTS - 4, "{largest}");
    }

    #[test]
    fn budgets_beyond_the_table_stay_within_it() {
        let problem = Problem::generate(TINY, 3);
        let at_most = most_of([AMOUNTS as u32 - 1, u32::MAX], &problem.benefits);
        assert_eq!(most_of([u32::MAX, u32::MAX], &problem.benefits), at_most);
        // Arbitrary contents of the table are legal, too.
        assert_eq!(most_of([3, 1], &[u32::MAX; ACTIVITIES * AMOUNTS]), u32::MAX);
    }

    #[test]
    fn check_rejects_one_wrong_item_first_last_and_between() {
        let problem = Problem::generate(TINY, 5);
        let right = solve(&problem);
        let last = right.len() - 1;
        for item in [0, 1, last / 2, last - 1, last] {
            for wrong in [right[item] + 1, right[item] - 1, 0, u32::MAX] {
                let mut best = right.clone();
                best[item] = wrong;
                assert_eq!(problem.check(&best).unwrap_err().item, item as u64, "{wrong}");
            }
        }
        let mut shifted = right.clone();
        shifted.rotate_left(1);
        assert_eq!(problem.check(&shifted).unwrap_err().item, 0);
        assert_eq!(problem.check(&right[1..]).unwrap_err().item, TINY.items - 1);
        assert!(problem.check(&solve(&Problem::generate(TINY, 6))).is_err());
    }

    /// The smallest errors of the algorithm: one unit is not distributed, one activity is ignored.
    #[test]
    fn check_rejects_one_unit_or_one_activity_too_few() {
        let problem = Problem::generate(TINY, 8);
        let right = solve(&problem);
        for item in [0, 700, TINY.items as usize - 1] {
            let [budget, activities] = problem.requests[item];
            let mut best = right.clone();
            best[item] = most_of([budget - 1, activities], &problem.benefits);
            assert_eq!(problem.check(&best).unwrap_err().item, item as u64);
        }
        let without_one: Vec<u32> = problem
            .requests
            .iter()
            .map(|[budget, activities]| most_of([*budget, activities & (activities - 1)], &problem.benefits))
            .collect();
        let missed = right.iter().zip(&without_one).filter(|(right, wrong)| right == wrong).count();
        assert!(missed < right.len() / 2, "{missed} requests do not need their first activity");
    }

    #[test]
    fn sources_have_the_sizes_of_the_table() {
        for source in [OPENCL_SOURCE, CUDA_SOURCE] {
            assert!(source.contains(&format!("#define ACTIVITIES {ACTIVITIES}\n")));
            assert!(source.contains(&format!("#define AMOUNTS {AMOUNTS}\n")));
        }
    }

    #[test]
    fn page_shows_code_that_stands_here() {
        let page = include_str!("../../docs/adding-a-workload.md");
        let sources = [include_str!("rap.rs"), OPENCL_SOURCE, include_str!("prepare/mod.rs")];
        for language in ["```rust\n", "```c\n"] {
            let shown: Vec<_> =
                page.split(language).skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
            assert!(shown.len() > 1);
            for code in shown {
                assert!(sources.iter().any(|source| source.contains(code)), "no source contains:\n{code}");
            }
        }
    }

    #[test]
    fn seeds_and_requests_differ() {
        let problem = Problem::generate(TINY, 1);
        assert_eq!(problem, Problem::generate(TINY, 1));
        assert_ne!(problem, Problem::generate(TINY, 2));
        let equal_to_next = problem.requests.windows(2).filter(|pair| pair[0] == pair[1]).count();
        assert!(equal_to_next < 5, "{equal_to_next} requests equal the next one");
        let rows: Vec<_> = problem.benefits.chunks(AMOUNTS).collect();
        assert!(rows.windows(2).all(|pair| pair[0] != pair[1]));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn packages_give_the_bytes_of_the_whole(items in 0_u64..400, seed: u64, cuts in packages::cuts()) {
            let problem = Problem::generate(Size { items }, seed);
            let whole = solve(&problem);
            problem.check(&whole).unwrap();
            let mut best = vec![u32::MAX; whole.len()];
            for package in packages::split(items, &cuts) {
                let requests = &problem.requests[package.start as usize..package.end as usize];
                host(Team::global(), package.clone(), requests, &problem.benefits, packages::part(&mut best, &package, 1));
            }
            prop_assert_eq!(best, whole);
        }
    }
}
