//! A team: the threads among which a kernel on the host divides a package.
//!
//! ```text
//!   the launching thread      ▏job▏job▏ long? ▏job▏job▏job▏job▏job▏ waits for jobs in flight
//!   helper 1                             └─▶ wakes, wakes two ▏job▏job▏job▏
//!   helper 2                                        └─▶ wakes ▏job▏job▏job▏
//!   helper 3                                                └─▶ wakes too late, and leaves again
//! ```
//! 1. The launching thread computes too. It does not wait for a helper to begin.
//! 2. Waking a thread takes tens to hundreds of microseconds. So no helper is woken for jobs that end sooner.
//!    The duration of the last jobs predicts this. If it is unknown, helpers are woken at once. If jobs that
//!    looked short turn out long, helpers are woken then.
//! 3. Each woken helper wakes others before it takes a job, so that no thread wakes them all. A helper that
//!    wakes after the last job was taken is not waited for.
//! 4. Threads take several jobs at a time, a fraction of the remaining ones, and single jobs at the end. The
//!    iterator of the jobs is called under a lock that guards nothing else.

use super::pools::{HostError, Pools};
use crate::fork::Origin;
use dml_core::internal::Gate;
use dml_core::internal::sync::atomic::Ordering::Relaxed;
use dml_core::internal::sync::atomic::{AtomicBool, AtomicU64};
use dml_core::internal::sync::{Arc, Mutex};
use rayon::ThreadPoolBuilder;
use std::error::Error;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Duration of all jobs on one thread up to which no helper is woken.
const WORTH_WAKING: Duration = Duration::from_micros(20);
/// Number of turns in which a thread takes its share of the remaining jobs.
const PARTS: usize = 4;

/// The threads of a kernel on the host: the one that launches a package, and helpers from a pool.
///
/// Jobs run concurrently in any order, and must not wait for each other. Several threads may use a team at
/// once, each with the helpers that arrive in time. A fork of the process that created the team has no
/// helpers, and each of its threads computes alone.
///
/// ```
/// use dml_arenas::launch::Team;
///
/// let team = Team::new(2)?;
/// let mut squares = vec![0_u64; 1000];
/// team.for_each(squares.chunks_mut(100).enumerate(), |(job, squares)| {
///     for (index, square) in (job as u64 * 100..).zip(squares) {
///         *square = index * index;
///     }
/// });
/// assert_eq!(squares[999], 999 * 999);
/// # Ok::<(), dml_arenas::launch::HostError>(())
/// ```
pub struct Team {
    threads: usize,
    origin: Origin,
    /// `None` for the rayon pool in which the team is used, or rayon's global pool.
    pools: Option<Arc<Pools>>,
    is_led: AtomicBool,
    /// Time of a job on one thread when the team was last used, in nanoseconds; 0 before.
    job_nanos: AtomicU64,
}

impl Team {
    /// Creates a team of `threads` threads, at least one.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started.
    pub fn new(threads: u32) -> Result<Self, HostError> {
        Ok(Self::of(threads.max(1) as usize, Some(Pools::shared(threads.max(1)).for_teams()?)))
    }

    /// Creates a team of `threads` threads of the rayon pool in which it is used.
    pub(crate) fn of_this_pool(threads: usize) -> Self {
        Self::of(threads, None)
    }

