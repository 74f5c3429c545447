//! Offload devices with the worker that ships, and a library in C.

#![cfg(all(feature = "offload", target_os = "linux", not(dml_loom)))]

mod common;

use common::{host, pattern, read};
use dml_arenas::offload::{
    Argument, Function, Loss, OffloadArena, OffloadDevice, OffloadError, Pipeline, Scalar, Signal,
    WorkerOptions,
};
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, MainMem};
use dml_core::sync::Arc;
use dml_core::{Arena, BlockRef, DeviceId, HostSpan, Platform, Span, TransferError};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const WORKER: &str = env!("CARGO_BIN_EXE_dml-offload-worker");

/// The library, built by the compiler that also links this test.
fn library() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    static BUILT: AtomicU64 = AtomicU64::new(0);
    let number = BUILT.fetch_add(1, Ordering::Relaxed);
    let name = format!("kernels-{}-{number}.so", std::process::id());
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let built = Command::new("cc")
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I"])
        .arg(here.join("include"))
        .arg(here.join("tests/kernels/kernels.c"))
        .arg("-o")
        .arg(&library)
        .status()
        .expect("the C compiler that links Rust programs");
    assert!(built.success(), "the library does not build");
    library
}

struct Rig {
    arena: OffloadArena,
    main: MainMem,
}

impl Rig {
    fn new() -> Self {
        Self::with(|_| {})
    }

    fn with(change: impl FnOnce(&mut WorkerOptions)) -> Self {
        let mut options = WorkerOptions::new(WORKER);
        options.memory_bytes = 64 << 20;
        change(&mut options);
        let device = OffloadDevice::start("offload:0", &options).expect("the worker was built");
        let library = library();
        device.load(&library).expect("the library was built");
        std::fs::remove_file(library).expect("it was there");
        Self { arena: OffloadArena::new(device, DeviceId(1)), main: MainMem::new(DeviceId(0)) }
    }

    fn device(&self) -> &Arc<OffloadDevice> {
        self.arena.device()
    }

    fn line(&self) -> Line {
        Line(self.device().pipeline())
    }

    fn function(&self, name: &str) -> Function {
        self.device().function(name).expect("the library has it")
    }

    /// A block with these bytes.
    fn block(&self, bytes: &[u8]) -> BlockRef {
        let block = self.arena.alloc(bytes.len() as u64).expect("there is memory");
        self.put(&block, 0, bytes);
        block
    }

    fn put(&self, block: &BlockRef, offset: u64, bytes: &[u8]) {
        let copied = self.arena.copy_in(block, offset, &host(bytes)).expect("begun").wait();
        assert_eq!(copied, Ok(bytes.len() as u64));
    }

    fn take(&self, block: &BlockRef, span: Span) -> Vec<u8> {
        let to = HostSpan::scratch(span.len()).expect("memory for a test");
        assert_eq!(self.arena.copy_out(block, span.start(), &to).expect("begun").wait(), Ok(span.len()));
        read(&to)
    }

    fn text(&self, function: &str, items: Range<u64>, scalars: &[Scalar]) -> String {
        let block = self.block(&[0; 600]);
        let mut arguments = vec![Argument::Write(&block, Span::new(100, 600))];
        arguments.extend(scalars.iter().map(|scalar| Argument::Scalar(*scalar)));
        let ran = self.arena.launch(&self.function(function), items, &arguments).expect("it fits");
        assert_eq!(ran.wait(), Ok(0));
        let bytes = self.take(&block, Span::new(100, 600));
        let end = bytes.iter().position(|byte| *byte == 0).expect("the text is shorter");
        String::from_utf8(bytes[..end].to_vec()).expect("text")
    }
}

/// A pipeline of a test, whose blocks are its own: it names bytes that others use only where one waits for the other, or
/// to see what is refused.
struct Line(Pipeline);

impl Line {
    fn run(
        &self,
        function: &Function,
        items: Range<u64>,
        arguments: &[Argument<'_>],
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.run(function, items, arguments, after) }
    }

    fn copy_in(
        &self,
        to: (&BlockRef, u64),
        from: (&BlockRef, Span),
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.copy_in(to, from, after) }
    }

    fn copy_out(
        &self,
        from: (&BlockRef, u64),
        to: (&BlockRef, Span),
        after: &[Signal],
    ) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.copy_out(from, to, after) }
    }

    fn fill(&self, part: (&BlockRef, Span), byte: u8, after: &[Signal]) -> Result<Signal, OffloadError> {
        // SAFETY: as the type says.
        unsafe { self.0.fill(part, byte, after) }
    }
}

