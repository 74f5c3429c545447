//! Workers that share one memory with this process and with each other.

use crate::forks::{Fork, Leave, child, fork, leave};
use crate::rig::{WORKER, is_there, kill, library};
use dml_arenas::OffloadArena;
use dml_arenas::kit::Backend;
use dml_arenas::offload::{Argument, Function};
use dml_arenas::shared::SharedMemory;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, HostArena, Sharing, Workers};
use dml_core::Scalar;
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, AllocError, ArenaId, Buffer, DeviceId, InFlight, Platform, PlatformBuilder, Span,
    TransferError, record::Operation,
};
use dml_verify::Audited;
use std::ops::Range;
use std::time::Duration;

const CPU: DeviceId = DeviceId(0);
const SHARED: ArenaId = ArenaId(1);
const MEMORY_BYTES: u64 = 64 << 20;
/// Many pages, and a part of one.
const WORDS: u64 = 40_007;

/// A platform whose workers have the library.
struct Scene {
    platform: Audited,
    workers: Vec<Worker>,
}

struct Worker {
    device: DeviceId,
    add: Function,
    scribble: Function,
}

fn workers(count: u32) -> Workers {
    Workers::new(count).program(WORKER).memory(16 << 20)
}

fn options(count: u32, shared: &[&str]) -> DiscoverOptions {
    DiscoverOptions::default()
        .only((0..count).map(|worker| format!("offload:{worker}")))
        .offload(workers(count))
        .sharing(Sharing::memory(shared.iter().copied()).bytes(MEMORY_BYTES))
}

impl Scene {
    /// The processor and two workers, all of which share.
    fn new() -> Self {
        Self::of(&options(2, &["cpu", "offload:0", "offload:1"]))
    }

    fn of(options: &DiscoverOptions) -> Self {
        let platform = Platform::builder().discover_with(options).expect("the workers were built");
        let platform = Audited::new(platform.build().expect("what discovery adds fits together"));
        let library = library();
        let workers = (0..).map_while(|worker| platform.device(&format!("offload:{worker}")).ok());
        let workers = workers.map(|device| {
            let there = arena(&platform, device).device();
            there.load(&library).expect("the library was built");
            let function = |name| there.function(name).expect("the library has it");
            Worker { device, add: function("add_late"), scribble: function("scribble") }
        });
        let workers = workers.collect();
        std::fs::remove_file(library).expect("it was there");
        Self { platform, workers }
    }

    fn memory(&self) -> &Arc<SharedMemory> {
        self.platform
            .arena(SHARED)
            .downcast_ref::<HostArena>()
            .and_then(HostArena::shared_memory)
            .expect("it comes after main memory")
    }

    fn process(&self, worker: usize) -> u32 {
        arena(&self.platform, self.workers[worker].device).device().process().expect("it is a process")
    }

    fn buffer(&self) -> Buffer<u32> {
        self.platform.buffer(WORDS).build().expect("a buffer of a few bytes")
    }

    /// Begins a function on words of a buffer, which it may write.
    fn begin(
        &self,
        (device, function): (DeviceId, &Function),
        data: &Buffer<u32>,
        words: Range<u64>,
        scalars: [u32; 2],
    ) -> InFlight {
        let region = data.range(words.clone());
        let grants = self.platform.acquire(device).read_write(&region).wait().expect("nobody else holds it");
        let block = grants.block(&region).expect("granted").expect("it has bytes");
        let [value, ms] = scalars.map(|scalar| Argument::Scalar(Scalar::U32(scalar)));
        let arguments = [Argument::Write(block, Span::new(words.start * 4, words.end * 4)), value, ms];
        // SAFETY: the words are granted, the grant lasts until the fence has ended, and the function touches
        // no others.
        let run = unsafe { arena(&self.platform, device).launch(function, words, &arguments) };
        grants.in_flight(run.expect("it fits"))
    }

    /// Begins to multiply words by three and add `value`, after so many milliseconds.
    fn begin_adding(
        &self,
        worker: usize,
        data: &Buffer<u32>,
        words: Range<u64>,
        value: u32,
        ms: u32,
    ) -> InFlight {
        let Worker { device, add, .. } = &self.workers[worker];
        self.begin((*device, add), data, words, [value, ms])
    }

    fn add(&self, worker: usize, data: &Buffer<u32>, words: Range<u64>, value: u32) {
        self.begin_adding(worker, data, words, value, 0)
            .wait()
            .expect("it ran")
            .release()
            .expect("committed");
    }

