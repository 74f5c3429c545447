//! Tests of the owner's side against a scripted worker, which mostly misbehaves.

use super::arena::OffloadArena;
use super::message::{Command, LIMIT_BYTES, Outcome, Reply};
use super::transfer::{Place, Transfer};
use super::*;
use crate::HostArena;
use crate::main_mem::Memory;
use crate::shared::SharedMemory;
use dml_core::internal::sync::{Arc, Condvar, Mutex};
use dml_core::{
    Arena, Backing, CopyIn, DeviceId, DeviceLoss, Fill, HostMemory, HostSpan, Span, TransferError,
};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

mod order;

/// The worker's reaction to a message.
#[derive(Clone, Debug)]
enum Answer {
    Reply(Reply),
    Bytes(Vec<u8>),
    Close,
    /// Answers nothing; the time limit passes.
    Silence,
    Fail,
}

type OnEnd = Box<dyn FnOnce(Arc<str>) + Send>;
type Script = Arc<dyn Fn(Command) -> Vec<Answer> + Send + Sync>;

#[derive(Default)]
struct Inbox {
    answers: VecDeque<Answer>,
    is_closed: bool,
}

struct FakeChannel {
    script: Script,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

impl FakeChannel {
    fn new(script: &Script) -> Self {
        Self { script: script.clone(), inbox: Mutex::default(), changed: Condvar::new() }
    }
}

impl std::fmt::Debug for FakeChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeChannel")
    }
}

impl Channel for FakeChannel {
    fn send(&self, message: &[u8], _deadline: Option<Instant>) -> Result<(), ChannelError> {
        assert!(message.len() <= LIMIT_BYTES, "{} bytes were sent", message.len());
        let answers = (self.script)(Command::decode(message).expect("the owner sends commands"));
        let mut inbox = self.inbox.lock();
        if inbox.is_closed {
            return Err(ChannelError::Closed);
        }
        inbox.answers.extend(answers);
        self.changed.notify_all();
        Ok(())
    }

    fn receive(&self, _deadline: Option<Instant>) -> Result<Vec<u8>, ChannelError> {
        let mut inbox = self.inbox.lock();
        loop {
            if inbox.is_closed {
                return Err(ChannelError::Closed);
            }
            match inbox.answers.pop_front() {
                Some(Answer::Reply(reply)) => return Ok(reply.encode()),
                Some(Answer::Bytes(bytes)) => return Ok(bytes),
                Some(Answer::Close) => return Err(ChannelError::Closed),
                Some(Answer::Silence) => return Err(ChannelError::TimedOut),
                Some(Answer::Fail) => return Err(ChannelError::Failed(io::Error::other("a cut wire"))),
                None => inbox = self.changed.wait(inbox),
            }
        }
    }

    fn close(&self) {
        self.inbox.lock().is_closed = true;
        self.changed.notify_all();
    }
}

/// A test's view of its fake worker.
#[derive(Default)]
struct Watch {
    kills: AtomicU64,
    transfers: AtomicU64,
    /// Whether a killed worker stays alive until the test ends it.
    lingers: AtomicBool,
    on_end: Mutex<Option<OnEnd>>,
    /// Called while a transfer is made.
    on_transfer: Mutex<Option<Box<dyn Fn() + Send>>>,
    /// Called while pages are given back.
    on_give_back: Mutex<Option<Box<dyn Fn() + Send>>>,
}

impl Watch {
    fn end(&self) {
        let on_end = self.on_end.lock().take();
        if let Some(on_end) = on_end {
            on_end("as it was told".into());
        }
    }
}

struct FakeWorker {
    script: Script,
    control: FakeChannel,
    memory: Memory,
    watch: Arc<Watch>,
    transfers_fail: bool,
}

impl FakeWorker {
    fn host(&self, span: Span) -> io::Result<HostSpan> {
        self.watch.transfers.fetch_add(1, Ordering::Relaxed);
        if let Some(act) = &*self.watch.on_transfer.lock() {
            act();
        }
        if self.transfers_fail {
            Err(io::Error::other("a cut wire"))
        } else {
            Ok(self.memory.span().slice(span))
        }
    }
}

