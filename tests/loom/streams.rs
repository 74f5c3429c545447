//! Submitted kernels, beside threads that submit, settle, view and go (I-29, L-4).

use crate::rig::{ALL, CPU, GPU, MAIN, Machine, Shared, VIDEO, end_all, explore, explore_within, thread};
use dml::arenas::Null;
use dml::core::internal::sync::{Arc, Condvar, Mutex};
use dml::core::{
    AcquireError, Allocation, Completion, CopyJob, CopyQuery, Cost, CrossArena, Fence, Grants, Launch,
    LaunchArg, LaunchError, Launcher, Link, Misfit, RawBuffer, Submission, SubmitError, TransferError,
};
use loom::future::block_on;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::task::{Poll, Waker};

/// A device that runs kernels on main memory, in the order of their launches. A kernel of number `n` replaces
/// the version `v` of its buffer by `2 v + n`, so the order of two kernels shows.
///
/// A kernel runs at its launch. It ends when a thread waits for it or for one behind it.
struct Device {
    memory: Arc<Null>,
    /// Number of launched kernels. This and the next are no atomics of the model, and so order nothing.
    launched: AtomicU32,
    /// Number of kernels that have ended.
    ended: AtomicU32,
    fails: Fails,
}

/// What fails, by the number of the kernel.
#[derive(PartialEq)]
enum Fails {
    Nothing,
    Kernel(u32),
    Launch(u32),
}

impl Device {
    fn new(machine: &Machine, fails: Fails) -> Arc<Self> {
        let (memory, launched, ended) = (machine.null(MAIN).clone(), AtomicU32::new(0), AtomicU32::new(0));
        Arc::new(Self { memory, launched, ended, fails })
    }

    fn ended(&self) -> u32 {
        self.ended.load(Relaxed)
    }

    /// No kernel is in flight: the caller was granted what all of them use.
    fn assert_idle(&self) {
        assert_eq!(self.ended(), self.launched.load(Relaxed), "let in before the end of a kernel");
    }

    fn run(
        self: &Arc<Self>,
        grants: &mut Grants,
        buffer: &RawBuffer,
        number: u32,
    ) -> Result<Fence, LaunchError> {
        if self.fails == Fails::Launch(number) {
            return Err(LaunchError::failed("half of it ran"));
        }
        let mut bytes = self.memory.read(grants, buffer).map_err(LaunchError::not_started)?;
        let version = bytes[0] / 16;
        assert!(bytes.iter().all(|byte| byte / 16 == version), "torn: {bytes:?}");
        bytes.iter_mut().for_each(|byte| *byte = *byte % 16 + 16 * after(version, number));
        self.memory.write(grants, buffer, &bytes).map_err(LaunchError::not_started)?;
        let position = self.launched.fetch_add(1, Relaxed) + 1;
        let fails = self.fails == Fails::Kernel(number);
        Ok(Fence::awaited(Running { device: self.clone(), position, fails }))
    }
}

/// A launcher of the device's kernels.
struct Step(Arc<Device>);

impl Launcher for Step {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer, .. }, LaunchArg::Scalar(number)] = launch.arguments else {
            panic!("a buffer and a number")
        };
        self.0.run(grants, buffer, u32::try_from(*number).expect("a number"))
    }
}

/// A launched kernel.
struct Running {
    device: Arc<Device>,
    position: u32,
    fails: bool,
}

impl Completion for Running {
    fn wait(self: Box<Self>) -> Result<u64, TransferError> {
        self.device.ended.fetch_max(self.position, Relaxed);
        if self.fails { Err(TransferError::DeviceLost { loss: None }) } else { Ok(0) }
    }

    fn poll(&mut self, _waker: &Waker) -> Poll<Result<u64, TransferError>> {
        unreachable!("a stream waits")
    }

    fn has_ended(&self) -> bool {
        self.device.ended() >= self.position
    }
}

/// Returns the version that a kernel leaves.
fn after(version: u8, number: u32) -> u8 {
    2 * version + number as u8
}

