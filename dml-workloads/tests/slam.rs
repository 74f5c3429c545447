//! KinectFusion on the host and on real devices: what it finds, and its calls. Without a device the tests
//! print a note and pass, unless `DML_EXPECT` names `opencl` or `cuda`.

#![cfg(not(dml_loom))]

use dml_arenas::{Discover, DiscoverOptions};
use dml_core::Platform;
use dml_workloads::slam::{
    Accuracy, Frames, FramesError, Layered, Order, Placement, Run, Size, TINY, most_apart, shaded,
    surface_error, trajectory_svg,
};
use std::fs;
use std::path::PathBuf;

const FRAMES: u32 = 20;

fn frames() -> Frames {
    Frames::generate(TINY, FRAMES, 1).unwrap()
}

/// Checks that every frame with a reference was tracked, and that the camera is where it was.
fn expect_found(run: &Run, frames: &Frames) {
    let accuracy = Accuracy::of(run, frames).unwrap();
    assert_eq!((run.seen.len(), run.lost()), (frames.len(), 0));
    assert!(accuracy.mean_m <= frames.most_error_m(), "{accuracy:?}");
    for (number, seen) in run.seen.iter().enumerate() {
        assert_eq!(seen.is_tracked, (number >= 4).then_some(true), "frame {number}");
        assert_eq!(seen.iterations > 0, number >= 4, "frame {number}");
        assert_eq!(seen.is_integrated, number < 4 || number % 2 == 0, "frame {number}");
    }
}

fn host() -> Platform {
    let options = DiscoverOptions::default().only(["cpu"]).offload(0);
    Platform::builder().discover_with(&options).unwrap().build().unwrap()
}

fn on_host(frames: &Frames, order: Order) -> Run {
    let platform = host();
    let placement = Placement::on(platform.host().unwrap());
    Layered::new(&platform, placement).unwrap().run(frames, order).unwrap().0
}

#[test]
fn host_finds_the_way_and_the_room() {
    let (frames, platform) = (frames(), host());
    let mut program = Layered::new(&platform, Placement::on(platform.host().unwrap())).unwrap();
    let (run, finished) = program.run(&frames, Order::OneByOne).unwrap();
    expect_found(&run, &frames);
    let (off, surfaces) = surface_error(&finished.volume().unwrap(), &finished.size()).unwrap();
    assert!(off <= frames.most_surface_error_m() && surfaces > 1000, "{off} {surfaces}");
    let picture = shaded(&finished.normals().unwrap());
    let drawn = picture.iter().filter(|pixel| pixel[..3] != [0; 3]).count();
    assert!(drawn > picture.len() * 8 / 10, "{drawn}");
    let svg = trajectory_svg(&run, &frames);
    assert_eq!(svg.matches("<polyline").count(), 4);
}

#[test]
fn preparing_the_next_frame_ahead_changes_nothing() {
    let frames = frames();
    let [one, ahead] = [Order::OneByOne, Order::Ahead].map(|order| on_host(&frames, order));
    assert_eq!(one.iterations(), ahead.iterations());
    assert_eq!(most_apart(&one, &ahead), 0.0);
    assert_eq!(one.operations.kernel, ahead.operations.kernel);
}

#[test]
fn a_frame_without_depths_is_lost_and_found_again() {
    let folder = folder("lost");
    let path = folder.join("frames.raw");
    let frames = frames();
    frames.write(&path).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let pixels = (TINY.width * TINY.height) as usize;
    let (of_frame, blind) = (16 + 5 * pixels, 8);
    bytes[blind * of_frame + 8..][..2 * pixels].fill(0);
    fs::write(&path, bytes).unwrap();
    let run = on_host(&Frames::read(&path, TINY.edge, u32::MAX).unwrap(), Order::OneByOne);
    let tracked: Vec<_> = run.seen.iter().map(|seen| seen.is_tracked).skip(4).collect();
    let expected: Vec<_> = (4..FRAMES as usize).map(|frame| Some(frame != blind)).collect();
    assert_eq!((tracked, run.lost()), (expected, 1));
    assert!(!run.seen[blind].is_integrated && run.seen[blind].pose == run.seen[blind - 1].pose);
    fs::remove_dir_all(folder).unwrap();
}

