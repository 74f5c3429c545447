//! Who begins where nothing is known of some devices, and what is known of one by another of its model.

use super::Knowledge;
use super::decide::Candidate;
use super::tests::{Truth, World, candidate};
use crate::policy::Freight;

#[test]
fn where_nothing_is_known_the_host_opens_or_who_is_near_or_who_has_units_of_its_own() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }; 3], 1 << 20);
    let decision = world.knowledge.decide("kernel", world.items, &world.candidates());
    assert_eq!((decision.members, decision.opens), (vec![true; 3], Some(0)));
    let strangers = &world.candidates()[1..];
    let decision = world.knowledge.decide("kernel", world.items, strangers);
    assert_eq!((decision.members, decision.opens), (vec![true; 2], Some(0)));
    let opens = |change: fn(&mut [Candidate<'_>])| {
        let mut candidates = world.candidates();
        candidates[0].is_host = false;
        change(&mut candidates);
        world.knowledge.decide("kernel", world.items, &candidates).opens
    };
    assert_eq!(opens(|all| all[1].is_near = true), Some(1), "nothing has to be moved for it");
    assert_eq!(opens(|all| (all[0].is_host, all[1].is_near) = (true, true)), Some(0));
    assert_eq!(opens(|all| all[0].part_of_cores = 0.5), Some(1), "the first one with units of its own");
    assert_eq!(opens(|all| all.iter_mut().for_each(|one| one.part_of_cores = 0.3)), None, "all begin");
    // One alone has nobody to call up.
    for is_near in [true, false] {
        let alone = [Candidate { is_near, ..strangers[0] }];
        assert_eq!(world.knowledge.decide("kernel", world.items, &alone).opens, None);
    }
}

#[test]
fn a_stranger_is_called_up_by_who_is_near_or_the_only_one_that_is_known() {
    let lines = "page 20 kernel\ndevice worker rate 1e9 peak 1e9 setup 1e-5\ndevice other rate 1e9 peak 1e9 setup 1e-5\n";
    let knowledge = Knowledge::parse(&format!("dml knowledge 2\n{lines}")).unwrap();
    let freight = Freight { setup: 1e-5, per_item: 0.0 };
    let opens = |candidates: &[Candidate<'_>]| {
        let selection = knowledge.decide("kernel", 1 << 20, candidates);
        assert!(selection.members.iter().all(|member| *member), "{selection:?}");
        selection.opens
    };
    let [gpu, other, worker] = ["gpu", "other", "worker"].map(|name| candidate(name, freight, false));
    let worker = |is_near, part_of_cores| Candidate { is_near, part_of_cores, ..worker };
    assert_eq!(opens(&[gpu, worker(true, 0.5)]), Some(1));
    assert_eq!(opens(&[gpu, worker(false, 0.0)]), Some(1), "or the first runs would take as long as both");
    assert_eq!(opens(&[gpu, worker(false, 0.5)]), None, "it has only a part of the cores");
    assert_eq!(opens(&[gpu, other, worker(false, 0.0)]), None, "these two begin in any case");
    assert_eq!(opens(&[gpu, other, worker(true, 0.5)]), Some(2));
    // In a run of a second nobody would try the stranger alone, so both begin.
    let lines = "page 20 kernel\ndevice worker rate 1e6 peak 1e6 setup 1e-5\n";
    let knowledge = Knowledge::parse(&format!("dml knowledge 2\n{lines}")).unwrap();
    let opens = |worker| knowledge.decide("kernel", 1 << 20, &[gpu, worker]).opens;
    assert_eq!((opens(worker(false, 0.0)), opens(worker(true, 0.5))), (None, Some(1)));
}

/// The devices of `world` that are no host, as twins.
fn twins(world: &World) -> Vec<Candidate<'static>> {
    let candidates = world.candidates().into_iter().skip(1);
    candidates.map(|candidate| Candidate { model: Some(1), ..candidate }).collect()
}

#[test]
fn where_nothing_is_known_of_twins_one_of_them_opens() {
    let world = World::new(&[Truth { rate: 1e8, setup: 1e-5 }; 3], 1 << 20);
    let twins = twins(&world);
    let decision = world.knowledge.decide("kernel", world.items, &twins);
    assert_eq!((decision.members, decision.opens), (vec![true; 2], Some(0)));
    // Another device beside them is no twin, unless it is the host.
    let mut others = vec![twins[0], Candidate { name: "other", model: None, ..twins[0] }, twins[1]];
    others.rotate_left(1);
    others[0].part_of_cores = 0.5;
    assert_eq!(world.knowledge.decide("kernel", world.items, &others).opens, Some(1), "as of any others");
    others[0].model = Some(0);
    assert_eq!(world.knowledge.decide("kernel", world.items, &others).opens, Some(1), "of another model");
    others.rotate_right(1);
    others[1].is_host = true;
    assert_eq!(world.knowledge.decide("kernel", world.items, &others).opens, Some(1));
    // One alone has nobody to call up.
    assert_eq!(world.knowledge.decide("kernel", world.items, &twins[..1]).opens, None);
}

#[test]
fn what_is_known_of_a_device_is_known_of_its_twins_until_they_have_computed() {
    let known = |lines: &str| {
        let world = World::new(&[Truth { rate: 1e6, setup: 1e-5 }; 3], 4096);
        let knowledge = Knowledge::parse(&format!("dml knowledge 2\npage 12 kernel\n{lines}")).unwrap();
        let rates = |candidates: &[Candidate<'_>]| {
            let selection = knowledge.decide("kernel", 4096, candidates);
            let rates = selection.estimates.iter().map(|estimate| estimate.map(|known| known.rate));
            (rates.collect::<Vec<_>>(), selection.latencies)
        };
        (rates(&twins(&world)), rates(&world.candidates()[1..]))
    };
    let gpu = "device gpu rate 5e6 peak 5e6 setup 1e-5 latency 2e-5\n";
    let (twins, others) = known(gpu);
    assert_eq!(twins, (vec![Some(5e6); 2], vec![2e-5; 2]));
    assert_eq!(others, (vec![Some(5e6), None], vec![2e-5, 0.0]));
    let (twins, _) = known(&format!("{gpu}device worker rate 3e6 peak 3e6 setup 1e-5\n"));
    assert_eq!(twins, (vec![Some(5e6), Some(3e6)], vec![2e-5, 0.0]), "it computed itself");
}
