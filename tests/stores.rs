//! Memory on which no device runs kernels: buffers are brought there, and leave when they are used elsewhere.

#![cfg(not(dml_loom))]

use dml::arenas::kit::join_staged;
use dml::arenas::{MainMem, Null};
use dml::core::internal::state::Status;
use dml::core::{
    AcquireError, ArenaDesc, ArenaId, ArenaKind, ConfigError, DeviceDesc, DeviceId, DeviceKind, DeviceSet,
    LinkSpeed, PlatformBuilder, RawBuffer, TopologyError,
};
use dml_verify::{Audited, CPU, MAIN_ARENA, arenas, bytes, check, mortal, raw, segments};
use std::ops::Range;
use std::sync::Arc;

const DISK: ArenaId = ArenaId(1);
const TAPE: ArenaId = ArenaId(2);
const LEN: u64 = 5003;

fn store(name: &str) -> Arc<Null> {
    Arc::new(Null::backed(ArenaDesc::store(name, ArenaKind("null"))))
}

/// Main memory, a disk and a tape. The processor is added last: stores need no devices before them.
fn builder() -> PlatformBuilder {
    let mut builder = PlatformBuilder::default();
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    builder.add_arena(store("disk"));
    builder.add_arena(store("tape"));
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    join_staged(&mut builder, MAIN_ARENA, DISK, LinkSpeed::default());
    builder
}

/// Writes a range in place, as no kernel has to.
fn write(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>, seed: u64) {
    let region = buffer.range(range.clone());
    let mut grants = buffer.platform().acquire_in(arena).write(&region).wait().unwrap();
    grants.write_bytes(&region, &bytes(seed, range)).unwrap();
    grants.release().unwrap();
}

fn read(buffer: &RawBuffer, arena: ArenaId, range: Range<u64>) -> Vec<u8> {
    let region = buffer.range(range);
    buffer.platform().acquire_in(arena).read(&region).wait().unwrap().read_bytes(&region).unwrap()
}

fn written(platform: &Audited) -> RawBuffer {
    let buffer = raw(platform, LEN);
    write(&buffer, MAIN_ARENA, 0..LEN, 1);
    buffer
}

#[test]
fn a_store_is_no_device() {
    let platform = Audited::new(builder().build().unwrap());
    assert_eq!(platform.devices().len(), 1);
    assert_eq!(platform.arena_named("tape"), Ok(TAPE));
    let unknown = platform.arena_named("drum").unwrap_err();
    assert_eq!(unknown.to_string(), "unknown arena drum: there are main_mem, disk, tape");
    let natives = [DISK, TAPE].map(|arena| platform.desc(arena).native);
    assert_ne!(natives[0], natives[1]);
    let buffer = written(&platform);
    for (native, name) in natives.into_iter().zip(["disk", "tape"]) {
        assert_eq!(platform.home(native), None);
        let refused = platform.acquire(native).read(&buffer).wait().map(drop).unwrap_err();
        assert_eq!(refused, AcquireError::NoKernels { device: native, arena: name.into() });
        assert!(refused.to_string().starts_with(&format!("{name} is a store: no kernels run on it")));
        assert_eq!(buffer.prefetch(native, 0..1).wait(), Err(refused));
    }
    let nobody = DeviceId(7);
    assert_eq!(buffer.prefetch(nobody, 0..1).wait(), Err(AcquireError::NoArena { device: nobody }));
    assert!(matches!(buffer.prefetch_in(ArenaId(3), 0..1).wait(), Err(AcquireError::NoSuchArena { .. })));
    assert!(check(&buffer).requestors().is_empty());
}

#[test]
fn i02_a_spilled_buffer_comes_back_when_it_is_used() {
    let platform = Audited::new(builder().build().unwrap());
    for store in [DISK, TAPE] {
        let buffer = written(&platform);
        buffer.prefetch_in(store, 0..LEN).wait().unwrap();
        assert_eq!(segments(&buffer), [(0..LEN, arenas([MAIN_ARENA, store]), Status::Defined)]);
        buffer.free(MAIN_ARENA).unwrap();
        assert_eq!(segments(&buffer), [(0..LEN, arenas([store]), Status::Defined)]);
        // A part of it is changed, and the rest stays where it is.
        write(&buffer, MAIN_ARENA, 100..200, 2);
        assert_eq!(read(&buffer, MAIN_ARENA, 100..200), bytes(2, 100..200));
        assert_eq!(read(&buffer, MAIN_ARENA, 200..LEN), bytes(1, 200..LEN));
        assert!(buffer.free(store).is_err(), "some bytes are only there");
    }
}