impl std::fmt::Debug for FakeWorker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FakeWorker")
    }
}

impl Transport for FakeWorker {
    fn control(&self) -> &dyn Channel {
        &self.control
    }

    fn open(&self) -> Result<Arc<dyn Channel>, ChannelError> {
        match &(self.script)(Command::Pipeline)[..] {
            [] => Ok(Arc::new(FakeChannel::new(&self.script))),
            _ => Err(ChannelError::Failed(io::Error::other("no more descriptors"))),
        }
    }

    fn memory_bytes(&self) -> u64 {
        self.memory.span().len()
    }

    fn reserve(&self, span: Span) -> io::Result<()> {
        if span.len() > self.memory_bytes() / 2 { Err(io::Error::other("no pages")) } else { Ok(()) }
    }

    fn give_back(&self, _span: Span) {
        if let Some(act) = &*self.watch.on_give_back.lock() {
            act();
        }
    }

    unsafe fn copy_in(&self, offset: u64, from: &HostSpan) -> io::Result<()> {
        let to = self.host(Span::new(offset, offset + from.len()))?;
        // SAFETY: the caller guarantees the loan of the source; the memory is the fake's.
        unsafe { crate::main_mem::copy(from, &to) };
        Ok(())
    }

    unsafe fn copy_out(&self, offset: u64, to: &HostSpan) -> io::Result<()> {
        let from = self.host(Span::new(offset, offset + to.len()))?;
        // SAFETY: the caller guarantees the loan of the target; the memory is the fake's.
        unsafe { crate::main_mem::copy(&from, to) };
        Ok(())
    }

    fn fill(&self, span: Span, byte: u8) -> io::Result<()> {
        // SAFETY: the memory is the fake's.
        unsafe { crate::main_mem::fill(&self.host(span)?, byte) };
        Ok(())
    }

    fn kill(&self) {
        self.watch.kills.fetch_add(1, Ordering::Relaxed);
        if !self.watch.lingers.load(Ordering::Relaxed) {
            self.watch.end();
        }
    }

    fn watch(&self, on_end: OnEnd) {
        *self.watch.on_end.lock() = Some(on_end);
    }
}

const MEMORY_BYTES: u64 = 64 << 10;

fn device(
    transfers_fail: bool,
    script: impl Fn(Command) -> Vec<Answer> + Send + Sync + 'static,
) -> (Arc<OffloadDevice>, Arc<Watch>) {
    device_that_shares(None, transfers_fail, script)
}

fn device_that_shares(
    shared: Option<&Arc<SharedMemory>>,
    transfers_fail: bool,
    script: impl Fn(Command) -> Vec<Answer> + Send + Sync + 'static,
) -> (Arc<OffloadDevice>, Arc<Watch>) {
    let (script, watch): (Script, _) = (Arc::new(script), Arc::new(Watch::default()));
    let worker = FakeWorker {
        control: FakeChannel::new(&script),
        script,
        memory: Memory::zeroed(MEMORY_BYTES as usize).unwrap(),
        watch: watch.clone(),
        transfers_fail,
    };
    let limit = Some(Duration::from_secs(5));
    (OffloadDevice::sharing("offload:7", 1, limit, Box::new(worker), shared.cloned()), watch)
}

/// A worker that answers lookups correctly, and each run with the result of `run`.
fn runs(run: impl Fn(u64) -> Vec<Answer> + Send + Sync + 'static) -> (Arc<OffloadDevice>, Arc<Watch>) {
    device(false, move |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 3 })],
        Command::Run { ticket, call } => {
            assert_eq!(call.function, 3);
            run(ticket)
        }
        Command::Pipeline => Vec::new(),
        other => panic!("{other:?}"),
    })
}

fn done(ticket: u64) -> Answer {
    Answer::Reply(Reply::Ended { ticket, outcome: Outcome::Done })
}

