//! Owners: what they start, and what is left when they end.

use crate::common::pattern;
use crate::rig::{Rig, WORKER, is_there, kill, wait_until};
use dml_arenas::OffloadArena;
use dml_arenas::offload::{Loss, OffloadDevice, OffloadError, Signal, WorkerOptions};
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Workers};
use dml_core::{Platform, Span};
use std::process::{Command, Stdio};
use std::time::Duration;

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
        .args(["--exact", "owner::owner_whose_function_prints", "--ignored", "--nocapture"])
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
    assert_eq!(rig.launch(&rig.function("print"), 0..1, &[]).unwrap().wait(), Ok(0));
    assert_eq!(rig.launch(&rig.function("read_input"), 0..1, &[]).unwrap().wait(), Ok(0));
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
            .args(["--exact", "owner::owner_that_ends", "--ignored", "--nocapture"])
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
    for (program, said) in [
        ("true", "ended before it was ready"),
        ("/no/such/program", "does not start"),
        ("/", "does not start"),
    ] {
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
    let plain = || DiscoverOptions::default().offload(Workers::default().program(WORKER));
    let discover = |options: DiscoverOptions| Platform::builder().discover_with(&options);
    let workers = Workers::new(2).program(WORKER).memory(1 << 20);
    let options = DiscoverOptions::default().offload(workers).limit("offload:1", 1);
    let platform = discover(options.only(["offload:0", "offload:1"])).unwrap().build().unwrap();
    let device = platform.device("offload:1").unwrap();
    assert_eq!(platform.device_desc(device).compute_units, 1);
    let arena = platform.arena(platform.home(device).unwrap());
    let offload: &OffloadArena = arena.downcast_ref().unwrap();
    assert_eq!((offload.device().threads(), offload.device().memory_bytes()), (1, 1 << 20));
    let process = offload.device().process().unwrap();
    drop(platform);
    assert!(!is_there(process), "dropping the platform waits for its workers");

    let none = discover(DiscoverOptions::default().offload(0)).unwrap();
    assert!(none.devices().iter().all(|device| !device.name.starts_with("offload")));
    let unknown = discover(plain().only(["offload:1"])).unwrap_err();
    assert!(matches!(unknown, DiscoverError::UnknownDevice { .. }), "{unknown}");
    for units in [0, 1_000_000] {
        let error = discover(plain().limit("offload:0", units)).unwrap_err();
        assert!(matches!(error, DiscoverError::BadLimit { .. }), "{error}");
    }
    for cores in [vec![], vec![0, 5000], vec![1023]] {
        let error = discover(
            DiscoverOptions::default().offload(Workers::new(1).program(WORKER).pin("offload:0", cores)),
        )
        .unwrap_err();
        assert!(matches!(error, DiscoverError::BadPin { .. }), "{error}");
    }
    let broken = DiscoverOptions::default().offload(Workers::default().program("/no/such/program"));
    let platform = Platform::builder().discover_with(&broken).unwrap().build().unwrap();
    let missing: Vec<_> = platform.unavailable().iter().map(ToString::to_string).collect();
    assert!(missing.iter().any(|missing| missing.contains("/no/such/program")), "{missing:?}");
    let named = Platform::builder().discover_with(&broken.only(["offload:0"])).unwrap_err();
    assert!(matches!(named, DiscoverError::Unusable { .. }), "{named}");
}

#[test]
fn a_worker_that_was_asked_for_by_name_and_does_not_start_is_an_error() {
    let of = |workers: Workers| DiscoverOptions::default().offload(workers.program("/no/such/program"));
    let pinned = Workers::new(2).pin("offload:1", allowed_cores());
    for named in [of(Workers::new(2)).limit("offload:1", 1), of(pinned)] {
        let error = Platform::builder().discover_with(&named).unwrap_err();
        assert!(matches!(&error, DiscoverError::Unusable { device, .. } if device == "offload:1"), "{error}");
    }
}

#[test]
fn pins_say_how_many_threads_there_are() {
    let core = allowed_cores()[0];
    let pinned = |cores: &[u32]| {
        let workers = Workers::default().program(WORKER).pin("offload:0", cores.iter().copied());
        DiscoverOptions::default().only(["offload:0"]).offload(workers)
    };
    let platform = Platform::builder().discover_with(&pinned(&[core, core])).unwrap();
    assert_eq!(
        platform.devices().iter().find(|device| &*device.name == "offload:0").unwrap().compute_units,
        1
    );
    let more = Platform::builder().discover_with(&pinned(&[core]).limit("offload:0", 2));
    assert!(matches!(more.unwrap_err(), DiscoverError::BadLimit { .. }));
}

/// Runs an ignored test of this file in a shell that was given a command first.
fn in_a_shell(command: &str, test: &str) -> std::process::Output {
    let this = std::env::current_exe().unwrap();
    let script = format!("{command}; exec \"$0\" --exact {test} --ignored --nocapture");
    Command::new("sh").arg("-c").arg(script).arg(this).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn a_limit_on_the_size_of_files_is_an_error() {
    let output = in_a_shell("ulimit -f 1000", "owner::owner_with_small_files");
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
    let output = in_a_shell("exec 0<&- 2>&-", "owner::owner_without_streams");
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
    // A channel that the child must not close.
    assert!(!rig.text("describe", 0..1, &[]).is_empty());
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