fn whole(block: &BlockRef) -> Span {
    Span::new(0, block.len())
}

fn u32s(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn is_there(process: u32) -> bool {
    Path::new(&format!("/proc/{process}")).exists()
}

/// Waits for what has to come about, however slow the machine.
fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn kill(process: u32, signal: &str) {
    let sent = Command::new("kill").args([format!("-{signal}"), process.to_string()]).status();
    assert!(sent.expect("the system has kill").success());
}

#[test]
fn a_function_of_a_library_works_on_parts_of_buffers() {
    let rig = Rig::new();
    let input: Vec<f32> = (0..1000).map(|i| (i * i % 997) as f32).collect();
    let bytes: Vec<u8> = input.iter().flat_map(|value| value.to_ne_bytes()).collect();
    let (from, to) = (rig.block(&bytes), rig.block(&pattern(4000, 9)));
    let part = Span::new(400, 2400);
    let arguments =
        [Argument::Write(&to, part), Argument::Scalar(Scalar::F32(2.5)), Argument::Read(&from, part)];
    assert_eq!(rig.arena.launch(&rig.function("scale"), 100..600, &arguments).unwrap().wait(), Ok(0));
    let mut expected = pattern(4000, 9);
    for item in 100..600 {
        let value = input[item] * 2.5 + item as f32;
        expected[item * 4..item * 4 + 4].copy_from_slice(&value.to_ne_bytes());
    }
    assert!(rig.take(&to, whole(&to)) == expected);
    assert!(rig.take(&from, whole(&from)) == bytes);
}

#[test]
fn every_kind_of_scalar_arrives() {
    let scalars = [
        Scalar::U32(u32::MAX),
        Scalar::I32(-7),
        Scalar::U64(u64::MAX),
        Scalar::I64(i64::MIN),
        Scalar::F32(0.5),
        Scalar::F64(-1e300),
    ];
    let said = Rig::new().text("describe", 5..u64::MAX, &scalars);
    let values = "4294967295 -7 18446744073709551615 -9223372036854775808 0.5 -1e+300";
    assert_eq!(said, format!("5..18446744073709551615 threads=1 start=100 bytes=500 {values}"));
}

/// The cores that this process may use, as the system lists them.
fn allowed_cores() -> Vec<u32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    let ranges = list.trim().split(',').map(|range| range.split_once('-').unwrap_or((range, range)));
    ranges.flat_map(|(first, last)| first.parse().unwrap()..=last.parse().unwrap()).collect()
}

#[test]
fn threads_are_told_and_pinned() {
    let all = allowed_cores();
    let rig = Rig::with(|options| options.threads = 3);
    let said = rig.text("surroundings", 0..1, &[]);
    assert!(said.starts_with(&format!("omp=3 rayon=3 cores={} ", all.len())), "{said}");
    let core = *all.last().unwrap();
    let rig = Rig::with(|options| options.pins = vec![core]);
    let said = rig.text("surroundings", 0..1, &[]);
    assert_eq!(said, format!("omp=1 rayon=1 cores=1 first={}", u32::from(core == 0)));
}

