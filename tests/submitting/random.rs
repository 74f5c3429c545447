//! Random programs of submissions over several devices and threads, with failures and lost devices.
//!
//! `DML_SUBMISSIONS` sets how many are accepted in total (20,000); `cargo xtask soak` makes it a million.

use dml::arenas::{MainMem, Null, kit};
use dml::core::internal::sync::Mutex;
use dml::core::{
    Access, AcquireError, ArenaDesc, ArenaKind, Buffer, DeviceDesc, DeviceId, DeviceKind, DeviceSet, Fence,
    Grants, Launch, LaunchArg, LaunchError, Launcher, LinkSpeed, Misfit, Platform, SubmitError,
    TransferError,
};
use dml_verify::random::Random;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Number of submissions of one program.
const EACH: u64 = 500;
/// The most bytes by which the process may have grown, whatever the number of submissions.
const MOST_GROWTH: u64 = 16 << 20;

/// A kernel of one device: `to = 3 * from + number`. Some numbers fail, after they have written.
pub(crate) struct Step {
    pub(crate) platform: Platform,
    pub(crate) device: DeviceId,
    /// The launched kernels of all devices: the places of their buffers, and their numbers.
    pub(crate) launched: Arc<Mutex<Vec<Launched>>>,
}

pub(crate) struct Launched {
    from: u32,
    to: u32,
    number: u32,
}

/// What the number of a kernel has it do.
enum Does {
    Computes,
    Fails,
    IsRefused,
    Panics,
}

impl Does {
    fn of(number: u32) -> Self {
        match number % 211 {
            5 => Self::Fails,
            6 => Self::IsRefused,
            7 => Self::Panics,
            _ => Self::Computes,
        }
    }
}

impl Launcher for Step {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn runs_in_order(&self) -> bool {
        true
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        let [
            LaunchArg::Buffer { buffer: from, ranges: from_bytes, .. },
            LaunchArg::Buffer { buffer: to, .. },
            LaunchArg::Scalar(number),
            LaunchArg::Scalar(from_at),
            LaunchArg::Scalar(to_at),
        ] = launch.arguments
        else {
            panic!("they are those of `step`")
        };
        let [number, from_at, to_at] =
            [number, from_at, to_at].map(|scalar| u32::try_from(*scalar).expect("as given"));
        let does = Does::of(number);
        match does {
            Does::IsRefused => return Err(LaunchError::not_started("no room")),
            Does::Panics => panic!("a bad launcher"),
            _ => {}
        }
        let arena = self.platform.arena(self.platform.home(self.device).expect("it has one"));
        let arena = arena.downcast_ref::<Null>().expect("it is one");
        let mut launched = self.launched.lock();
        let bytes =
            arena.read(grants, &from.range(from_bytes[0].clone())).map_err(LaunchError::not_started)?;
        let value = u32::from_ne_bytes(bytes.try_into().unwrap()).wrapping_mul(3).wrapping_add(number);
        arena.write(grants, &to.range(0..4), &value.to_ne_bytes()).map_err(LaunchError::failed)?;
        drop(arena.take_calls());
        if let Does::Fails = does {
            let message = format!("kernel {number} trapped").into();
            return Ok(Fence::running(|| Err(TransferError::Framework { call: "null", code: 7, message })));
        }
        launched.push(Launched { from: from_at, to: to_at, number });
        Ok(Fence::done(0))
    }
}

/// A processor, and some devices with memories of their own.
pub(crate) fn platform(devices: u16) -> (Platform, Vec<DeviceId>) {
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = builder.add_arena(Arc::new(MainMem::new(cpu)));
    let devices = (0..devices).map(|number| {
        let name = format!("null:{number}");
        let device = builder.add_device(DeviceDesc::new(&name, DeviceKind::Accelerator));
        let own = ArenaDesc::new(&name, ArenaKind("test"), device).with_remotes(DeviceSet::of(cpu));
        let own = builder.add_arena(Arc::new(Null::backed(own)));
        kit::join_staged(&mut builder, main, own, LinkSpeed::default());
        device
    });
    let devices = devices.collect();
    (builder.build().expect("a sound platform"), devices)
}

/// What a program found.
#[derive(Default)]
struct Found {
    submitted: u64,
    failed: u64,
    read: u64,
    poisoned: u64,
}

