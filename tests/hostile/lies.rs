//! One lie each. An arena can spoil the bytes it was trusted with, but it cannot make core grant access that
//! breaks a rule. Core reports every lie that it can notice to the caller, with its true cause.

use crate::vault::{CPU, Call, Deed, GPU, Join, Lie, Plan, VAULT, failing, platform};
use dml::arenas::kit::join_mapped;
use dml::arenas::{MainMem, Null};
use dml::core::internal::state::{Lifecycle, MapState};
use dml::core::internal::sync::{Arc, Mutex};
use dml::core::{
    AcquireError, AllocError, Arena, ArenaDesc, ArenaKind, Backing, BlockRef, Breach, Concurrency, CopyIn,
    CopyJob, CopyOut, CopyQuery, Cost, CrossArena, DeviceDesc, DeviceKind, DeviceSet, Fence, Fill, Grants,
    HostMemory, HostStaged, Link, LinkSpeed, MapReport, MapRequest, NewBlock, Platform, RawBuffer,
    TransferError, UnmapRequest,
};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What the host hears that writes a buffer, and then has the device change it and reads it again.
fn there_and_back(platform: &Platform) -> (dml::RawBuffer, Result<Vec<u8>, AcquireError>) {
    let buffer = platform.raw_buffer(64).build().expect("a small buffer");
    let run = || {
        let mut grants = platform.acquire(CPU).write(&buffer).wait()?;
        grants.slice_mut::<u8>(&buffer).expect("granted").copy_from_slice(&[5; 64]);
        grants.release()?;
        let mut grants = platform.acquire(GPU).read_write(&buffer).wait()?;
        grants.write_bytes(&buffer.range(10..20), &[6; 10])?;
        grants.release()?;
        let grants = platform.acquire(CPU).read(&buffer).wait()?;
        Ok(grants.slice::<u8>(&buffer).expect("granted").to_vec())
    };
    let result = run();
    (buffer, result)
}

/// What a lie leads to.
enum Leads {
    /// An error that is its own, after which the buffer goes on.
    Error(fn(&AcquireError) -> bool),
    /// A broken contract: the buffer is wedged, and can still be closed.
    Breach(fn(&Breach) -> bool),
}

const LIES: &[(Join, Lie, Leads)] = &[
    (
        Join::Staged,
        Lie::ShortBlock,
        Leads::Error(|error| {
            matches!(error, AcquireError::Alloc { cause: AllocError::OutOfMemory { bytes: 64, .. }, .. })
        }),
    ),
    (Join::Staged, Lie::NoStorage, Leads::Error(|error| matches!(error, AcquireError::Alloc { .. }))),
    (
        Join::Staged,
        Lie::Short,
        Leads::Error(|error| {
            let expected = TransferError::Short { requested_bytes: 64, done_bytes: 63 };
            matches!(error, AcquireError::CopyFailed { cause, .. } if *cause == expected)
        }),
    ),
    (
        Join::Staged,
        Lie::Overrun,
        Leads::Error(|error| {
            let expected = TransferError::Overrun { requested_bytes: 64, done_bytes: 65 };
            matches!(error, AcquireError::CopyFailed { cause, .. } if *cause == expected)
        }),
    ),
    (Join::Staged, Lie::KeepsCopyIn, Leads::Breach(|breach| *breach == Breach::StillLent)),
    (Join::Staged, Lie::KeepsCopyOut, Leads::Breach(|breach| *breach == Breach::StillLent)),
    (Join::Staged, Lie::MapsInCopy, Leads::Breach(|breach| matches!(breach, Breach::MapChanged { .. }))),
    (Join::Mapped, Lie::NoAddress, Leads::Breach(|breach| *breach == Breach::NoAddress)),
    (
        Join::Mapped,
        Lie::ShortMapping,
        Leads::Breach(|breach| matches!(breach, Breach::HostMemory { bytes: 1, .. })),
    ),
    (Join::Mapped, Lie::LentMapping, Leads::Breach(|breach| *breach == Breach::StillLent)),
    (Join::Mapped, Lie::NobodyMapped, Leads::Breach(|breach| *breach == Breach::Access { device: CPU })),
];

