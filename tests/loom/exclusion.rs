//! Who may see the bytes at the same time (I-1, I-4, I-17).

use crate::rig::{
    ALL, AcquireError, BYTES, CPU, GPU, LEFT, Machine, RIGHT, Shared, explore, explore_all, thread,
};
use dml::core::internal::sync::{Arc, Condvar, Mutex};

#[test]
fn i01_two_writers_exclude_each_other() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(CPU, ALL, 2));
        mine.write(CPU, ALL, 1);
        other.join().expect("the other writer ends");
        assert!([1, 2].contains(&mine.read(CPU, ALL)));
        assert_eq!(mine.buffer.snapshot().commit_seq().0, 3);
        mine.end();
    });
}

/// The bytes that both want are written by one of them as a whole; loom sees the race where both write at
/// once.
#[test]
fn i01_writers_whose_ranges_overlap_exclude_each_other() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(CPU, 1..BYTES, 2));
        mine.write(CPU, 0..BYTES - 1, 1);
        other.join().expect("the other writer ends");
        let [left, both, right] = [0..1, 1..BYTES - 1, BYTES - 1..BYTES].map(|range| mine.read(CPU, range));
        assert_eq!((left, right), (1, 2));
        assert!([1, 2].contains(&both));
        mine.end();
    });
}

#[test]
fn i02_no_update_of_two_devices_is_lost() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.bump(GPU));
        mine.bump(CPU);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, ALL), mine.read(GPU, ALL)), (2, 2));
        mine.end();
    });
}

/// No reader sees what a failed writer wrote: a waiter gets an error, and can restore the previous version.
#[test]
fn i02_who_waits_for_a_writer_that_fails_is_told() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        assert_eq!(mine.read(GPU, ALL), 0, "a copy that survives");
        let mut writing = mine.ask(CPU).read_write(&mine.buffer).wait().expect("nobody else is there yet");
        mine.put(&mut writing, CPU, &mine.buffer, 1);
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.ask(CPU).read(&theirs.buffer).wait().map(drop));
        writing.failed().expect("no device is lost");
        let told = other.join().expect("the reader ends");
        assert!(matches!(told, Err(AcquireError::Poisoned { restorable: true, .. })), "{told:?}");
        mine.buffer.restore(ALL).expect("nobody holds the bytes");
        assert_eq!(mine.read(CPU, ALL), 0);
        mine.end();
    });
}

/// A reader finds one version, and the same when it looks again while others try to come in.
#[test]
fn i04_a_reader_keeps_its_bytes_beside_a_writer() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(CPU, ALL, 1));
        let grants = mine.ask(CPU).read(&mine.buffer).wait().expect("granted in the end");
        let version = mine.seen(&grants, CPU, &mine.buffer);
        let seq = mine.buffer.snapshot().commit_seq().0;
        assert_eq!(mine.seen(&grants, CPU, &mine.buffer), version);
        assert_eq!(seq, 1 + u64::from(version), "nothing is committed beside a reader");
        grants.release().expect("no device is lost");
        other.join().expect("the writer ends");
        assert_eq!(mine.read(CPU, ALL), 1);
        mine.end();
    });
}

/// The writer keeps its bytes until the reader has gone: the waiting reader is admitted by the downgrade, or
/// never. After the downgrade there is no view for writing, which would be a race.
#[test]
fn i04_a_downgraded_writer_lets_a_waiting_reader_in() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let mut writing = mine.ask(CPU).read_write(&mine.buffer).wait().expect("nobody else is there yet");
        let other = thread::spawn(move || theirs.read(CPU, ALL));
        mine.put(&mut writing, CPU, &mine.buffer, 1);
        let mut reading = writing.downgrade().expect("no device is lost");
        if let Ok(late) = reading.slice_mut::<u8>(&mine.buffer) {
            late.fill(0);
        }
        if let Ok(mut views) = reading.views() {
            views.iter_mut().for_each(|view| assert!(view.slice_mut::<u8>().is_err()));
        }
        assert_eq!(other.join().expect("the reader ends"), 1, "it could not come before the commit");
        assert_eq!(mine.seen(&reading, CPU, &mine.buffer), 1);
        reading.release().expect("no device is lost");
        mine.end();
    });
}

/// Two who wait for a writer each stay until the other has come: they are let in together, or wait for ever.
#[test]
fn i01_readers_who_wait_are_let_in_together() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let crowd = Arc::new((Mutex::new(0), Condvar::new()));
        let mut writing = mine.ask(CPU).write(&mine.buffer).wait().expect("nobody else is there yet");
        let readers = [(); 2].map(|()| {
            let (theirs, crowd) = (mine.clone(), crowd.clone());
            thread::spawn(move || {
                let grants = theirs.ask(CPU).read(&theirs.buffer).wait().expect("granted in the end");
                assert_eq!(theirs.seen(&grants, CPU, &theirs.buffer), 1);
                let mut here = crowd.0.lock();
                *here += 1;
                crowd.1.notify_all();
                while *here < 2 {
                    here = crowd.1.wait(here);
                }
                drop(here);
                grants.release().expect("no device is lost");
            })
        });
        mine.put(&mut writing, CPU, &mine.buffer, 1);
        writing.release().expect("no device is lost");
        readers.into_iter().for_each(|reader| reader.join().expect("every reader ends"));
        mine.end();
    });
}

#[test]
fn i17_writers_of_disjoint_halves_both_count() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.write(GPU, RIGHT, 2));
        mine.write(CPU, LEFT, 1);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, LEFT), mine.read(CPU, RIGHT)), (1, 2));
        mine.end();
    });
}

/// Writers of disjoint halves on one storage and one device do not conflict, so neither ever waits.
#[test]
fn i17_writers_of_disjoint_halves_of_one_arena_never_wait() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let write = |shared: &Shared, range, version| {
            let region = shared.buffer.range(range);
            let mut grants = shared.ask(CPU).write(&region).try_now().expect("nobody holds this half");
            shared.put(&mut grants, CPU, &region, version);
            grants.release().expect("no device is lost");
        };
        let other = thread::spawn(move || write(&theirs, RIGHT, 2));
        write(&mine, LEFT, 1);
        other.join().expect("the other writer ends");
        assert_eq!((mine.read(CPU, LEFT), mine.read(CPU, RIGHT)), (1, 2));
        mine.end();
    });
}