/// Runs a program, and compares what can be read with the serial run of the kernels that ended well.
fn run(seed: u64, found: &mut Found) {
    let mut random = Random::new(seed);
    let (platform, devices) = platform(1 + random.below(4) as u16);
    let buffers: Vec<Buffer<u32>> =
        (0..1 + random.below(6)).map(|value| platform.buffer_from(vec![value as u32]).unwrap()).collect();
    let (threads, loses) = (1 + random.below(4), random.below(4) == 0);
    let launched = Arc::default();
    let kernels: Vec<Arc<Step>> = devices
        .iter()
        .map(|&device| Arc::new(Step { platform: platform.clone(), device, launched: Arc::clone(&launched) }))
        .collect();
    let next = AtomicU32::new(seed as u32);
    let submissions: Vec<_> = std::thread::scope(|scope| {
        let (platform, devices, buffers, kernels, next) = (&platform, &devices, &buffers, &kernels, &next);
        let program = |thread: u64| {
            let mut random = Random::new(seed * 4 + thread);
            let mut submissions = Vec::new();
            for turn in 0..EACH / threads {
                let (from, to) = (random.below(buffers.len() as u64), random.below(buffers.len() as u64));
                let on = random.below(devices.len() as u64) as usize;
                match random.below(60) {
                    0 => drop(buffers[from as usize].read()),
                    1 if loses && turn > EACH / threads / 2 => platform.device_lost(devices[on]),
                    _ => {}
                }
                let number = next.fetch_add(1, Ordering::Relaxed);
                let access = if from == to { Access::ReadWrite } else { Access::WriteInvalidate };
                let submit = platform.submit(devices[on], &kernels[on]).read(&buffers[from as usize]);
                let submit = submit.access(&buffers[to as usize], access);
                let submit = submit.scalar(number).scalar(from as u32).scalar(to as u32);
                match submit.items(1) {
                    Ok(submission) => submissions.push((number, to as usize, Some(submission))),
                    Err(SubmitError::Launch { has_started: true, .. }) => {
                        submissions.push((number, to as usize, None));
                    }
                    Err(_) => {}
                }
            }
            submissions
        };
        let threads: Vec<_> = (0..threads).map(|thread| scope.spawn(move || program(thread))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("it ends")).collect()
    });
    let mut fails = vec![false; buffers.len()];
    let mut well = std::collections::BTreeSet::new();
    for (number, to, submission) in &submissions {
        match submission.as_ref().map(|submission| submission.wait()) {
            Some(Ok(())) => {
                assert!(matches!(Does::of(*number), Does::Computes), "seed {seed}: kernel {number} failed");
                well.insert(*number);
            }
            _ => fails[*to] = true,
        }
    }
    let mut expected: Vec<u32> = (0..buffers.len() as u32).collect();
    for Launched { from, to, number } in launched.lock().iter() {
        if well.contains(number) {
            expected[*to as usize] = expected[*from as usize].wrapping_mul(3).wrapping_add(*number);
        }
    }
    found.submitted += submissions.len() as u64;
    found.failed += (submissions.len() - well.len()) as u64;
    for (at, buffer) in buffers.iter().enumerate() {
        match buffer.read() {
            Ok(view) => {
                assert_eq!(
                    view[0],
                    expected[at],
                    "seed {seed}, buffer {at} of {}, {threads} threads, {} devices, loses {loses}",
                    buffers.len(),
                    devices.len()
                );
                found.read += 1;
            }
            Err(AcquireError::Poisoned { .. }) if fails[at] || loses => found.poisoned += 1,
            Err(error) => assert!(loses && error.is_device_lost(), "seed {seed}, buffer {at}: {error}"),
        }
    }
    assert!(platform.leaked_grants().is_empty(), "seed {seed}");
}

/// The memory that the process has in use, in bytes, and its number of threads.
#[cfg(target_os = "linux")]
fn in_use() -> (u64, usize) {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages: Option<u64> = pages.split_whitespace().nth(1).and_then(|pages| pages.parse().ok());
    (pages.expect("a number") * 4096, std::fs::read_dir("/proc/self/task").expect("Linux tells").count())
}

#[cfg(not(target_os = "linux"))]
fn in_use() -> (u64, usize) {
    (0, 0)
}

#[test]
fn i29_random_programs_on_several_devices_equal_the_serial_run_or_are_poisoned() {
    let total = std::env::var("DML_SUBMISSIONS").map_or(20_000, |total| total.parse().expect("a number"));
    std::panic::set_hook(Box::new(|panic| {
        if !panic.to_string().contains("a bad launcher") {
            eprintln!("{panic}");
        }
    }));
    let mut found = Found::default();
    (0..20).for_each(|seed| run(seed, &mut found));
    let (bytes, threads) = in_use();
    let mut seed = 20;
    while found.submitted < total {
        run(seed, &mut found);
        seed += 1;
    }
    let Found { submitted, failed, read, poisoned } = found;
    let (bytes_now, threads_now) = in_use();
    println!("{submitted} accepted, {failed} failed; {read} buffers read, {poisoned} poisoned");
    println!("{bytes} bytes and {threads} threads after 20 programs, {bytes_now} and {threads_now} now");
    assert!(failed > 0 && poisoned > 0 && read > 0);
    assert!(bytes_now < bytes + MOST_GROWTH, "{bytes} bytes grew to {bytes_now}");
    assert!(threads_now <= threads + 16, "{threads} threads became {threads_now}");
}
