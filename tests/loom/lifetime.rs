//! Storage, buffers and devices that go while others come (I-5, I-24, I-25, L-6).

use crate::rig::{
    ALL, AcquireError, BYTES, CPU, GPU, MAIN, Machine, Meeting, Shared, VIDEO, explore, explore_all, thread,
};
use dml::arenas::null::Call;
use dml::core::FreeRefusal;

/// How often the storage of an arena was made and freed.
fn made_and_freed(machine: &Machine) -> (usize, usize) {
    let calls: Vec<_> = [MAIN, VIDEO].iter().flat_map(|&arena| machine.null(arena).calls()).collect();
    let count = |is: fn(&Call) -> bool| calls.iter().filter(|call| is(call)).count();
    (count(|call| matches!(call, Call::Alloc { .. })), count(|call| matches!(call, Call::Free { .. })))
}

/// The handle goes in one thread, the grant in another: whichever is last takes the storage along.
#[test]
fn i25_the_last_handle_and_the_last_grant_free_once() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let machine = mine.machine.clone();
        let grants = mine.ask(GPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let (here, there) = (Meeting::default(), Meeting::default());
        let meeting = (here.clone(), there.clone());
        let other = thread::spawn(move || {
            meeting.0.pass();
            drop(grants);
            meeting.1.pass();
        });
        here.pass();
        drop(mine);
        there.pass();
        other.join().expect("the other one ends");
        assert_eq!(made_and_freed(&machine), (2, 2));
        machine.end();
    });
}

/// A request is granted or refused. When `close` returns, no thread uses the bytes and no storage is left.
#[test]
fn l06_close_beside_an_acquire_waits_for_it_or_refuses_it() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || match theirs.ask(GPU).read_write(&theirs.buffer).wait() {
            Ok(mut grants) => {
                let version = theirs.seen(&grants, GPU, &theirs.buffer);
                theirs.put(&mut grants, GPU, &theirs.buffer, version + 1);
                grants.release().expect("no device is lost");
            }
            Err(error) => assert!(matches!(error, AcquireError::Closed { .. }), "{error}"),
        });
        mine.buffer.close();
        assert_eq!(mine.machine.live_blocks(), 0, "all of it is free when close returns");
        other.join().expect("the other one ends");
        let (made, freed) = made_and_freed(&mine.machine);
        assert_eq!(made, freed);
        mine.end();
    });
}

/// One thread holds, one waits, one closes: the waiter is refused, and `close` waits for the holder.
#[test]
fn l06_close_refuses_who_waits_and_waits_for_who_holds() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let holding = mine.ask(CPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let (waits, holds) = (mine.clone(), mine.clone());
        let waits = thread::spawn(move || match waits.ask(CPU).write(&waits.buffer).wait() {
            Ok(grants) => grants.release().expect("no device is lost"),
            Err(error) => assert!(matches!(error, AcquireError::Closed { .. }), "{error}"),
        });
        let holds = thread::spawn(move || {
            let version = holds.seen(&holding, CPU, &holds.buffer);
            assert_eq!(version, 0);
            holding.release().expect("no device is lost");
        });
        mine.buffer.close();
        assert_eq!(mine.machine.live_blocks(), 0, "all of it is free when close returns");
        waits.join().expect("the one who waits ends");
        holds.join().expect("the one who holds ends");
        mine.end();
    });
}

/// A prefetch is no grant, but its storage is in use until the bytes have arrived.
#[test]
fn l06_close_waits_for_the_copy_of_a_prefetch() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.prefetch(GPU));
        mine.buffer.close();
        assert_eq!(mine.machine.live_blocks(), 0, "all of it is free when close returns");
        other.join().expect("the prefetch ends");
        mine.end();
    });
}

#[test]
fn l06_of_two_who_close_both_return() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let grants = mine.ask(GPU).read(&mine.buffer).wait().expect("nobody else is there yet");
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            drop(grants);
            theirs.buffer.close();
            assert_eq!(theirs.machine.live_blocks(), 0);
        });
        mine.buffer.close();
        assert_eq!(mine.machine.live_blocks(), 0);
        other.join().expect("the other one ends");
        assert_eq!(made_and_freed(&mine.machine), (2, 2));
        mine.end();
    });
}

