//! Threads in earnest, for ThreadSanitizer (`cargo xtask tsan`): spawned and joined, and nothing else of std
//! between them.

#![cfg(not(dml_loom))]

use dml::core::{AcquireError, ArenaId, Concurrency, Platform};
use dml_verify::stress::{Mix, run};
use dml_verify::{
    GPU_ARENA, GPU2_ARENA, MAIN_ARENA, Rig, Shape, bytes, change, get, live_blocks, raw, star, write,
};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{JoinHandle, spawn};
use std::time::Duration;

fn join<R>(threads: Vec<JoinHandle<R>>) -> Vec<R> {
    threads.into_iter().map(|thread| thread.join().expect("no thread found anything wrong")).collect()
}

/// Four threads, a few hundred rounds each.
fn hammer(platform: &Platform) {
    let tally = run(platform, Mix { threads: 4, rounds: 400, failures: false });
    let [granted, given_up] = [&tally.granted, &tally.given_up].map(|count| count.load(Ordering::Relaxed));
    assert!(granted > 400, "{granted} granted, {given_up} given up");
    assert_eq!(live_blocks(platform), 0);
}

#[test]
fn i04_staged_copies() {
    hammer(&star());
}

#[test]
fn i06_mapped_copies() {
    let rig = Rig::new().gpu(Concurrency::Exclusive).gpu(Concurrency::BimapRead);
    hammer(&rig.mapped(GPU_ARENA).mapped(GPU2_ARENA).build());
}

#[test]
fn i11_coherent_storage() {
    hammer(&Shape::Bound(Concurrency::BimapFull).build());
}

#[test]
fn i01_every_increment_counts() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 100;
    let platform = star();
    let buffer = platform.raw_buffer(8).zeroed().build().unwrap();
    let threads = (0..THREADS).map(|thread| {
        let buffer = buffer.clone();
        spawn(move || {
            for round in 0..ROUNDS {
                let arena = ArenaId(((thread + round) % 3) as u8);
                let mut grants = buffer.platform().acquire_in(arena).read_write(&buffer).wait().unwrap();
                let mut count: [u8; 8] = get(&grants, &buffer, 0..8).try_into().unwrap();
                count = (u64::from_le_bytes(count) + 1).to_le_bytes();
                dml_verify::put(&mut grants, &buffer, 0, &count);
                grants.release().unwrap();
            }
        })
    });
    join(threads.collect());
    let count: [u8; 8] = dml_verify::read(&buffer, MAIN_ARENA, 0..8).try_into().unwrap();
    assert_eq!(u64::from_le_bytes(count), THREADS * ROUNDS);
}

#[test]
fn i01_writers_of_disjoint_ranges_keep_to_their_own() {
    let platform = star();
    let buffer = raw(&platform, 4 * 33);
    write(&buffer, MAIN_ARENA, 0..4 * 33, 7);
    let threads = (0..4u64).map(|thread| {
        let buffer = buffer.clone();
        spawn(move || {
            let range = thread * 33..(thread + 1) * 33;
            for round in 0..100 {
                let region = buffer.range(range.clone());
                let arena = ArenaId((round % 3) as u8);
                let mut grants = buffer.platform().acquire_in(arena).read_write(&region).wait().unwrap();
                let before = if round == 0 { 7 } else { thread * 1000 + round - 1 };
                assert_eq!(get(&grants, &buffer, range.clone()), bytes(before, range.clone()));
                dml_verify::put(
                    &mut grants,
                    &buffer,
                    range.start,
                    &bytes(thread * 1000 + round, range.clone()),
                );
                grants.release().unwrap();
            }
        })
    });
    join(threads.collect());
    for thread in 0..4 {
        let range = thread * 33..(thread + 1) * 33;
        assert_eq!(dml_verify::read(&buffer, MAIN_ARENA, range.clone()), bytes(thread * 1000 + 99, range));
    }
}

#[test]
fn l03_timeouts_take_nobody_else_along() {
    let platform = star();
    let buffer = raw(&platform, 100);
    write(&buffer, MAIN_ARENA, 0..100, 1);
    let inside = std::sync::Arc::new(AtomicUsize::new(0));
    let threads = (0..4u64).map(|thread| {
        let (buffer, inside) = (buffer.clone(), inside.clone());
        spawn(move || {
            let mut granted = 0;
            for round in 0..200 {
                let asked = buffer.platform().acquire_in(ArenaId((round % 3) as u8)).read_write(&buffer);
                // Every other request gives up after an instant; the rest wait as long as it takes.
                let patient = (thread + round) % 2 == 0;
                let result = if patient {
                    asked.wait()
                } else {
                    asked.wait_timeout(Duration::from_micros(round % 50))
                };
                match result {
                    Ok(grants) => {
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0, "two writers at once");
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        grants.release().unwrap();
                        granted += 1;
                    }
                    Err(AcquireError::Timeout { .. }) if !patient => {}
                    Err(error) => panic!("{error}"),
                }
            }
            granted
        })
    });
    let granted = join(threads.collect());
    assert!(granted.iter().all(|&granted| granted >= 100), "{granted:?}");
    let state = dml_verify::check(&buffer);
    assert!(state.requestors().is_empty() && state.copies().is_empty() && state.queue().len() == 0);
    change(&buffer, MAIN_ARENA, 0..100, 2);
}

#[test]
fn i25_buffers_come_and_go_while_others_work() {
    let platform = star();
    let threads = (0..4u64).map(|thread| {
        let platform = platform.clone();
        spawn(move || {
            for round in 0..60 {
                let buffer = raw(&platform, 50);
                write(&buffer, ArenaId((round % 3) as u8), 0..50, round);
                let reader = platform.acquire_in(GPU_ARENA).read(&buffer).wait().unwrap();
                let other = buffer.clone();
                // Half of them are closed, half are dropped while a grant is out.
                let closer = (thread % 2 == 0).then(|| spawn(move || other.close()));
                drop(buffer.clone());
                assert_eq!(get(&reader, &buffer, 0..50), bytes(round, 0..50));
                drop(buffer);
                drop(reader);
                if let Some(closer) = closer {
                    closer.join().unwrap();
                }
            }
        })
    });
    join(threads.collect());
    assert_eq!(live_blocks(&platform), 0);
}

/// A mapping that outlives a change of map state is not on loan because of it: the next change may end the
/// mapping at once.
#[test]
fn i20_a_mapping_that_goes_on_is_nobodys_loan() {
    let platform = Rig::new().gpu(Concurrency::BimapRead).mapped(GPU_ARENA).build();
    let buffer = platform.raw_buffer(64).zeroed().build().unwrap();
    let threads = (0..4_u64).map(|thread| {
        let (platform, buffer) = (platform.clone(), buffer.clone());
        spawn(move || {
            let (arena, range) = (ArenaId((thread % 2) as u8), 16 * thread..16 * thread + 16);
            for _ in 0..3000 {
                platform
                    .acquire_in(ArenaId(1 - arena.0))
                    .read(&buffer.range(range.clone()))
                    .wait()
                    .map(drop)?;
                platform.acquire_in(arena).read(&buffer).wait().map(drop)?;
                let written = platform.acquire_in(arena).write(&buffer.range(range.clone())).wait()?;
                written.release()?;
            }
            Ok::<(), AcquireError>(())
        })
    });
    for thread in threads.collect::<Vec<_>>() {
        assert_eq!(thread.join().unwrap(), Ok(()));
    }
}