#[test]
fn what_is_not_there_is_named() {
    let rig = Rig::new();
    let error = rig.device().function("no_such_function").unwrap_err();
    assert_eq!(error.to_string(), "offload:0 has no function no_such_function");
    let error = rig.device().load("/no/such/library.so").unwrap_err().to_string();
    assert!(error.contains("offload:0") && error.contains("/no/such/library.so"), "{error}");
    assert!(rig.device().load(env!("CARGO_MANIFEST_PATH")).unwrap_err().to_string().contains("invalid ELF"));
    assert!(matches!(rig.device().function("nul\0inside"), Err(OffloadError::UnknownFunction { .. })));
    let long = "x".repeat(100_000);
    assert!(matches!(rig.device().function(&long), Err(OffloadError::TooLong { bytes: 100_001.., .. })));
    // None of that has harmed it.
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_runs() {
    let (rig, other) = (Rig::new(), Rig::new());
    let (block, foreign) = (rig.block(&[1; 100]), other.block(&[2; 100]));
    let main = rig.main.alloc(100).unwrap();
    let scale = rig.function("scale");
    let refused = |arguments: &[Argument<'_>]| match rig.arena.launch(&scale, 0..1, arguments).unwrap_err() {
        OffloadError::Argument { index, reason, .. } => (index, reason.to_string()),
        error => panic!("{error}"),
    };
    let scalar = Argument::Scalar(Scalar::U32(0));
    assert_eq!(refused(&[scalar.clone(), Argument::Read(&foreign, Span::new(0, 1))]).0, 1);
    assert!(refused(&[Argument::Read(&main, Span::new(0, 1))]).1.contains("another arena"));
    assert!(refused(&[Argument::Read(&block, Span::new(1, 101))]).1.contains("1..101 of a block of 100"));
    let (left, right) = (Span::new(0, 51), Span::new(50, 60));
    assert!(refused(&[Argument::Read(&block, left), Argument::Write(&block, right)]).1.contains("buffer 0"));
    #[allow(clippy::reversed_empty_ranges, reason = "that is what is refused")]
    let backwards = rig.arena.launch(&scale, 9..3, &[]).unwrap_err();
    assert_eq!(backwards.to_string(), "scale on offload:0 was asked for items 9..3");
    let many: Vec<_> = (0..20_000).map(|_| Argument::Scalar(Scalar::U64(u64::MAX))).collect();
    assert!(matches!(rig.arena.launch(&scale, 0..1, &many), Err(OffloadError::TooLong { .. })));
    let of_other = other.function("scale");
    assert!(matches!(rig.arena.launch(&of_other, 0..1, &[]), Err(OffloadError::UnknownFunction { .. })));
}

#[test]
fn a_function_that_fails_is_an_answer_and_the_worker_goes_on() {
    let rig = Rig::new();
    let seven = [Argument::Scalar(Scalar::U32(7))];
    let pipeline = rig.line();
    let failed = pipeline.run(&rig.function("fail"), 0..1, &seven, &[]).unwrap().wait().unwrap_err();
    assert_eq!(failed.to_string(), "fail failed on offload:0: no luck with 7");
    assert!(matches!(failed, OffloadError::Function { code: -42, .. }));
    let fence = rig.arena.launch(&rig.function("fail_silently"), 0..1, &[]).unwrap();
    match fence.wait().unwrap_err() {
        TransferError::Framework { code: 7, message, .. } => {
            assert!(message.contains("it returned 7"), "{message}")
        }
        error => panic!("{error}"),
    }
    assert!(rig.device().loss().is_none());
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}

#[test]
fn a_pipeline_keeps_its_order() {
    let rig = Rig::new();
    let (block, main) = (rig.block(&u32s(&[1; 64])), rig.main.alloc(256).unwrap());
    let add = rig.function("add_late");
    let pipeline = rig.line();
    let run = |value: u32, late_ms: u32| {
        let scalars = [Scalar::U32(value), Scalar::U32(late_ms)].map(Argument::Scalar);
        let arguments = [&[Argument::Write(&block, Span::new(0, 256))], &scalars[..]].concat();
        pipeline.run(&add, 0..64, &arguments, &[]).unwrap()
    };
    // Each ends later if it is begun too early: the slow ones come first.
    let mut signals = vec![run(5, 30), run(7, 20), run(11, 0)];
    signals.push(pipeline.copy_out((&block, 0), (&main, Span::new(0, 256)), &[]).unwrap());
    signals.push(run(13, 10));
    signals.push(pipeline.fill((&block, Span::new(0, 128)), 0xEE, &[]).unwrap());
    signals.push(run(17, 0));
    assert_eq!(signals.last().unwrap().wait(), Ok(0));
    assert!(signals.iter().all(Signal::is_ended), "{signals:?}");
    let until_copy = ((3 + 5) * 3 + 7) * 3 + 11;
    assert_eq!(read(&main.host().unwrap()), u32s(&[until_copy; 64]));
    let filled = 0xEEEE_EEEE_u32.wrapping_mul(3).wrapping_add(17);
    let kept = (until_copy * 3 + 13) * 3 + 17;
    assert_eq!(rig.take(&block, Span::new(0, 256)), [u32s(&[filled; 32]), u32s(&[kept; 32])].concat());
}

#[test]
fn pipelines_run_side_by_side() {
    let rig = Rig::new();
    let block = rig.block(&[0; 4]);
    let meet = rig.function("meet");
    let arguments = [Argument::Write(&block, Span::new(0, 4)), Argument::Scalar(Scalar::U32(3))];
    let pipelines: Vec<_> = (0..3).map(|_| rig.line()).collect();
    let signals: Vec<_> =
        pipelines.iter().map(|pipeline| pipeline.run(&meet, 0..1, &arguments, &[]).unwrap()).collect();
    // Were one not begun before another has ended, none would ever end.
    assert!(signals.iter().all(|signal| signal.wait() == Ok(0)));
}

#[test]
fn a_run_waits_for_transfers_and_runs_of_other_pipelines() {
    let rig = Rig::new();
    let (block, main) = (rig.arena.alloc(8 << 20).unwrap(), rig.main.alloc(8 << 20).unwrap());
    let span = whole(&block);
    rig.main.fill(&main, span, 1).unwrap().wait().unwrap();
    let add = rig.function("add_late");
    let [one, two, three] = std::array::from_fn(|_| rig.line());
    let late = |late_ms: u32| {
        [
            Argument::Write(&block, span),
            Argument::Scalar(Scalar::U32(9)),
            Argument::Scalar(Scalar::U32(late_ms)),
        ]
    };
    let gate = rig.block(&[0; 4]);
    let gate_arguments = [Argument::Write(&gate, Span::new(0, 4)), Argument::Scalar(Scalar::U32(2))];
    // The copy cannot begin before this has ended, and this not before the gate is opened below.
    let held = three.run(&rig.function("meet"), 0..1, &gate_arguments, &[]).unwrap();
    let copied = one.copy_in((&block, 0), (&main, span), &[held]).unwrap();
    let ran = two.run(&add, 0..1, &late(20), std::slice::from_ref(&copied)).unwrap();
    let again = three.run(&add, 0..1, &late(0), std::slice::from_ref(&ran)).unwrap();
    let back = one.copy_out((&block, 0), (&main, span), std::slice::from_ref(&again)).unwrap();
    assert!(!copied.is_ended() && !ran.is_ended() && !again.is_ended() && !back.is_ended());
    let opened = rig.line().run(&rig.function("meet"), 0..1, &gate_arguments, &[]).unwrap();
    assert_eq!(opened.wait(), Ok(0));
    assert_eq!(back.wait(), Ok(8 << 20));
    let value = (0x0101_0101_u32 * 3 + 9) * 3 + 9;
    assert!(read(&main.host().unwrap()) == u32s(&vec![value; 2 << 20]));
}

#[test]
fn what_waits_for_a_failure_is_not_begun() {
    let rig = Rig::new();
    let block = rig.block(&pattern(64, 3));
    let pipeline = rig.line();
    let arguments = [Argument::Scalar(Scalar::U32(1))];
    let failed = pipeline.run(&rig.function("fail"), 0..1, &arguments, &[]).unwrap();
    let filled = rig.line().fill((&block, whole(&block)), 0, &[failed]).unwrap();
    match filled.wait().unwrap_err() {
        OffloadError::Dependency { cause, .. } => assert!(cause.to_string().contains("no luck"), "{cause}"),
        error => panic!("{error}"),
    }
    assert_eq!(rig.take(&block, whole(&block)), pattern(64, 3));
}

/// What everybody hears of a device that is lost.
fn expect_lost(rig: &Rig, block: &BlockRef) {
    let lost = Err(TransferError::DeviceLost);
    let bytes = host(&[7; 8]);
    assert!(rig.device().is_lost());
    assert_eq!(rig.arena.copy_in(block, 0, &bytes).map(drop), lost.clone());
    assert_eq!(rig.arena.copy_out(block, 0, &bytes).map(drop), lost.clone());
    assert_eq!(rig.arena.fill(block, Span::new(0, 8), 1).map(drop), lost);
    assert!(rig.arena.alloc(8).unwrap_err().is_device_lost());
    assert!(rig.device().function("scale").unwrap_err().is_device_lost());
    assert!(rig.device().load("x.so").unwrap_err().is_device_lost());
    assert!(rig.line().fill((block, Span::new(0, 8)), 1, &[]).unwrap_err().is_device_lost());
    wait_until("the process is gone", || !is_there(rig.device().process().expect("a process")));
}

#[test]
fn a_worker_that_is_killed_is_a_lost_device() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    let (hang, fail) = (rig.function("hang"), rig.function("fail_silently"));
    let [one, two] = std::array::from_fn(|_| rig.line());
    let running = one.run(&hang, 0..1, &[], &[]).unwrap();
    let sent = one.run(&fail, 0..1, &[], &[]).unwrap();
    let waiting = two.run(&fail, 0..1, &[], std::slice::from_ref(&running)).unwrap();
    let fence = rig.arena.launch(&hang, 0..1, &[]).unwrap();
    kill(rig.device().process().unwrap(), "KILL");
    let lost = running.wait().unwrap_err();
    assert_eq!(lost.to_string(), "offload:0 is lost: its worker ended (signal: 9 (SIGKILL))");
    assert_eq!(sent.wait(), Err(lost));
    assert!(waiting.wait().unwrap_err().is_device_lost());
    assert_eq!(fence.wait(), Err(TransferError::DeviceLost));
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_dies_while_nobody_asks_is_a_lost_device() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    kill(rig.device().process().unwrap(), "KILL");
    wait_until("the loss is known", || rig.device().is_lost());
    assert!(matches!(rig.device().loss(), Some(Loss::Ended { .. })));
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_hangs_is_killed_for_it() {
    let limit = Duration::from_millis(300);
    let rig = Rig::with(|options| options.time_limit = Some(limit));
    let block = rig.block(&[1; 8]);
    let pipeline = rig.line();
    let hung = pipeline.run(&rig.function("hang"), 0..1, &[], &[]).unwrap();
    let behind = pipeline.fill((&block, Span::new(0, 8)), 1, &[]).unwrap();
    match hung.wait().unwrap_err() {
        OffloadError::Lost { loss: Loss::Hung { command, limit: told }, .. } => {
            assert_eq!((&*command, told), ("hang", limit));
        }
        error => panic!("{error}"),
    }
    assert!(behind.wait().unwrap_err().is_device_lost());
    expect_lost(&rig, &block);
}

#[test]
fn a_worker_that_is_stopped_is_killed_for_it() {
    let rig = Rig::with(|options| options.time_limit = Some(Duration::from_millis(300)));
    let block = rig.block(&[1; 8]);
    kill(rig.device().process().unwrap(), "STOP");
    let fence = rig.arena.launch(&rig_function_of_stopped(&rig), 0..1, &[]);
    let ended = fence.map_err(TransferError::from).and_then(dml_core::Fence::wait);
    assert_eq!(ended, Err(TransferError::DeviceLost));
    assert!(matches!(rig.device().loss(), Some(Loss::Hung { .. })), "{:?}", rig.device().loss());
    expect_lost(&rig, &block);
}

/// Looked up while it runs, to be called when it is stopped.
fn rig_function_of_stopped(rig: &Rig) -> Function {
    kill(rig.device().process().unwrap(), "CONT");
    let function = rig.function("fail_silently");
    kill(rig.device().process().unwrap(), "STOP");
    function
}

#[test]
fn a_function_that_ends_its_worker_is_a_lost_device() {
    for (function, status) in [("crash", "signal: 6"), ("leave", "exit status: 3")] {
        let rig = Rig::new();
        let block = rig.block(&[1; 8]);
        let three = [Argument::Scalar(Scalar::U32(3))];
        let ended = rig.line().run(&rig.function(function), 0..1, &three, &[]).unwrap().wait();
        assert!(ended.unwrap_err().is_device_lost());
        match rig.device().loss() {
            Some(Loss::Ended { status: told }) => assert!(told.starts_with(status), "{told}"),
            loss => panic!("{loss:?}"),
        }
        expect_lost(&rig, &block);
    }
}

#[test]
fn a_lost_device_has_a_successor() {
    let old = Rig::new();
    kill(old.device().process().unwrap(), "KILL");
    wait_until("the loss is known", || old.device().is_lost());
    let new = Rig::new();
    assert!(!new.text("describe", 0..1, &[]).is_empty());
    assert_ne!(old.device().process(), new.device().process());
}

#[test]
fn no_process_is_left_when_the_arena_is_dropped() {
    let rig = Rig::new();
    let process = rig.device().process().unwrap();
    let pipeline = rig.line();
    let running = pipeline.run(&rig.function("hang"), 0..1, &[], &[]).unwrap();
    let device = rig.device().clone();
    assert!(is_there(process));
    drop(rig);
    assert!(running.wait().unwrap_err().is_device_lost());
    assert_eq!(device.loss(), Some(Loss::Stopped));
    drop((pipeline, device));
    wait_until("the process is gone", || !is_there(process));
}

#[test]
fn memory_is_limited_and_comes_back() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let blocks: Vec<_> = (0..16).map(|_| rig.arena.alloc(64 << 10).unwrap()).collect();
    let error = rig.arena.alloc(1).unwrap_err();
    assert_eq!(error.to_string(), "out of memory: 1 bytes in offload:0");
    assert!(rig.arena.alloc((1 << 20) + 1).unwrap_err().is_out_of_memory());
    drop(blocks);
    assert_eq!(rig.arena.alloc(1 << 20).unwrap().len(), 1 << 20);
}