    /// Does on the host what [`add`](Self::add) does on a worker.
    fn add_here(&self, data: &Buffer<u32>, words: Range<u64>, value: u32) {
        let region = data.range(words);
        let mut grants = self.platform.acquire(CPU).read_write(&region).wait().expect("nobody else holds it");
        let seen = grants.slice_mut::<u32>(&region).expect("granted");
        seen.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(value));
        grants.release().expect("committed");
    }

    fn bytes_moved(&self) -> u64 {
        self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    }

    /// How often anybody was asked to move bytes.
    fn moves(&self) -> u64 {
        let moves = [Operation::Read, Operation::Write, Operation::Copy];
        moves.map(|operation| self.platform.counters().operation(operation)).iter().sum()
    }
}

fn arena(platform: &Platform, device: DeviceId) -> &OffloadArena {
    let home = platform.home(device).expect("every worker has an arena");
    platform.arena(home).downcast_ref().expect("it is a worker's")
}

/// Words that depend on their position.
fn words(seed: u32) -> Vec<u32> {
    (0..WORDS as u32).map(|index| index.wrapping_mul(2_654_435_761) ^ seed).collect()
}

/// Updates the expected words as one `add` does.
fn added(words: &mut [u32], part: Range<u64>, value: u32) {
    let part = &mut words[part.start as usize..part.end as usize];
    part.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(value));
}

fn fill_in(data: &Buffer<u32>, words: &[u32]) {
    let mut view = data.write().expect("nobody else holds it");
    view.copy_from_slice(words);
    view.release().expect("committed");
}

/// Orders in which the host (`None`) and two workers take turns. Each of the three is first in one of them.
const TURNS: [[Option<usize>; 3]; 4] =
    [[None, Some(0), Some(1)], [Some(0), Some(1), None], [Some(1), None, Some(0)], [Some(1), Some(0), None]];

#[test]
fn o02_no_byte_moves_between_the_host_and_workers() {
    let scene = Scene::new();
    for (turns, zeroed) in TURNS.into_iter().flat_map(|turns| [(turns, false), (turns, true)]) {
        scene.platform.counters().reset();
        let data = match zeroed {
            true => scene.platform.buffer(WORDS).zeroed().build().unwrap(),
            false => scene.buffer(),
        };
        let mut expected = vec![0; WORDS as usize];
        if !zeroed {
            // The first touch is a host's or a worker's, which overwrites all.
            expected = words(7);
            let device = turns[0].map_or(CPU, |worker| scene.workers[worker].device);
            let mut grants = scene.platform.acquire(device).write(&data).wait().unwrap();
            match turns[0] {
                None => grants.slice_mut::<u32>(&data).unwrap().copy_from_slice(&expected),
                Some(_) => grants.write_bytes(&data, bytes_of(&expected)).unwrap(),
            }
            grants.release().unwrap();
            scene.platform.counters().reset();
        }
        for round in 0..3 {
            for (turn, value) in turns.into_iter().zip(round * 10..) {
                let part = u64::from(value) * 11..WORDS - u64::from(value) * 7;
                match turn {
                    None => scene.add_here(&data, part.clone(), value),
                    Some(worker) => scene.add(worker, &data, part.clone(), value),
                }
                added(&mut expected, part, value);
            }
            assert!(*data.read().unwrap() == expected[..], "{turns:?}, zeroed {zeroed}, round {round}");
        }
        assert_eq!((scene.bytes_moved(), scene.moves()), (0, 0), "{turns:?}, zeroed {zeroed}");
    }
}

fn bytes_of(words: &[u32]) -> &[u8] {
    // SAFETY: words are bytes, four each, and borrowed as long.
    unsafe { std::slice::from_raw_parts(words.as_ptr().cast(), size_of_val(words)) }
}