/// A buffer of version 0 on a machine with the host alone, and a device whose kernels use it.
fn scene(fails: Fails) -> (Shared, Arc<Device>) {
    let machine = Machine::star(0);
    (Shared::new(&machine), Device::new(&machine, fails))
}

fn step(shared: &Shared, device: &Arc<Device>, number: u32) -> Result<Submission, SubmitError> {
    let launcher = Arc::new(Step(device.clone()));
    shared.machine.platform.submit(CPU, &launcher).read_write(&shared.buffer).scalar(number).items(1)
}

fn settle(shared: &Shared) -> Result<(), SubmitError> {
    shared.machine.platform.settle(CPU)
}

#[test]
fn l04_a_thread_settles_while_another_one_submits() {
    explore(|| {
        let (mine, device) = scene(Fails::Nothing);
        let (theirs, seen) = (mine.clone(), device.clone());
        let settler = thread::spawn(move || {
            settle(&theirs).expect("no kernel fails");
            seen.ended()
        });
        step(&mine, &device, 1).expect("launched").wait().expect("no kernel fails");
        assert_eq!(device.ended(), 1);
        settler.join().expect("the settler ends");
        assert_eq!(mine.read(CPU, ALL), 1);
        mine.end();
    });
}

#[test]
fn l04_a_launch_is_left_to_the_stream_while_another_thread_settles() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        step(&mine, &device, 1).expect("launched");
        let theirs = mine.clone();
        let settler = thread::spawn(move || settle(&theirs).expect("no kernel fails"));
        step(&mine, &device, 2).expect("submitted");
        settler.join().expect("the settler ends");
        assert_eq!(mine.read(CPU, ALL), after(after(0, 1), 2));
        assert_eq!(device.ended(), 2);
        mine.end();
    });
}

#[test]
fn i29_two_threads_submit_in_one_order() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        let (theirs, their_device) = (mine.clone(), device.clone());
        let other = thread::spawn(move || step(&theirs, &their_device, 1).expect("submitted").number());
        let number = step(&mine, &device, 2).expect("submitted").number();
        let other = other.join().expect("the other submitter ends");
        let first_mine = after(after(0, 2), 1);
        let first_theirs = after(after(0, 1), 2);
        let expected = if number < other { first_mine } else { first_theirs };
        assert_eq!(mine.read(CPU, ALL), expected, "the numbers are in the order of the launches");
        mine.end();
    });
}

#[test]
fn l04_a_view_of_the_host_waits_for_the_kernels_before_it() {
    explore(|| {
        let (mine, device) = scene(Fails::Nothing);
        let (theirs, their_device) = (mine.clone(), device.clone());
        let submitter = thread::spawn(move || drop(step(&theirs, &their_device, 1).expect("launched")));
        let grants = mine.ask(CPU).read(&mine.buffer).wait().expect("granted in the end");
        device.assert_idle();
        assert_eq!(u32::from(mine.seen(&grants, CPU, &mine.buffer)), device.ended());
        drop(grants);
        submitter.join().expect("the submitter ends");
        assert_eq!(mine.read(CPU, ALL), 1);
        mine.end();
    });
}

#[test]
fn l04_a_plain_acquire_comes_between_kernels() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        step(&mine, &device, 1).expect("launched");
        let (theirs, their_device) = (mine.clone(), device.clone());
        let plain = thread::spawn(move || {
            let mut grants = theirs.ask(CPU).read_write(&theirs.buffer).wait().expect("granted in the end");
            their_device.assert_idle();
            let version = theirs.seen(&grants, CPU, &theirs.buffer);
            theirs.put(&mut grants, CPU, &theirs.buffer, version + 1);
            grants.release().expect("no device is lost");
        });
        let last = step(&mine, &device, 2).expect("submitted");
        plain.join().expect("the plain kernel ends");
        last.wait().expect("no kernel fails");
        let version = mine.read(CPU, ALL);
        assert!([after(2, 2), after(after(0, 1), 2) + 1].contains(&version), "{version}");
        mine.end();
    });
}

