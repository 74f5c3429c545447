//! The refinement of streams: after settling, the machine with streams is the machine with grants alone.
//!
//! One program runs on two machines. On the first, submissions stay on their stream, and everybody else
//! settles it first, submissions to another stream included. (Users that are present at once may be given
//! other copies and map states than users one after the other, with or without streams.) On the second, every
//! use is a grant that ends before the next use begins.

use super::{Asked, LEN, Machine, Op, request};
use dml_core::internal::state::{Execution, Initial, Outcome, Routes};
use dml_core::{ArenaId, Claim, Claims, OwnerId, Platform};

/// Runs the requests of `ops` on both machines. Every other one is a submission, as `submits` of
/// [`Op::Ask`] says; prefetches and operations on storage are done by both, and other operations are left
/// out. Returns the number of kernels that ran.
///
/// # Panics
/// When the two machines differ after settling, or one contradicts the specification.
pub fn refine(platform: &Platform, zeroed: bool, ops: &[Op]) -> u64 {
    let (routes, initial) = (platform.routes(), if zeroed { Initial::Zeroed } else { Initial::Undefined });
    let mut streams = Machine::new(routes, LEN, initial);
    let mut alone = streams.clone();
    let (mut owner, mut kernels) = (0, 0);
    for op in ops {
        owner += 1;
        let grant = OwnerId(owner);
        let arena = |index: u8| ArenaId(index % routes.arenas().len() as u8);
        match *op {
            Op::Ask { arena: index, span, access, and, submits, .. } => {
                let more = and.map(|(span, access)| Claim { span, access });
                let claims = Claims::new(std::iter::once(Claim { span, access }).chain(more));
                let mut wanted = request(grant, arena(index), claims);
                let ran = use_once(&mut alone, routes, |machine| machine.ask(routes, wanted.clone(), None));
                if ran {
                    alone.release(routes, grant, Outcome::Done);
                }
                wanted.is_submission = submits;
                let is_behind = |grant| streams.arena_of(grant) == wanted.arena;
                let passes = submits && streams.launched().all(is_behind);
                // What it lacks may come through a map state that those before it must keep.
                if !passes || streams.clone().ask(routes, wanted.clone(), None) == Asked::Busy {
                    settle(&mut streams, routes);
                }
                let also = use_once(&mut streams, routes, |machine| machine.ask(routes, wanted, None));
                assert_eq!(also, ran, "{op:?} runs on one machine alone\n{streams:#?}\n{alone:#?}");
                match (ran, submits) {
                    (true, true) => streams.launch(routes, grant),
                    (true, false) => streams.release(routes, grant, Outcome::Done),
                    (false, _) => {}
                }
                kernels += u64::from(ran);
            }
            Op::Prefetch { arena: index, span } => {
                settle(&mut streams, routes);
                for machine in [&mut streams, &mut alone] {
                    let prefetch =
                        |machine: &mut Machine| machine.prefetch(routes, grant, arena(index), span);
                    use_once(machine, routes, prefetch);
                }
            }
            Op::Free { arena: index } => {
                settle(&mut streams, routes);
                for machine in [&mut streams, &mut alone] {
                    machine.free(routes, arena(index));
                }
            }
            _ => {}
        }
        for machine in [&streams, &alone] {
            machine.check(routes).unwrap_or_else(|wrong| panic!("{wrong}\n{machine:#?}"));
        }
        let mut settled = streams.clone();
        settle(&mut settled, routes);
        assert_eq!(settled.canonical(), alone.clone().canonical(), "after settling what follows {op:?}");
    }
    kernels
}

/// Makes a request that waits for no other, and carries out its plan. Returns whether it was granted.
fn use_once(machine: &mut Machine, routes: &dyn Routes, asks: impl FnOnce(&mut Machine) -> Asked) -> bool {
    let asked = asks(machine);
    let plan = |machine: &Machine| machine.running().next().map(Execution::owner);
    while let Some(owner) = plan(machine) {
        machine.advance(routes, owner, 0);
    }
    assert_ne!(asked, Asked::Busy, "no other user is there\n{machine:#?}");
    matches!(asked, Asked::Granted | Asked::Running)
}

/// Ends all kernels on the streams.
fn settle(machine: &mut Machine, routes: &dyn Routes) {
    let launched: Vec<OwnerId> = machine.launched().collect();
    for grant in launched {
        machine.end(routes, grant);
    }
}
