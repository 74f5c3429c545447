//! Steps over strips of several devices equal the same steps on one, and move borders alone.

#![cfg(all(not(dml_loom), feature = "opencl"))]

use dml::Kernel;
use dml::arenas::launch::{self, Call, ComputeError};
use dml::arenas::{Discover, DiscoverOptions};
use dml::core::{Access, Buffer, Platform};
use dml::scheduler::{Argument, Footprint, Iterate, IterateError, Knowledge};
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const ROWS: u64 = 61;
const COLUMNS: u64 = 40;
const ROW_BYTES: u64 = COLUMNS * 8;

/// The mean of an element and its four neighbours; elements at the edge of the grid stay.
const SOURCE: &str = "
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
kernel void jacobi(global const double* from, global double* to, ulong rows, ulong columns, ulong end) {
    size_t x = get_global_id(0), y = get_global_id(1);
    if (y >= end || x >= columns) return;
    size_t i = y * columns + x;
    int is_edge = x == 0 || y == 0 || x == columns - 1 || y == rows - 1;
    to[i] = is_edge ? from[i]
        : (from[i - columns] + from[i - 1] + from[i] + from[i + 1] + from[i + columns]) / 5;
}";

/// As the kernel in OpenCL C.
fn step_on_host(call: &mut Call<'_>) -> Result<(), ComputeError> {
    let items = call.items();
    let columns = COLUMNS as usize;
    let [from, to] = call.parts([0, 1])?;
    let first = items.start.saturating_sub(1) as usize;
    let from = from.slice::<f64>()?;
    for (y, to) in (items.start as usize..).zip(to.slice_mut::<f64>()?.chunks_mut(columns)) {
        for (x, to) in to.iter_mut().enumerate() {
            let i = (y - first) * columns + x;
            let is_edge = x == 0 || y == 0 || x == columns - 1 || y == ROWS as usize - 1;
            *to = if is_edge {
                from[i]
            } else {
                (from[i - columns] + from[i - 1] + from[i] + from[i + 1] + from[i + columns]) / 5.0
            };
        }
    }
    Ok(())
}

struct Scene {
    platform: Platform,
    a: Buffer<f64>,
    b: Buffer<f64>,
    jacobi: Kernel,
}

impl Scene {
    /// Returns `None` on a machine without OpenCL, unless it is expected there.
    fn new() -> Option<Self> {
        let options = DiscoverOptions::default().only(["cpu", "opencl:0"]);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        if platform.device("opencl:0").is_err() {
            assert!(std::env::var_os("DML_EXPECT_OPENCL").is_none(), "there is no OpenCL device");
            return None;
        }
        let data: Vec<f64> = (0..ROWS * COLUMNS).map(|i| ((i * i * 7919) % 1013) as f64 / 7.0).collect();
        let a = platform.buffer_from(data).unwrap();
        let b = platform.buffer::<f64>(ROWS * COLUMNS).zeroed().build().unwrap();
        let host = launch::host_by_team(&platform, step_on_host).unwrap();
        // SAFETY: it writes the elements of its rows, and reads these and their neighbours.
        let opencl = unsafe { launch::opencl(&platform, SOURCE, "jacobi", "") }.unwrap();
        let jacobi = Kernel::new("jacobi", 1)
            .rows(COLUMNS, 8)
            .argument(Argument::part(&a, Access::ReadOnly, Footprint::neighbourhood(ROW_BYTES, 1)))
            .argument(Argument::part(&b, Access::WriteInvalidate, Footprint::one_to_one(ROW_BYTES)))
            .scalar(ROWS)
            .scalar(COLUMNS)
            .end()
            .launchers(host)
            .unwrap()
            .launchers(opencl)
            .unwrap();
        Some(Self { platform, a, b, jacobi })
    }

