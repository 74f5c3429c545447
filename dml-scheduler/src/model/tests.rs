//! Tests of learning from runs, and of the file.

use super::store::path_of;
use super::*;
use crate::base::package::{Package, UnitId};
use dml_core::DeviceKind;

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

fn member(device: DeviceId, bytes: f64) -> Member {
    let name = if device == CPU { "cpu*2" } else { "gpu:0*4" };
    Member {
        device,
        name: name.to_owned(),
        bytes: [0.0, bytes],
        per_byte: 1e-9,
        width: Width::ONE,
        is_host: device == CPU,
        has_launched: false,
    }
}

/// A package of a device, with the times of hand-out, begin, end of computing and end, in microseconds.
fn record(
    device: DeviceId,
    items: std::ops::Range<u64>,
    [start, begun, computed, end]: [u64; 4],
) -> PackageRecord {
    let time = Duration::from_micros;
    PackageRecord {
        package: Package::new(items, UnitId(usize::from(device.0)), start),
        device,
        start: time(start),
        begun: time(begun),
        computed: time(computed),
        noticed_late: false,
        end: time(end),
    }
}

fn ran<'a>(packages: &'a [PackageRecord], items: u64) -> Ran<'a> {
    let duration = packages.iter().map(|record| record.end).max().unwrap_or_default();
    Ran {
        kernel: "kernel",
        items,
        duration,
        packages,
        called_up: &[],
        chosen: &[],
        is_alone: true,
        without_exploring: None,
    }
}

fn us(interval: Option<Interval>) -> f64 {
    (interval.expect("the time is known").expected * 1e9).round() / 1e3
}

/// In a run that other devices may join, calling up their threads takes time between packages: 900 us here.
#[test]
fn a_run_that_others_may_join_says_nothing_of_a_run_alone() {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..10, [0, 50, 150, 160]), record(CPU, 10..100, [1050, 1050, 1950, 1970])];
    let run = Ran { is_alone: false, ..ran(&packages, 100) };
    knowledge.learn(&[member(CPU, 0.0)], &run);
    knowledge.with("kernel", |model| {
        let cpu = model.device("cpu*2").unwrap();
        let expected = us(cpu.alone(100.0, 1.0, 0.0, 0.0, Width::ONE));
        assert!((expected - 1070.0).abs() < 5.0, "{expected}");
        assert_eq!(cpu.runs_alone(100.0), 0);
    });
}

/// 100 items of 10 us each, 50 us before them and 20 us after.
#[test]
fn a_run_alone_teaches_computing_and_the_rest() {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..100, [0, 50, 1050, 1070])];
    knowledge.learn(&[member(CPU, 0.0)], &ran(&packages, 100));
    knowledge.with("kernel", |model| {
        let cpu = model.device("cpu*2").unwrap();
        assert!(cpu.is_known() && !cpu.is_measured(), "the first package may include waking threads");
    });
    knowledge.learn(&[member(CPU, 0.0)], &ran(&packages, 100));
    knowledge.with("kernel", |model| {
        let cpu = model.device("cpu*2").unwrap();
        assert_eq!(us(cpu.computing(100.0, 1.0, Width::ONE)), 1000.0);
        assert_eq!(us(cpu.computing(1000.0, 1.0, Width::ONE)), 9955.0, "a launch and ten times the items");
        assert_eq!(us(cpu.moving(0.0, 0.0)), 70.0);
        assert_eq!(us(cpu.alone(100.0, 1.0, 0.0, 0.0, Width::ONE)), 1070.0);
        assert_eq!(us(cpu.alone(1000.0, 1.0, 0.0, 0.0, Width::ONE)), 10_025.0);
    });
}

/// A million bytes took 1 ms. Bytes in place take no time, and twice as many bytes take twice as long.
#[test]
fn bytes_that_are_there_take_no_time() {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..100, [0, 1000, 2000, 2000])];
    knowledge.learn(&[member(CPU, 1e6)], &ran(&packages, 100));
    knowledge.with("kernel", |model| {
        let cpu = model.device("cpu*2").unwrap();
        let alone = |bytes| us(cpu.alone(100.0, 1.0, bytes, 1e-9, Width::ONE));
        assert_eq!((alone(1e6), alone(2e6)), (2000.0, 3000.0));
        assert!(alone(0.0) < 1010.0, "{}", alone(0.0));
    });
}

/// A GPU's driver loads and compiles a kernel at its first launch; the host has no such step.
#[test]
fn the_first_package_of_a_process_says_little_of_later_ones() {
    let knowledge = Knowledge::new();
    let run = |took: u64| [record(GPU, 0..100, [0, 10, 10 + took, 20 + took])];
    knowledge.learn(&[member(GPU, 0.0)], &ran(&run(50_000), 100));
    let state = || {
        knowledge.with("kernel", |model| {
            let gpu = model.device("gpu:0*4").unwrap();
            (gpu.is_known(), gpu.is_measured(), us(gpu.computing(100.0, 1.0, Width::ONE)))
        })
    };
    assert_eq!(state(), (true, false, 50_000.0));
    knowledge.learn(&[member(GPU, 0.0)], &ran(&run(1000), 100));
    assert_eq!(state(), (true, true, 1000.0));
}