#[test]
fn l04_the_end_of_a_kernel_wakes_the_future_that_awaits_it() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        step(&mine, &device, 1).expect("launched");
        step(&mine, &device, 2).expect("submitted");
        block_on(step(&mine, &device, 3).expect("submitted")).expect("no kernel fails");
        assert_eq!((device.ended(), mine.read(CPU, ALL)), (3, after(after(after(0, 1), 2), 3)));
        mine.end();
    });
}

/// The thread that waits for the first kernel ends that one alone.
#[test]
fn l04_a_future_is_woken_behind_a_kernel_that_a_thread_waits_for() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        let first = step(&mine, &device, 1).expect("launched");
        let settler = thread::spawn(move || first.wait().expect("no kernel fails"));
        block_on(step(&mine, &device, 2).expect("submitted")).expect("no kernel fails");
        settler.join().expect("the settler ends");
        assert_eq!((device.ended(), mine.read(CPU, ALL)), (2, after(after(0, 1), 2)));
        mine.end();
    });
}

/// The program launches its own kernel behind one that is left to the stream.
#[test]
fn i29_a_launch_of_ones_own_follows_those_that_are_left_to_the_stream() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        step(&mine, &device, 1).expect("launched");
        step(&mine, &device, 2).expect("submitted");
        let own = mine.machine.platform.submit_with(
            CPU,
            "own",
            |acquire| acquire.read_write(&mine.buffer),
            |grants| device.run(grants, &mine.buffer, 3),
        );
        own.expect("launched").wait().expect("no kernel fails");
        assert_eq!((device.ended(), mine.read(CPU, ALL)), (3, after(after(after(0, 1), 2), 3)));
        mine.end();
    });
}

/// What follows a kernel that fails fails with it or is refused; later kernels are fine.
#[test]
fn i29_a_kernel_fails_while_another_thread_submits_behind_it() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Kernel(1));
        let failing = step(&mine, &device, 1).expect("launched");
        let (theirs, their_device) = (mine.clone(), device.clone());
        let follower = thread::spawn(move || match step(&theirs, &their_device, 2) {
            Ok(submission) => {
                let error = submission.wait().expect_err("it read what the failed one should have written");
                assert!(matches!(error, SubmitError::Failed { number: 1, .. }), "{error}");
            }
            Err(error) => {
                let is_poisoned = matches!(error, SubmitError::Acquire(AcquireError::Poisoned { .. }));
                assert!(is_poisoned, "{error}");
            }
        });
        failing.wait().expect_err("it fails");
        follower.join().expect("the follower ends");
        settle(&mine).expect_err("not told before");
        let read = mine.ask(CPU).read(&mine.buffer).wait();
        assert!(matches!(read, Err(AcquireError::Poisoned { .. })), "{read:?}");
        mine.write(CPU, ALL, 0);
        step(&mine, &device, 3).expect("launched").wait().expect("the stream is open");
        assert_eq!(mine.read(CPU, ALL), after(0, 3));
        mine.end();
    });
}

/// A kernel of other bytes fails with it or is not affected, and its bytes agree with its result.
#[test]
fn i29_a_kernel_fails_while_another_thread_submits_beside_it() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Kernel(1));
        let other = Shared::new(&mine.machine);
        step(&mine, &device, 1).expect("launched");
        let (theirs, their_device) = (other.clone(), device.clone());
        let submitter = thread::spawn(move || {
            let ended = step(&theirs, &their_device, 2).expect("its bytes are whole").wait();
            let read = theirs.ask(CPU).read(&theirs.buffer).wait();
            match ended {
                Ok(()) => assert_eq!(theirs.seen(&read.expect("committed"), CPU, &theirs.buffer), 2),
                Err(_) => assert!(matches!(read, Err(AcquireError::Poisoned { .. })), "{read:?}"),
            }
        });
        settle(&mine).expect_err("it fails");
        submitter.join().expect("the submitter ends");
        end_all([mine, other]);
    });
}