#[test]
fn every_lie_is_told_for_what_it_is() {
    for (join, lie, leads) in LIES {
        let freed = Plan::always_at(Call::BlockDrop, Deed::None);
        let platform = platform(*join, &freed, *lie);
        let (buffer, result) = there_and_back(&platform);
        let error = result.map(drop).expect_err("the lie is noticed");
        let state = buffer.snapshot();
        match leads {
            Leads::Error(is_it) => {
                assert!(is_it(&error), "{lie:?}: {error:?}");
                assert_eq!(state.lifecycle(), Lifecycle::Open, "{lie:?}");
                // The host's own copy is as it was.
                let grants = platform.acquire(CPU).read(&buffer).wait().unwrap();
                assert_eq!(grants.slice::<u8>(&buffer).unwrap(), [5; 64], "{lie:?}");
            }
            Leads::Breach(is_it) => {
                let AcquireError::ArenaContract { breach, arena, .. } = &error else {
                    panic!("{lie:?}: {error:?}")
                };
                assert!(is_it(breach) && &*arena.name == "vault", "{lie:?}: {error}");
                assert_eq!(state.lifecycle(), Lifecycle::Wedged, "{lie:?}");
                let after = platform.acquire(CPU).read(&buffer).try_now().map(drop);
                assert!(matches!(after, Err(AcquireError::Wedged { .. })), "{lie:?}: {after:?}");
            }
        }
        assert!(buffer.snapshot().is_idle(), "{lie:?}");
        buffer.close_timeout(Duration::from_secs(10)).unwrap();
        drop(buffer);
        // Storage that the arena may still touch is kept for ever, and no other.
        let is_kept = matches!(leads, Leads::Breach(is_it) if is_it(&Breach::StillLent));
        let has_storage = *lie != Lie::NoStorage;
        assert_eq!(freed.met.load(Ordering::SeqCst) > 0, has_storage && !is_kept, "{lie:?}");
    }
}

/// The arena is asked after every copy: those of a plan and those of a grant's own calls, and whether they
/// failed or not.
#[test]
fn a_map_state_that_a_copy_changes_is_noticed_wherever_it_is_copied() {
    type Copies = fn(&mut Grants, &RawBuffer) -> Result<(), AcquireError>;
    let straight_home: Copies = |grants, buffer| {
        let home = buffer.platform().raw_buffer(64).build().unwrap();
        let mut to = buffer.platform().acquire(CPU).write(&home).wait().unwrap();
        grants.read_bytes_to(buffer, &mut to, &home)
    };
    let ways: [(&str, bool, Copies); 5] = [
        ("write_bytes", false, |grants, buffer| grants.write_bytes(buffer, &[6; 64])),
        ("read_bytes", false, |grants, buffer| grants.read_bytes(buffer).map(drop)),
        ("read_bytes_to", false, straight_home),
        ("a write_bytes that fails", true, |grants, buffer| grants.write_bytes(buffer, &[6; 64])),
        ("a read_bytes_to that fails", true, straight_home),
    ];
    let is_it = |told: &Result<(), AcquireError>, what: &str| {
        let Err(AcquireError::ArenaContract { breach: Breach::MapChanged { .. }, arena, .. }) = told else {
            panic!("{what}: {told:?}")
        };
        assert_eq!(&*arena.name, "vault", "{what}");
    };
    let of = |fails: bool, lie: Lie| match fails {
        true => failing(&Plan::none(), lie),
        false => platform(Join::Staged, &Plan::none(), lie),
    };
    for (what, fails, copies) in ways {
        let platform = of(fails, Lie::MapsInCopy);
        let buffer = platform.raw_buffer(64).build().unwrap();
        let mut grants = platform.acquire(GPU).write(&buffer).wait().unwrap();
        is_it(&copies(&mut grants, &buffer), what);
        assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Wedged, "{what}");
        let _ = grants.release();
        buffer.close_timeout(Duration::from_secs(10)).unwrap();
        // Without the lie it is what it was.
        let platform = of(fails, Lie::None);
        let buffer = platform.raw_buffer(64).build().unwrap();
        let mut grants = platform.acquire(GPU).write(&buffer).wait().unwrap();
        let told = copies(&mut grants, &buffer);
        assert!(
            if fails { matches!(told, Err(AcquireError::CopyFailed { .. })) } else { told.is_ok() },
            "{told:?}"
        );
        assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Open, "{what}");
    }
    // The copy of a plan that fails.
    let platform = of(true, Lie::MapsInCopy);
    let buffer = platform.buffer_from(vec![5_u8; 64]).unwrap();
    is_it(&platform.acquire(GPU).read(&buffer).wait().map(drop), "a plan that fails");
    assert_eq!(buffer.raw().snapshot().lifecycle(), Lifecycle::Wedged);
}