#[test]
fn an_idle_worker_uses_no_processor() {
    let rig = Rig::new();
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
    let ticks = || {
        let of = |process: u32| {
            let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
            let fields: Vec<i64> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .filter_map(|field| field.parse().ok())
                .collect();
            // User and system time, in hundredths of a second; the state, before them all, is no number.
            fields[10] + fields[11]
        };
        [of(rig.device().process().unwrap()), of(std::process::id())]
    };
    // A pipeline that has something to wait for is idle too.
    let (waits, _never) = Signal::new();
    let block = rig.block(&[1; 8]);
    let _pending = rig.line().fill((&block, Span::new(0, 8)), 2, &[waits]).unwrap();
    let before = ticks();
    std::thread::sleep(Duration::from_millis(500));
    let after = ticks();
    // One that spins would have used about fifty.
    assert!(after[0] - before[0] <= 2, "{} ticks of the worker", after[0] - before[0]);
    assert!(after[1] - before[1] <= 4, "{} ticks of the owner", after[1] - before[1]);
}

#[test]
fn a_functions_output_and_input_are_not_its_owners() {
    let worker = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "owner_whose_function_prints", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(worker.status.success(), "{worker:?}");
    assert!(!String::from_utf8_lossy(&worker.stdout).contains("printed by"));
    assert!(String::from_utf8_lossy(&worker.stderr).contains("printed by"));
}

