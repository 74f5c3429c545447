//! The order of waiters, none of which waits for ever (L-1 to L-4).

use crate::rig::{ALL, CPU, GPU, Machine, Shared, end_all, explore, explore_all, thread};

/// Two that change the bytes and one that reads them, in every order of coming: each change builds on the one
/// before, and each of the three is woken.
#[test]
fn l04_three_waiters_are_all_woken() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let writers = [(); 2].map(|()| {
            let theirs = mine.clone();
            thread::spawn(move || theirs.bump(CPU))
        });
        assert!(mine.read(CPU, ALL) <= 2);
        writers.into_iter().for_each(|writer| writer.join().expect("every writer ends"));
        assert_eq!(mine.read(CPU, ALL), 2);
        mine.end();
    });
}

/// The three meet on two memories, so that waiters are admitted with copies to make.
#[test]
fn l04_three_waiters_on_two_devices_are_all_woken() {
    explore(|| {
        let mine = Shared::new(&Machine::staged());
        let writers = [CPU, GPU].map(|device| {
            let theirs = mine.clone();
            thread::spawn(move || theirs.bump(device))
        });
        assert!(mine.read(GPU, ALL) <= 2);
        writers.into_iter().for_each(|writer| writer.join().expect("every writer ends"));
        assert_eq!(mine.read(CPU, ALL), 2);
        mine.end();
    });
}

fn two_buffers() -> (Shared, Shared) {
    let machine = Machine::staged();
    (Shared::new(&machine), Shared::new(&machine))
}

/// A kernel on two buffers, named in this order.
fn bump_both(first: &Shared, second: &Shared) {
    let both = first.ask(CPU).read_write(&first.buffer).read_write(&second.buffer);
    let mut grants = both.wait().expect("granted in the end");
    for shared in [first, second] {
        let version = shared.seen(&grants, CPU, &shared.buffer);
        shared.put(&mut grants, CPU, &shared.buffer, version + 1);
    }
    grants.release().expect("no device is lost");
}

#[test]
fn l01_two_buffers_in_opposite_order_do_not_deadlock() {
    explore_all(|| {
        let (a, b) = two_buffers();
        let theirs = (a.clone(), b.clone());
        let other = thread::spawn(move || bump_both(&theirs.1, &theirs.0));
        bump_both(&a, &b);
        other.join().expect("the other one ends");
        assert_eq!((a.read(CPU, ALL), b.read(CPU, ALL)), (2, 2));
        end_all([a, b]);
    });
}

/// Three philosophers: each wants two of three buffers, and a waiter for one holds another.
#[test]
fn l01_three_buffers_in_a_circle_do_not_deadlock() {
    explore(|| {
        let machine = Machine::staged();
        let [a, b, c] = [(); 3].map(|()| Shared::new(&machine));
        drop(machine);
        let others = [(b.clone(), c.clone()), (c.clone(), a.clone())]
            .map(|(first, second)| thread::spawn(move || bump_both(&first, &second)));
        bump_both(&a, &b);
        others.into_iter().for_each(|other| other.join().expect("the others end"));
        assert_eq!([&a, &b, &c].map(|shared| shared.read(CPU, ALL)), [2, 2, 2]);
        end_all([a, b, c]);
    });
}

/// Tries buffers, named in this order, and writes them if it has them all; how many it has written.
fn try_all(wanted: &[Shared]) -> u64 {
    let all = wanted.iter().fold(wanted[0].ask(CPU), |ask, shared| ask.write(&shared.buffer));
    let Ok(mut grants) = all.try_now() else { return 0 };
    wanted.iter().for_each(|shared| shared.put(&mut grants, CPU, &shared.buffer, 1));
    grants.release().expect("no device is lost");
    wanted.len() as u64
}

fn end_with_commits(buffers: [Shared; 2], written: u64) {
    assert!(written > 0, "each was in the way of another");
    let commits: u64 = buffers.iter().map(|shared| shared.buffer.snapshot().commit_seq().0 - 1).sum();
    assert_eq!(commits, written);
    end_all(buffers);
}

#[test]
fn l02_of_two_who_only_try_one_wins() {
    explore_all(|| {
        let (a, b) = two_buffers();
        let theirs = [b.clone(), a.clone()];
        let other = thread::spawn(move || try_all(&theirs));
        let mine = try_all(&[a.clone(), b.clone()]);
        let written = mine + other.join().expect("the other one ends");
        end_with_commits([a, b], written);
    });
}

/// The third wants the second buffer only: who fails on it gives the first one back.
#[test]
fn l02_of_three_who_only_try_one_wins() {
    explore(|| {
        let (a, b) = two_buffers();
        let others = [vec![b.clone(), a.clone()], vec![b.clone()]]
            .map(|wanted| thread::spawn(move || try_all(&wanted)));
        let mine = try_all(&[a.clone(), b.clone()]);
        let theirs = others.into_iter().map(|other| other.join().expect("the others end")).sum::<u64>();
        end_with_commits([a, b], mine + theirs);
    });
}