fn folder(test: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("dml-slam-{test}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn files_keep_the_frames() {
    let folder = folder("files");
    let path = folder.join("frames.raw");
    let frames = Frames::generate(Size { width: 8, height: 4, edge: 8 }, 3, 7).unwrap();
    frames.write(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().len(), 3 * (16 + 5 * 32));
    let read = Frames::read(&path, 8, 10).unwrap();
    assert_eq!((read.size(), read.len()), (frames.size(), 3));
    assert!((0..3).all(|frame| read.depths(frame) == frames.depths(frame)));
    assert!(read.way().is_none() && Frames::read(&path, 8, 2).unwrap().len() == 2);
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn wrong_files_are_refused_by_name_and_frame() {
    let folder = folder("wrong");
    let path = folder.join("frames.raw");
    let frames = Frames::generate(Size { width: 8, height: 4, edge: 8 }, 2, 7).unwrap();
    frames.write(&path).unwrap();
    let good = fs::read(&path).unwrap();
    let of_frame = good.len() / 2;
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Frames::read(&path, 8, 10).map(|frames| frames.len())
    };
    assert!(matches!(read(&[]), Err(FramesError::Empty { .. })));
    for end in [4, 8, 20, of_frame - 1, of_frame + 3, of_frame + 40] {
        let frame = end / of_frame;
        assert!(
            matches!(read(&good[..end]), Err(FramesError::Truncated { frame: found, .. }) if found == frame),
            "{end}"
        );
    }
    assert_eq!(read(&good[..of_frame]).unwrap(), 1);
    for (at, frame) in [(8 + 64, 0), (of_frame, 1), (of_frame + 8 + 64, 1)] {
        let mut bytes = good.clone();
        bytes[at] = 16;
        assert!(
            matches!(read(&bytes), Err(FramesError::Sizes { frame: found, .. }) if found == frame),
            "{at}"
        );
    }
    // A header must not request memory.
    let huge = [u32::MAX.to_le_bytes(), u32::MAX.to_le_bytes()].concat();
    let told = read(&huge).unwrap_err().to_string();
    assert!(told.contains("frames.raw") && told.contains("4294967295 x 4294967295"), "{told}");
    let missing = Frames::read(folder.join("missing"), 8, 1).unwrap_err();
    assert!(missing.to_string().contains("missing"), "{missing}");
    assert!(matches!(Frames::generate(Size { width: 6, ..TINY }, 1, 1), Err(FramesError::Shape { .. })));
    assert!(matches!(Frames::generate(Size { edge: 4, ..TINY }, 1, 1), Err(FramesError::Volume { edge: 4 })));
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn no_frames_are_no_run() {
    let frames = Frames::generate(TINY, 0, 1).unwrap();
    for order in [Order::OneByOne, Order::Ahead] {
        let run = on_host(&frames, order);
        assert!(run.seen.is_empty() && Accuracy::of(&run, &frames).is_none());
    }
}

#[cfg(feature = "opencl")]
mod devices {
    use super::*;
    use dml_workloads::slam::{Column, Columns};
    use dml_workloads::table1::Mode;

    /// Runs all columns of the table on a device, or prints a note if it does not exist.
    fn columns(test: &str, device: &str) -> Option<Vec<(Column, Run)>> {
        let kind = device.split(':').next().unwrap();
        let mut columns = match Columns::open(device) {
            Ok(columns) => columns,
            Err(error) => {
                let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains(kind));
                assert!(!expected, "DML_EXPECT names {kind}, and there is no device: {error}");
                eprintln!("SKIPPED {test}: no {kind} device: {error}");
                return None;
            }
        };
        let frames = frames();
        let run = |column: &Column| {
            let run = columns.run(*column, &frames).unwrap();
            expect_found(&run, &frames);
            assert_eq!(run.operations.kernel, column.expected_kernels(&run), "{}", column.name());
            (*column, run)
        };
        let runs: Vec<_> = Column::ALL.iter().map(run).collect();
        let host = on_host(&frames, Order::OneByOne);
        for (column, run) in &runs {
            assert!(most_apart(run, &host) < 1e-4, "{}: {}", column.name(), most_apart(run, &host));
        }
        Some(runs)
    }

    #[test]
    fn opencl_makes_the_calls_of_the_formulas() {
        let Some(runs) = columns("opencl_makes_the_calls_of_the_formulas", "opencl:0") else { return };
        for (column, run) in runs {
            let (name, calls) = (column.name(), run.operations);
            let expected = column.expected_transfers(&run);
            match column.mode {
                Mode::Hand => {
                    assert_eq!((calls.read, calls.write), (run.iterations().into(), FRAMES.into()));
                }
                Mode::Noopt => assert_eq!((calls.map, calls.copy), (expected, expected), "{name}"),
                // The host needs no mapping for the first frame of each of the two sets.
                _ => assert_eq!((calls.map, calls.copy), (expected - 2, 0), "{name}"),
            }
        }
    }

    #[test]
    fn cuda_makes_the_calls_of_the_formulas() {
        let Some(runs) = columns("cuda_makes_the_calls_of_the_formulas", "cuda:0") else { return };
        for (column, run) in runs {
            let (name, calls) = (column.name(), run.operations);
            let (frames, expected) = (u64::from(FRAMES), column.expected_transfers(&run));
            let in_place = column.mode == Mode::Opt;
            let write = if in_place { 0 } else { frames };
            let read = if in_place && !column.tracks_on_host { 0 } else { expected - frames };
            assert_eq!((calls.read, calls.write), (read, write), "{name}");
        }
    }
}