#[test]
#[ignore = "run by a_functions_output_and_input_are_not_its_owners"]
fn owner_whose_function_prints() {
    let rig = Rig::new();
    assert_eq!(rig.arena.launch(&rig.function("print"), 0..1, &[]).unwrap().wait(), Ok(0));
    assert_eq!(rig.arena.launch(&rig.function("read_input"), 0..1, &[]).unwrap().wait(), Ok(0));
}

/// What the owner below does once it has told its worker's number.
const OWNER_ENDS: &str = "DML_TEST_OWNER_ENDS";

#[test]
fn no_worker_outlives_its_owner() {
    for (how, stopped) in [
        ("exit", false),
        ("abort", false),
        ("panic", false),
        ("kill", false),
        ("kill", true),
        ("exec", false),
    ] {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner_that_ends", "--ignored", "--nocapture"])
            .env(OWNER_ENDS, how)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap()));
        // With one core the name of the test stands before it on the line.
        let told = lines.find_map(|line| Some(line.unwrap().split_once("WORKER ")?.1.to_owned()));
        let process: u32 = told.expect("the owner has started a worker").parse().unwrap();
        assert!(is_there(process), "{how}");
        if stopped {
            kill(process, "STOP");
        }
        if how == "kill" {
            owner.kill().unwrap();
        }
        drop(owner.stdin.take());
        wait_until(&format!("the worker of an owner that ended by {how} is gone"), || !is_there(process));
        owner.wait().unwrap();
    }
}