/// An arena that answers the question for a map state late: what it found may have changed since.
struct Late {
    inner: Null,
    /// What it says instead of what it found.
    lie: Mutex<Option<MapState>>,
    /// What happens once, after it has looked at the map state and before it answers.
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl std::fmt::Debug for Late {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Late")
    }
}

impl Arena for Late {
    fn map_state(&self, block: &BlockRef) -> Option<MapState> {
        let found = self.inner.map_state(block);
        let meanwhile = self.meanwhile.lock().take();
        meanwhile.into_iter().for_each(|act| act());
        self.lie.lock().or(found)
    }

    passes_on!(desc, alloc, map, unmap, copy_in, copy_out, fill);
}

/// Main memory and a device's memory that the host can map, while the device reads.
fn late() -> (Platform, Arc<Late>) {
    let mut builder = Platform::builder().without_default_links();
    for (name, kind) in [("cpu", DeviceKind::Cpu), ("gpu", DeviceKind::Gpu)] {
        builder.add_device(DeviceDesc::new(name, kind));
    }
    let desc = ArenaDesc::new("late", ArenaKind("test"), GPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapRead);
    let late =
        Arc::new(Late { inner: Null::backed(desc), lie: Mutex::default(), meanwhile: Mutex::default() });
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    let mapped = builder.add_arena(late.clone());
    join_mapped(&mut builder, main, mapped, LinkSpeed::default());
    (builder.build().expect("a sound platform"), late)
}

/// Only a map change that core did not request breaks the contract. A change that the host's request makes
/// while `map_state` runs does not.
#[test]
fn a_map_change_that_somebody_asked_for_meanwhile_is_no_breach() {
    let (platform, late) = late();
    let buffer = platform.raw_buffer(64).build().unwrap();
    for round in 1..4 {
        let mut writer = platform.acquire(GPU).write(&buffer).wait().unwrap();
        writer.write_bytes(&buffer, &[round; 64]).unwrap();
        writer.release().unwrap();
        let reader = platform.acquire(GPU).read(&buffer).wait().unwrap();
        let (changes, seen) = (buffer.clone(), Arc::new(Mutex::new(None)));
        let (there, seen_there) = (platform.clone(), seen.clone());
        *late.meanwhile.lock() = Some(Box::new(move || {
            let mapped = there.acquire(CPU).read(&changes).wait();
            *seen_there.lock() = Some(mapped.map(|grants| grants.read_bytes(&changes).map(|bytes| bytes[0])));
        }));
        assert_eq!(reader.read_bytes(&buffer).unwrap(), [round; 64]);
        assert_eq!(*seen.lock(), Some(Ok(Ok(round))), "the host was let in meanwhile");
        drop(reader);
        assert_eq!(buffer.snapshot().lifecycle(), Lifecycle::Open);
    }
    // An unrequested change is noticed after any number of requested ones.
    let reader = platform.acquire(GPU).read(&buffer).wait().unwrap();
    *late.lie.lock() = Some(MapState::Unmapped);
    let told = reader.read_bytes(&buffer).map(drop);
    let is_breach =
        matches!(told, Err(AcquireError::ArenaContract { breach: Breach::MapChanged { .. }, .. }));
    assert!(is_breach, "{told:?}");
}

