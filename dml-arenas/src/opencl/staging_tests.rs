//! Tests of staged copies, on the first OpenCL device of the machine, even if it shares the host's memory.

use super::arena::OpenClArena;
use super::cross::{Side, relay};
use super::device::Sort;
use super::page_lock::RATES;
use super::session::Session;
use super::testing::{PIECE, pool, session};
use crate::faulty::{CallKind, Fault};
use crate::kit::{join_both_ways, join_staged};
use crate::locked::{Here, PageLocker, PageLocking, Scratch, ScratchPool, Staging, whole};
use crate::main_mem::{self, PageLockBudget};
use crate::options::DiscoverOptions;
use crate::{Faulty, Script};
use dml_core::internal::sync::Arc;
use dml_core::{
    AcquireError, ArenaId, Buffer, DeviceDesc, DeviceId, DeviceKind, Fence, HostStaged, LinkId, LinkSpeed,
    Platform, Span, TransferError, record::Operation,
};
use opencl3::command_queue::{enqueue_read_buffer, enqueue_write_buffer};
use opencl3::types::{CL_BLOCKING, cl_mem};

const COPIERS: usize = 2;

/// A platform whose first OpenCL device stages all copies.
struct Rig {
    platform: Platform,
    device: DeviceId,
    session: Arc<Session>,
    pool: Arc<ScratchPool>,
}

impl Rig {
    fn new(pieces: u64, script: Script) -> Option<Self> {
        let session = session()?;
        let (budget, mut builder) = (PageLockBudget::new(64 << 20), Platform::builder());
        let pool = pool(pieces * PIECE, &budget);
        let main = main_mem::discover::discover(&mut builder, &DiscoverOptions::default()).unwrap();
        let device = builder.add_device(DeviceDesc::new("opencl:0", DeviceKind::Accelerator));
        let arena = OpenClArena::new(session.clone(), "opencl:0", device, builder.native(main));
        let arena = builder.add_arena(Arc::new(Faulty::new(arena, script)));
        let mechanism = PageLocking {
            mechanism: HostStaged::new(LinkSpeed::default()),
            locker: session.clone(),
            budget: budget.clone(),
            staging: Staging::new(&pool, COPIERS, None),
            rates: RATES,
        };
        join_both_ways(&mut builder, main, arena, Here::new(mechanism));
        Some(Self { platform: builder.build().unwrap(), device, session, pool })
    }

    fn count(&self, operation: Operation) -> u64 {
        self.platform.counters().operation(operation)
    }

    /// Acquires a range for the device, and runs `act` on its storage. The range is then valid only there.
    fn on_device(
        &self,
        data: &Buffer<u8>,
        (start, end): (u64, u64),
        act: impl FnOnce(&mut Raw<'_>),
    ) -> Result<(), AcquireError> {
        let range = data.range(start..end);
        let grants = self.platform.acquire(self.device).read_write(&range).wait()?;
        let block = grants.block(&range).unwrap().unwrap();
        act(&mut Raw { session: &self.session, mem: block.native().0 as cl_mem });
        grants.release().unwrap();
        Ok(())
    }
}

/// Direct access to the storage of the device, without the arena.
struct Raw<'a> {
    session: &'a Session,
    mem: cl_mem,
}

impl Raw<'_> {
    fn read(&self, len: u64) -> Vec<u8> {
        let (mut bytes, queue) = (vec![0; len as usize], self.session.kernels().unwrap());
        let (size, to) = (bytes.len(), bytes.as_mut_ptr().cast());
        // SAFETY: a live queue, a buffer and a vector of this many bytes; the call blocks.
        unsafe { enqueue_read_buffer(queue, self.mem, CL_BLOCKING, 0, size, to, 0, std::ptr::null()) }
            .unwrap();
        bytes
    }

    fn write(&self, start: u64, bytes: &[u8]) {
        let (queue, from, start) = (self.session.kernels().unwrap(), bytes.as_ptr().cast(), start as usize);
        // SAFETY: as above.
        unsafe {
            enqueue_write_buffer(queue, self.mem, CL_BLOCKING, start, bytes.len(), from, 0, std::ptr::null())
        }
        .unwrap();
    }
}