#[test]
fn the_host_and_workers_hold_ranges_at_once() {
    let scene = Scene::new();
    let (data, mut expected) = (scene.buffer(), words(1));
    fill_in(&data, &expected);
    // Word for word side by side, in one page and in one line of the cache.
    let [one, mine, two] = [0..1_001, 1_001..1_013, 1_013..WORDS];
    let region = data.range(mine.clone());
    let mut here = scene.platform.acquire(CPU).read_write(&region).try_now().unwrap();
    let runs = [
        scene.begin_adding(0, &data, one.clone(), 5, 100),
        scene.begin_adding(1, &data, two.clone(), 6, 100),
    ];
    let words = here.slice_mut::<u32>(&region).unwrap();
    words.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(7));
    // All three hold their words; a fourth who conflicts has to wait.
    let late = scene.platform.acquire(CPU).read(&data.range(0..1)).try_now();
    assert!(late.unwrap_err().is_busy());
    here.release().unwrap();
    runs.into_iter().for_each(|run| run.wait().unwrap().release().unwrap());
    [(one, 5), (mine, 7), (two, 6)].into_iter().for_each(|(part, value)| added(&mut expected, part, value));
    assert!(*data.read().unwrap() == expected[..]);
    // Readers share.
    let readers = [CPU, scene.workers[0].device, scene.workers[1].device]
        .map(|device| scene.platform.acquire(device).read(&data).try_now().unwrap());
    drop(readers);
    assert_eq!(scene.bytes_moved(), 0);
}

#[test]
fn threads_that_drive_all_three_lose_no_word() {
    let scene = Scene::new();
    let (data, mut expected) = (scene.buffer(), words(2));
    fill_in(&data, &expected);
    const PART: u64 = 37;
    std::thread::scope(|scope| {
        for part in 0..6 {
            let (scene, data) = (&scene, &data);
            scope.spawn(move || {
                for round in 0..40 {
                    let words = part * PART..(part + 1) * PART;
                    match part % 3 {
                        2 => scene.add_here(data, words, round),
                        worker => scene.add(worker as usize, data, words, round),
                    }
                }
            });
        }
    });
    (0..40).for_each(|round| added(&mut expected, 0..6 * PART, round));
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!(scene.bytes_moved(), 0);
}

#[test]
fn a_vector_of_the_application_is_copied_once_for_all_workers() {
    let scene = Scene::new();
    let mut expected = words(3);
    let storage = expected.clone();
    let address = storage.as_ptr();
    let data = scene.platform.buffer_from(storage).unwrap();
    scene.add(0, &data, 0..WORDS, 4);
    scene.add(1, &data, 0..WORDS, 5);
    scene.add(0, &data, 0..WORDS, 6);
    (4..7).for_each(|value| added(&mut expected, 0..WORDS, value));
    assert_eq!(scene.bytes_moved(), WORDS * 4);
    let back = data.into_vec().unwrap();
    assert_eq!(scene.bytes_moved(), WORDS * 8);
    assert!(back.as_ptr() == address && back == expected);
}

#[test]
fn workers_share_without_the_host_too() {
    let scene = Scene::of(&options(2, &["offload:0", "offload:1"]));
    let (data, mut expected) = (scene.buffer(), words(4));
    fill_in(&data, &expected);
    assert_eq!(scene.memory().reserved_bytes().unwrap(), 0);
    scene.add(1, &data, 0..WORDS, 8);
    scene.add(0, &data, 0..WORDS, 9);
    (8..10).for_each(|value| added(&mut expected, 0..WORDS, value));
    assert_eq!(scene.bytes_moved(), WORDS * 4);
    assert!(*data.read().unwrap() == expected[..]);
}

#[test]
fn a_worker_that_does_not_share_is_reached_by_copies() {
    let scene = Scene::of(&options(2, &["cpu", "offload:0"]));
    let (data, mut expected) = (scene.buffer(), words(5));
    fill_in(&data, &expected);
    scene.add(0, &data, 0..WORDS, 1);
    assert_eq!(scene.bytes_moved(), 0);
    scene.add(1, &data, 0..WORDS, 2);
    assert_eq!(scene.bytes_moved(), WORDS * 4);
    scene.add(0, &data, 0..WORDS, 3);
    (1..4).for_each(|value| added(&mut expected, 0..WORDS, value));
    assert!(*data.read().unwrap() == expected[..]);
}

#[test]
fn what_is_freed_is_the_machines_again() {
    let scene = Scene::new();
    let reserved = || scene.memory().reserved_bytes().unwrap();
    assert_eq!(reserved(), 0);
    let data = scene.buffer();
    fill_in(&data, &words(6));
    scene.add(0, &data, 0..WORDS, 1);
    let pages = (WORDS * 4).next_multiple_of(4096);
    assert_eq!(reserved(), pages);
    let other = scene.buffer();
    let there = scene.workers[1].device;
    scene.platform.acquire(there).write(&other).wait().unwrap().not_started().unwrap();
    assert_eq!(reserved(), 2 * pages);
    drop(data);
    assert_eq!(reserved(), pages);
    other.raw().close();
    assert_eq!(reserved(), 0);
}