    fn iterate(&self) -> Iterate<'_> {
        Iterate::new(&self.platform).step(&self.jacobi, ROWS).swap(&self.a, &self.b)
    }

    fn on(&self, devices: &[&str]) -> Iterate<'_> {
        self.iterate().devices(devices.iter().map(|name| self.platform.device(name).unwrap()))
    }

    /// Returns the kernel with one on the host that fails at the calls that `fails` selects, from 0, when it
    /// has written its part.
    fn failing(&self, fails: impl Fn(u64) -> bool + Send + Sync + 'static) -> Kernel {
        let calls = AtomicU64::new(0);
        let host = launch::host_by_team(&self.platform, move |call| {
            step_on_host(call)?;
            if fails(calls.fetch_add(1, Relaxed)) { Err("the plate is broken".into()) } else { Ok(()) }
        });
        self.jacobi.clone().launchers(host.unwrap()).unwrap()
    }

    /// Checks the bytes of so many steps. Those of the last one move with it, or with the next run.
    fn assert_moved(&self, steps: u64, border_bytes: u64) {
        let moved = self.moved();
        assert!(moved.abs_diff(steps * border_bytes) <= border_bytes, "{moved}");
    }

    /// Returns the bytes that were copied since the counters were reset.
    fn moved(&self) -> u64 {
        self.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum()
    }
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The steps in plain Rust.
fn expected(steps: u64) -> Vec<u64> {
    let (rows, columns) = (ROWS as usize, COLUMNS as usize);
    let mut from: Vec<f64> = (0..ROWS * COLUMNS).map(|i| ((i * i * 7919) % 1013) as f64 / 7.0).collect();
    for _ in 0..steps {
        let mut to = from.clone();
        for y in 1..rows - 1 {
            for x in 1..columns - 1 {
                let i = y * columns + x;
                to[i] = (from[i - columns] + from[i - 1] + from[i] + from[i + 1] + from[i + columns]) / 5.0;
            }
        }
        from = to;
    }
    bits(&from)
}

#[test]
fn steps_on_any_devices_equal_those_on_one() {
    for (devices, shares) in [
        (&["cpu"][..], &[1.0][..]),
        (&["opencl:0"], &[1.0]),
        (&["cpu", "opencl:0"], &[1.0, 1.0]),
        (&["opencl:0", "cpu"], &[3.0, 0.4]),
        (&["opencl:0", "cpu"], &[1.0, 0.001]),
        (&["cpu", "opencl:0"], &[58.0, 3.0]),
        (&["cpu", "opencl:0"], &[0.0, 3.0]),
    ] {
        for steps in [0, 1, 2, 33] {
            let Some(scene) = Scene::new() else { return };
            let iterated = scene.on(devices).shares(shares.iter().copied()).run(steps).unwrap();
            assert_eq!((iterated.steps, iterated.is_stopped), (steps, false));
            let covered: u64 = iterated.strips.iter().map(|strip| strip.items.end - strip.items.start).sum();
            assert_eq!(covered, ROWS);
            let result = iterated.buffer(&scene.a);
            assert_eq!(bits(&result.read().unwrap()), expected(steps), "{steps} steps on {devices:?}");
        }
    }
}

/// Strips that are corrected move the rows that change hands, and nothing else changes.
#[test]
fn corrected_strips_equal_one_device() {
    let Some(scene) = Scene::new() else { return };
    let iterated = scene.iterate().run(20).unwrap();
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(20), "{:?}", iterated.strips);
}

/// Strips that a run has found are those of the next one, which measures none.
#[test]
fn strips_that_are_known_are_not_corrected() {
    let Some(scene) = Scene::new() else { return };
    let knowledge = Knowledge::new();
    let first = scene.iterate().knowledge(&knowledge).run(40).unwrap();
    let descs = || first.strips.iter().map(|strip| scene.platform.device_desc(strip.device));
    // Where the devices never ended together, nothing is kept.
    let kept = knowledge.strips("jacobi", ROWS, descs());
    assert!(kept.is_none() || kept == Some(first.shares.clone()), "{kept:?}, {first:?}");
    assert!(first.measured.iter().all(|measured| measured.durations.len() == 2), "{first:?}");
    knowledge.keep_strips("jacobi", ROWS, descs(), &[3.0, 1.0]);
    let next = scene.iterate().knowledge(&knowledge).run(40).unwrap();
    assert_eq!((next.measured.len(), next.corrections, &next.shares[..]), (0, 0, &[3.0, 1.0][..]));
    // What is asked for counts first.
    let asked = scene.iterate().knowledge(&knowledge).shares([1.0, 1.0]).run(4).unwrap();
    assert_eq!(asked.shares, [1.0, 1.0]);
}