/// Returns bytes that vary with their position and with the seed.
fn bytes(seed: u64, len: u64) -> Vec<u8> {
    (0..len).map(|index| ((index + seed * 977).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 53) as u8).collect()
}

fn with(mut whole: Vec<u8>, start: u64, part: &[u8]) -> Vec<u8> {
    whole[start as usize..][..part.len()].copy_from_slice(part);
    whole
}

#[test]
fn copies_of_every_size_and_offset_move_their_bytes_and_no_others() {
    let Some(rig) = Rig::new(4, Script::new()) else { return };
    for len in [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 4 * PIECE + 13, 11 * PIECE + 7] {
        for start in [0, 1, PIECE - 3, PIECE, 2 * PIECE + 5] {
            let (total, end) = (start + len + 37, start + len);
            let [old, new, late] = [1, 2, 3].map(|seed| bytes(seed, total));
            let part = |of: &[u8]| of[start as usize..end as usize].to_vec();
            let data = rig.platform.buffer_from(old.clone()).unwrap();
            rig.on_device(&data, (0, total), |raw| assert_eq!(raw.read(total), old)).unwrap();
            let mut view = data.write().unwrap();
            view.copy_from_slice(&new);
            view.release().unwrap();
            let before = rig.count(Operation::Write);
            rig.on_device(&data, (start, end), |raw| {
                assert_eq!(
                    raw.read(total),
                    with(old.clone(), start, &part(&new)),
                    "{len} bytes from {start}"
                );
                raw.write(start, &part(&late));
            })
            .unwrap();
            assert_eq!(rig.count(Operation::Write) - before, len.div_ceil(PIECE), "one write for each part");
            let read = data.read().unwrap();
            assert_eq!(*read, with(new, start, &part(&late)), "{len} bytes from {start}");
        }
    }
    assert_eq!(rig.pool.pieces(), 4);
}

#[test]
fn a_part_that_fails_fails_the_copy_and_nothing_else() {
    const LEN: u64 = 9 * PIECE + 5;
    let faults = [Fault::fail(), fails_late(), Fault::Short(3), Fault::Panic, Fault::PanicInFence];
    for (kind, fault) in [CallKind::CopyIn, CallKind::CopyOut]
        .iter()
        .flat_map(|kind| faults.iter().map(move |fault| (*kind, fault)))
    {
        for part in [1, 2, 5, 10] {
            let Some(rig) = Rig::new(4, Script::new().at_kind(kind, part, fault.clone())) else { return };
            let (old, late) = (bytes(part, LEN), bytes(part + 100, LEN));
            let data = rig.platform.buffer_from(old.clone()).unwrap();
            let first = rig.on_device(&data, (0, LEN), |raw| raw.write(0, &late));
            if kind == CallKind::CopyIn {
                assert!(first.is_err(), "{fault:?} of part {part}");
                assert_eq!(*data.read().unwrap(), old);
                rig.on_device(&data, (0, LEN), |raw| {
                    assert_eq!(raw.read(LEN), old);
                    raw.write(0, &late);
                })
                .unwrap();
            } else {
                first.unwrap();
                assert!(data.read().is_err(), "{fault:?} of part {part}");
            }
            assert_eq!(*data.read().unwrap(), late, "{fault:?} of part {part} of {kind:?}");
            let locker: Arc<dyn PageLocker> = rig.session.clone();
            let left = rig.pool.take(9, &[&locker]).len();
            assert_eq!(left, 4, "a piece is missing after {fault:?} of part {part} of {kind:?}");
        }
    }
}

/// Returns a failure that only the fence reports.
fn fails_late() -> Fault {
    match Fault::fail() {
        Fault::Fail(error) => Fault::FailInFence(error),
        other => other,
    }
}