    /// Returns the team of the whole process, as wide as rayon's global pool. It is the team of a kernel in a
    /// worker, or without a device. If the threads of that pool cannot be started, the team is the calling
    /// thread alone.
    pub fn global() -> &'static Self {
        static ALONE: OnceLock<Team> = OnceLock::new();
        Self::start_global().unwrap_or_else(|_| ALONE.get_or_init(|| Self::of(1, None)))
    }

    /// Starts rayon's global pool, unless it was started, and returns its team. Parallel iterators outside of
    /// other pools start it as well, but panic if that fails.
    ///
    /// # Errors
    /// [`HostError`] if the threads cannot be started. Rayon does not try again.
    pub fn start_global() -> Result<&'static Self, HostError> {
        static GLOBAL: OnceLock<Result<Team, HostError>> = OnceLock::new();
        let start = || match ThreadPoolBuilder::new().build_global() {
            // An error without a source means that the pool was started before.
            Err(error) if error.source().is_some() => {
                let threads = crate::main_mem::discover::threads();
                Err(HostError { threads, cause: error.to_string() })
            }
            _ => Ok(Self::of(rayon::current_num_threads(), None)),
        };
        GLOBAL.get_or_init(start).as_ref().map_err(Clone::clone)
    }

    fn of(threads: usize, pools: Option<Arc<Pools>>) -> Self {
        let origin = Origin::here();
        let (is_led, job_nanos) = (AtomicBool::new(false), AtomicU64::new(0));
        Self { threads, origin, pools, is_led, job_nanos }
    }

    /// Returns the number of threads that compute concurrently.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs every job, and returns when all have ended.
    ///
    /// # Panics
    /// With the panic of a job. Other jobs may then be left out.
    pub fn for_each<I>(&self, jobs: I, run: impl Fn(I::Item) + Sync)
    where
        I: ExactSizeIterator + Send,
        I::Item: Send,
    {
        self.for_each_init(jobs, || (), |(), job| run(job));
    }

    /// As [`for_each`](Self::for_each), with a value from `init` for each thread that takes part.
    pub fn for_each_init<I, S>(
        &self,
        jobs: I,
        init: impl Fn() -> S + Sync,
        run: impl Fn(&mut S, I::Item) + Sync,
    ) where
        I: ExactSizeIterator + Send,
        I::Item: Send,
    {
        let count = jobs.len();
        if count == 0 {
            return;
        }
        let desk = Desk { jobs: Mutex::new(jobs), threads: self.threads, busy: AtomicU64::new(0) };
        let share = || desk.work(&init, &run, None);
        match self.lead() {
            _ if !self.is_here() => share(),
            Some(_leads) if self.threads == 1 => share(),
            Some(_leads) => {
                if !self.expects_long(count) {
                    desk.work(&init, &run, Some(WORTH_WAKING));
                }
                self.share_out(desk.left(), &share);
            }
            None => self.share_out(count, &share),
        }
        self.job_nanos.store(desk.busy.into_inner() / count as u64, Relaxed);
    }

    /// Returns whether the process has the helpers: a fork has none of them.
    pub(crate) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    /// Returns whether `jobs` jobs are expected to take so long that helpers are woken at once. Jobs of
    /// unknown duration may be long.
    fn expects_long(&self, jobs: usize) -> bool {
        let each = self.job_nanos.load(Relaxed);
        let all = Duration::from_nanos(each.saturating_mul(jobs as u64));
        jobs > 1 && (each == 0 || all > WORTH_WAKING)
    }

    /// Shares the jobs among all threads, including this one.
    fn share_out(&self, jobs: usize, share: &(dyn Fn() + Sync)) {
        let Some(helpers) = self.threads.min(jobs).checked_sub(1) else { return };
        Gate::open(share, |gate| {
            wake(helpers, gate, &|help| match &self.pools {
                Some(pools) => pools.help(help),
                None => rayon::spawn(help),
            });
            share();
        });
    }

    /// Makes this thread the leader of the helpers, unless another thread is.
    fn lead(&self) -> Option<Leads<'_>> {
        let was_led = self.is_led.swap(true, Relaxed);
        (!was_led).then(|| Leads(&self.is_led))
    }
}

impl fmt::Debug for Team {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Team({} threads)", self.threads)
    }
}

/// The role of the thread that computes with the helpers, until it is dropped.
struct Leads<'a>(&'a AtomicBool);

impl Drop for Leads<'_> {
    fn drop(&mut self) {
        self.0.store(false, Relaxed);
    }
}

/// Wakes helpers, which share the jobs. This thread wakes two, and each of these wakes half of the others.
fn wake(helpers: usize, gate: &Arc<Gate>, spawn: &dyn Fn(Box<dyn FnOnce() + Send>)) {
    for part in [helpers / 2, helpers - helpers / 2] {
        if part > 0 {
            let gate = gate.clone();
            spawn(Box::new(move || {
                gate.help(|| wake(part - 1, &gate, &|help| rayon::spawn(help)));
            }));
        }
    }
}

/// The remaining jobs.
struct Desk<I> {
    jobs: Mutex<I>,
    threads: usize,
    /// Total time that threads have spent on jobs, in nanoseconds.
    busy: AtomicU64,
}