/// Two devices exchange one row each way and step.
#[test]
fn only_borders_move() {
    let Some(scene) = Scene::new() else { return };
    scene.iterate().shares([1.0, 1.0]).run(4).unwrap();
    scene.platform.counters().reset();
    scene.iterate().shares([1.0, 1.0]).run(10).unwrap();
    scene.assert_moved(10, 2 * ROW_BYTES);
    // One device has no border.
    scene.on(&["opencl:0"]).run(2).unwrap();
    scene.platform.counters().reset();
    scene.on(&["opencl:0"]).run(10).unwrap();
    assert_eq!(scene.moved(), 0);
}

/// Strips of columns: a border is an element of each row.
#[test]
fn a_grid_is_cut_along_its_other_axis() {
    let Some(scene) = Scene::new() else { return };
    let host = launch::host_by_team(&scene.platform, |call| {
        let (items, columns) = (call.items(), COLUMNS);
        let [from, to] = call.parts([0, 1])?;
        let (from, mut to) = (from.elements::<f64>()?, to.elements_mut::<f64>()?);
        let at = |i: u64| from.get(i).copied().ok_or("it has no such element");
        for i in (0..ROWS).flat_map(|y| items.clone().map(move |x| y * columns + x)) {
            let (x, y) = (i % columns, i / columns);
            let is_edge = x == 0 || y == 0 || x == columns - 1 || y == ROWS - 1;
            let new = if is_edge {
                at(i)?
            } else {
                (at(i - columns)? + at(i - 1)? + at(i)? + at(i + 1)? + at(i + columns)?) / 5.0
            };
            *to.get_mut(i).ok_or("it has no such element")? = new;
        }
        Ok(())
    });
    let source = SOURCE.replace("y >= end || x >= columns", "x >= end || y >= rows");
    // SAFETY: it writes the elements of its columns, and reads these and their neighbours.
    let opencl = unsafe { launch::opencl(&scene.platform, &source, "jacobi", "") }.unwrap();
    let column = |margin| Footprint::layers(8, ROW_BYTES, margin);
    let kernel = Kernel::new("columns", 1)
        .rows(ROWS, 8)
        .along(0)
        .unwrap()
        .argument(Argument::part(&scene.a, Access::ReadOnly, column(1)))
        .argument(Argument::part(&scene.b, Access::WriteInvalidate, column(0)))
        .scalar(ROWS)
        .scalar(COLUMNS)
        .end()
        .launchers(host.unwrap())
        .unwrap()
        .launchers(opencl)
        .unwrap();
    let iterate =
        || Iterate::new(&scene.platform).step(&kernel, COLUMNS).swap(&scene.a, &scene.b).shares([1.0, 2.0]);
    let iterated = iterate().run(20).unwrap();
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(20));
    iterate().run(2).unwrap();
    scene.platform.counters().reset();
    iterate().run(10).unwrap();
    scene.assert_moved(10, 2 * ROWS * 8);
}

