//! Whether everyone is served if kernels end, asked of many machines.
//!
//! ```text
//!   machine ──▶ its end by one fixed choice at a time ──▶ at rest, closed, checked
//!       known? ◀── at each machine on the way: what is known of it is the answer
//! ```
//! The walks of different machines soon meet, so that a model checker which asks it of every state takes
//! about one step for each instead of a whole walk.

use super::Machine;
use dml_core::internal::state::{Execution, Lifecycle, Routes};
use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::sync::{Mutex, PoisonError};

/// The canonical machines of one platform from which everyone is known to be served, by their hashes.
#[derive(Debug, Default)]
pub struct Served(Mutex<HashSet<u64>>);

impl Served {
    /// Ends every plan and every kernel of a machine, and closes the buffer. Returns whether every request is
    /// served and the machine then still agrees with the specification.
    ///
    /// Only what was found to be so is kept: a machine that does not come to rest is walked again, and one
    /// whose walk comes back to itself never ends.
    ///
    /// # Complexity
    /// O(steps to a machine that is known), at most to the end.
    #[must_use]
    pub fn everyone(&self, machine: &Machine, routes: &dyn Routes) -> bool {
        let mut passed = vec![hash(machine)];
        if self.knows(passed[0]) {
            return true;
        }
        let mut machine = machine.clone();
        while !machine.is_at_rest() {
            if !ends_one(&mut machine, routes) {
                return false;
            }
            machine = machine.canonical();
            let reached = hash(&machine);
            if self.knows(reached) {
                self.learn(&passed);
                return true;
            }
            passed.push(reached);
        }
        let served = closes(machine, routes);
        if served {
            self.learn(&passed);
        }
        served
    }

    fn knows(&self, hash: u64) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).contains(&hash)
    }

    fn learn(&self, hashes: &[u64]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend(hashes);
    }
}

fn hash(machine: &Machine) -> u64 {
    let mut hasher = DefaultHasher::new();
    machine.hash(&mut hasher);
    hasher.finish()
}

/// Takes a step of the first plan, or ends the first kernel where no plan is under way. Returns whether there
/// was either.
fn ends_one(machine: &mut Machine, routes: &dyn Routes) -> bool {
    let (running, holding) = (machine.running().next().map(Execution::owner), machine.holding().next());
    match (running, holding) {
        (Some(owner), _) => _ = machine.advance(routes, owner, 0),
        (None, Some(grant)) => machine.end(routes, grant),
        (None, None) => return false,
    }
    true
}

/// Closes a machine at rest. Returns whether it was idle, is closed, and agrees with the specification.
fn closes(mut machine: Machine, routes: &dyn Routes) -> bool {
    let idle = machine.state.is_idle();
    machine.close(routes);
    idle && machine.state.lifecycle() == Lifecycle::Closed && machine.check(routes).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    use crate::machine::request;
    use dml_core::internal::state::Initial;
    use dml_core::{Access, ArenaId, Claim, Claims, OwnerId, Platform, Span, Ticket};

    /// A kernel writes, and another one waits for it.
    fn one_waits(platform: &Platform) -> Machine {
        let routes = platform.routes();
        let mut machine = Machine::new(routes, 1, Initial::Zeroed);
        for grant in [1, 2] {
            let claims = Claims::new([Claim { span: Span::new(0, 1), access: Access::ReadWrite }]);
            let _ = machine.ask(routes, request(OwnerId(grant), ArenaId(0), claims), Some(Ticket(grant)));
        }
        assert!(machine.is_waiting(OwnerId(2)));
        machine.canonical()
    }

    #[test]
    fn l05_every_machine_on_the_way_is_known_to_be_served() {
        let platform = Shape::Star.plain();
        let (served, mut machine) = (Served::default(), one_waits(&platform));
        assert!(!served.knows(hash(&machine)));
        assert!(served.everyone(&machine, platform.routes()));
        while !machine.is_at_rest() {
            assert!(served.knows(hash(&machine)), "{machine:#?}");
            assert!(ends_one(&mut machine, platform.routes()));
            machine = machine.canonical();
        }
        assert!(served.knows(hash(&machine)));
    }

    #[test]
    fn l05_what_ends_in_a_contradiction_is_not_served_however_often_it_is_asked() {
        let platform = Shape::Star.plain();
        let (served, mut machine) = (Served::default(), one_waits(&platform));
        assert!(served.everyone(&machine, platform.routes()));
        machine.complaint = Some("a contradiction".to_owned());
        for _ in 0..2 {
            assert!(!served.everyone(&machine, platform.routes()));
        }
    }

    #[test]
    fn l05_who_waits_for_nobody_is_not_served() {
        let platform = Shape::Star.plain();
        let (served, mut machine) = (Served::default(), one_waits(&platform));
        // The plan of the writer is forgotten, so that nothing ends it.
        machine.running.clear();
        machine.holding.clear();
        for _ in 0..2 {
            assert!(!served.everyone(&machine, platform.routes()));
        }
    }
}