#[test]
fn a_device_and_its_pipelines_say_what_they_are() {
    let (_, watch) = device(false, |_| Vec::new());
    let script: Script = Arc::new(|_| Vec::new());
    let (control, memory) = (FakeChannel::new(&script), Memory::zeroed(64).unwrap());
    let worker = FakeWorker { control, script, memory, watch, transfers_fail: false };
    let device = OffloadDevice::over("a\0b", 3, None, Box::new(worker));
    assert_eq!((device.threads(), &**device.name()), (3, "a\0b"));
    let told = [device.pipeline(), device.pipeline()].map(|pipeline| format!("{pipeline:?}"));
    let told = told.each_ref().map(|told| told.strip_prefix("Pipeline(a b-"));
    let [Some(one), Some(other)] = told else { panic!("{told:?}") };
    assert!(one != other, "each has its own number");
    assert!(one.ends_with(", 0 waiting, 0 running)"), "{one}");
}

#[test]
fn the_longest_command_is_sent_and_no_longer_one() {
    let (device, _) = device(false, |_| Vec::new());
    let of = |bytes: usize| {
        // One byte for the kind, and three for the length of the name.
        let command = Command::Find { name: "x".repeat(bytes - 4) };
        assert_eq!(command.encode().len(), bytes);
        device.message("a name", &command).map(|message| message.len())
    };
    assert_eq!(of(LIMIT_BYTES).unwrap(), LIMIT_BYTES);
    let Err(OffloadError::TooLong { bytes, limit_bytes, .. }) = of(LIMIT_BYTES + 1) else { panic!() };
    assert_eq!((bytes, limit_bytes), (LIMIT_BYTES + 1, LIMIT_BYTES));
}

#[test]
fn a_reply_that_does_not_fit_its_run_loses_the_device() {
    let too_long = vec![0; LIMIT_BYTES + 1];
    let right = Reply::Ended { ticket: 0, outcome: Outcome::Done }.encode();
    for wrong in [
        Answer::Bytes(Vec::new()),
        Answer::Bytes(vec![0xFF; 9]),
        Answer::Bytes(right[..right.len() - 1].to_vec()),
        Answer::Bytes([right, vec![0]].concat()),
        Answer::Bytes(too_long),
        Answer::Reply(Reply::Ended { ticket: 77, outcome: Outcome::Done }),
        Answer::Reply(Reply::Found { function: 1 }),
        Answer::Reply(Reply::Ready { version: 1 }),
        Answer::Reply(Reply::Loaded),
        Answer::Reply(Reply::NotFound),
        Answer::Reply(Reply::Failed { message: "no".to_owned() }),
    ] {
        let answer = wrong.clone();
        let (device, watch) = runs(move |_| vec![answer.clone()]);
        let function = device.function("any").unwrap();
        let pipeline = device.pipeline();
        let run = pipeline.begin(&function, 0..1, &[], &[]).unwrap();
        let error = run.wait().unwrap_err();
        assert!(error.is_device_lost(), "{wrong:?}: {error}");
        assert!(matches!(device.loss(), Some(Loss::Protocol { .. })), "{wrong:?}: {:?}", device.loss());
        assert!(watch.kills.load(Ordering::Relaxed) > 0, "{wrong:?}: it was left alive");
        assert_eq!(pipeline.begin(&function, 0..1, &[], &[]).unwrap_err(), error);
        let cause = device.loss().unwrap().to_string().into();
        let loss = DeviceLoss { device: device.name().clone(), cause };
        assert_eq!(run.fence().wait(), Err(TransferError::DeviceLost { loss: Some(loss) }));
    }
}

#[test]
fn a_reply_too_many_is_not_taken_for_the_next_one() {
    let (device, _) = runs(|ticket| vec![done(ticket), done(ticket)]);
    let function = device.function("any").unwrap();
    let pipeline = device.pipeline();
    assert_eq!(pipeline.begin(&function, 0..1, &[], &[]).unwrap().wait(), Ok(0));
    assert!(pipeline.begin(&function, 0..1, &[], &[]).unwrap().wait().unwrap_err().is_device_lost());
    assert!(device.loss().unwrap().to_string().contains("in reply to run 1 of any"));
}