#[test]
fn a_callback_sees_complete_steps_and_stops_them() {
    let Some(scene) = Scene::new() else { return };
    let mut seen = Vec::new();
    let iterated = scene.iterate().every(3, |stepped| {
        assert_eq!(bits(&stepped.buffer(&scene.a).read()?), expected(stepped.steps));
        seen.push(stepped.steps);
        Ok(if stepped.steps == 9 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    let iterated = iterated.run(100).unwrap();
    assert_eq!((iterated.steps, iterated.is_stopped), (9, true));
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(9));
    assert_eq!(seen, [3, 6, 9]);
    let failed = scene.iterate().every(2, |_| Err("the picture cannot be written".into())).run(10);
    assert_eq!(failed.unwrap_err().to_string(), "after step 2: the picture cannot be written");
}

#[test]
fn what_cannot_be_iterated_is_named() {
    let Some(scene) = Scene::new() else { return };
    let none = Iterate::new(&scene.platform).run(1).unwrap_err();
    assert!(matches!(none, IterateError::NoKernel), "{none}");
    let shares = scene.iterate().shares([1.0]).run(1).unwrap_err();
    assert!(shares.to_string().contains("[1.0] are not one number for each of 2"), "{shares}");
    for none in [[0.0, 0.0], [1.0, -1.0], [1.0, f64::NAN]] {
        let refused = scene.iterate().shares(none).run(1).unwrap_err();
        assert!(matches!(refused, IterateError::Shares { devices: 2, .. }), "{refused}");
    }
    let cpu = scene.platform.device("cpu").unwrap();
    let twice = scene.iterate().devices([cpu, cpu]).run(1).unwrap_err();
    assert!(twice.to_string().contains("cpu is named twice"), "{twice}");
    let sum = scene.platform.buffer::<f64>(1).zeroed().build().unwrap();
    let reduced = scene.jacobi.clone().argument(Argument::reduction(&sum, 0.0, |one, other| one + other));
    let reduced = Iterate::new(&scene.platform).step(&reduced, ROWS).run(1).unwrap_err();
    assert!(reduced.to_string().contains("argument 5 is a reduction"), "{reduced}");
    for (one, other) in [(&scene.a, &scene.a), (&scene.b, &scene.a)] {
        let ambiguous = scene.iterate().swap(one, other).run(1).unwrap_err();
        assert!(ambiguous.to_string().contains("cannot change places with itself"), "{ambiguous}");
    }
    let long = Iterate::new(&scene.platform).step(&scene.jacobi, ROWS + 1).run(1).unwrap_err();
    assert!(long.to_string().contains("has bytes for 61 items, not for 62"), "{long}");
}

/// A step that fails ends the run with the kernel's error, and leaves nothing in flight.
#[test]
fn a_failed_step_is_named_and_later_ones_are_not_made() {
    let Some(scene) = Scene::new() else { return };
    let calls = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let counted = calls.clone();
    let fails = launch::host_by_team(&scene.platform, move |call| {
        call.part(1)?.slice_mut::<f64>()?.fill(0.0);
        match counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed) {
            9 => Err("the plate is broken".into()),
            _ => Ok(()),
        }
    });
    let kernel = scene.jacobi.clone().launchers(fails.unwrap()).unwrap();
    let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b);
    let error = iterate.shares([1.0, 1.0]).run(1000).unwrap_err();
    let IterateError::Failed { step, .. } = error else { panic!("{error}") };
    assert!((5..20).contains(&step), "the kernels of a step are two on this device: {error}");
    assert!(
        error.to_string().contains("jacobi") && error.to_string().contains("the plate is broken"),
        "{error}"
    );
    assert!(scene.platform.leaked_grants().is_empty());
    let broken = [scene.a.read().is_err(), scene.b.read().is_err()];
    assert!(broken.contains(&true), "what was not computed is poisoned");
}

/// Whatever device fails, in whatever step: the others make the steps since the checkpoint again.
#[test]
fn the_others_repeat_the_steps_since_the_checkpoint() {
    for (number, (fatal, every)) in [(1, 5), (2, 1), (9, 5), (30, 7), (55, 1000)].into_iter().enumerate() {
        let Some(scene) = Scene::new() else { return };
        let cpu = scene.platform.device("cpu").unwrap();
        let kernel = scene.failing(move |call| call + 1 >= fatal);
        let mut seen = Vec::new();
        let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b);
        let devices = [["cpu", "opencl:0"], ["opencl:0", "cpu"]][number % 2];
        let iterate = iterate.devices(devices.map(|name| scene.platform.device(name).unwrap()));
        let iterate = iterate.shares([1.0, 1.0]).checkpoint(every).every(10, |stepped| {
            assert_eq!(bits(&stepped.buffer(&scene.a).read()?), expected(stepped.steps));
            seen.push(stepped.steps);
            Ok(ControlFlow::Continue(()))
        });
        let iterated = iterate.run(33).unwrap();
        assert_eq!((iterated.steps, &iterated.failed[..]), (33, &[cpu][..]), "call {fatal} failed");
        assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(33), "call {fatal} failed");
        let strip = iterated.strips.iter().find(|strip| strip.device == cpu).unwrap();
        assert!(strip.items.is_empty(), "{strip:?}");
        // Once more after the failure, from the checkpoint on.
        let last = seen.iter().rposition(|steps| *steps == seen[0].min(10)).unwrap_or(0);
        assert!(seen.ends_with(&[20, 30]) && seen[last..].is_sorted(), "{seen:?}");
        assert!(scene.platform.leaked_grants().is_empty());
    }
}