/// The application's vector comes back as it went in, and not as a copy, whenever a reader lets go of it.
#[test]
fn i24_a_vector_comes_back_while_a_reader_ends() {
    explore_all(|| {
        let machine = Machine::staged();
        let data: Vec<u8> = (1..=BYTES as u8).collect();
        let address = data.as_ptr();
        let buffer = machine.platform.buffer_from(data).expect("the host has an arena");
        let theirs = buffer.clone();
        let other = thread::spawn(move || match theirs.read() {
            Ok(reading) => assert_eq!(reading[BYTES as usize - 1], BYTES as u8),
            Err(error) => assert!(matches!(error, AcquireError::Closed { .. }), "{error}"),
        });
        let back = buffer.into_vec().expect("nobody else closes it");
        assert_eq!((back.as_ptr(), &back[..]), (address, &[1, 2, 3, 4][..]), "a copy came back");
        other.join().expect("the reader ends");
        machine.end();
    });
}

/// Storage is freed between kernels, never under one; the next kernel has new storage and the same bytes.
#[test]
fn i05_free_beside_a_reader_is_refused_or_makes_room() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || theirs.read(GPU, ALL));
        let freed = mine.buffer.free(VIDEO);
        let in_use = |refused: &AcquireError| {
            matches!(refused, AcquireError::NotFreeable { reason: FreeRefusal::InUse, .. })
        };
        assert!(freed.as_ref().err().is_none_or(in_use), "{freed:?}");
        assert_eq!(other.join().expect("the reader ends"), 0);
        assert_eq!(mine.read(GPU, ALL), 0);
        mine.end();
    });
}

/// A device goes while its kernel is prepared, runs or ends: the kernel hears of it at one of these points,
/// or had committed before. What the host committed is there either way.
#[test]
fn i02_a_device_lost_beside_its_kernel_takes_no_commit_of_the_hosts() {
    explore_all(|| {
        let mine = Shared::new(&Machine::staged());
        let theirs = mine.clone();
        let other = thread::spawn(move || {
            let result = theirs.ask(GPU).read_write(&theirs.buffer).wait().and_then(|mut grants| {
                theirs.put(&mut grants, GPU, &theirs.buffer, 1);
                grants.release()
            });
            match result {
                Ok(()) => true,
                Err(AcquireError::DeviceLost { .. }) => false,
                Err(error) => panic!("{error}"),
            }
        });
        mine.machine.platform.device_lost(GPU);
        let committed = other.join().expect("the kernel ends");
        let state = mine.buffer.snapshot();
        assert_eq!(state.commit_seq().0, 1 + u64::from(committed));
        let late = mine.ask(GPU).write(&mine.buffer).try_now();
        assert!(matches!(late, Err(AcquireError::DeviceLost { .. })), "{late:?}");
        match mine.ask(CPU).read(&mine.buffer).try_now() {
            Ok(grants) => assert_eq!(mine.seen(&grants, CPU, &mine.buffer), 0),
            // The kernel had written, or might have: its bytes went with the device.
            Err(AcquireError::Poisoned { restorable, .. }) => {
                assert_eq!(restorable, !committed);
                if restorable {
                    mine.buffer.restore(ALL).expect("the host's copy is there");
                    assert_eq!(mine.read(CPU, ALL), 0);
                }
            }
            Err(error) => panic!("{error}"),
        }
        mine.end();
    });
}

/// A buffer made while a device goes knows of it, whichever came first.
#[test]
fn i16_a_buffer_made_while_a_device_goes_knows_of_it() {
    explore_all(|| {
        let machine = Machine::staged();
        let theirs = machine.platform.clone();
        let other = thread::spawn(move || theirs.device_lost(GPU));
        let mine = Shared::raw(&machine);
        drop(machine);
        other.join().expect("the other one ends");
        let late = mine.ask(GPU).write(&mine.buffer).try_now();
        assert!(matches!(late, Err(AcquireError::DeviceLost { .. })), "{late:?}");
        mine.end();
    });
}