#[test]
fn a_reply_that_does_not_fit_its_question_loses_the_device() {
    for wrong in [Answer::Bytes(vec![9, 9, 9]), done(0), Answer::Reply(Reply::Ready { version: 1 })] {
        for load in [false, true] {
            let answer = wrong.clone();
            let (device, watch) = device(false, move |_| vec![answer.clone()]);
            let asked = if load { device.load("x.so") } else { device.function("x").map(drop) };
            assert!(asked.unwrap_err().is_device_lost(), "{wrong:?}");
            assert!(matches!(device.loss(), Some(Loss::Protocol { .. })), "{wrong:?}");
            assert!(watch.kills.load(Ordering::Relaxed) > 0);
        }
    }
}

#[test]
fn silence_an_end_and_a_broken_wire_each_say_what_they_are() {
    type Is = fn(&Loss) -> bool;
    let cases: [(Answer, Is); 3] = [
        (Answer::Silence, |loss| matches!(loss, Loss::Hung { command, .. } if &**command == "any")),
        (Answer::Close, |loss| matches!(loss, Loss::Connection { .. })),
        (Answer::Fail, |loss| loss.to_string().contains("a cut wire")),
    ];
    for (answer, is) in cases {
        let (device, watch) = runs(move |_| vec![answer.clone()]);
        let function = device.function("any").unwrap();
        let pipeline = device.pipeline();
        // Dropped in the end, which stops the device.
        let arena = OffloadArena::new(device.clone(), DeviceId(0));
        let block = arena.alloc(1).unwrap().into_block();
        let first = pipeline.begin(&function, 0..1, &[], &[]).unwrap();
        // SAFETY: the block is this test's own.
        let after = unsafe { pipeline.fill((&block, Span::new(0, 1)), 1, std::slice::from_ref(&first)) };
        assert!(first.wait().unwrap_err().is_device_lost());
        // After the loss, the pipeline accepts no further action.
        assert!(
            after.map_or_else(
                |error| error.is_device_lost(),
                |after| after.wait().unwrap_err().is_device_lost()
            )
        );
        assert!(is(&device.loss().unwrap()), "{:?}", device.loss());
        assert!(watch.kills.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn whoever_waits_in_another_pipeline_hears_of_a_loss() {
    // A run without items is never answered, and the worker never closes its channel.
    let (device, _) = device(false, |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 3 })],
        Command::Run { call, .. } if call.end == 0 => Vec::new(),
        Command::Run { .. } => vec![done(77)],
        _ => Vec::new(),
    });
    let function = device.function("any").unwrap();
    let (quiet, wrong) = (device.pipeline(), device.pipeline());
    let waits = quiet.begin(&function, 0..0, &[], &[]).unwrap();
    let behind = quiet.begin(&function, 0..0, &[], std::slice::from_ref(&waits)).unwrap();
    assert!(wrong.begin(&function, 0..1, &[], &[]).unwrap().wait().unwrap_err().is_device_lost());
    assert!(waits.wait().unwrap_err().is_device_lost() && behind.wait().unwrap_err().is_device_lost());
}

/// A device that shares memory, whose worker stays alive when it is killed. Of the two runs, the first is
/// never answered, and the second wrongly.
fn lingering() -> (Arc<OffloadDevice>, Arc<Watch>, Arc<SharedMemory>, [Signal; 2]) {
    let memory = SharedMemory::new("dml-test", MEMORY_BYTES).unwrap();
    let (device, watch) = device_that_shares(Some(&memory), false, |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 3 })],
        Command::Run { call, .. } if call.end == 0 => Vec::new(),
        Command::Run { .. } => vec![done(77)],
        _ => Vec::new(),
    });
    watch.lingers.store(true, Ordering::Relaxed);
    let function = device.function("any").unwrap();
    let [quiet, wrong] = [device.pipeline(), device.pipeline()];
    let runs = [quiet.begin(&function, 0..0, &[], &[]), wrong.begin(&function, 0..1, &[], &[])];
    (device, watch, memory, runs.map(Result::unwrap))
}