/// What a lost device had is computed again by the one that has failed to read it.
#[test]
fn a_lost_device_alone_is_left_out() {
    let Some(scene) = Scene::new() else { return };
    let opencl = scene.platform.device("opencl:0").unwrap();
    let mut is_lost = false;
    let iterate = scene.iterate().shares([1.0, 1.0]).checkpoint(4).every(10, |stepped| {
        if stepped.steps == 10 && !is_lost {
            is_lost = true;
            scene.platform.device_lost(opencl);
        }
        Ok(ControlFlow::Continue(()))
    });
    let iterated = iterate.run(33).unwrap();
    assert_eq!((iterated.steps, &iterated.failed[..]), (33, &[opencl][..]));
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(33));
    assert_eq!(iterated.shares, [1.0, 0.0]);
}

/// A device that is left out takes over from one that fails.
#[test]
fn a_device_that_was_left_out_takes_over() {
    let Some(scene) = Scene::new() else { return };
    let kernel = scene.failing(move |call| call == 13);
    let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b).checkpoint(5);
    let devices = ["cpu", "opencl:0"].map(|name| scene.platform.device(name).unwrap());
    let iterated = iterate.devices(devices).shares([1.0, 0.0]).run(33).unwrap();
    assert_eq!(
        (iterated.steps, &iterated.failed[..], &iterated.shares[..]),
        (33, &devices[..1], &[0.0, 1.0][..])
    );
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(33));
}

/// A callback may use the layer, and its panic leaves nothing in flight.
#[test]
fn a_callback_calls_back_and_panics() {
    let Some(scene) = Scene::new() else { return };
    let [c, d] =
        [&scene.a, &scene.b].map(|grid| scene.platform.buffer_from(grid.read().unwrap().to_vec()).unwrap());
    let mut inner = scene.jacobi.clone();
    inner.set_buffer(0, &c).unwrap();
    inner.set_buffer(1, &d).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let iterate = scene.iterate().checkpoint(2).every(5, |stepped| {
            let steps = Iterate::new(&scene.platform).step(&inner, ROWS).swap(&c, &d).run(3)?;
            assert_eq!(bits(&steps.buffer(&c).read()?), expected(3));
            assert_eq!(bits(&stepped.buffer(&scene.a).read()?), expected(5));
            panic!("the screen is gone");
        });
        iterate.run(100)
    }));
    assert!(panicked.is_err());
    assert!(scene.platform.leaked_grants().is_empty());
    // The fifth step's result is in the other grid.
    assert_eq!(bits(&scene.b.read().unwrap()), expected(5));
    scene.iterate().run(4).unwrap();
}

/// The error of a callback ends the run, also where a device is lost at the same time.
#[test]
fn the_error_of_a_callback_is_no_failure_of_a_device() {
    let Some(scene) = Scene::new() else { return };
    let opencl = scene.platform.device("opencl:0").unwrap();
    let mut calls = 0;
    let iterate = scene.iterate().shares([1.0, 1.0]).checkpoint(4).every(10, |_| {
        calls += 1;
        scene.platform.device_lost(opencl);
        Err("the disk is full".into())
    });
    assert_eq!(iterate.run(33).unwrap_err().to_string(), "after step 10: the disk is full");
    assert_eq!(calls, 1);
}

