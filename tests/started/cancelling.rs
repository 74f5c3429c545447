//! Cancelling at every point of a run.

use super::{CPU, GPU, ITEMS, Slot, Turn, Work, memory, until};
use dml::Kernel;
use dml::core::internal::sync::Arc;
use dml::core::{Fence, Launch, LaunchArg, LaunchError, Launcher, Misfit};
use dml::prelude::*;
use dml::scheduler::{RunCanceller, RunError};
use dml_verify::watched;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const LONG: Duration = Duration::from_secs(20);

/// A kernel whose run is cancelled at a turn, and where the canceller is put.
fn cancelled_at(access: Access, at: Turn) -> (Work, Arc<Slot<RunCanceller>>) {
    let slot = Arc::new(Slot::<RunCanceller>::default());
    let canceller = slot.clone();
    let work = Work::new(access, move |turn| {
        if turn == at {
            canceller.wait().cancel();
        }
        Ok(())
    });
    (work, slot)
}

fn missing(told: &Result<dml::scheduler::Report, RunError>) -> u64 {
    match told {
        Ok(_) => 0,
        Err(RunError::Cancelled { kernel, missing, failures }) => {
            assert_eq!((kernel.as_str(), failures.len()), ("triple", 0));
            *missing
        }
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn a_run_that_is_cancelled_at_any_turn_leaves_every_item_computed_or_as_it_was() {
    use Turn::{Computing, DirectorEnd, DirectorStart, Done, Launch, UnitEnd, UnitStart};
    let turns = [DirectorStart, UnitStart, UnitEnd, DirectorEnd];
    let turns = turns.into_iter().chain(
        [0, 1, 2, 7].into_iter().flat_map(|number| [Launch(number), Computing(number), Done(number + 1)]),
    );
    for at in turns {
        for policy in ["dynamic:20", "static", "hguided", "calibrated"] {
            for access in [Access::WriteInvalidate, Access::ReadWrite] {
                for collect_on in [None, Some(CPU)] {
                    let what = format!("{at:?}, {policy}, {access:?}, collected on {collect_on:?}");
                    let run = watched(&what, move || {
                        let (work, slot) = cancelled_at(access, at);
                        let run = work.coexecutor().policy(policy.parse().unwrap()).collect_on(collect_on);
                        let mut running = run.start_with(&work.kernel, ITEMS, work.hooks()).unwrap();
                        slot.set(running.canceller());
                        let told = running.wait();
                        let progress = running.progress();
                        (told, progress, running, work)
                    });
                    let (told, progress, mut running, work) = run.join();
                    let missing = missing(&told);
                    assert_eq!(work.left(), missing, "{what}");
                    assert_eq!(work.done.load(Ordering::SeqCst), ITEMS - missing, "{what}");
                    assert_eq!(progress.computed, ITEMS - missing, "{what}");
                    assert!(work.target.raw().leaked_grants().is_empty(), "{what}");
                    if at == DirectorStart {
                        assert_eq!(missing, ITEMS, "{what}");
                    }
                    if at == DirectorEnd {
                        assert_eq!(missing, 0, "{what}");
                    }
                    // After the end, nothing changes.
                    running.cancel();
                    assert_eq!(running.wait(), told, "{what}");
                    if !access.reads() {
                        work.coexecutor().run(&work.kernel, ITEMS).expect("the buffers can be used");
                        work.assert_computed();
                    }
                }
            }
        }
    }
}

/// One device takes its packages in order, so that it is known what was launched.
#[test]
fn after_a_cancellation_nothing_is_launched_and_what_was_launched_is_computed() {
    for number in [0, 3, 19] {
        let run = watched("a run that is cancelled at a launch", move || {
            let (work, slot) = cancelled_at(Access::ReadWrite, Turn::Launch(number));
            let run = work.coexecutor().devices([GPU]);
            let mut running = run.start_with(&work.kernel, ITEMS, work.hooks()).unwrap();
            slot.set(running.canceller());
            let missing = missing(&running.wait());
            assert_eq!(missing, ITEMS - (number + 1) * 20);
            assert_eq!(work.left(), missing);
        });
        run.join();
    }
}

/// The host begins a run of an unmeasured kernel. The devices that it would have called up, or that would
/// have to finish the run, stay out.
#[test]
fn a_cancelled_run_starts_nobody_who_was_left_out() {
    let run = watched("a run that is cancelled in its opening", || {
        let (slot, begun) = <(Arc<Slot<RunCanceller>>, Arc<AtomicU64>)>::default();
        let (canceller, begins) = (slot.clone(), begun.clone());
        let work = Work::new(Access::WriteInvalidate, move |turn| {
            match turn {
                Turn::UnitStart => _ = begins.fetch_add(1, Ordering::SeqCst),
                // After a sample this long the others would be called up.
                Turn::Launch(0) => {
                    canceller.wait().cancel();
                    std::thread::sleep(Duration::from_millis(20));
                }
                _ => {}
            }
            Ok(())
        });
        let mut running =
            Coexecutor::new(&work.platform).start_with(&work.kernel, ITEMS, work.hooks()).unwrap();
        slot.set(running.canceller());
        let missing = missing(&running.wait());
        assert!(missing > 0 && missing < ITEMS, "{missing}");
        assert_eq!((begun.load(Ordering::SeqCst), work.left()), (1, missing));
    });
    run.join();
}

/// A unit that waits for a buffer notices the cancellation, whichever thread holds the buffer. So does a unit
/// that waits for work to come back.
#[test]
fn a_cancelled_run_gives_up_what_it_waits_for() {
    // The unit that waits may have a second package, which it has not begun.
    for (devices, others) in [(vec![GPU], 300), (vec![CPU, GPU], ITEMS - 40)] {
        let gate = Arc::new(Slot::default());
        let opened = gate.clone();
        let work = Work::new(Access::WriteInvalidate, move |turn| {
            if matches!(turn, Turn::Launch(_)) {
                opened.wait();
            }
            Ok(())
        });
        let run = watched("a run that waits for a buffer", move || {
            let mut running = work.coexecutor().devices(devices).start(&work.kernel, ITEMS).unwrap();
            let held = work.platform.acquire(CPU).read_write(&work.target.range(300..301)).wait().unwrap();
            gate.set(());
            until(|| running.progress().computed >= others);
            // This thread is the one that is waited for.
            let buffer = work.target.raw().name();
            let refused = RunError::HeldByCaller { kernel: "triple".to_owned(), index: 1, buffer };
            assert_eq!(running.wait(), Err(refused));
            let late = running.wait_timeout(Duration::from_millis(20));
            assert!(matches!(late, Err(RunError::Timeout { .. })), "{late:?}");
            assert!(!running.is_ended());
            running.cancel();
            let told = running.wait_timeout(LONG);
            held.release().unwrap();
            (told, work)
        });
        let (told, work) = run.join();
        let missing = missing(&told);
        assert!(missing == ITEMS - others || missing == 20, "{missing}");
        assert_eq!(work.left(), missing);
    }
}

/// The same where results are to be collected, and a writer came before.
#[test]
fn a_cancelled_run_leaves_results_where_they_are_if_they_cannot_be_collected_now() {
    let gate = Arc::new(Slot::default());
    let opened = gate.clone();
    let work = Work::new(Access::ReadWrite, move |turn| {
        if turn == Turn::Computing(0) {
            opened.wait();
        }
        Ok(())
    });
    let run = watched("a run whose results are in use", move || {
        let run = work.coexecutor().policy("dynamic:1".parse().unwrap()).devices([GPU]);
        let mut running = run.collect_on(Some(CPU)).start(&work.kernel, ITEMS).unwrap();
        // It has its place in the queue before the package ends, and so before its results are collected.
        let mut request = work.platform.acquire(GPU).read_write(&work.target).into_future();
        until(|| !work.target.raw().leaked_grants().is_empty());
        assert!(dml_verify::poll_once(&mut request).is_pending());
        gate.set(());
        let held = dml_verify::block_on(request).expect("granted after the package");
        running.cancel();
        let told = running.wait_timeout(LONG);
        // Nothing was changed.
        held.clean().unwrap();
        (told, work)
    });
    let (told, work) = run.join();
    assert!(told.expect("all is computed").failures.is_empty());
    work.assert_computed();
}

/// Adds the items' values to a partial.
struct Summing {
    platform: Platform,
    gate: Arc<Slot<()>>,
}

impl Launcher for Summing {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let LaunchArg::Buffer { buffer: partial, .. } = &launch.arguments[0] else { panic!("a buffer") };
        self.gate.wait();
        let arena = memory(&self.platform, GPU).inner();
        let old: u64 = bytemuck::pod_read_unaligned(&arena.read(grants, partial).expect("granted"));
        let sum = old + launch.items.clone().map(|item| item * item).sum::<u64>();
        arena.write(grants, partial, bytemuck::bytes_of(&sum)).expect("granted for writing");
        Ok(Fence::done(0))
    }
}

#[test]
fn a_reduction_that_waits_for_its_result_is_given_up_and_the_result_keeps_its_contents() {
    let sum: u64 = (0..ITEMS).map(|item| item * item).sum();
    for cancels in [true, false] {
        let run = watched("a reduction whose result is in use", move || {
            let platform = super::platform();
            let total = platform.buffer_from(vec![77_u64]).unwrap();
            let gate = Arc::new(Slot::default());
            let summing = Summing { platform: platform.clone(), gate: gate.clone() };
            let kernel = Kernel::new("triple", 10)
                .reduce(&total, 0_u64, |one, other| one + other)
                .launchers([(GPU, summing)])
                .unwrap();
            let mut running = Coexecutor::new(&platform).start(&kernel, ITEMS).unwrap();
            let view = total.read().unwrap();
            gate.set(());
            until(|| running.progress().computed == ITEMS);
            if cancels {
                running.cancel();
                assert_eq!(missing(&running.wait_timeout(LONG)), 0);
                assert!(matches!(running.wait(), Err(RunError::Cancelled { .. })));
                assert_eq!(view[0], 77);
                drop(view);
                assert_eq!(total.read().unwrap()[0], 77);
            } else {
                assert_eq!(view[0], 77);
                drop(view);
                running.wait().expect("it was not cancelled");
                assert_eq!(total.read().unwrap()[0], sum);
            }
        });
        run.join();
    }
}

/// A kernel that fails and a device that is lost while the run is cancelled: nothing is tried again, and what
/// was lost is counted.
#[test]
fn a_failure_in_a_cancelled_run_is_told_and_nothing_is_tried_again() {
    for dies in [false, true] {
        for panics in [false, true] {
            let what = format!("dies {dies}, panics {panics}");
            let run = watched(&what, move || {
                let slot = Arc::new(Slot::<(RunCanceller, Platform)>::default());
                let begun = Arc::new(AtomicU64::new(0));
                let (there, begins) = (slot.clone(), begun.clone());
                let work = Work::new(Access::ReadWrite, move |turn| {
                    begins.fetch_add(u64::from(turn == Turn::UnitStart), Ordering::SeqCst);
                    if turn != Turn::Launch(3) {
                        return Ok(());
                    }
                    let (canceller, platform) = there.wait();
                    canceller.cancel();
                    if dies {
                        memory(&platform, GPU).die();
                    }
                    assert!(!panics, "a kernel's own fault");
                    Err("a kernel's own fault".into())
                });
                let run = work.coexecutor().devices([GPU]).collect_on(None);
                let mut running = run.start_with(&work.kernel, ITEMS, work.hooks()).unwrap();
                slot.set((running.canceller(), work.platform.clone()));
                let told = running.wait();
                assert_eq!(begun.load(Ordering::SeqCst), 1, "no further round");
                (told, work)
            });
            let (told, work) = run.join();
            let Err(RunError::Cancelled { missing, failures, .. }) = told else { panic!("{what}: {told:?}") };
            assert_eq!(failures.len(), 1, "{what}");
            let lost = "device gpu:0 was lost";
            assert!(failures[0].message.contains(if dies { lost } else { "a kernel's own fault" }), "{what}");
            // Three packages were computed. A device that dies takes their results along.
            let kept = if dies { 0 } else { 60 };
            assert_eq!(missing, ITEMS - kept, "{what}");
            if !dies {
                assert_eq!(work.left(), missing, "{what}");
            }
            assert!(work.target.raw().leaked_grants().is_empty(), "{what}");
        }
    }
}

/// Cancelling from a thread at whatever moment that comes to.
#[test]
fn a_run_may_be_cancelled_from_any_thread_at_any_time() {
    let run = watched("runs that are cancelled by others", || {
        for round in 0..200_u64 {
            let work = Work::new(Access::WriteInvalidate, |_| Ok(()));
            let mut running = work.coexecutor().start_with(&work.kernel, ITEMS, work.hooks()).unwrap();
            let cancellers = [running.canceller(), running.canceller()];
            let moment = AtomicU64::new(0);
            let told = std::thread::scope(|scope| {
                for canceller in cancellers {
                    let moment = &moment;
                    scope.spawn(move || {
                        while moment.load(Ordering::Relaxed) < round * 40 {
                            moment.fetch_add(1, Ordering::Relaxed);
                        }
                        canceller.cancel();
                    });
                }
                running.wait()
            });
            assert_eq!(work.left(), missing(&told));
            assert_eq!(work.done.load(Ordering::SeqCst), ITEMS - missing(&told));
        }
    });
    run.join_within(Duration::from_secs(60));
}