/// The launch fails on the stream or on the submitter's thread. The kernel behind it is not launched.
#[test]
fn i29_a_launch_fails_and_the_kernel_behind_it_is_not_launched() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Launch(2));
        step(&mine, &device, 1).expect("launched");
        let mut is_returned = false;
        for submitted in [step(&mine, &device, 2), step(&mine, &device, 3)] {
            is_returned |= matches!(submitted, Err(SubmitError::Launch { .. }));
            let error = submitted.and_then(|submission| submission.wait()).expect_err("the launch failed");
            let is_told = matches!(
                error,
                SubmitError::Failed { .. }
                    | SubmitError::Launch { has_started: true, .. }
                    | SubmitError::Acquire(AcquireError::Poisoned { .. })
            );
            assert!(is_told, "{error}");
        }
        assert_eq!(device.launched.load(Relaxed), 1, "the kernel behind is not launched");
        assert_eq!(
            settle(&mine).is_ok(),
            is_returned,
            "a failure that a submission returned is not repeated"
        );
        mine.write(CPU, ALL, 0);
        step(&mine, &device, 4).expect("launched").wait().expect("the stream is open");
        assert_eq!(mine.read(CPU, ALL), after(0, 4));
        mine.end();
    });
}

/// The end of a platform: its link goes with it.
#[derive(Default)]
struct Gone {
    is_gone: Mutex<bool>,
    changed: Condvar,
}

struct Witness(Arc<Gone>);

impl Drop for Witness {
    fn drop(&mut self) {
        *self.0.is_gone.lock() = true;
        self.0.changed.notify_all();
    }
}

impl CrossArena for Witness {
    fn name(&self) -> &'static str {
        "witness"
    }

    fn can_copy(&self, _query: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns(1))
    }

    fn copy(&self, _job: CopyJob) -> Result<Fence, TransferError> {
        unreachable!("the kernels use main memory")
    }
}

impl fmt::Debug for Witness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Witness")
    }
}

/// The stream ends what is left of it, and then the platform goes.
#[test]
fn i29_everything_is_dropped_in_mid_stream() {
    explore(|| {
        let gone = Arc::new(Gone::default());
        let machine = Machine::joined(1, |builder, _| {
            let (from, to, allocation) = (MAIN, VIDEO, Allocation::Internal);
            let link = Link { from, to, source_via: CPU, target_via: CPU, allocation };
            builder.add_link(link, Arc::new(Witness(gone.clone())));
        });
        let (mine, device) = (Shared::new(&machine), Device::new(&machine, Fails::Nothing));
        drop(machine);
        step(&mine, &device, 1).expect("launched");
        step(&mine, &device, 2).expect("submitted");
        drop(mine);
        let mut is_gone = gone.is_gone.lock();
        while !*is_gone {
            is_gone = gone.changed.wait(is_gone);
        }
        drop(is_gone);
        assert_eq!((device.ended(), device.memory.live_blocks()), (2, 0));
    });
}

/// A close waits for the kernels that have the bytes.
#[test]
fn l06_close_beside_a_submitter() {
    explore(|| {
        let (mine, device) = scene(Fails::Nothing);
        let (theirs, their_device) = (mine.clone(), device.clone());
        let submitter = thread::spawn(move || match step(&theirs, &their_device, 1) {
            Ok(submission) => submission.wait().expect("no kernel fails"),
            Err(error) => {
                assert!(matches!(error, SubmitError::Acquire(AcquireError::Closed { .. })), "{error}");
            }
        });
        mine.buffer.close();
        assert_eq!(mine.machine.live_blocks(), 0, "all of it is free when close returns");
        submitter.join().expect("the submitter ends");
        mine.end();
    });
}

/// A kernel of the device's own memory that passes the version of one buffer on to another, as 2 v + 1.
struct Passes(Arc<Device>);