/// The unit waited for another one between its packages; this time counts as neither computing nor moving.
#[test]
fn beside_others_only_the_ends_count_as_beginning_and_moving() {
    let knowledge = Knowledge::new();
    let packages = [
        record(CPU, 0..100, [0, 10, 1010, 1010]),
        record(CPU, 100..200, [5000, 5010, 6010, 6030]),
        record(GPU, 200..400, [0, 100, 6000, 6000]),
    ];
    knowledge.learn(&[member(CPU, 0.0), member(GPU, 0.0)], &ran(&packages, 400));
    knowledge.with("kernel", |model| {
        let cpu = model.device("cpu*2").unwrap();
        assert_eq!(us(cpu.moving(0.0, 0.0)), 30.0);
        assert_eq!(us(cpu.computing(100.0, 1.0, Width::ONE)), 1000.0);
        // It spans 6,030 us, and not the 2,030 us in which the unit was busy.
        let slowdown = cpu.slowdown("gpu:0*4", 200.0).unwrap();
        assert!(slowdown > 2.0, "{slowdown}");
    });
}

#[test]
fn a_device_that_got_nothing_cannot_help() {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..100, [0, 10, 1010, 1010])];
    let run = Ran { chosen: &[CPU, GPU], ..ran(&packages, 100) };
    knowledge.learn(&[member(CPU, 0.0), member(GPU, 0.0)], &run);
    let slowdown = knowledge.with("kernel", |model| model.device("gpu:0*4").unwrap().slowdown("cpu*2", 50.0));
    assert_eq!(slowdown, Some(MOST_SLOWDOWN));
}

/// A run of 1 ms adds a tenth of its time to the credit. An exploring run that took twice as long costs the
/// difference.
#[test]
fn exploring_costs_a_tenth_of_all_runs() {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..100, [0, 0, 1000, 1000])];
    let credit = || knowledge.with("kernel", |model| (model.credit * 1e6).round());
    let new = credit();
    knowledge.learn(&[member(CPU, 0.0)], &ran(&packages, 100));
    assert_eq!(credit() - new, 100.0);
    let run = Ran { without_exploring: Some(500e-6), ..ran(&packages, 100) };
    knowledge.learn(&[member(CPU, 0.0)], &run);
    assert_eq!(credit() - new, 100.0 + 100.0 - 500.0);
}

fn taught() -> Knowledge {
    let knowledge = Knowledge::new();
    let packages = [record(CPU, 0..100, [0, 50, 1050, 1070]), record(GPU, 100..300, [0, 100, 900, 1000])];
    (0..3).for_each(|_| knowledge.learn(&[member(CPU, 0.0), member(GPU, 1e6)], &ran(&packages, 300)));
    knowledge
}

#[test]
fn what_is_known_is_listed_and_forgotten() {
    let knowledge = taught();
    assert_eq!(knowledge.kernels(), [("kernel".to_owned(), vec!["cpu*2".to_owned(), "gpu:0*4".to_owned()])]);
    let copy = knowledge.detached();
    assert!(knowledge.forget("kernel") && !knowledge.forget("kernel"));
    assert_eq!((knowledge.kernels().len(), copy.kernels().len()), (0, 1));
    copy.clear();
    assert_eq!(copy.kernels().len(), 0);
}

#[test]
fn a_file_is_read_and_saved_when_the_last_clone_goes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("below").join("knowledge.json");
    let kept = Knowledge::of_file(&file);
    assert!(kept.ignored().is_none() && kept.file() == Some(&*file));
    kept.0.book.lock().clone_from(&taught().0.book.lock());
    let clone = kept.clone();
    drop(kept);
    assert!(!file.exists(), "a clone still holds it");
    drop(clone);
    let again = Knowledge::of_file(&file);
    assert!(again.ignored().is_none(), "{:?}", again.ignored());
    let seconds = |known: &Knowledge| {
        known.with("kernel", |model| model.device("gpu:0*4").unwrap().computing(200.0, 1.0, Width::ONE))
    };
    assert_eq!(seconds(&again), seconds(&taught()));
    let written = std::fs::metadata(&file).unwrap().modified().unwrap();
    drop(again);
    assert_eq!(std::fs::metadata(&file).unwrap().modified().unwrap(), written, "nothing changed");
    // An unchanged book is not saved again: another process may have written the file meanwhile.
    let kept = Knowledge::of_file(&file);
    kept.clear();
    kept.save().unwrap();
    std::fs::remove_file(&file).unwrap();
    kept.save().unwrap();
    drop(kept);
    assert!(!file.exists());
}

