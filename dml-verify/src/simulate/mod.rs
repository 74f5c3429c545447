//! Deterministic simulation: the production engine, queue, grants and futures on one thread, in virtual time.
//!
//! ```text
//!   seed ──▶ platform (arenas that take time, reorder, fail)       ┐
//!        ──▶ kernels (acquire, await, give up, run, fail, release) ├─▶ executor ──▶ bytes compared, history checked,
//!        ──▶ which task runs next, how long everything takes       ┘               no task left, nothing leaked
//! ```
//! The seed determines everything: a failing run prints its seed, and runs again in the same way. Only the
//! simulation covers long histories of the production code in which other tasks run during every arena call.
//! It cannot cover two threads in one critical section; loom explores those.

mod arena;
mod executor;
mod kernels;

use crate::history::{Audited, violations};
use crate::platforms::drawn::gpus;
use crate::random::Random;
use arena::{SimArena, Sky, Weather};
use dml_core::internal::sync::Arc;
use dml_core::{
    ArenaId, Platform,
    record::{Event, EventKind, Recording},
};
use std::fmt;
use std::sync::atomic::Ordering;

/// Counts what happened in a simulation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is a count of what its name says")]
pub struct Tally {
    pub calls: u64,
    pub faults: u64,
    pub granted: u64,
    pub copies: u64,
    pub aborted: u64,
    pub waited: u64,
    pub cancelled: u64,
    pub lost_devices: u64,
}

impl std::ops::AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.calls += other.calls;
        self.faults += other.faults;
        self.granted += other.granted;
        self.copies += other.copies;
        self.aborted += other.aborted;
        self.waited += other.waited;
        self.cancelled += other.cancelled;
        self.lost_devices += other.lost_devices;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { calls, faults, granted, copies, aborted, waited, cancelled, lost_devices } = self;
        write!(
            f,
            "{calls} arena calls of which {faults} failed, {granted} grants, {copies} copies, {aborted} plans given up, \
             {waited} waits of which {cancelled} cancelled, {lost_devices} lost devices"
        )
    }
}

/// Runs the simulation of a seed. Returns its counts and its events, whose order and contents follow from the
/// seed alone.
///
/// # Panics
/// When the run contradicts the specification.
pub fn run(seed: u64) -> (Tally, Vec<Event>) {
    let mut random = Random::new(seed);
    // In one of three runs no call of an arena fails, so no acquire fails either.
    let faults = (!random.once_in(3)).then(|| 5 + random.below(60));
    let sky = Arc::new(Sky { weather: Weather { faults }, ..Sky::default() });
    let platform = gpus(&mut random).assemble(&sky).expect("a platform without problems");
    let platform = Audited::new(platform);
    let story = Story(Some(platform.record()));
    let scene = kernels::Scene::new(&platform, &mut random, faults.is_some());
    let leaves = Leave;
    executor::run(random.below(u64::MAX), || scene.tasks(&mut random));
    drop(leaves);
    scene.finish();
    for (arena, _) in (0..).map(ArenaId).zip(platform.arenas()) {
        assert_eq!(sim_arena(&platform, arena).inner().live_blocks(), 0, "I-25: blocks of {arena} are left");
    }
    let events = story.end();
    let found = violations(&platform, &events);
    if !found.is_empty() {
        tell(&events);
        panic!("{found:#?}");
    }
    let count = |of: fn(&EventKind) -> bool| events.iter().filter(|event| of(&event.kind)).count() as u64;
    let tally = Tally {
        calls: sky.calls.load(Ordering::Relaxed),
        faults: sky.faults.load(Ordering::Relaxed),
        granted: count(|kind| matches!(kind, EventKind::Granted { .. })),
        copies: count(|kind| matches!(kind, EventKind::CopyDone { .. })),
        aborted: count(|kind| matches!(kind, EventKind::GivenUp { .. })),
        waited: count(|kind| matches!(kind, EventKind::Queued { .. })),
        cancelled: count(|kind| matches!(kind, EventKind::Cancelled { .. })),
        lost_devices: count(|kind| matches!(kind, EventKind::DeviceLost { .. })),
    };
    (tally, events)
}

/// The recorded events, which are printed if the simulation panics.
struct Story(Option<Recording>);

impl Story {
    fn end(mut self) -> Vec<Event> {
        self.0.take().map_or_else(Vec::new, Recording::finish)
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        if let Some(recording) = self.0.take()
            && std::thread::panicking()
        {
            tell(&recording.finish());
        }
    }
}

fn tell(events: &[Event]) {
    for (index, event) in events.iter().enumerate() {
        eprintln!("{index}: {} {:?}", event.buffer, event.kind);
    }
}

/// Ends the simulation of this thread when dropped, also during a panic.
struct Leave;

impl Drop for Leave {
    fn drop(&mut self) {
        executor::leave();
    }
}

fn sim_arena(platform: &Platform, arena: ArenaId) -> &SimArena {
    platform.arena(arena).downcast_ref().expect("every arena is simulated")
}