#[test]
fn without_a_lie_the_bytes_go_there_and_back() {
    for join in [Join::Staged, Join::Mapped] {
        let (_, result) = there_and_back(&platform(join, &Plan::none(), Lie::None));
        assert_eq!(result.unwrap(), [[5; 10].to_vec(), [6; 10].to_vec(), [5; 44].to_vec()].concat());
    }
}

#[test]
fn a_fill_that_is_kept_breaks_the_contract() {
    let platform = platform(Join::Staged, &Plan::none(), Lie::KeepsFill);
    let buffer = platform.raw_buffer(64).zeroed().build().unwrap();
    let told = platform.acquire(GPU).read(&buffer).try_now().map(drop);
    assert!(matches!(told, Err(AcquireError::ArenaContract { breach: Breach::StillLent, .. })), "{told:?}");
    buffer.close();
}

/// A fence that is forgotten has given its loan back here, for the copy was made at once: nothing is wrong
/// with that.
#[test]
fn a_fence_that_is_forgotten_after_its_work_is_no_breach() {
    let (_, result) = there_and_back(&platform(Join::Staged, &Plan::none(), Lie::ForgetsFence));
    assert_eq!(result.unwrap()[10..20], [6; 10]);
}

/// Host memory of safe code's own: what it may do with it, and what core makes of it.
#[derive(Debug)]
struct Host {
    desc: ArenaDesc,
    how: How,
    kept: Mutex<Vec<Box<dyn std::any::Any + Send>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Well,
    Short,
    Misaligned,
    KeepsATarget,
}

const PAGE_BYTES: usize = 4096;

#[derive(Debug)]
struct Plain(u64);

impl dml::core::Block for Plain {
    fn len(&self) -> u64 {
        self.0
    }

    fn native(&self) -> dml::core::NativeHandle {
        dml::core::NativeHandle(0)
    }
}

impl Arena for Host {
    fn desc(&self) -> &ArenaDesc {
        &self.desc
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        let block: BlockRef = Arc::new(Plain(len));
        let memory = |bytes: u64| HostMemory::zeroed(bytes).expect("memory for a test");
        let host = match self.how {
            How::Well => memory(len),
            How::Short => memory(len - 1),
            // Not to a page, of two at a time in one.
            How::Misaligned => {
                let two = [0; 2].map(|_: u8| HostMemory::holding(vec![0_u8; len as usize]));
                let is_misaligned =
                    |memory: &HostMemory| !memory.span().as_ptr().addr().is_multiple_of(PAGE_BYTES);
                two.into_iter().find(is_misaligned).expect("they are smaller than a page")
            }
            How::KeepsATarget => {
                let mut memory = memory(len);
                self.kept.lock().push(Box::new(memory.target(dml::core::Span::new(0, len))));
                memory
            }
        };
        Ok(NewBlock::new(block).with_host(host))
    }

    fn map(&self, _: MapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("always bimapped")
    }

    fn unmap(&self, _: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        panic!("always bimapped")
    }

    fn copy_in(&self, _: CopyIn) -> Result<Fence, TransferError> {
        panic!("core copies host memory by itself")
    }

    fn copy_out(&self, _: CopyOut) -> Result<Fence, TransferError> {
        panic!("core copies host memory by itself")
    }

    fn fill(&self, _: Fill) -> Result<Fence, TransferError> {
        Err(TransferError::Infeasible)
    }
}

fn host(how: How) -> Platform {
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let desc = ArenaDesc::new("host", ArenaKind("host"), cpu)
        .with_alloc_align(if how == How::Misaligned { PAGE_BYTES as u64 } else { 64 })
        .with_remotes(DeviceSet::of(cpu))
        .with_concurrency(Concurrency::BimapFull);
    builder.add_arena(Arc::new(Host { desc, how, kept: Default::default() }));
    builder.build().expect("a sound platform")
}