/// Strips are those of a kernel, a number of items and a set of devices, in any order of these.
#[test]
fn strips_are_kept_by_items_and_devices() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("knowledge.json");
    let [cpu, gpu] = [("cpu", DeviceKind::Cpu), ("gpu:0", DeviceKind::Gpu)]
        .map(|(name, kind)| DeviceDesc::new(name, kind).with_compute_units(4));
    let kept = Knowledge::of_file(&file);
    kept.keep_strips("kernel", 100, [&cpu, &gpu], &[1.0, 3.0]);
    kept.keep_strips("kernel", 200, [&cpu, &gpu], &[0.0, 1.0]);
    for wrong in [&[f64::NAN, 1.0][..], &[-1.0, 1.0], &[0.0, 0.0], &[1.0], &[1.0, f64::INFINITY]] {
        kept.keep_strips("kernel", 100, [&cpu, &gpu], wrong);
    }
    drop(kept);
    let kept = Knowledge::of_file(&file);
    assert!(kept.ignored().is_none(), "{:?}", kept.ignored());
    assert_eq!(kept.strips("kernel", 100, [&gpu, &cpu]), Some(vec![3.0, 1.0]));
    assert_eq!(kept.strips("kernel", 200, [&cpu, &gpu]), Some(vec![0.0, 1.0]));
    assert_eq!(kept.strips("kernel", 101, [&cpu, &gpu]), None);
    assert_eq!(kept.strips("other", 100, [&cpu, &gpu]), None);
    assert_eq!(kept.strips("kernel", 100, [&cpu]), None);
    assert_eq!(kept.strips("kernel", 100, [&cpu, &gpu.clone().with_compute_units(2)]), None);
    assert_eq!(kept.kernels(), [("kernel".to_owned(), vec!["cpu*4".to_owned(), "gpu:0*4".to_owned()])]);
    for items in 1000..2000 {
        kept.keep_strips("kernel", items, [&cpu], &[1.0]);
    }
    assert_eq!(kept.with("kernel", |model| model.strips.len()), MOST_STRIPS);
    drop(kept);
    let text = std::fs::read_to_string(&file).unwrap();
    let wrong = text.replacen("{\"cpu*4\":1.0}", "{\"cpu*4\":-1.0}", 1);
    assert_ne!(text, wrong);
    std::fs::write(&file, wrong).unwrap();
    let told = Knowledge::of_file(&file).ignored().map(ToString::to_string).unwrap_or_default();
    assert!(told.contains("kernel \"kernel\" has invalid strips"), "{told}");
}

/// Nothing in the file is used, the error gives the reason, and the file is replaced.
#[test]
fn a_foreign_outdated_or_corrupt_file_is_ignored_and_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("knowledge.json");
    let good = {
        let kept = Knowledge::of_file(&file);
        kept.0.book.lock().clone_from(&taught().0.book.lock());
        kept.save().unwrap();
        std::fs::read_to_string(&file).unwrap()
    };
    let cases = [
        (good.replace("\"version\":3", "\"version\":2"), "format 2, not 3"),
        (good.replace(" threads of ", " cores of "), "on another machine"),
        (good[..good.len() / 2].to_owned(), "EOF"),
        (good.replace("\"alone\"", "\"alnoe\""), "alnoe"),
        (good.replacen("\"rate\":[", "\"rate\":[-1.0,", 1), "has an invalid time"),
        ("dml knowledge 2\n".to_owned(), "line 1"),
        (String::new(), "EOF"),
    ];
    for (text, why) in cases {
        assert_ne!(text, good, "{why}");
        std::fs::write(&file, &text).unwrap();
        let kept = Knowledge::of_file(&file);
        let told = kept.ignored().map(ToString::to_string).unwrap_or_default();
        assert!(told.contains(why) && told.contains("knowledge.json"), "{told:?} for {why}");
        assert_eq!(kept.kernels().len(), 0);
        drop(kept);
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "nothing was learned");
        let kept = Knowledge::of_file(&file);
        kept.0.book.lock().clone_from(&taught().0.book.lock());
        drop(kept);
        assert!(Knowledge::of_file(&file).ignored().is_none(), "the file is replaced");
    }
    let folder_in_its_place = Knowledge::of_file(folder.path());
    assert!(folder_in_its_place.ignored().unwrap().to_string().contains("not a regular file"));
    folder_in_its_place.0.book.lock().clone_from(&taught().0.book.lock());
    assert!(folder_in_its_place.save().is_err());
}

#[test]
fn a_machine_has_one_file() {
    let [one, other] = ["2 threads of a", "4 threads of a"].map(path_of);
    assert_ne!(one, other);
    assert_eq!(one, path_of("2 threads of a"));
}
