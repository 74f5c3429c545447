//! The backends of the examples, which are no part of DML: they keep every rule that DML's own keep.

#![cfg(all(unix, not(dml_loom)))]

#[path = "../examples/fpga/board.rs"]
mod board;
#[path = "../examples/disk/disk.rs"]
mod disk;

use board::{BoardArena, Boards};
use disk::{DISK, Disk, DiskArena};
use dml::arenas::MainMem;
use dml::arenas::kit::join_staged;
use dml::core::internal::state::Step;
use dml::core::{
    AcquireError, ArenaId, DeviceDesc, DeviceKind, LinkSpeed, OwnerId, PlatformBuilder, Span, TransferError,
};
use dml::prelude::*;
use dml_verify::conformance::{self, Subject};
use dml_verify::{Audited, CPU, MAIN_ARENA, bytes, raw};
use std::fs::File;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

const CAPACITY_BYTES: u64 = 48 << 20;

fn folder() -> PathBuf {
    std::env::temp_dir()
}

/// A file that only its owner has.
fn file(test: &str) -> File {
    let path = folder().join(format!("dml-test-{}-{}", test.replace("::", "-"), std::process::id()));
    let options = File::options().read(true).write(true).create_new(true).open(&path);
    let file = options.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    std::fs::remove_file(path).expect("the file was just made");
    file
}