#[test]
#[ignore = "run by no_worker_outlives_its_owner"]
fn owner_that_ends() {
    // The thread that starts the worker ends long before the owner does, and the worker must not mind.
    let rig = std::thread::spawn(Rig::new).join().unwrap();
    // A function that runs when the owner goes must not hold its worker back.
    let _running = rig.line().run(&rig.function("hang"), 0..1, &[], &[]).unwrap();
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
    println!("WORKER {}", rig.device().process().unwrap());
    // Until the test has seen the worker.
    let mut nothing = String::new();
    std::io::stdin().read_line(&mut nothing).unwrap();
    match std::env::var(OWNER_ENDS).as_deref() {
        Ok("exit") => std::process::exit(0),
        Ok("abort") => std::process::abort(),
        Ok("exec") => panic!("{}", std::os::unix::process::CommandExt::exec(&mut Command::new("true"))),
        Ok("panic") => panic!("as it was told"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_program_that_is_no_worker_is_named() {
    for (program, said) in
        [("true", "ended instead"), ("/no/such/program", "does not start"), ("/", "does not start")]
    {
        let error = OffloadDevice::start("offload:0", &WorkerOptions::new(program)).unwrap_err().to_string();
        assert!(error.contains("offload:0") && error.contains(program) && error.contains(said), "{error}");
    }
    let mut options = WorkerOptions::new(WORKER);
    options.pins = vec![100_000];
    let error = OffloadDevice::start("offload:0", &options).unwrap_err().to_string();
    assert!(error.contains("refused: its threads cannot be kept on cores [100000]"), "{error}");
    options = WorkerOptions::new(WORKER);
    options.memory_bytes = u64::MAX;
    assert!(OffloadDevice::start("offload:0", &options).unwrap_err().to_string().contains("no memory"));
}

#[test]
fn a_worker_that_is_started_by_hand_says_so() {
    for input in [Stdio::null(), Stdio::piped()] {
        let output = Command::new(WORKER).stdin(input).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        assert!(String::from_utf8_lossy(&output.stderr).contains("is started by DML, not by hand"));
    }
}

#[test]
fn discovery_starts_what_is_asked_for() {
    let discover =
        |options: DiscoverOptions| Platform::builder().discover_with(&options.offload_program(WORKER));
    let options = DiscoverOptions::default().offload(2).limit("offload:1", 1).offload_memory(1 << 20);
    let platform = discover(options.only(["offload:0", "offload:1"])).unwrap().build().unwrap();
    let device = platform.device("offload:1").unwrap();
    assert_eq!(platform.devices()[usize::from(device.0)].units, 1);
    let arena = platform.arena(platform.home(device).unwrap());
    let offload: &OffloadArena = arena.downcast_ref().unwrap();
    assert_eq!((offload.device().threads(), offload.device().memory_bytes()), (1, 1 << 20));
    let process = offload.device().process().unwrap();
    drop(platform);
    assert!(!is_there(process), "dropping the platform waits for its workers");

    let none = discover(DiscoverOptions::default().offload(0)).unwrap();
    assert!(none.devices().iter().all(|device| !device.name.starts_with("offload")));
    let unknown = discover(DiscoverOptions::default().only(["offload:1"])).unwrap_err();
    assert!(matches!(unknown, DiscoverError::UnknownDevice { .. }), "{unknown}");
    for units in [0, 1_000_000] {
        let error = discover(DiscoverOptions::default().limit("offload:0", units)).unwrap_err();
        assert!(matches!(error, DiscoverError::BadLimit { .. }), "{error}");
    }
    for cores in [vec![], vec![0, 5000], vec![1023]] {
        let error = discover(DiscoverOptions::default().pin("offload:0", cores)).unwrap_err();
        assert!(matches!(error, DiscoverError::BadPin { .. }), "{error}");
    }
    let broken = DiscoverOptions::default().offload_program("/no/such/program");
    let platform = Platform::builder().discover_with(&broken).unwrap().build().unwrap();
    let missing: Vec<_> = platform.unavailable().iter().map(ToString::to_string).collect();
    assert!(missing.iter().any(|missing| missing.contains("/no/such/program")), "{missing:?}");
    let named = Platform::builder().discover_with(&broken.only(["offload:0"])).unwrap_err();
    assert!(matches!(named, DiscoverError::Unusable { .. }), "{named}");
}

#[test]
fn a_worker_that_was_asked_for_by_name_and_does_not_start_is_an_error() {
    let options = DiscoverOptions::default().offload(2).offload_program("/no/such/program");
    for named in [options.clone().limit("offload:1", 1), options.pin("offload:1", allowed_cores())] {
        let error = Platform::builder().discover_with(&named).unwrap_err();
        assert!(matches!(&error, DiscoverError::Unusable { device, .. } if device == "offload:1"), "{error}");
    }
}

#[test]
fn pins_say_how_many_threads_there_are() {
    let core = allowed_cores()[0];
    let options = DiscoverOptions::default().only(["offload:0"]).offload_program(WORKER);
    let platform =
        Platform::builder().discover_with(&options.clone().pin("offload:0", [core, core])).unwrap();
    assert_eq!(platform.devices().iter().find(|device| &*device.name == "offload:0").unwrap().units, 1);
    let more = Platform::builder().discover_with(&options.pin("offload:0", [core]).limit("offload:0", 2));
    assert!(matches!(more.unwrap_err(), DiscoverError::BadLimit { .. }));
}

#[test]
fn what_waits_for_something_else_hears_of_a_loss() {
    let rig = Rig::new();
    let block = rig.block(&[1; 8]);
    let (never, _signaller) = Signal::new();
    let waits = rig.line().fill((&block, Span::new(0, 8)), 2, std::slice::from_ref(&never)).unwrap();
    let run = rig.line().run(&rig.function("fail"), 0..1, &[], &[never]).unwrap();
    kill(rig.device().process().unwrap(), "KILL");
    assert!(waits.wait().unwrap_err().is_device_lost());
    assert!(run.wait().unwrap_err().is_device_lost());
}

#[test]
fn a_runs_blocks_are_free_when_it_has_ended() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let (describe, line) = (rig.function("describe"), rig.line());
    for _ in 0..300 {
        let block = rig.arena.alloc(1 << 20).expect("whoever has heard of the end can have the memory");
        let run = line.run(&describe, 0..1, &[Argument::Write(&block, Span::new(0, 1000))], &[]).unwrap();
        drop(block);
        assert_eq!(run.wait(), Ok(0));
    }
}

#[test]
fn arenas_of_one_device_share_its_memory_and_no_page() {
    let rig = Rig::with(|options| options.memory_bytes = 1 << 20);
    let other = OffloadArena::new(rig.device().clone(), DeviceId(2));
    let (one, two) = (rig.arena.alloc(512 << 10).unwrap(), other.alloc(512 << 10).unwrap());
    assert_ne!(one.native(), two.native());
    assert!(other.alloc(1).unwrap_err().is_out_of_memory());
}

#[test]
fn a_library_may_take_its_time_to_load() {
    let rig = Rig::with(|options| options.time_limit = Some(Duration::from_secs(120)));
    let source = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("slow-{}.c", std::process::id()));
    let library = source.with_extension("so");
    std::fs::write(
        &source,
        "#include <unistd.h>\n__attribute__((constructor)) static void begin(void) { sleep(11); }\n",
    )
    .unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(built.success());
    assert_eq!(rig.device().load(&library), Ok(()));
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
}

/// Runs an ignored test of this file in a shell that was given a command first.
fn in_a_shell(command: &str, test: &str) -> std::process::Output {
    let this = std::env::current_exe().unwrap();
    let script = format!("{command}; exec \"$0\" --exact {test} --ignored --nocapture");
    Command::new("sh").arg("-c").arg(script).arg(this).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let output = in_a_shell("ulimit -f 1000", "owner_with_small_files");
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "run by a_limit_on_the_size_of_files_is_an_error"]
fn owner_with_small_files() {
    let error = OffloadDevice::start("offload:0", &WorkerOptions::new(WORKER)).unwrap_err().to_string();
    assert!(error.contains("files are limited to") && error.contains("ulimit -f"), "{error}");
}

#[test]
fn closed_standard_streams_are_not_a_workers() {
    // What is printed must go nowhere, least of all to the worker.
    let output = in_a_shell("exec 0<&- 2>&-", "owner_without_streams");
    assert!(output.status.success(), "{output:?}");
}

#[test]
#[ignore = "run by closed_standard_streams_are_not_a_workers"]
fn owner_without_streams() {
    use std::io::Write;
    let options = WorkerOptions::new(WORKER);
    let device = OffloadDevice::start("offload:0", &options).unwrap();
    for stream in 0..3 {
        let target = std::fs::read_link(format!("/proc/self/fd/{stream}"));
        let target = target.map(|target| target.display().to_string()).unwrap_or_default();
        assert!(!target.contains("socket:") && !target.contains("memfd:"), "{stream} is {target}");
    }
    let _ = std::io::stderr().write_all(b"a complaint");
    assert!(matches!(device.function("none"), Err(OffloadError::UnknownFunction { .. })));
}

#[test]
fn a_fork_leaves_the_owners_worker_alone() {
    let rig = Rig::new();
    let (waits, _keeps) = Signal::new();
    let block = rig.block(&pattern(64, 5));
    let line = rig.line();
    let pending = line.fill((&block, Span::new(0, 64)), 1, &[waits]).unwrap();
    // SAFETY: the child does nothing but drop what it inherited, and ends.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: ends a child that hangs; nothing else is of this process.
        unsafe { libc::alarm(60) };
        rig.device().stop();
        drop((rig, line));
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = -1;
    // SAFETY: waits for the child just made.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "the child was ended by its alarm, or panicked");
    assert_eq!(rig.device().loss(), None);
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
    assert!(!pending.is_ended());
    assert_eq!(rig.take(&block, Span::new(0, 64)), pattern(64, 5));
}