impl<I: ExactSizeIterator> Desk<I> {
    fn left(&self) -> usize {
        self.jobs.lock().len()
    }

    /// Runs jobs until none are left, or until it has taken longer than `patience`.
    fn work<S>(&self, init: &dyn Fn() -> S, run: &dyn Fn(&mut S, I::Item), patience: Option<Duration>) {
        let begun = Instant::now();
        let mut own = init();
        let mut taken = Vec::new();
        loop {
            {
                let mut jobs = self.jobs.lock();
                let most = if patience.is_some() { 1 } else { jobs.len() / (PARTS * self.threads) };
                taken.extend(jobs.by_ref().take(most.max(1)));
            }
            if taken.is_empty() {
                break;
            }
            for job in taken.drain(..) {
                run(&mut own, job);
            }
            if patience.is_some_and(|patience| begun.elapsed() > patience) {
                break;
            }
        }
        let nanos = begun.elapsed().as_nanos();
        self.busy.fetch_add(u64::try_from(nanos).unwrap_or(u64::MAX), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fork::testing::{child_says, fork};
    use std::collections::HashSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Barrier;
    use std::thread::{self, ThreadId};

    /// Returns the threads that ran the jobs. Each job waits for `barrier`, if there is one.
    fn who(team: &Team, jobs: u32, barrier: Option<&Barrier>) -> HashSet<ThreadId> {
        let threads = Mutex::new(HashSet::new());
        team.for_each(0..jobs as usize, |_| {
            threads.lock().insert(thread::current().id());
            if let Some(barrier) = barrier {
                barrier.wait();
            }
        });
        threads.into_inner()
    }

    fn own() -> HashSet<ThreadId> {
        HashSet::from([thread::current().id()])
    }

    /// Creates a team that expects short jobs.
    fn team_of_short_jobs(threads: u32) -> Team {
        let team = Team::new(threads).unwrap();
        team.job_nanos.store(1, Relaxed);
        team
    }

    #[test]
    fn a_team_says_how_many_it_is_and_goes_when_it_is_dropped() {
        for threads in [1, 2, 5] {
            assert_eq!(Team::new(threads).unwrap().threads(), threads as usize);
        }
        assert_eq!(Team::new(0).unwrap().threads(), 1, "at least one");
        #[cfg(target_os = "linux")]
        {
            let tasks = || std::fs::read_dir("/proc/self/task").unwrap().count();
            let before = tasks();
            for _ in 0..64 {
                let team = Team::new(5).unwrap();
                team.for_each(0..64, |_| thread::yield_now());
            }
            let begun = Instant::now();
            // The threads end by themselves, and so do those of other tests.
            while tasks() > before + 64 {
                assert!(begun.elapsed() < Duration::from_secs(60), "{} threads, {before} before", tasks());
                thread::sleep(Duration::from_millis(1));
            }
        }
    }

    #[test]
    fn every_job_is_done_once_whoever_takes_part() {
        for threads in [0, 1, 2, 5] {
            for count in [0, 1, 2, 7, 64, 1000] {
                for team in [Team::new(threads).unwrap(), team_of_short_jobs(threads)] {
                    let mut done = vec![0_u32; count];
                    team.for_each(done.iter_mut().enumerate(), |(job, done)| *done += job as u32 + 1);
                    assert!(done.iter().zip(1..).all(|(done, job)| *done == job), "{team:?}: {done:?}");
                }
            }
        }
        assert_eq!(Team::new(0).unwrap().threads(), 1);
    }

    #[test]
    fn who_has_nobody_else_computes_on_its_own_thread() {
        let team = Team::new(1).unwrap();
        for _ in 0..3 {
            assert_eq!(who(&team, 100, None), own());
        }
    }

    /// Jobs that wait for each other end only if all threads take part. The duration of a job is unknown.
    #[test]
    fn at_first_all_threads_take_part() {
        for count in [2, 3, 7] {
            let team = Team::new(count).unwrap();
            let threads = who(&team, count, Some(&Barrier::new(count as usize)));
            assert_eq!(threads.len(), count as usize);
            assert!(threads.contains(&thread::current().id()));
        }
    }

    #[test]
    fn nobody_is_woken_for_jobs_that_are_short() {
        let team = team_of_short_jobs(4);
        // On a busy machine even these jobs may take long.
        assert!((0..100).any(|_| {
            team.job_nanos.store(1, Relaxed);
            who(&team, 10, None) == own()
        }));
    }

    #[test]
    fn what_is_not_known_or_more_than_a_wake_up_may_be_long() {
        let team = Team::new(2).unwrap();
        let each = u64::try_from(WORTH_WAKING.as_nanos()).unwrap() / 10;
        for (job_nanos, jobs, is_long) in [(0, 2, true), (0, 1, false), (each, 10, false), (each, 11, true)] {
            team.job_nanos.store(job_nanos, Relaxed);
            assert_eq!(team.expects_long(jobs), is_long, "{jobs} jobs of {job_nanos} ns");
        }
        team.job_nanos.store(u64::MAX, Relaxed);
        assert!(team.expects_long(usize::MAX));
    }

    #[test]
    fn what_jobs_took_decides_about_the_next_ones() {
        let team = team_of_short_jobs(2);
        team.for_each(0..2, |_| thread::sleep(Duration::from_millis(2)));
        assert!(team.job_nanos.load(Relaxed) >= 2_000_000, "{team:?}");
        assert_eq!(who(&team, 2, Some(&Barrier::new(2))).len(), 2, "both take part at once");
    }

    /// The first job turns out long. The two after it wait for each other.
    #[test]
    fn others_are_woken_where_short_jobs_turn_out_long() {
        let team = team_of_short_jobs(2);
        let barrier = Barrier::new(2);
        team.for_each(0..3, |job| {
            if job == 0 {
                thread::sleep(2 * WORTH_WAKING);
            } else {
                barrier.wait();
            }
        });
    }

    #[test]
    fn each_thread_has_something_of_its_own() {
        let team = Team::new(3).unwrap();
        let made = AtomicU64::new(0);
        let seen = Mutex::new(HashSet::new());
        let init = || (made.fetch_add(1, Relaxed), thread::current().id());
        team.for_each_init(0..300, init, |own, _| {
            assert_eq!(own.1, thread::current().id());
            seen.lock().insert(own.0);
        });
        assert!((1..=3).contains(&made.into_inner()));
        assert!(seen.into_inner().len() <= 3);
    }

    #[test]
    fn a_job_that_panics_is_heard_and_the_team_goes_on() {
        for team in [Team::new(1).unwrap(), Team::new(3).unwrap(), team_of_short_jobs(3)] {
            let heard = catch_unwind(AssertUnwindSafe(|| team.for_each(0..50, |job| assert_ne!(job, 20))));
            assert!(heard.is_err(), "{team:?}");
            let done = AtomicU64::new(0);
            team.for_each(0..50, |_| _ = done.fetch_add(1, Relaxed));
            assert_eq!(done.into_inner(), 50, "{team:?}");
            assert_eq!(who(&team, 1, None), own(), "{team:?}: the launching thread leads again");
        }
    }

    /// One panic propagates. The payloads of the others are never dropped, because that could panic as well.
    #[test]
    fn payloads_that_panic_when_they_go_do_no_harm() {
        struct Payload;
        impl Drop for Payload {
            fn drop(&mut self) {
                panic!("a destructor");
            }
        }
        let (team, barrier) = (Team::new(3).unwrap(), Barrier::new(3));
        let heard = catch_unwind(AssertUnwindSafe(|| {
            team.for_each(0..3, |_| {
                barrier.wait();
                std::panic::panic_any(Payload);
            });
        }));
        std::mem::forget(heard.unwrap_err().downcast::<Payload>().unwrap());
        assert_eq!(who(&team, 3, Some(&barrier)).len(), 3);
    }

    /// The caller's other code: the iterator, `init`, and destructors.
    #[test]
    fn what_panics_beside_a_job_is_heard_and_the_team_goes_on() {
        struct Bad(u32);
        impl Drop for Bad {
            fn drop(&mut self) {
                assert!(self.0 != 20 || thread::panicking());
            }
        }
        for team in [Team::new(1).unwrap(), Team::new(3).unwrap(), team_of_short_jobs(3)] {
            let next = || team.for_each((0..50).map(|job| assert_ne!(job, 20)), drop);
            let init = || team.for_each_init(0..50, || panic!("no own"), |(), _| ());
            let of_jobs = || team.for_each((0..50).map(Bad), drop);
            let of_own = || team.for_each_init(0..50, || Bad(20), |_, _| ());
            let all: [&dyn Fn(); 4] = [&next, &init, &of_jobs, &of_own];
            for (place, run) in all.into_iter().enumerate() {
                assert!(catch_unwind(AssertUnwindSafe(run)).is_err(), "{team:?} {place}");
                assert!(!team.is_led.load(Relaxed), "{team:?} {place}");
                let done = AtomicU64::new(0);
                team.for_each(0..50, |_| _ = done.fetch_add(1, Relaxed));
                assert_eq!(done.into_inner(), 50, "{team:?} {place}");
            }
        }
    }

    /// Two launching threads never wait for each other, however few helpers there are.
    #[test]
    fn several_threads_use_a_team_at_once() {
        for threads in [1, 2] {
            let team = Team::new(threads).unwrap();
            let barrier = Barrier::new(2);
            thread::scope(|scope| {
                for _ in 0..2 {
                    scope.spawn(|| team.for_each(0..1, |_| _ = barrier.wait()));
                }
            });
            // A job may itself have jobs.
            let done = AtomicU64::new(0);
            team.for_each(0..4, |_| {
                team.for_each(0..4, |_| _ = done.fetch_add(1, Relaxed));
                assert!(team.is_led.load(Relaxed), "the leading thread leads to the end");
            });
            assert_eq!(done.into_inner(), 16);
            assert!(!team.is_led.load(Relaxed));
        }
    }

    /// A fork has no helpers, and does not take the lead from a thread of its parent.
    #[test]
    fn a_fork_computes_alone() {
        let own_team = Team::new(3).unwrap();
        for team in [&own_team, Team::global()] {
            who(team, 3, None);
            for is_led in [false, true] {
                team.is_led.store(is_led, Relaxed);
                assert!(child_says(fork, || {
                    team.job_nanos.store(0, Relaxed);
                    who(team, 100, None) == own()
                }));
                team.is_led.store(false, Relaxed);
            }
        }
    }

    /// Both helpers are busy until the test ends, as on a machine whose cores are busy.
    #[test]
    fn who_wakes_too_late_is_not_waited_for() {
        let team = Team::new(2).unwrap();
        let (is_busy, may_end) = (Barrier::new(3), AtomicBool::new(false));
        thread::scope(|scope| {
            let _ends = OnDrop(|| may_end.store(true, Relaxed));
            for _ in 0..2 {
                scope.spawn(|| {
                    let pools = team.pools.as_ref().expect("pools of its own");
                    let pool = pools.of_teams().expect("one for teams");
                    pool.install(|| {
                        is_busy.wait();
                        let begun = Instant::now();
                        while !may_end.load(Relaxed) {
                            assert!(begun.elapsed() < Duration::from_secs(20), "the launch waited for it");
                            thread::yield_now();
                        }
                    });
                });
            }
            is_busy.wait();
            assert_eq!(who(&team, 100, None), own());
        });
        let done = AtomicU64::new(0);
        team.for_each(0..50, |_| _ = done.fetch_add(1, Relaxed));
        assert_eq!(done.into_inner(), 50, "a late helper runs no job twice");
    }

    /// Runs a function when it is dropped.
    struct OnDrop<F: Fn()>(F);

    impl<F: Fn()> Drop for OnDrop<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }

    /// A helper that has taken a job is waited for, however long that takes.
    #[test]
    fn who_has_taken_a_job_is_waited_for() {
        let team = Team::new(2).unwrap();
        let (barrier, leads, done) = (Barrier::new(2), thread::current().id(), AtomicBool::new(false));
        team.for_each(0..2, |_| {
            barrier.wait();
            if thread::current().id() != leads {
                thread::sleep(Duration::from_millis(20));
                done.store(true, Relaxed);
            }
        });
        assert!(done.into_inner());
    }

    #[test]
    fn the_team_of_the_process_does_every_job() {
        let done = AtomicU64::new(0);
        Team::global().for_each(0..100, |_| _ = done.fetch_add(1, Relaxed));
        assert_eq!(done.into_inner(), 100);
    }
}