#[test]
fn both_directions_are_staged_at_once_with_the_pieces_that_there_are() {
    const LEN: u64 = 40 * PIECE + 1;
    for pieces in [2, 3, 5, 8] {
        let Some(rig) = Rig::new(pieces, Script::new()) else { return };
        let rig = &rig;
        std::thread::scope(|scope| {
            for seed in 0..3 {
                scope.spawn(move || {
                    let data = rig.platform.buffer_from(bytes(seed, LEN)).unwrap();
                    for turn in 1..6 {
                        let late = bytes(seed + 10 * turn, LEN);
                        rig.on_device(&data, (0, LEN), |raw| {
                            assert_eq!(raw.read(LEN), bytes(seed + 10 * (turn - 1), LEN));
                            raw.write(0, &late);
                        })
                        .unwrap();
                        assert!(*data.read().unwrap() == late, "turn {turn} of {seed}");
                    }
                });
            }
        });
        assert!((2..=pieces).contains(&rig.pool.pieces()));
    }
}

#[test]
fn without_pieces_the_driver_copies() {
    for pieces in [0, 1] {
        let Some(rig) = Rig::new(pieces, Script::new()) else { return };
        let old = bytes(5, 5 * PIECE);
        let data = rig.platform.buffer_from(old.clone()).unwrap();
        rig.on_device(&data, (0, 5 * PIECE), |raw| assert_eq!(raw.read(5 * PIECE), old)).unwrap();
        assert_eq!(*data.read().unwrap(), old);
        assert_eq!((rig.count(Operation::Write), rig.count(Operation::Read)), (1, 1));
    }
}

#[test]
fn what_is_locked_already_is_not_staged() {
    const LEN: u64 = 12 << 20;
    let Some(rig) = Rig::new(4, Script::new()) else { return };
    let data = rig.platform.buffer_from(bytes(1, LEN)).unwrap();
    // Sends what the host has written, and returns the number of the driver's calls.
    let send = || {
        let before = rig.count(Operation::Write);
        rig.on_device(&data, (0, LEN), |_| ()).unwrap();
        drop(data.read().unwrap());
        let mut view = data.write().unwrap();
        view.fill(1);
        view.release().unwrap();
        rig.count(Operation::Write) - before
    };
    assert!(send() > 1, "staging loses less than locking takes");
    assert!((0..100).any(|_| send() == 1), "it is locked when that has paid");
    assert_eq!(send(), 1);
}

#[cfg(target_os = "linux")]
#[test]
fn a_fork_stages_nothing_and_leaves_its_parents_copies_alone() {
    use crate::fork::testing::{child_says, fork};
    let Some(rig) = Rig::new(4, Script::new()) else { return };
    let old = bytes(6, 6 * PIECE);
    let [data, other] = [(); 2].map(|()| rig.platform.buffer_from(old.clone()).unwrap());
    rig.on_device(&data, (0, 6 * PIECE), |_| ()).unwrap();
    assert!(child_says(fork, || {
        rig.on_device(&other, (0, 6 * PIECE), |_| ()).is_err_and(|error| error.is_device_lost())
    }));
    rig.on_device(&other, (0, 6 * PIECE), |raw| assert_eq!(raw.read(6 * PIECE), old)).unwrap();
    assert_eq!(*data.read().unwrap(), old);
}

/// Two devices whose links treat them as discrete.
struct Pair {
    platform: Platform,
    devices: [DeviceId; 2],
    sessions: [Arc<Session>; 2],
    pool: Arc<ScratchPool>,
}

fn pair(pieces: u64) -> Option<Pair> {
    let sessions = [session()?, session()?];
    let (budget, mut builder) = (PageLockBudget::new(64 << 20), Platform::builder());
    let pool = pool(pieces * PIECE, &budget);
    let main = main_mem::discover::discover(&mut builder, &DiscoverOptions::default()).unwrap();
    let mut add = |name: &str, session: &Arc<Session>| -> (DeviceId, ArenaId) {
        let device = builder.add_device(DeviceDesc::new(name, DeviceKind::Accelerator));
        let arena = OpenClArena::new(session.clone(), name, device, builder.native(main));
        (device, builder.add_arena(Arc::new(arena)))
    };
    let ends = [add("opencl:0", &sessions[0]), add("opencl:1", &sessions[1])];
    let [one, two] = [0, 1].map(|index| Side {
        arena: ends[index].1,
        sort: Sort::Gpu,
        session: &sessions[index],
        locking: Some((&budget, &pool)),
    });
    // The second device is linked only to the first.
    builder.without_default_links_of(two.arena);
    join_staged(&mut builder, main, one.arena, LinkSpeed::default());
    relay(&mut builder, [&one, &two], &pool);
    Some(Pair { platform: builder.build().unwrap(), devices: ends.map(|(device, _)| device), sessions, pool })
}