#[test]
fn nobody_hears_of_a_loss_while_a_worker_that_shares_could_still_write() {
    let (device, watch, memory, runs) = lingering();
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    while watch.kills.load(Ordering::Relaxed) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    // A transfer now is not carried out, and fails only when the worker has ended.
    let other = device.clone();
    let nothing = Transfer::Fill { place: Place::NOTHING, byte: 0, _request: None };
    let late = std::thread::spawn(move || other.transfer(&nothing));
    std::thread::sleep(Duration::from_millis(100));
    assert!(!device.is_lost() && device.loss().is_none() && !arena.is_lost());
    assert!(runs.iter().all(|run| !run.is_ended()) && !late.is_finished());
    watch.end();
    for run in runs {
        assert!(run.wait().unwrap_err().is_device_lost());
        assert!(arena.is_lost());
    }
    assert!(late.join().unwrap().unwrap_err().is_device_lost());
    assert!(matches!(device.loss(), Some(Loss::Protocol { .. })), "{:?}", device.loss());
    assert_eq!(memory.loss(), None);
}

#[test]
fn a_worker_that_cannot_be_ended_takes_the_memory_that_it_shares_with_it() {
    let (device, _watch, memory, runs) = lingering();
    let arena: Arc<dyn Arena> = Arc::new(HostArena::shared(memory.clone(), DeviceId(0)));
    let before = arena.alloc(100).unwrap();
    for run in runs {
        assert!(run.wait().unwrap_err().is_device_lost());
        assert!(device.is_lost() && arena.is_lost());
    }
    let loss = "the worker of offload:7 was killed and does not end";
    assert_eq!(arena.loss().as_deref(), Some(loss));
    let error = arena.alloc(1).unwrap_err();
    assert_eq!(error.to_string(), format!("device lost: shared: {loss}"));
    drop(before);
    assert_ne!(memory.reserved_bytes().unwrap(), 0, "these pages are not reused");
}

/// Equal offsets in the worker's own memory and in shared memory are different bytes.
#[test]
fn a_run_writes_the_same_place_of_two_memories() {
    let shared = SharedMemory::new("dml-test", MEMORY_BYTES).unwrap();
    let (device, _) = device_that_shares(Some(&shared), false, |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 3 })],
        Command::Run { ticket, .. } => vec![done(ticket)],
        _ => Vec::new(),
    });
    let function = device.function("any").unwrap();
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    let root = HostArena::shared(shared, DeviceId(0)).alloc(64).unwrap();
    // SAFETY: the root lives and nothing touches it.
    let backing = unsafe { Backing::new(Some(root.block().clone()), 64, root.host().cloned()) };
    let (own, bound) = (arena.alloc(64).unwrap().into_block(), arena.bind(&backing).unwrap().into_block());
    assert_eq!(own.native(), bound.native(), "both lie at the start of their memory");
    let whole = Span::new(0, 64);
    let run = |arguments: &[Argument<'_>]| {
        // SAFETY: only this test uses the blocks, and nothing runs.
        unsafe { arena.launch(&function, 0..1, arguments) }.map(|ran| ran.wait().is_ok())
    };
    assert_eq!(run(&[Argument::Write(&own, whole), Argument::Write(&bound, whole)]).ok(), Some(true));
    for twice in [&own, &bound] {
        let refused = run(&[Argument::Read(twice, whole), Argument::Write(twice, Span::new(63, 64))]);
        assert!(matches!(refused, Err(OffloadError::Argument { index: 1, .. })), "{refused:?}");
    }
}