#[test]
fn a_full_memory_says_how_much_was_asked_of_it() {
    let scene = Scene::of(
        &options(1, &["cpu", "offload:0"]).sharing(Sharing::memory(["cpu", "offload:0"]).bytes(256 << 10)),
    );
    let text = |bytes: u64| {
        let data: Buffer<u8> = scene.platform.buffer(bytes).build().unwrap();
        let error = data.write().unwrap_err();
        let AcquireError::Alloc { cause, .. } = &error else { panic!("{error}") };
        assert!(error.is_out_of_memory());
        cause.to_string()
    };
    assert_eq!(text(1 << 20), "allocation too large: 1048576 bytes in shared, at most 262144");
    let first: Buffer<u8> = scene.platform.buffer(100 << 10).build().unwrap();
    first.write().unwrap().release().unwrap();
    assert_eq!(text(200 << 10), "out of memory: 204800 bytes in shared");
    drop(first);
    let second: Buffer<u8> = scene.platform.buffer(200 << 10).build().unwrap();
    second.write().unwrap().release().unwrap();
}

#[test]
fn i13_a_killed_worker_takes_what_it_was_writing_and_nothing_else() {
    let scene = Scene::new();
    let (data, mut expected) = (scene.buffer(), words(8));
    fill_in(&data, &expected);
    let [its, mine, others] = [0..9_001, 9_001..20_003, 20_003..WORDS];
    let doomed = scene.begin_adding(0, &data, its.clone(), 5, 600_000);
    let mut here = scene.platform.acquire(CPU).read_write(&data.range(mine.clone())).try_now().unwrap();
    let other = scene.begin_adding(1, &data, others.clone(), 6, 200);
    kill(scene.process(0), "KILL");
    let error = doomed.wait().unwrap_err();
    assert!(
        matches!(&error, TransferError::DeviceLost { loss: Some(loss) } if &*loss.device == "offload:0"),
        "{error}"
    );
    assert!(!is_there(scene.process(0)));
    let words = here.slice_mut::<u32>(&data.range(mine.clone())).unwrap();
    words.iter_mut().for_each(|word| *word = word.wrapping_mul(3).wrapping_add(7));
    here.release().unwrap();
    other.wait().unwrap().release().unwrap();
    [(mine.clone(), 7), (others.clone(), 6)]
        .into_iter()
        .for_each(|(part, value)| added(&mut expected, part, value));

    let refused = scene.platform.acquire(CPU).read(&data.range(its.start + 1..its.start + 2)).try_now();
    assert!(matches!(refused, Err(AcquireError::Poisoned { .. })), "{refused:?}");
    let seen = scene.platform.acquire(CPU).read(&data.range(its.end..WORDS)).try_now().unwrap();
    assert!(seen.slice::<u32>(&data.range(its.end..WORDS)).unwrap() == &expected[its.end as usize..]);
    drop(seen);
    let refused = scene.platform.acquire(scene.workers[0].device).read(&data.range(mine)).try_now();
    assert!(refused.unwrap_err().is_device_lost());

    // The storage, the host and the other worker go on.
    let region = data.range(its.clone());
    let mut grants = scene.platform.acquire(CPU).write(&region).try_now().unwrap();
    let part = &self::words(9)[its.start as usize..its.end as usize];
    grants.slice_mut::<u32>(&region).unwrap().copy_from_slice(part);
    grants.release().unwrap();
    expected[its.start as usize..its.end as usize].copy_from_slice(part);
    scene.add(1, &data, 0..WORDS, 3);
    added(&mut expected, 0..WORDS, 3);
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!((scene.bytes_moved(), scene.memory().is_lost()), (0, false));
}

#[test]
fn nobody_is_granted_what_a_hung_worker_still_writes() {
    let limit = Duration::from_millis(300);
    let scene = Scene::of(&options(1, &["cpu", "offload:0"]).offload(workers(1).time_limit(Some(limit))));
    let (data, expected) = (scene.buffer(), words(10));
    fill_in(&data, &expected);
    let Worker { device, scribble, .. } = &scene.workers[0];
    let hung = scene.begin((*device, scribble), &data, 0..WORDS, [0, 0]);
    let process = scene.process(0);
    let error = hung.wait().unwrap_err();
    assert!(!is_there(process), "its end comes before the news: {error}");
    assert!(error.to_string().contains("did not answer to scribble within 300ms"), "{error}");
    fill_in(&data, &expected);
    std::thread::sleep(Duration::from_millis(50));
    assert!(*data.read().unwrap() == expected[..]);
}

