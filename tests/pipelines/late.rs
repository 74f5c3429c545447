//! Ends that are noticed only after another package was prepared: the computing time of such a package is
//! unknown.

use crate::{GPU, ITEMS, Turns, Work, ended, platform_priced};
use dml::core::internal::sync::Arc;
use dml::core::{Fence, LinkSpeed, Platform};
use dml::prelude::*;
use dml::scheduler::Knowledge;
use dml_verify::watched;

/// Which packages of a run were noticed late. `ends` makes the fence of each by its number, from how many are
/// launched.
fn noticed_late(
    coexecutor: fn(&Platform) -> Coexecutor,
    ends: impl Fn(&Arc<Turns>, u64) -> Fence + Send + Sync + 'static,
) -> Vec<bool> {
    let launched = Arc::new(Turns::default());
    let slow = LinkSpeed { bytes_per_s: 40_000, ..LinkSpeed::default() };
    let ends = Arc::new(move |_, number| {
        launched.add();
        Ok(ends(&launched, number))
    });
    let work = Work::on(platform_priced(1, slow, |_, _| ()), ends);
    let run = watched("a run in several packages", move || {
        let report = coexecutor(&work.platform).devices([GPU]).run(&work.kernel, ITEMS);
        work.assert_computed();
        report.expect("nothing is wrong").packages.iter().map(|record| record.noticed_late).collect()
    });
    run.join()
}

/// The device may have computed it long before.
#[test]
fn what_has_ended_while_another_package_was_prepared_was_noticed_late() {
    let of_two = |ends: fn(&Arc<Turns>, u64) -> Fence| {
        noticed_late(|platform| Coexecutor::new(platform).policy("dynamic:10".parse().unwrap()), ends)
    };
    let but_the_last = [[true; 9].as_slice(), &[false]].concat();
    assert_eq!(of_two(|launched, number| ended(launched, number + 1)), [false; 10], "when it is launched");
    assert_eq!(of_two(|launched, number| ended(launched, number + 2)), but_the_last, "when the next one is");
    assert_eq!(of_two(|launched, number| ended(launched, number + 100)), [false; 10], "each is waited for");
    // The next one is computed in its launch, before anybody looks.
    let in_turns = of_two(|launched, number| match number % 2 {
        0 => ended(launched, number + 2),
        _ => Fence::done(0),
    });
    assert_eq!(in_turns, [[true, false]; 5].concat());
    // These fences cannot be queried. Each wait ends at once, unless this thread is interrupted just then.
    let waits = of_two(|_, _| Fence::running(|| Ok(0)));
    assert!(waits.contains(&true) && !waits[9], "{waits:?}");
}

/// Of three packages under way the second one has begun as soon as the first one had ended, while the third
/// one was prepared.
#[test]
fn what_begins_while_another_package_is_prepared_was_noticed_late() {
    let of_three = |platform: &Platform| {
        // Results that travel slowly make several packages of the run, of which three are under way.
        Coexecutor::new(platform).knowledge(&Knowledge::new())
    };
    let told = noticed_late(of_three, |launched, number| match number {
        // This package ends when all three are in flight, and no other package ends.
        0 => ended(launched, 3),
        _ => ended(launched, 100),
    });
    assert!(told.len() > 3, "{told:?}");
    assert_eq!(told[..2], [true; 2]);
    assert!(told[2..].iter().all(|late| !late), "{told:?}");
}