#[test]
fn only_storage_that_the_worker_maps_is_bound() {
    let shared = SharedMemory::new("dml-test", MEMORY_BYTES).unwrap();
    let (device, _) = device_that_shares(Some(&shared), false, |command| panic!("{command:?}"));
    let other = SharedMemory::new("dml-test", MEMORY_BYTES).unwrap();
    let arena = OffloadArena::new(device, DeviceId(1));
    for (memory, is_mapped) in [(&shared, true), (&other, false)] {
        let root = HostArena::shared(memory.clone(), DeviceId(0)).alloc(5_000).unwrap();
        // SAFETY: the root lives and nothing touches it.
        let backing = unsafe { Backing::new(Some(root.block().clone()), 5_000, root.host().cloned()) };
        let bound = arena.bind(&backing);
        assert_eq!(bound.is_ok(), is_mapped);
        if let Err(error) = bound {
            assert_eq!(
                error.to_string(),
                "offload:7 does not offer sharing storage that its worker does not map"
            );
        }
    }
    let alone = OffloadArena::new(runs(|_| Vec::new()).0, DeviceId(1));
    let root = HostArena::shared(shared, DeviceId(0)).alloc(5_000).unwrap();
    // SAFETY: as above.
    let backing = unsafe { Backing::new(Some(root.block().clone()), 5_000, root.host().cloned()) };
    assert!(alone.bind(&backing).is_err());
}

#[test]
fn a_transport_that_fails_a_transfer_is_a_lost_device() {
    let (device, watch) = device(true, |command| panic!("{command:?}"));
    let arena = OffloadArena::new(device.clone(), DeviceId(1));
    let block = arena.alloc(16).unwrap().into_block();
    let (bytes, whole) = (HostMemory::zeroed(16).unwrap(), Span::new(0, 16));
    // SAFETY: block and memory are this test's own.
    let (copy, fill) = unsafe { (CopyIn::new(&block, 0, bytes.source(whole)), Fill::new(&block, whole, 1)) };
    assert!(arena.copy_in(copy).map(drop).unwrap_err().is_device_lost());
    assert!(arena.is_lost() && arena.loss().unwrap().contains("a cut wire"));
    assert_eq!(watch.transfers.load(Ordering::Relaxed), 1);
    let error = arena.fill(fill).map(drop).unwrap_err();
    assert!(
        matches!(
            &error,
            TransferError::DeviceLost { loss: Some(DeviceLoss { device, cause }) }
                if &**device == "offload:7" && cause.contains("a cut wire")
        ),
        "{error}"
    );
    assert_eq!(watch.transfers.load(Ordering::Relaxed), 1, "nothing is asked of a lost device");
}

#[test]
fn a_channel_that_cannot_be_had_is_no_lost_device() {
    let (device, _) = device(false, |command| match command {
        Command::Find { .. } => vec![Answer::Reply(Reply::Found { function: 0 })],
        _ => vec![Answer::Fail],
    });
    let function = device.function("any").unwrap();
    let error = device.pipeline().begin(&function, 0..1, &[], &[]).unwrap_err();
    assert_eq!(error.to_string(), "a channel for offload:7 failed: no more descriptors");
    assert!(!device.is_lost());
}

#[test]
fn pages_that_cannot_be_had_leave_their_addresses_free() {
    let (device, _) = device(false, |command| panic!("{command:?}"));
    let arena = OffloadArena::new(device, DeviceId(1));
    for _ in 0..100 {
        assert!(arena.alloc(MEMORY_BYTES / 2 + 1).unwrap_err().is_out_of_memory());
    }
    let halves = [arena.alloc(MEMORY_BYTES / 2).unwrap(), arena.alloc(MEMORY_BYTES / 2).unwrap()];
    assert!(arena.alloc(1).unwrap_err().is_out_of_memory());
    drop(halves);
}

#[test]
fn many_runs_are_sent_ahead_and_answered_in_order() {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let (device, _) = runs(move |ticket| {
        counted.fetch_add(1, Ordering::SeqCst);
        vec![done(ticket)]
    });
    let function = device.function("any").unwrap();
    let pipeline = device.pipeline();
    let big: Vec<_> = (0..5_000).map(|_| Argument::Scalar(dml_core::Scalar::U64(u64::MAX))).collect();
    let mut signals = Vec::new();
    for run in 0..300 {
        let arguments = if run % 7 == 0 { &big[..] } else { &big[..3] };
        signals.push(pipeline.begin(&function, 0..run, arguments, &[]).unwrap());
    }
    assert_eq!(signals.last().unwrap().wait(), Ok(0));
    assert!(signals.iter().all(Signal::is_ended));
    assert_eq!(sent.load(Ordering::SeqCst), 300);
}

