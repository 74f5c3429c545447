//! The answer to "how would these bytes get there": the plan of an acquire, and the rejected paths.
//!
//! The planner works on the state of a fictitious buffer. Nothing is allocated or moved.

use crate::base::access::{Access, Claim, Claims};
use crate::base::cost::Cost;
use crate::base::id::{ArenaId, ArenaSet, DeviceId, KernelId, LinkId, OwnerId};
use crate::base::range::Span;
use crate::memory::desc::ArenaDesc;
use crate::memory::link::{CopyQuery, Link};
use crate::platform::Platform;
use crate::state::{
    Begin, BufferState, CopyKind, CopyOp, Execution, Initial, Next, Outcome, Path, Purpose, Refusal, Report,
    Request, Routes, Step, SyncPlan,
};
use std::fmt;

/// Maximum number of links of a path to compare with the plan.
const MOST_HOPS: usize = 4;
/// Maximum number of paths to compare. A platform of many arenas has too many to read.
const MOST_PATHS: usize = 200;

/// How the contents of a buffer get from one arena to another ([`Platform::explain`]).
///
/// Its text lists the plans, and the rejected paths with their costs and reasons.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Explanation {
    /// The first acquire, for a buffer that has storage only at the source. `None` if no path is usable.
    pub first: Option<ExplainedPlan>,
    /// A later acquire, after the bytes were overwritten at the source.
    pub again: Option<ExplainedPlan>,
    /// The other paths of at most four links, those with a cost first, by cost.
    pub rejected: Vec<RejectedPath>,
}

/// What an acquire does, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExplainedPlan {
    /// The estimated time of the copies.
    pub cost: Cost,
    /// The steps, each as text. Equal steps in a row, such as the pieces of a long copy, are one.
    pub steps: Vec<String>,
}

/// A path that the plan does not take.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedPath {
    /// The links, in the order of travel.
    pub links: Vec<LinkId>,
    /// The same links as text: each one's ends and mechanism.
    pub route: String,
    /// The estimated time of the plan over these links alone; the reason if there is none.
    pub cost: Result<Cost, String>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (title, plan) in [("first", &self.first), ("again", &self.again)] {
            let Some(plan) = plan else { continue };
            writeln!(f, "{title}: {}", plan.cost)?;
            plan.steps.iter().try_for_each(|step| writeln!(f, "  {step}"))?;
        }
        self.rejected.iter().try_for_each(|RejectedPath { route, cost, .. }| match cost {
            Ok(cost) => writeln!(f, "rejected: {route}: {cost}"),
            Err(reason) => writeln!(f, "rejected: {route}: {reason}"),
        })
    }
}

impl Platform {
    /// Explains how `bytes` bytes of a buffer get from one arena to another: the plan of an acquire by the
    /// destination's device, and the paths that it rejects. Allocates and moves nothing.
    ///
    /// Between arenas that share storage, and within one arena, the plan has no steps.
    ///
    /// # Examples
    /// ```
    /// # fn explain(platform: &dml_core::Platform) -> Result<(), dml_core::ConfigError> {
    /// let (from, to) = (platform.arena_named("main_mem")?, platform.arena_named("cuda:0")?);
    /// println!("{}", platform.explain(from, to, 64 << 20));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    /// When the platform has no arena with one of these ids.
    #[must_use]
    pub fn explain(&self, from: ArenaId, to: ArenaId, bytes: u64) -> Explanation {
        let question = Question { platform: self, from, to, bytes };
        let all: Vec<_> = (0..self.links().len()).map(|index| LinkId(index as u16)).collect();
        let first = question.first(&all).ok();
        let again = first.clone().and_then(|(plan, state)| question.again(plan, state));
        let mut rejected = Vec::new();
        for links in question.paths() {
            let cost = match question.first(&links) {
                Ok((plan, _)) if first.as_ref().is_some_and(|(first, _)| first.steps == plan.steps) => {
                    continue;
                }
                Ok((plan, _)) => Ok(plan.cost),
                Err(refusal) => Err(question.reason(&refusal)),
            };
            rejected.push(RejectedPath { route: question.route(&links), links, cost });
        }
        rejected.sort_by_key(|path| (path.cost.is_err(), path.cost.as_ref().ok().copied()));
        let explained = |plan: &SyncPlan| ExplainedPlan {
            cost: plan.cost,
            steps: counted(plan.steps.iter().map(|step| question.step(step))),
        };
        let first = first.as_ref().map(|(plan, _)| explained(plan));
        Explanation { first, again: again.as_ref().map(explained), rejected }
    }
}