/// A disk whose file loses its contents.
fn on_disk(test: &str) -> Option<Subject> {
    let file = file(test);
    let same = file.try_clone().expect("a descriptor");
    let subject = Subject::beside_main(|_, _| {
        Arc::new(DiskArena::over(file, &folder(), CAPACITY_BYTES).expect("an empty file and a thread"))
    });
    let lose = move || same.set_len(0).expect("a file that may be written");
    Some(subject.with_capacity(CAPACITY_BYTES).with_loss(lose))
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

fn boards() -> Platform {
    let options = DiscoverOptions::default().offload(0).backend(Boards { bytes: CAPACITY_BYTES });
    let builder = Platform::builder().discover_with(&options.only(["fpga:0", "fpga:1"]));
    builder.expect("the boards are there").build().expect("what discovery adds fits together")
}

fn on_board(name: &str) -> Option<Subject> {
    let platform = boards();
    let id = platform.arena_named(name).expect("it was asked for");
    let arena = platform.arena(id).clone();
    let subject = Subject::new(platform, id).with_capacity(CAPACITY_BYTES);
    Some(subject.with_loss(move || arena.downcast_ref::<BoardArena>().expect("a board").unplug()))
}

fn on_near_board(_test: &str) -> Option<Subject> {
    on_board("fpga:0")
}

fn on_far_board(_test: &str) -> Option<Subject> {
    on_board("fpga:1")
}

conformance::checks!(of_the_disk, on_disk);
conformance::checks!(of_the_near_board, on_near_board);
conformance::checks!(of_the_far_board, on_far_board);

/// Returns the lines of a text without their indentation.
fn lines(text: &str) -> Vec<&str> {
    text.lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_page_shows_the_examples_as_they_are() {
    let sources = [
        include_str!("../examples/disk/disk.rs"),
        include_str!("../examples/disk/main.rs"),
        include_str!("../examples/fpga/board.rs"),
        include_str!("../examples/fpga/main.rs"),
        include_str!("backends.rs"),
    ];
    let sources = sources.map(lines);
    let page = include_str!("../docs/backends.md");
    let shown: Vec<_> =
        page.split("```rust\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(shown.len() > 10, "{} pieces", shown.len());
    for piece in shown {
        let wanted = lines(piece);
        let is_there =
            sources.iter().any(|source| source.windows(wanted.len()).any(|window| window == wanted));
        assert!(is_there, "no source has this piece:\n{piece}");
    }
}

#[test]
fn backends_of_an_application_are_discovered_as_dmls_own() {
    conformance::discovery_adds_what_is_wanted(|| Disk { folder: folder(), bytes: 1 << 20 });
    conformance::discovery_adds_what_is_wanted(|| Boards { bytes: 1 << 20 });
    conformance::a_missing_backend_is_a_note(|| Disk { folder: "/nonexistent".into(), bytes: 1 << 20 });
}

#[cfg(feature = "calibration")]
#[test]
fn links_of_a_disk_are_measured_kept_and_used() {
    use dml::arenas::calibrate::{Calibration, CalibrationSource, measure};
    use dml::core::{CopyQuery, Cost};
    let options = DiscoverOptions::default().only([DISK]).backend(Disk { folder: folder(), bytes: 4 << 20 });
    let find = |options| Platform::builder().discover_with(&options).unwrap().build().unwrap();
    let platform = find(options.clone());
    let measured = measure(&platform);
    let names = measured.iter().map(|one| [one.from, one.to].map(|end| platform.desc(end).name.clone()));
    let names: Vec<_> = names.map(|[from, to]| format!("{from} -> {to}")).collect();
    assert_eq!(names, ["main_mem -> disk", "disk -> main_mem"]);
    let figures = Calibration::of(&platform, &measured);
    let path = folder().join(format!("dml-test-disk-links-{}.json", std::process::id()));
    figures.store(&path).unwrap();
    let again = find(options.calibration(CalibrationSource::File(path.clone())));
    std::fs::remove_file(path).unwrap();
    let query = CopyQuery { bytes: 64 << 10, remap_source: false, remap_target: false, allocates: false };
    for one in measured {
        let table = one.table.unwrap();
        let price = again.cross_arena(one.link).can_copy(&query).and_then(Cost::as_ns);
        // On a busy machine the smaller class may have taken longer. Larger copies are not cheaper then.
        let expected = table.classes()[..2].iter().map(|class| class.copy_ns).max();
        assert_eq!(price, expected, "{:?}: {table:?}", one.link);
    }
}

#[test]
fn a_folder_that_is_not_there_is_named() {
    let options =
        DiscoverOptions::default().only([DISK]).backend(Disk { folder: "/nowhere".into(), bytes: 1 });
    let refused = Platform::builder().discover_with(&options).unwrap_err().to_string();
    assert!(refused.starts_with("disk cannot be used: /nowhere: No such file"), "{refused}");
}

#[test]
fn o01_the_planner_finds_the_chain_to_the_far_board_and_back() {
    let platform = Audited::new(boards());
    let arena = |name| platform.arena_named(name).unwrap();
    let (near, far) = (arena("fpga:0"), arena("fpga:1"));
    let buffer = raw(&platform, 5003);
    write(&buffer, MAIN_ARENA, 0..5003, 1);
    let plan = buffer.snapshot().prefetch(platform.routes(), OwnerId(0), far, Span::new(0, 5003));
    let dml::core::internal::state::Begin::Plan(plan) = plan else { panic!("bytes have to be brought") };
    let hops = plan.steps.iter().filter_map(|step| match step {
        Step::Copy(copy) => Some((copy.from().expect("bytes are copied"), copy.to)),
        _ => None,
    });
    assert_eq!(hops.collect::<Vec<_>>(), [(MAIN_ARENA, near), (near, far)]);
    assert_eq!(read(&buffer, far, 0..5003), bytes(1, 0..5003));
    write(&buffer, far, 7..4100, 2);
    assert_eq!(
        read(&buffer, MAIN_ARENA, 0..5003),
        [bytes(1, 0..7), bytes(2, 7..4100), bytes(1, 4100..5003)].concat()
    );
    let of_cable = |from: ArenaId, to: ArenaId| {
        let links =
            platform.links().iter().enumerate().filter(|(_, link)| (link.from, link.to) == (from, to));
        links
            .map(|(id, _)| platform.cross_arena(dml::core::LinkId(id as u16)).name().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!((of_cable(near, far), of_cable(MAIN_ARENA, far)), (vec!["cable".to_owned()], vec![]));
}

#[test]
fn kernels_of_both_boards_see_what_the_other_wrote() {
    let platform = Audited::new(boards());
    let buffer =
        platform.buffer_from((0..9001).map(|index| (index % 251) as u8).collect::<Vec<_>>()).unwrap();
    let run = |name: &str, kernel: fn(&mut [u8])| {
        let device = platform.device(name).unwrap();
        let home = platform.arena(platform.home(device).unwrap());
        let board = home.downcast_ref::<BoardArena>().unwrap();
        let grants = platform.acquire(device).read_write(&buffer).wait().unwrap();
        let fence = board.launch(grants.block(&buffer).unwrap().expect("it has bytes"), kernel);
        grants.in_flight(fence).wait().unwrap().release().unwrap();
    };
    run("fpga:1", |bytes| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_mul(3)));
    run("fpga:0", |bytes| bytes.iter_mut().for_each(|byte| *byte = byte.wrapping_add(7)));
    run("fpga:1", |bytes| bytes.reverse());
    let expected = (0..9001usize).rev().map(|index| ((index % 251) as u8).wrapping_mul(3).wrapping_add(7));
    assert!(buffer.read().unwrap().iter().copied().eq(expected));
}

#[test]
fn a_file_that_fails_for_good_is_a_lost_disk_with_the_call_and_the_error() {
    let mut builder = PlatformBuilder::default();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = builder.add_arena(Arc::new(MainMem::new(CPU)));
    // The file shrinks under the arena.
    let file = file("shrinks");
    let same = file.try_clone().unwrap();
    let disk = builder.add_arena(Arc::new(DiskArena::over(file, &folder(), 1 << 20).unwrap()));
    join_staged(&mut builder, main, disk, LinkSpeed::default());
    let platform = Audited::new(builder.build().unwrap());
    let buffer = raw(&platform, 5003);
    write(&buffer, main, 0..5003, 1);
    buffer.prefetch_in(disk, 0..5003).wait().unwrap();
    buffer.free(main).unwrap();
    same.set_len(100).unwrap();
    let failed = platform.acquire_in(main).read(&buffer).wait().map(drop).unwrap_err();
    let AcquireError::CopyFailed { cause: TransferError::DeviceLost { loss: Some(loss) }, .. } = &failed
    else {
        panic!("{failed}")
    };
    assert_eq!(&*loss.device, DISK);
    let expected = format!("pread of a file in {}: ", folder().display());
    assert!(loss.cause.starts_with(&expected), "{loss}");
    assert!(platform.lost_devices().contains(platform.desc(disk).native));
}