#[test]
fn a_run_is_not_sent_past_one_that_waits() {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let order = sent.clone();
    let (device, _) = runs(move |ticket| {
        order.lock().push(ticket);
        vec![done(ticket)]
    });
    let function = device.function("any").unwrap();
    let pipeline = device.pipeline();
    let (gate, signaller) = Signal::new();
    let waits = pipeline.begin(&function, 0..1, &[], &[gate]).unwrap();
    let behind = pipeline.begin(&function, 0..1, &[], &[]).unwrap();
    assert!(sent.lock().is_empty());
    signaller.end(Ok(0));
    assert_eq!((behind.wait(), waits.wait()), (Ok(0), Ok(0)));
    assert_eq!(*sent.lock(), [0, 1]);
}

fn replies() -> impl Strategy<Value = Vec<u8>> {
    let outcome = prop_oneof![
        Just(Outcome::Done),
        (any::<i32>(), ".{0,20}").prop_map(|(code, message)| Outcome::Failed { code, message }),
    ];
    let valid = prop_oneof![
        any::<u32>().prop_map(|function| Reply::Found { function }),
        any::<u32>().prop_map(|version| Reply::Ready { version }),
        (0..4_u64, outcome).prop_map(|(ticket, outcome)| Reply::Ended { ticket, outcome }),
        ".{0,9}".prop_map(|message| Reply::Failed { message }),
        Just(Reply::NotFound),
        Just(Reply::Loaded),
    ];
    let mutated = (valid.prop_map(|reply| reply.encode()), any::<prop::sample::Index>(), any::<u8>());
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        mutated.prop_map(|(mut bytes, place, flip)| {
            let place = place.index(bytes.len());
            bytes[place] ^= flip;
            bytes
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]
    #[test]
    fn whatever_a_worker_says_moves_no_bytes_and_keeps_nobody_waiting(
        found in replies(),
        answers in prop::collection::vec(replies(), 4),
    ) {
        let (device, watch) = device(false, move |command| match command {
            Command::Find { .. } => vec![Answer::Bytes(found.clone())],
            Command::Run { ticket, .. } => {
                vec![answers.get(ticket as usize).cloned().map_or(Answer::Close, Answer::Bytes)]
            }
            _ => Vec::new(),
        });
        if let Ok(function) = device.function("any") {
            let pipeline = device.pipeline();
            for run in 0..5 {
                let Ok(signal) = pipeline.begin(&function, 0..run, &[], &[]) else { break };
                let ended = signal.wait();
                let is_answer = matches!(ended, Ok(_) | Err(OffloadError::Function { .. }));
                prop_assert!(is_answer || device.is_lost(), "{:?}", ended);
            }
        }
        prop_assert_eq!(watch.transfers.load(Ordering::Relaxed), 0);
        prop_assert_eq!(device.is_lost(), watch.kills.load(Ordering::Relaxed) > 0);
    }
}

#[test]
fn a_fork_drops_a_pipeline_whose_lock_another_thread_has() {
    use crate::fork::testing::{child_says, fork};
    let (device, _) = runs(|ticket| {
        // It is sent under the pipeline's lock.
        std::thread::sleep(Duration::from_millis(400));
        vec![done(ticket)]
    });
    let function = device.function("any").unwrap();
    let mut pipeline = std::mem::ManuallyDrop::new(device.pipeline());
    let pipeline_there: *mut Pipeline = &raw mut *pipeline;
    std::thread::scope(|scope| {
        let sending = scope.spawn(|| pipeline.begin(&function, 0..1, &[], &[]).unwrap().wait());
        std::thread::sleep(Duration::from_millis(150));
        assert!(child_says(fork, || {
            // SAFETY: drops the child's copy, which the parent's threads do not see and the child does not
            // use again.
            unsafe { std::ptr::drop_in_place(pipeline_there) };
            device.is_lost()
        }));
        assert_eq!(sending.join().unwrap(), Ok(0));
    });
    drop(std::mem::ManuallyDrop::into_inner(pipeline));
}