/// A safe arena cannot show one memory for two blocks, nor keep write access to the bytes of a view.
#[test]
fn host_memory_of_safe_code_is_the_grants_alone() {
    let platform = host(How::Well);
    let (one, two) =
        (platform.buffer::<u64>(100).build().unwrap(), platform.buffer::<u64>(100).build().unwrap());
    let (mut first, mut second) = (one.write().unwrap(), two.write().unwrap());
    first.fill(1);
    second.fill(2);
    assert!(first.iter().all(|value| *value == 1) && second.iter().all(|value| *value == 2));
    first.release().unwrap();
    second.release().unwrap();
    let refused = |how| host(how).buffer::<u64>(100).build().unwrap().write().map(drop).unwrap_err();
    let breach = |error: AcquireError| match error {
        AcquireError::ArenaContract { breach, .. } => breach,
        other => panic!("{other}"),
    };
    assert_eq!(breach(refused(How::Short)), Breach::HostMemory { bytes: 799, needed_bytes: 800 });
    assert!(matches!(breach(refused(How::Misaligned)), Breach::HostMemory { .. }));
    assert_eq!(breach(refused(How::KeepsATarget)), Breach::StillLent);
    // Where there is no byte, it does not matter where it begins.
    let nothing = host(How::Misaligned).buffer::<u64>(0).build().unwrap();
    nothing.write().expect("nothing is misaligned").release().unwrap();
}

/// A mechanism in safe code, which does to its job what can be done to it.
#[derive(Debug)]
struct Odd {
    how: &'static str,
    kept: Mutex<Vec<CopyJob>>,
}

impl CrossArena for Odd {
    fn name(&self) -> &str {
        self.how
    }

    fn can_copy(&self, _: &CopyQuery) -> Option<Cost> {
        Some(Cost::from_ns(1))
    }

    fn copy(&self, job: CopyJob) -> Result<Fence, TransferError> {
        let len = job.len();
        match self.how {
            "keeps its job" => {
                self.kept.lock().push(job);
                Ok(Fence::done(len))
            }
            "keeps a part of it" => {
                let (part, rest) = job.split_at(len / 2);
                self.kept.lock().push(rest);
                part.write()?.wait()?;
                Ok(Fence::done(len))
            }
            "copies in pieces" => {
                let (first, rest) = job.split_at(len / 3);
                let (second, third) = rest.split_at(len / 3);
                let fences = [third, first, second].map(CopyJob::write);
                Ok(Fence::running(move || {
                    fences.into_iter().try_fold(0, |sum, fence| Ok(sum + fence?.wait()?))
                }))
            }
            "maps what is not mapped" => job.memcpy(),
            "reads for writing" => job.read(),
            "writes for reading" => job.write(),
            "leaves half out" => job.first(len / 2).write(),
            other => panic!("{other}"),
        }
    }
}

fn odd(how: &'static str) -> Result<Vec<u8>, AcquireError> {
    let mut builder = Platform::builder().without_default_links();
    let rig = platform(Join::Staged, &Plan::none(), Lie::None);
    rig.devices().iter().for_each(|device| _ = builder.add_device(device.clone()));
    rig.arenas().iter().for_each(|arena| _ = builder.add_arena(arena.clone()));
    let link = rig.links()[0];
    let back = Link {
        from: link.to,
        to: link.from,
        source_via: link.target_via,
        target_via: link.source_via,
        ..link
    };
    let (mut odd, mut sound) = (link, back);
    if how == "writes for reading" {
        std::mem::swap(&mut odd, &mut sound);
    }
    builder.add_link(odd, Arc::new(Odd { how, kept: Default::default() }));
    builder.add_link(sound, Arc::new(HostStaged::default()));
    there_and_back(&builder.build().expect("a sound platform")).1
}