/// A failure that is found when the callback is due does not end the callbacks.
#[test]
fn callbacks_go_on_after_a_recovery() {
    let Some(scene) = Scene::new() else { return };
    let calls = AtomicU64::new(0);
    let fails = launch::host_by_team(&scene.platform, move |call| {
        std::thread::sleep(std::time::Duration::from_millis(1));
        call.part(0)?.slice_mut::<f64>()?.iter_mut().for_each(|value| *value += 1.0);
        if calls.fetch_add(1, Relaxed) == 12 { Err("the plate is broken".into()) } else { Ok(()) }
    });
    let source = "
        #pragma OPENCL EXTENSION cl_khr_fp64 : enable
        kernel void grow(global double* grid, ulong end) {
            if (get_global_id(0) < end) grid[get_global_id(0)] += 1;
        }";
    // SAFETY: it reads and writes the elements of its items.
    let opencl = unsafe { launch::opencl(&scene.platform, source, "grow", "") }.unwrap();
    let kernel = Kernel::new("grow", 8).read_write(&scene.a).end();
    let kernel = kernel.launchers(fails.unwrap()).unwrap().launchers(opencl).unwrap();
    let first = scene.a.read().unwrap().to_vec();
    let mut seen = Vec::new();
    let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS * COLUMNS).checkpoint(10);
    let iterate = iterate.shares([1.0, 1.0]).every(5, |stepped| {
        seen.push(stepped.steps);
        Ok(ControlFlow::Continue(()))
    });
    iterate.run(40).unwrap();
    assert_eq!(seen, [5, 10, 15, 20, 25, 30, 35, 40]);
    let grown: Vec<f64> = first.iter().map(|value| (0..40).fold(*value, |value, _| value + 1.0)).collect();
    assert_eq!(bits(&scene.a.read().unwrap()), bits(&grown));
}

/// What a kernel after some steps adds up belongs to the state.
#[test]
fn a_checkpoint_has_what_is_added_up_after_some_steps() {
    for (every, fatal) in [(10, 13), (25, 40), (25, 51), (1000, 40), (1, 29)] {
        let Some(scene) = Scene::new() else { return };
        let total = scene.platform.buffer::<f64>(ROWS * COLUMNS).zeroed().build().unwrap();
        let kernel = scene.failing(move |call| call == fatal);
        let host = launch::host_by_team(&scene.platform, |call| {
            let [from, total] = call.parts([0, 1])?;
            let add = total.slice_mut::<f64>()?.iter_mut().zip(from.slice::<f64>()?);
            add.for_each(|(total, value)| *total += value);
            Ok(())
        });
        let source = "
            #pragma OPENCL EXTENSION cl_khr_fp64 : enable
            kernel void add(global const double* from, global double* total, ulong columns, ulong end) {
                size_t x = get_global_id(0), y = get_global_id(1);
                if (y < end && x < columns) total[y * columns + x] += from[y * columns + x];
            }";
        // SAFETY: it reads and writes the elements of its rows.
        let opencl = unsafe { launch::opencl(&scene.platform, source, "add", "") }.unwrap();
        let row = || Footprint::one_to_one(ROW_BYTES);
        let add = Kernel::new("add", 1)
            .rows(COLUMNS, 8)
            .argument(Argument::part(&scene.a, Access::ReadOnly, row()))
            .argument(Argument::part(&total, Access::ReadWrite, row()))
            .scalar(COLUMNS)
            .end()
            .launchers(host.unwrap())
            .unwrap()
            .launchers(opencl)
            .unwrap();
        let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b);
        let iterate = iterate.step_every(10, &add, ROWS).checkpoint(every).shares([1.0, 1.0]);
        let iterated = iterate.run(60).unwrap();
        assert_eq!(iterated.failed.len(), 1, "call {fatal} failed");
        let mut sum = vec![0.0; (ROWS * COLUMNS) as usize];
        for steps in [10, 20, 30, 40, 50, 60] {
            sum.iter_mut().zip(expected(steps)).for_each(|(sum, value)| *sum += f64::from_bits(value));
        }
        assert_eq!(bits(&total.read().unwrap()), bits(&sum), "checkpoints of {every}, call {fatal} failed");
    }
}

#[test]
fn with_no_device_left_the_failure_is_returned() {
    let Some(scene) = Scene::new() else { return };
    let fails = launch::host_by_team(&scene.platform, |_| Err("the plate is broken".into())).unwrap();
    let kernel = scene.jacobi.clone().launchers(fails).unwrap();
    let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b);
    let error = iterate.devices([scene.platform.device("cpu").unwrap()]).checkpoint(5).run(33).unwrap_err();
    assert!(error.to_string().contains("the plate is broken"), "{error}");
}

