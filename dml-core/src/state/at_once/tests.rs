//! When a request or a release is the common case, and that the transition is then the general one.

use super::super::testbed::{Bench, CPU, Driver, GPU_ARENA, GPU2_ARENA, LEN, MAIN_ARENA, claim};
use super::super::{Begin, MapState, Step};
use super::*;
use crate::base::access::Access::{self, ReadOnly, ReadWrite, WriteInvalidate};
use crate::base::id::{DeviceSet, KernelId};
use crate::memory::desc::Concurrency;

/// Creates a buffer whose bytes are all valid in main memory.
fn written() -> Driver {
    let mut driver = Driver::new(Bench::star());
    driver.write(MAIN_ARENA, (0, LEN));
    driver
}

/// Returns whether a request is granted at once, compares that with the general case, and then ends the grant
/// in every way.
#[track_caller]
fn is_granted_at_once(driver: &Driver, arena: ArenaId, span: (u64, u64), access: Access) -> bool {
    let mut driver = driver.clone();
    let (bench, mut general) = (driver.bench.clone(), driver.state.clone());
    let request = driver.request(arena, &[claim(span.0, span.1, access)]);
    let one = request.of_one_claim().expect("it has one claim");
    let state = &mut driver.state;
    let Some(seq) = state.known(&bench, arena).and_then(|known| state.begin_at_once(&bench, known, one))
    else {
        assert_eq!(*state, general, "nothing changed");
        return false;
    };
    let begun = general.begin_in_general(&bench, &request);
    assert_eq!((Begin::Granted(seq), &*state), (begun, &general));
    for outcome in [Outcome::Done, Outcome::NotStarted, Outcome::Clean, Outcome::Failed] {
        let (mut state, mut general) = (state.clone(), general.clone());
        let of = (request.grant, None);
        let known = state.known(&bench, arena);
        let ended = known.and_then(|mut known| {
            let ended = state.release_at_once(&bench, &mut known, of, outcome)?;
            assert_eq!(Some(known), state.known(&bench, arena), "what is known stays true");
            Some(ended)
        });
        assert_eq!(ended.is_some(), matches!(outcome, Outcome::Done | Outcome::NotStarted), "{outcome:?}");
        if let Some(ended) = ended {
            assert_eq!((Ok(ended), &state), (general.release_in_general(&bench, of, outcome), &general));
        }
    }
    true
}

/// Returns which requests are granted at once: for reading, overwriting and changing all bytes, and for
/// reading and overwriting the last ones.
#[track_caller]
fn granted_at_once(driver: &Driver, arena: ArenaId) -> [bool; 5] {
    let (all, last) = ((0, LEN), (LEN - 2, LEN));
    let requests = [
        (all, ReadOnly),
        (all, WriteInvalidate),
        (all, ReadWrite),
        (last, ReadOnly),
        (last, WriteInvalidate),
    ];
    requests.map(|(span, access)| is_granted_at_once(driver, arena, span, access))
}

#[test]
fn i01_what_is_there_and_free_is_granted_at_once() {
    assert_eq!(granted_at_once(&written(), MAIN_ARENA), [true; 5]);
    assert_eq!(granted_at_once(&written(), GPU_ARENA), [false; 5], "there is no storage");
    assert_eq!(granted_at_once(&Driver::new(Bench::star()), MAIN_ARENA), [false; 5]);
    let mut driver = written();
    driver.read(GPU_ARENA, (0, LEN));
    assert_eq!(granted_at_once(&driver, GPU_ARENA), [true; 5]);
    driver.write(MAIN_ARENA, (0, 4));
    assert_eq!(granted_at_once(&driver, GPU_ARENA), [false, true, false, true, true], "a part is stale");
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [true; 5], "several segments, all of them valid here");
}

#[test]
fn i01_users_are_passed_at_once_where_they_do_not_conflict() {
    let mut driver = written();
    driver.acquire(MAIN_ARENA, (0, 4), ReadOnly);
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [true, false, false, true, true]);
    driver.acquire(MAIN_ARENA, (4, 6), ReadWrite);
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [false, false, false, true, true]);
    let elsewhere = driver.acquire(GPU_ARENA, (0, 2), ReadOnly);
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [false; 5], "another arena is used");
    driver.end(elsewhere, Outcome::Done);
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [false, false, false, true, true]);
}

#[test]
fn i01_a_kernel_that_is_there_is_not_granted_twice_at_once() {
    let mut driver = written();
    let mine = driver.acquire(MAIN_ARENA, (0, 4), ReadOnly);
    let request = driver.request(MAIN_ARENA, &[claim(2, 6, ReadOnly)]);
    let one = OneClaim { kernel: KernelId(mine.0), ..request.of_one_claim().expect("it has one claim") };
    let known = driver.state.known(&driver.bench, MAIN_ARENA).expect("it is calm");
    assert_eq!(driver.state.begin_at_once(&driver.bench, known, one), None);
}

#[test]
fn l04_nothing_passes_at_once_those_who_wait_or_move() {
    let mut waited = written();
    waited.acquire(MAIN_ARENA, (0, 4), ReadOnly);
    waited.wait(MAIN_ARENA, (0, 4), WriteInvalidate);
    assert_eq!(granted_at_once(&waited, MAIN_ARENA), [false; 5]);

    let mut copied = written();
    let _ = copied.plan(GPU_ARENA, (0, 4), ReadOnly);
    assert_eq!(granted_at_once(&copied, MAIN_ARENA), [false; 5]);

    let mut closing = written();
    closing.acquire(MAIN_ARENA, (0, 4), ReadOnly);
    assert!(closing.act(|state, bench| state.close(bench)).is_empty());
    assert_eq!(granted_at_once(&closing, MAIN_ARENA), [false; 5]);
}

#[test]
fn i17_poisoned_bytes_are_overwritten_at_once_and_not_read() {
    let mut driver = written();
    let failed = driver.acquire(MAIN_ARENA, (0, LEN), ReadWrite);
    driver.end(failed, Outcome::Failed);
    assert_eq!(granted_at_once(&driver, MAIN_ARENA), [false, true, false, false, true]);
    driver.write(GPU2_ARENA, (0, LEN));
    assert_eq!(granted_at_once(&driver, GPU2_ARENA), [true; 5]);
}

#[test]
fn i06_a_map_state_for_readers_serves_no_writer_at_once() {
    let mut driver = Driver::new(Bench::new().gpu(Concurrency::BimapRead));
    driver.write(GPU_ARENA, (0, LEN));
    assert_eq!(granted_at_once(&driver, GPU_ARENA), [true; 5]);
    let (target, owner) = (MapState::Bimapped(DeviceSet::of(CPU)), driver.next());
    driver.act(|state, _| state.mark(GPU_ARENA, owner, false));
    driver.step(owner, Step::Map { arena: GPU_ARENA, device: CPU, target });
    assert_eq!(granted_at_once(&driver, GPU_ARENA), [true, false, false, true, false]);
}