/// The routes of a platform, restricted to some links.
struct Only<'a> {
    routes: &'a dyn Routes,
    links: &'a [LinkId],
}

impl Routes for Only<'_> {
    fn arenas(&self) -> &[ArenaDesc] {
        self.routes.arenas()
    }

    fn links(&self) -> &[Link] {
        self.routes.links()
    }

    fn cost(&self, link: LinkId, query: &CopyQuery) -> Option<Cost> {
        self.routes.cost(link, query).filter(|_| self.links.contains(&link))
    }

    fn cheapest(
        &self,
        sources: ArenaSet,
        to: ArenaId,
        edge: &mut dyn FnMut(LinkId) -> Option<Cost>,
    ) -> Option<Path> {
        self.routes.cheapest(sources, to, edge)
    }

    fn is_needed(&self, link: LinkId) -> bool {
        self.links.contains(&link) && self.routes.is_needed(link)
    }
}

/// A request for bytes in one arena that are valid only in another.
struct Question<'a> {
    platform: &'a Platform,
    from: ArenaId,
    to: ArenaId,
    bytes: u64,
}

impl Question<'_> {
    /// Plans for a buffer that has storage only at the source. Uses only these links.
    fn first(&self, links: &[LinkId]) -> Result<(SyncPlan, BufferState), Refusal> {
        let routes = Only { routes: self.platform.routes(), links };
        let mut state = BufferState::new(&routes, self.bytes, Initial::External(self.from));
        let plan = self.ask(&routes, &mut state, (self.to, Access::ReadOnly), OwnerId(1))?;
        Ok((plan, state))
    }

    /// Plans again after the plan was carried out and the source overwritten. Returns `None` if the state
    /// refuses one of these requests.
    fn again(&self, plan: SyncPlan, mut state: BufferState) -> Option<SyncPlan> {
        let routes = self.platform.routes();
        carry_out(routes, &mut state, plan)?;
        let _ = state.release(routes, OwnerId(1), Outcome::Done);
        match self.begin(routes, &mut state, (self.from, Access::WriteInvalidate), OwnerId(2)) {
            Begin::Granted(_) => {}
            Begin::Plan(plan) => carry_out(routes, &mut state, plan)?,
            _ => return None,
        }
        let _ = state.release(routes, OwnerId(2), Outcome::Done);
        self.ask(routes, &mut state, (self.to, Access::ReadOnly), OwnerId(3)).ok()
    }

    fn begin(
        &self,
        routes: &dyn Routes,
        state: &mut BufferState,
        (arena, access): (ArenaId, Access),
        grant: OwnerId,
    ) -> Begin {
        let claims = Claims::new([Claim { span: Span::new(0, self.bytes), access }]);
        state
            .begin(routes, &Request { kernel: KernelId(grant.0), grant, arena, claims, is_submission: false })
    }

    fn ask(
        &self,
        routes: &dyn Routes,
        state: &mut BufferState,
        wanted: (ArenaId, Access),
        grant: OwnerId,
    ) -> Result<SyncPlan, Refusal> {
        match self.begin(routes, state, wanted, grant) {
            Begin::Plan(plan) => Ok(plan),
            Begin::Refused(refusal) => Err(refusal),
            // The arenas share storage coherently. A buffer without other requests is never busy.
            Begin::Granted(_) | Begin::Busy { .. } => Ok(SyncPlan {
                owner: grant,
                purpose: Purpose::Kernel,
                arena: wanted.0,
                steps: Vec::new(),
                cost: Cost::ZERO,
            }),
        }
    }

    /// Returns the paths from the source to the destination that visit no arena twice, up to the two limits.
    fn paths(&self) -> Vec<Vec<LinkId>> {
        let links: Vec<_> = (0..).map(LinkId).zip(self.platform.links()).collect();
        let mut open = vec![(vec![self.from], Vec::new())];
        let mut found = Vec::new();
        while let Some((visited, path)) = open.pop() {
            let here = visited[visited.len() - 1];
            for (id, link) in
                links.iter().filter(|(_, link)| link.from == here && !visited.contains(&link.to))
            {
                let path: Vec<LinkId> = path.iter().copied().chain([*id]).collect();
                if link.to == self.to {
                    found.push(path);
                } else if path.len() < MOST_HOPS {
                    open.push((visited.iter().copied().chain([link.to]).collect(), path));
                }
                if found.len() == MOST_PATHS {
                    return found;
                }
            }
        }
        found
    }

    fn route(&self, links: &[LinkId]) -> String {
        let hop = |&link: &LinkId| {
            let Link { from, to, .. } = self.platform.links()[usize::from(link.0)];
            let [from, to] = [from, to].map(|arena| &self.platform.desc(arena).name);
            format!("{from} -> {to} ({})", self.platform.cross_arena(link).name())
        };
        links.iter().map(hop).collect::<Vec<_>>().join(", ")
    }

    fn step(&self, step: &Step) -> String {
        let name = |arena: ArenaId| self.platform.desc(arena).name.clone();
        let device = |device: DeviceId| self.platform.device_desc(device).name.clone();
        match *step {
            Step::Allocate { arena } => format!("allocate {}", name(arena)),
            Step::Bind { arena, root, concurrency } => {
                format!("bind {} to {} ({concurrency:?})", name(arena), name(root))
            }
            Step::Map { arena, device: user, .. } => format!("map {} for {}", name(arena), device(user)),
            Step::Copy(CopyOp { kind: CopyKind::Bytes { from, link, .. }, to, .. }) => {
                let mechanism = self.platform.cross_arena(link).name();
                format!("copy {} to {} ({mechanism})", name(from), name(to))
            }
            Step::Copy(CopyOp { kind: CopyKind::Refresh { from }, to, .. }) => {
                format!("hand {} over to {}, without a copy", name(from), name(to))
            }
            Step::Copy(CopyOp { kind: CopyKind::Fill, to, .. }) => format!("fill {} with zeros", name(to)),
        }
    }

    /// Returns why a path is not usable by itself.
    fn reason(&self, refusal: &Refusal) -> String {
        match refusal {
            Refusal::Unreachable { arena, .. } => {
                format!("{} cannot be reached this way", self.platform.desc(*arena).name)
            }
            Refusal::DeviceLost { arena } => {
                format!("the device of {} is lost", self.platform.desc(*arena).name)
            }
            other => format!("{other:?}"),
        }
    }
}

/// Merges repeated steps into one with a count.
fn counted(steps: impl Iterator<Item = String>) -> Vec<String> {
    let mut counted: Vec<(String, u32)> = Vec::new();
    for step in steps {
        match counted.last_mut() {
            Some((last, count)) if *last == step => *count += 1,
            _ => counted.push((step, 1)),
        }
    }
    let text = |(step, count)| if count == 1 { step } else { format!("{step}, in {count} pieces") };
    counted.into_iter().map(text).collect()
}

/// Carries out a plan on the state only. Returns `None` if the state refuses a step, which does not happen
/// with a plan of an idle buffer.
fn carry_out(routes: &dyn Routes, state: &mut BufferState, plan: SyncPlan) -> Option<()> {
    let mut execution = Execution::new(plan);
    loop {
        let step = match execution.next(state) {
            Next::Do(step) => step,
            Next::Finish => return execution.finish(routes, state).ok().map(drop),
            _ => return None,
        };
        execution.report(routes, state, step, Report::Done).ok()?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_repeat_are_counted() {
        let steps = ["a", "b", "b", "b", "c", "b"].map(str::to_owned);
        assert_eq!(counted(steps.into_iter()), ["a", "b, in 3 pieces", "c", "b"]);
    }
}