/// A kernel after every third step sees complete steps, and its reductions are whole each time.
#[test]
fn a_residual_is_reduced_over_all_devices() {
    let Some(scene) = Scene::new() else { return };
    let change = scene.platform.buffer::<f64>(1).zeroed().build().unwrap();
    let host = launch::host_by_team(&scene.platform, |call| {
        let [new, old, change] = call.parts([0, 1, 2])?;
        let changes = new.slice::<f64>()?.iter().zip(old.slice::<f64>()?).map(|(new, old)| (new - old).abs());
        let most = &mut change.slice_mut::<f64>()?[0];
        *most = changes.fold(*most, f64::max);
        Ok(())
    });
    let source = "
        #pragma OPENCL EXTENSION cl_khr_fp64 : enable
        kernel void change(global const double* new_, global const double* old, global double* most,
                           ulong columns, ulong end) {
            for (size_t y = get_global_offset(0); y < end; y++)
                for (size_t x = 0; x < columns; x++)
                    *most = fmax(*most, fabs(new_[y * columns + x] - old[y * columns + x]));
        }";
    // SAFETY: one work-item per part reads the part's rows.
    let opencl = unsafe { launch::opencl(&scene.platform, source, "change", "") }.unwrap();
    let row = || Footprint::one_to_one(ROW_BYTES);
    let residual = Kernel::new("change", ROWS)
        .argument(Argument::part(&scene.a, Access::ReadOnly, row()))
        .argument(Argument::part(&scene.b, Access::ReadOnly, row()))
        .argument(Argument::reduction(&change, 0.0, f64::max))
        .scalar(COLUMNS)
        .end()
        .launchers(host.unwrap())
        .unwrap()
        .launchers(opencl)
        .unwrap();
    let most = |steps| {
        let values = |steps| expected(steps).into_iter().map(f64::from_bits);
        values(steps).zip(values(steps - 1)).map(|(new, old)| (new - old).abs()).fold(0.0, f64::max)
    };
    let mut seen = 0;
    let iterate = scene.iterate().shares([1.0, 1.0]).step_every(3, &residual, ROWS).every(3, |stepped| {
        seen += 1;
        assert_eq!(change.read()?[0], most(stepped.steps), "after step {}", stepped.steps);
        Ok(if stepped.steps == 15 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
    });
    assert_eq!(iterate.run(100).unwrap().steps, 15);
    assert_eq!(seen, 5);
}

#[test]
fn a_flag_stops_the_steps() {
    let Some(scene) = Scene::new() else { return };
    let flag = AtomicBool::new(false);
    let iterate = scene.iterate().stop(&flag).every(10, |stepped| {
        flag.store(stepped.steps == 20, Relaxed);
        Ok(ControlFlow::Continue(()))
    });
    let iterated = iterate.run(1_000_000).unwrap();
    assert_eq!((iterated.steps, iterated.is_stopped), (20, true));
    let before = scene.iterate().stop(&flag).run(5).unwrap();
    assert_eq!((before.steps, before.is_stopped), (0, true), "it is set");
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(20));
}

/// Also where the steps are measured.
#[test]
fn no_step_is_made_after_the_one_that_stops() {
    for last in 1..12 {
        let Some(scene) = Scene::new() else { return };
        let iterate = scene.iterate().every(1, |stepped| {
            assert!(stepped.steps <= last, "the callback stopped them at {last}");
            Ok(if stepped.steps == last { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        });
        assert_eq!(iterate.run(100).unwrap().steps, last);
        let scene = Scene::new().expect("there was one");
        assert_eq!(scene.iterate().run(last).unwrap().steps, last);
    }
}

/// The trials of a run with devices that do not pay change nothing but the strips.
#[test]
fn a_device_that_does_not_pay_is_left_out() {
    let Some(scene) = Scene::new() else { return };
    let cpu = scene.platform.device("cpu").unwrap();
    let slow = launch::host_by_team(&scene.platform, |call| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        step_on_host(call)
    });
    let kernel = scene.jacobi.clone().launchers(slow.unwrap()).unwrap();
    let iterate = Iterate::new(&scene.platform).step(&kernel, ROWS).swap(&scene.a, &scene.b);
    let iterated = iterate.run(1001).unwrap();
    assert_eq!(bits(&iterated.buffer(&scene.a).read().unwrap()), expected(1001));
    let strip = iterated.strips.iter().find(|strip| strip.device == cpu).unwrap();
    assert!(strip.items.is_empty(), "{iterated:?}");
}