#[test]
fn i13_bytes_of_a_lost_store_are_lost_and_others_are_not() {
    let mut builder = PlatformBuilder::default();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    let disk = Arc::new(mortal(Null::backed(ArenaDesc::store("disk", ArenaKind("null")))));
    builder.add_arena(disk.clone());
    builder.add_arena(store("tape"));
    let platform = Audited::new(builder.build().unwrap());
    let (spilled, taped, kept) = (written(&platform), written(&platform), written(&platform));
    for (buffer, store) in [(&spilled, DISK), (&taped, TAPE)] {
        buffer.prefetch_in(store, 0..LEN).wait().unwrap();
        buffer.free(MAIN_ARENA).unwrap();
    }
    kept.prefetch_in(DISK, 0..LEN).wait().unwrap();
    disk.die();
    let native = platform.desc(DISK).native;
    assert_eq!(platform.notice_losses(), DeviceSet::of(native));
    assert_eq!(platform.lost_devices(), DeviceSet::of(native));
    let lost = platform.acquire(CPU).read(&spilled).wait().map(drop);
    assert!(matches!(lost, Err(AcquireError::Poisoned { restorable: false, .. })), "{lost:?}");
    for buffer in [&taped, &kept] {
        assert_eq!(read(buffer, MAIN_ARENA, 0..LEN), bytes(1, 0..LEN));
    }
    let refused = kept.prefetch_in(DISK, 0..LEN).wait().unwrap_err();
    assert!(refused.is_device_lost(), "{refused}");
}

/// A store is lost when its internal device is declared lost. Declaring an unknown device lost does nothing.
#[test]
fn i13_a_store_that_is_declared_lost_loses_its_bytes() {
    let platform = Audited::new(builder().build().unwrap());
    let buffer = written(&platform);
    for nobody in [7, 30] {
        platform.device_lost(DeviceId(nobody));
        assert_eq!(platform.lost_devices(), DeviceSet::default());
    }
    buffer.prefetch_in(DISK, 0..LEN).wait().unwrap();
    buffer.free(MAIN_ARENA).unwrap();
    let native = platform.desc(DISK).native;
    platform.device_lost(native);
    assert_eq!(platform.lost_devices(), DeviceSet::of(native));
    let lost = platform.acquire(CPU).read(&buffer).wait().map(drop);
    assert!(matches!(lost, Err(AcquireError::Poisoned { .. })), "{lost:?}");
}

#[test]
fn devices_and_stores_share_their_ids() {
    let most = |stores: usize| {
        let mut builder = PlatformBuilder::default().without_default_links();
        for device in 0..60 {
            builder.add_device(DeviceDesc::new(&format!("d{device}"), DeviceKind::Cpu));
        }
        for number in 0..stores {
            builder.add_arena(store(&format!("s{number}")));
        }
        builder.build()
    };
    let platform = most(4).unwrap();
    let natives: DeviceSet = platform.routes().arenas().iter().map(|desc| desc.native).collect();
    assert_eq!(natives.iter().collect::<Vec<_>>(), [60, 61, 62, 63].map(DeviceId));
    let ConfigError::Topology(problems) = most(5).unwrap_err() else { panic!() };
    let expected = TopologyError::TooMany { what: "devices and stores", count: 65, limit: 64 };
    assert_eq!(problems, [expected]);
}

#[test]
fn an_arena_apart_is_reached_by_its_own_links_alone() {
    let mut builder = builder();
    builder.without_default_links_of(TAPE);
    let platform = Audited::new(builder.clone().build().unwrap());
    let buffer = written(&platform);
    let refused = buffer.prefetch_in(TAPE, 0..LEN).wait().unwrap_err();
    assert!(refused.is_unreachable(), "{refused}");
    join_staged(&mut builder, DISK, TAPE, LinkSpeed::default());
    let platform = Audited::new(builder.build().unwrap());
    assert!(!platform.links().iter().any(|link| link.from == MAIN_ARENA && link.to == TAPE));
}