impl Launcher for Passes {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [LaunchArg::Buffer { buffer: from, .. }, LaunchArg::Buffer { buffer: to, .. }] = launch.arguments
        else {
            panic!("two buffers")
        };
        let mut bytes = self.0.memory.read(grants, from).map_err(LaunchError::not_started)?;
        let version = bytes[0] / 16;
        assert!(bytes.iter().all(|byte| byte / 16 == version), "torn: {bytes:?}");
        bytes.iter_mut().for_each(|byte| *byte = *byte % 16 + 16 * after(version, 1));
        self.0.memory.write(grants, to, &bytes).map_err(LaunchError::not_started)?;
        let position = self.0.launched.fetch_add(1, Relaxed) + 1;
        Ok(Fence::awaited(Running { device: self.0.clone(), position, fails: false }))
    }
}

/// Two buffers in main memory, and a device with a memory of its own.
fn far_scene() -> (Shared, Shared, Arc<Passes>) {
    let machine = Machine::staged();
    let (memory, none) = (machine.null(VIDEO).clone(), || AtomicU32::new(0));
    let device = Device { memory, launched: none(), ended: none(), fails: Fails::Nothing };
    (Shared::new(&machine), Shared::new(&machine), Arc::new(Passes(Arc::new(device))))
}

fn pass((from, to): (&Shared, &Shared), passes: &Arc<Passes>) -> Submission {
    let submit = from.machine.platform.submit(GPU, passes).read(&from.buffer).write(&to.buffer);
    submit.items(1).expect("submitted")
}

/// The stream waits for the input's copy. Meanwhile another thread asks to write the input.
#[test]
fn i29_an_input_is_copied_while_another_thread_would_write_it() {
    explore_within(2, || {
        let (from, to, passes) = far_scene();
        let theirs = from.clone();
        let writer = thread::spawn(move || theirs.write(CPU, ALL, 3));
        let submission = pass((&from, &to), &passes);
        writer.join().expect("the writer ends");
        submission.wait().expect("no kernel fails");
        let version = to.read(CPU, ALL);
        assert!([after(0, 1), after(3, 1)].contains(&version), "{version}");
        end_all([from, to]);
    });
}

/// Another thread waits for what the kernel writes.
#[test]
fn l04_a_view_of_the_host_waits_for_a_kernel_whose_input_is_copied() {
    explore_within(2, || {
        let (from, to, passes) = far_scene();
        pass((&from, &to), &passes);
        let theirs = to.clone();
        let reader = thread::spawn(move || theirs.read(CPU, ALL));
        from.write(CPU, ALL, 3);
        assert_eq!(reader.join().expect("the reader ends"), after(0, 1));
        end_all([from, to]);
    });
}

/// As [`Step`], but the launch computes.
struct Computes(Arc<Device>);

impl Launcher for Computes {
    fn check(&self, _arguments: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn runs_within_launch(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.0.assert_idle();
        Step(self.0.clone()).launch(launch, grants)?.wait().map_err(LaunchError::failed)?;
        Ok(Fence::done(0))
    }
}

/// A launch that computes is made once the kernels before it have ended, and those behind it after that.
#[test]
fn l04_a_launch_computes_between_kernels_that_queue() {
    explore_within(2, || {
        let (mine, device) = scene(Fails::Nothing);
        let computes = Arc::new(Computes(device.clone()));
        step(&mine, &device, 1).expect("launched");
        let submit = mine.machine.platform.submit(CPU, &computes).read_write(&mine.buffer).scalar(2_u32);
        submit.items(1).expect("submitted");
        let theirs = mine.clone();
        let settler = thread::spawn(move || settle(&theirs).expect("no kernel fails"));
        step(&mine, &device, 3).expect("submitted").wait().expect("no kernel fails");
        settler.join().expect("the settler ends");
        assert_eq!((device.ended(), mine.read(CPU, ALL)), (3, after(after(after(0, 1), 2), 3)));
        mine.end();
    });
}
