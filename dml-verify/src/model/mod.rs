//! Model checking: every state that the production machine can reach in a small configuration.
//!
//! [`BufferModel`] is one buffer with a few kernels, a prefetcher and failures. [`ProtocolModel`] is several
//! buffers acquired at once. Both explore `dml_core::internal::state` itself through
//! [`Machine`](crate::machine::Machine), one micro-step of one plan at a time, and check every state against
//! the specification. They also check that certain situations are reachable: a machine that refuses
//! everything is safe, and fails here.

mod buffer;
mod protocol;

pub use buffer::{BufferModel, Happens, Wish};
pub use protocol::{Order, ProtocolModel, Want};

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// The result of an exploration.
#[derive(Clone, Debug)]
pub struct Explored {
    /// The number of different states.
    pub unique: usize,
    /// The number of states reached, where a state counts each time.
    pub reached: usize,
    /// The length of the longest of all shortest paths to a state, in actions.
    pub depth: usize,
    /// The duration of the exploration.
    pub took: Duration,
    /// Properties that do not hold, with the actions that lead there, and required situations that were not
    /// reached.
    pub wrong: Vec<String>,
}

impl fmt::Display for Explored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unique, reached, depth, took, .. } = self;
        write!(f, "{unique} states ({reached} reached), depth {depth}, {:.1} s", took.as_secs_f64())
    }
}

/// A model that can explain what is wrong with a state.
trait Explain: Model {
    /// Returns what contradicts the specification in this state, if anything does.
    fn explain(&self, state: &Self::State) -> Option<String>;
}

impl BufferModel {
    /// Visits every state. Stops early only at a forbidden state.
    #[must_use]
    pub fn explore(self) -> Explored {
        explore(self)
    }
}

impl ProtocolModel {
    /// Visits every state. Stops early only at a forbidden state.
    #[must_use]
    pub fn explore(self) -> Explored {
        explore(self)
    }
}

/// Visits every state of a model. It is private so that the checker is compiled in this crate, which is
/// optimised.
fn explore<M>(model: M) -> Explored
where
    M: Explain + Send + Sync + 'static,
    M::State: Clone + fmt::Debug + Hash + Send + Sync + PartialEq + 'static,
    M::Action: Clone + fmt::Debug + Send + Sync + PartialEq,
{
    let begun = Instant::now();
    // One thread: explorations run beside each other, and two threads in one take a third more processor time
    // than one.
    let checker = model.checker().threads(1).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    let found = checker.discoveries();
    let mut wrong = Vec::new();
    for property in checker.model().properties() {
        match (property.expectation.discovery_is_failure(), found.get(property.name)) {
            (true, Some(path)) => {
                let state = path.last_state().clone();
                let actions: Vec<String> =
                    path.clone().into_actions().iter().map(|action| format!("{action:?}")).collect();
                let why = checker.model().explain(&state).unwrap_or_default();
                let actions = actions.join("\n  ");
                wrong.push(format!("{}: {why}\n  {actions}\n{state:#?}", property.name));
            }
            (false, None) => wrong.push(format!("never: {}", property.name)),
            _ => {}
        }
    }
    Explored {
        unique: checker.unique_state_count(),
        reached: checker.state_count(),
        depth: checker.max_depth(),
        took: begun.elapsed(),
        wrong,
    }
}