#[test]
fn a_fork_has_neither_the_memory_nor_its_contents() {
    let scene = Scene::new();
    let (data, mut expected) = (scene.buffer(), words(11));
    fill_in(&data, &expected);
    scene.add(0, &data, 0..WORDS, 5);
    added(&mut expected, 0..WORDS, 5);
    let reserved = scene.memory().reserved_bytes().unwrap();
    // Requests must fail although valid bytes are granted without a call of any arena.
    child(|| {
        assert!(data.read().unwrap_err().is_device_lost());
        assert!(data.write().unwrap_err().is_device_lost());
        let refused = scene.platform.acquire(CPU).read_write(&data).try_now();
        assert!(refused.unwrap_err().is_device_lost());
    })
    .ends_well();
    let view = data.read().unwrap();
    child(|| {
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        assert!(!maps.contains("memfd:shared"), "{maps}");
        assert!(scene.memory().is_lost());
        assert!(scene.platform.notice_losses().contains(CPU));
        let refused = scene.platform.acquire(CPU).read(&data).try_now();
        assert!(refused.unwrap_err().is_device_lost());
        let refused: Result<_, AcquireError> = scene.platform.acquire(CPU).write(&scene.buffer()).try_now();
        assert!(refused.unwrap_err().is_device_lost());
        let error = scene.platform.arena(SHARED).alloc(1).unwrap_err();
        assert!(
            matches!(&error, AllocError::DeviceLost { loss: Some(loss), .. } if loss.contains("fork")),
            "{error}"
        );
    })
    .ends_well();
    // A child that reads a view from before the fork is killed. It sees and changes no byte of the parent.
    child(|| {
        // SAFETY: the child's own; a sanitizer's handler would make another end of it.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        drop(std::hint::black_box(view.to_vec()));
    })
    .ends_by(libc::SIGSEGV);
    drop(view);
    match fork() {
        Fork::Child => leave(Leave::AtOnce, || drop(data)),
        Fork::Parent(child) => child.ends_well(),
    }
    assert_eq!(scene.memory().reserved_bytes().unwrap(), reserved);
    scene.add(1, &data, 0..WORDS, 6);
    added(&mut expected, 0..WORDS, 6);
    assert!(*data.read().unwrap() == expected[..]);
    assert_eq!(scene.bytes_moved(), 0);
}

/// A backend of one device, which is never asked to add it.
#[derive(Debug)]
struct Elsewhere;

impl Backend for Elsewhere {
    fn name(&self) -> &'static str {
        "elsewhere"
    }

    fn devices(&self) -> Vec<String> {
        vec!["elsewhere".to_owned()]
    }

    fn add(&self, _: &mut PlatformBuilder, _: ArenaId, _: &DiscoverOptions) -> Result<(), DiscoverError> {
        unreachable!("the options are refused before")
    }
}

#[test]
fn sharing_that_cannot_be_is_refused() {
    let refusal =
        |options: DiscoverOptions| Platform::builder().discover_with(&options).map(drop).unwrap_err();
    let plain = || DiscoverOptions::default().offload(Workers::default().program(WORKER));
    let unknown = refusal(plain().sharing(Sharing::memory(["cpu", "offload:7"])));
    assert!(
        matches!(&unknown, DiscoverError::UnknownDevice { name, .. } if name == "offload:7"),
        "{unknown}"
    );
    let empty = refusal(plain().sharing(Sharing::memory(["cpu"]).bytes(0)));
    assert_eq!(empty.to_string(), "cpu cannot share memory: the shared memory is to have no bytes");
    let other = refusal(plain().backend(Elsewhere).sharing(Sharing::memory(["cpu", "elsewhere"])));
    assert_eq!(other.to_string(), "elsewhere cannot share memory: only cpu, offload and opencl devices can");
    let endless = refusal(plain().sharing(Sharing::memory(["cpu"]).bytes(u64::MAX)));
    assert!(
        endless.to_string().starts_with("shared cannot be used: no memory of 18446744073709551615 bytes")
    );
    let nameless = plain().sharing(Sharing::memory(Vec::<String>::new()));
    let platform = Platform::builder().discover_with(&nameless).unwrap();
    assert!(platform.descs().iter().all(|desc| &*desc.name != "shared"), "nobody shares");
}