#[test]
fn what_goes_between_two_devices_is_relayed_both_ways() {
    for pieces in [0, 2, 3, 4, 9] {
        let Some(Pair { platform, devices, sessions, pool }) = pair(pieces) else { return };
        for (len, start) in [(1, 0), (PIECE, 3), (3 * PIECE + 1, PIECE), (9 * PIECE + 7, 1)] {
            let (total, end) = (start + len + 11, start + len);
            let mut expected = bytes(len, total);
            let data = platform.buffer_from(expected.clone()).unwrap();
            // Each device in turn writes the range, which is then valid only there.
            for turn in 0..4_usize {
                let range = data.range(start..end);
                let grants = platform.acquire(devices[turn % 2]).read_write(&range).wait().unwrap();
                let raw = Raw {
                    session: &sessions[turn % 2],
                    mem: grants.block(&range).unwrap().unwrap().native().0 as cl_mem,
                };
                let found = raw.read(total);
                assert!(found[start as usize..end as usize] == expected[start as usize..end as usize]);
                let late = bytes(len + turn as u64 + 50, len);
                raw.write(start, &late);
                expected = with(expected, start, &late);
                grants.release().unwrap();
            }
            assert!(*data.read().unwrap() == expected, "{len} bytes from {start} with {pieces} pieces");
        }
        let homes = devices.map(|device| platform.home(device).unwrap());
        let is_between = |link: &LinkId| {
            let link = platform.links()[usize::from(link.0)];
            homes.contains(&link.from) && homes.contains(&link.to)
        };
        let moved = platform.counters().transfers();
        let between = moved.iter().filter(|moved| is_between(&moved.link));
        assert_eq!(
            between.map(|moved| moved.copies).sum::<u64>(),
            4 * 4,
            "three turns of each range, and the way back to main memory"
        );
        assert_eq!(pool.pieces(), pieces.min(4));
    }
}

#[test]
fn a_part_has_moved_when_all_of_it_has_and_the_piece_is_back() {
    let Some(session) = session() else { return };
    let locker: Arc<dyn PageLocker> = session;
    let mut taken = pool(PIECE, &PageLockBudget::new(u64::MAX)).take(1, &[&locker]);
    let moved = |done_bytes, piece: &Scratch| whole(Fence::done(done_bytes), 10, piece);
    let requested_bytes = 10;
    assert_eq!(moved(10, &taken[0]), Ok(10));
    assert_eq!(moved(9, &taken[0]), Err(TransferError::Short { requested_bytes, done_bytes: 9 }));
    assert_eq!(moved(11, &taken[0]), Err(TransferError::Overrun { requested_bytes, done_bytes: 11 }));
    let kept = taken[0].target(Span::new(0, 10));
    assert_eq!(moved(10, &taken[0]), Err(TransferError::StillLent));
    drop(kept);
    assert_eq!(moved(10, &taken[0]), Ok(10));
}

#[test]
fn when_a_part_fails_no_further_part_begins() {
    const PARTS: u64 = 40;
    // While one thread is delayed in its first part, the other one fails and stops the copy.
    let held_up = Fault::Slow(std::time::Duration::from_millis(50));
    let script =
        Script::new().at_kind(CallKind::CopyIn, 1, Fault::fail()).at_kind(CallKind::CopyIn, 3, held_up);
    let Some(rig) = Rig::new(4, script) else { return };
    let data = rig.platform.buffer_from(bytes(3, PARTS * PIECE)).unwrap();
    assert!(rig.on_device(&data, (0, PARTS * PIECE), |_| ()).is_err());
    assert!(rig.count(Operation::Write) < PARTS - 1, "{} parts", rig.count(Operation::Write));
}