#[test]
fn a_mechanism_reaches_its_own_bytes_alone() {
    assert_eq!(odd("copies in pieces").unwrap()[..12], [5, 5, 5, 5, 5, 5, 5, 5, 5, 5, 6, 6]);
    let is = |how, is_it: fn(&AcquireError) -> bool| {
        let error = odd(how).map(drop).expect_err("it is noticed");
        assert!(is_it(&error), "{how}: {error:?}");
    };
    let kept =
        |error: &AcquireError| matches!(error, AcquireError::ArenaContract { breach: Breach::StillLent, .. });
    is("keeps its job", kept);
    is("keeps a part of it", kept);
    // It is the vault that has none, at whichever end of the copy it is.
    let no_address = |error: &AcquireError| match error {
        AcquireError::ArenaContract { breach, arena, .. } => {
            *breach == Breach::NoAddress && &*arena.name == "vault"
        }
        _ => false,
    };
    is("maps what is not mapped", no_address);
    is("reads for writing", no_address);
    is("writes for reading", no_address);
    is("leaves half out", |error| {
        matches!(error, AcquireError::CopyFailed { cause: TransferError::Short { done_bytes: 32, .. }, .. })
    });
}

/// A block over the storage of another.
#[derive(Debug)]
struct Bound(Backing);

impl dml::core::Block for Bound {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn native(&self) -> dml::core::NativeHandle {
        dml::core::NativeHandle(0)
    }

    fn backing(&self) -> Option<&Backing> {
        Some(&self.0)
    }
}

/// An arena whose description changes is taken at its first word.
#[derive(Debug)]
struct Fickle {
    first: ArenaDesc,
    later: ArenaDesc,
    asked: std::sync::atomic::AtomicBool,
}

impl Arena for Fickle {
    fn desc(&self) -> &ArenaDesc {
        match self.asked.swap(true, std::sync::atomic::Ordering::Relaxed) {
            false => &self.first,
            true => &self.later,
        }
    }

    fn alloc(&self, len: u64) -> Result<NewBlock, AllocError> {
        Ok(NewBlock::new(Arc::new(Plain(len))))
    }

    fn bind(&self, root: &Backing) -> Result<NewBlock, AllocError> {
        Ok(NewBlock::new(Arc::new(Bound(root.clone()))))
    }

    fn map(&self, request: MapRequest<'_>) -> Result<MapReport, TransferError> {
        Ok(MapReport { state: request.target(), host: None })
    }

    fn unmap(&self, _: UnmapRequest<'_>) -> Result<MapReport, TransferError> {
        Ok(MapReport { state: MapState::Unmapped, host: None })
    }

    fn copy_in(&self, copy: CopyIn) -> Result<Fence, TransferError> {
        Ok(Fence::done(copy.len()))
    }

    fn copy_out(&self, copy: CopyOut) -> Result<Fence, TransferError> {
        Ok(Fence::done(copy.len()))
    }

    fn fill(&self, fill: Fill) -> Result<Fence, TransferError> {
        Ok(Fence::done(fill.len()))
    }
}

#[test]
fn a_description_counts_as_it_was_first() {
    let mut builder = Platform::builder();
    let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(dml::arenas::MainMem::new(cpu)));
    let gpu = builder.add_device(DeviceDesc::new("gpu", DeviceKind::Gpu));
    let desc = |name, device| ArenaDesc::new(name, ArenaKind("fickle"), device);
    // Later it is of a device that does not exist, and remote of one that no set holds.
    let later = desc("other", dml::DeviceId(700));
    let fickle = Fickle { first: desc("fickle", gpu), later, asked: false.into() };
    builder.add_arena(Arc::new(fickle));
    let platform = builder.build().unwrap();
    assert_eq!((&*platform.desc(VAULT).name, platform.home(gpu)), ("fickle", Some(VAULT)));
    let buffer = platform.raw_buffer(8).build().unwrap();
    platform.acquire(gpu).write(&buffer).wait().unwrap().release().unwrap();
    assert_eq!(platform.acquire(cpu).read(&buffer).wait().map(drop), Ok(()));
}
