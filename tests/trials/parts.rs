//! Trials in several parts: each is the run's when it is home, and there are more while nobody else comes to anything.

use crate::{Does, Home, ITEMS, OnHost, Scene, in_order, platform, scene_on};
use dml::core::{DeviceKind, LinkSpeed};
use dml::prelude::*;
use dml::scheduler::{PackageRecord, RunError};
use dml_verify::watched;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// So slow that a trial is of a third of the items, whose results take as long to travel as those of four parts.
fn some_way() -> LinkSpeed {
    LinkSpeed { bytes_per_s: 10_000_000, ..LinkSpeed::default() }
}

/// While one part is copied, the next one computes. The host computes from the other end.
#[test]
fn a_trial_whose_results_take_long_to_travel_has_parts() {
    for home in [Home::Reached, Home::Apart] {
        let platform = platform(DeviceKind::Gpu, some_way(), None, home);
        let scene = scene_on(platform, Does::Well, |package, cues| {
            while cues.trials.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            if package == 2 {
                cues.may_end.set();
            }
            // All parts are claimed before the host is there, as a rule by far.
            std::thread::sleep(Duration::from_millis(if package == 3 { 100 } else { 0 }));
            Ok(())
        });
        let report = scene.run().unwrap();
        scene.all_is_home();
        scene.check(&report);
        assert_eq!(scene.cues.trials.load(Ordering::SeqCst), 4, "{home:?}");
        assert_eq!(scene.cues.copied.is_set(), home == Home::Apart, "{home:?}");
        // Claimed from the end on, each part by itself.
        let mut taken = scene.packages_of_gpu(&report);
        taken.sort_by_key(|record| std::cmp::Reverse(record.package.end()));
        let lengths: Vec<u64> = taken.iter().take(4).map(|record| record.package.items()).collect();
        assert_eq!(lengths, [283, 320, 320, 320], "{home:?}: {report:?}");
        for record in taken {
            in_order(record, &report);
        }
    }
}

/// The first part has ended when it is launched, and the others do not end.
fn scene_of_one_part() -> Scene {
    let platform = platform(DeviceKind::Gpu, some_way(), None, Home::Reached);
    scene_on(platform, Does::LaterPartsHang, |package, cues| {
        while cues.trials.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        // The first part is home by then, as a rule.
        std::thread::sleep(Duration::from_millis(if package < 3 { 20 } else { 0 }));
        Ok(())
    })
}

/// What is home belongs to the run at once. It waits for no other part, however long that takes.
#[test]
fn nobody_waits_for_later_parts_of_a_trial() {
    assert!((0..20).any(|_| {
        let scene = scene_of_one_part();
        let report = scene.run().unwrap();
        scene.check(&report);
        scene.all_is_home();
        let taken = scene.packages_of_gpu(&report);
        let are_first = |record: &PackageRecord| record.package.range() == (3720..ITEMS);
        assert!(taken.len() <= 1 && taken.iter().all(|record| are_first(record)), "{report:?}");
        scene.let_it_end();
        !taken.is_empty()
    }));
    let scene = scene_of_one_part();
    let run = Coexecutor::new(&scene.platform).cores(2).knowledge(&scene.knowledge);
    let mut running = run.start(&scene.kernel, ITEMS).unwrap();
    let cues = scene.cues.clone();
    watched("a launch", move || cues.launched.wait()).join();
    running.cancel();
    let ended = watched("a cancelled run", move || running.wait()).join();
    assert!(matches!(ended, Err(RunError::Cancelled { .. })), "{ended:?}");
    scene.let_it_end();
}

/// The host does not come to an end of its first package, so nobody would say to the device what it is to do next.
#[test]
fn a_trial_goes_on_while_the_host_comes_to_nothing() {
    // Four times four parts are all items but the host's.
    let sees_all: OnHost = |package, cues| {
        cues.may_end.set();
        while package == 0 && cues.trials.load(Ordering::SeqCst) < 16 {
            std::thread::yield_now();
        }
        Ok(())
    };
    let sees_one_fail: OnHost = |package, cues| {
        cues.may_end.set();
        while package == 0 && cues.trials.load(Ordering::SeqCst) < 5 {
            std::thread::yield_now();
        }
        Ok(())
    };
    let sorts = [
        (Does::Well, sees_all, 10),
        (Does::FurtherPartsFail, sees_one_fail, 4),
        (Does::Well, sees_one_fail, 4),
    ];
    for (home, (does, on_host, at_least)) in
        [Home::Reached, Home::Apart].into_iter().flat_map(|home| sorts.map(|sort| (home, sort)))
    {
        let scene = scene_on(platform(DeviceKind::Gpu, some_way(), None, home), does, on_host);
        let report = scene.run().unwrap();
        scene.check(&report);
        scene.all_is_home();
        let taken = scene.packages_of_gpu(&report);
        // All packages of a trial were handed out with it, and those behind it later.
        let handed = taken.iter().map(|record| record.start).min();
        let of_trial = taken.iter().filter(|record| Some(record.start) == handed).count();
        // The last ones were launched when no more than one of those before was left.
        assert!(of_trial >= at_least, "{home:?}, {does:?}: {report:?}");
        taken.into_iter().for_each(|record| in_order(record, &report));
    }
}
