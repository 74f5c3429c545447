//! `dml devices --plan FROM TO --bytes N`: the sync path between two memories, and the rejected alternatives.
//!
//! The planner works on the state of a fictitious buffer. Nothing is allocated or moved.

use crate::failure::Failure;
use crate::{json, table};
use dml::core::internal::state::{
    Begin, BufferState, CopyKind, CopyOp, Execution, Initial, Next, Path, Refusal, Report, Request, Routes,
    Step, SyncPlan,
};
use dml::core::{
    Access, ArenaDesc, ArenaId, ArenaSet, Claim, Claims, CopyQuery, Cost, KernelId, Link, LinkId,
};
use dml::core::{OwnerId, Span};
use dml::prelude::*;
use std::collections::BTreeSet;

/// Maximum number of hops of a path to compare with the plan.
const MOST_HOPS: usize = 4;
/// Maximum number of paths to compare. A platform of many arenas has too many to read.
const MOST_WAYS: usize = 200;

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

/// A request for bytes in one memory that are valid only in another.
struct Question<'a> {
    platform: &'a Platform,
    from: ArenaId,
    to: ArenaId,
    bytes: u64,
}

/// Plans the copy of this many bytes between two memories, each named by an arena or a device.
pub(crate) fn plan(platform: &Platform, (from, to): (&str, &str), bytes: u64) -> Result<json::Plan, Failure> {
    let (source, target) = (arena(platform, from)?, arena(platform, to)?);
    if source == target {
        return Err(Failure::Usage(format!(
            "--plan {from} {to}: both are one memory, so there is nothing to copy"
        )));
    }
    if bytes == 0 {
        return Err(Failure::Usage("--bytes 0: there is nothing to copy".to_owned()));
    }
    let question = Question { platform, from: source, to: target, bytes };
    let name = |arena: ArenaId| platform.desc(arena).name.to_string();
    let all: Vec<LinkId> = (0..platform.links().len()).map(|index| LinkId(index as u16)).collect();
    let (first, state) = match question.first(&all) {
        Ok((plan, state)) => (Some(plan), Some(state)),
        Err(_) if question.ways().is_empty() => {
            let (from, to) = (name(source), name(target));
            return Err(Failure::Work(if question.is_linked() {
                format!("no path from {from} to {to} is usable, and all have more than {MOST_HOPS} hops")
            } else {
                format!("no links lead from {from} to {to}")
            }));
        }
        Err(_) => (None, None),
    };
    let again = first.clone().zip(state).and_then(|(plan, state)| question.again(plan, state));
    let mut rejected: Vec<json::Rejected> = Vec::new();
    for way in question.ways() {
        let other = question.first(&way).map(|(plan, _)| plan);
        if first.as_ref().zip(other.as_ref().ok()).is_some_and(|(plan, other)| plan.steps == other.steps) {
            continue;
        }
        let (cost_ns, reason) = match &other {
            Ok(plan) => (plan.cost.as_ns(), None),
            Err(refusal) => (None, Some(question.reason(refusal))),
        };
        let way = way.iter().map(|&link| question.hop(link)).collect();
        rejected.push(json::Rejected { way, cost_ns, reason });
    }
    // Possible paths come first, in order of their cost.
    rejected.sort_by_key(|other| (other.cost_ns.is_none(), other.cost_ns));
    let steps = |plan: &SyncPlan| json::Steps {
        cost_ns: plan.cost.as_ns().unwrap_or(u64::MAX),
        steps: counted(plan.steps.iter().map(|step| question.step(step))),
    };
    Ok(json::Plan {
        from: name(source),
        to: name(target),
        bytes,
        first: first.as_ref().map(steps),
        again: again.as_ref().map(steps),
        rejected,
    })
}

/// Finds an arena by its name, or by the name of a device whose home it is.
fn arena(platform: &Platform, name: &str) -> Result<ArenaId, Failure> {
    let arenas = || platform.arenas().iter().map(|arena| arena.desc().name.to_string());
    if let Some(index) = arenas().position(|arena| arena == name) {
        return Ok(ArenaId(index as u8));
    }
    let home = platform.device(name).ok().and_then(|device| platform.home(device));
    home.ok_or_else(|| {
        let devices = platform.devices().iter().map(|device| device.name.to_string());
        let known: Vec<_> = BTreeSet::from_iter(arenas().chain(devices)).into_iter().collect();
        let known = known.join(", ");
        Failure::Usage(format!("--plan {name}: no memory or device has this name: there are {known}"))
    })
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
        let _ = state.release(routes, OwnerId(1), dml::core::internal::state::Outcome::Done);
        match self.begin(routes, &mut state, (self.from, Access::WriteInvalidate), OwnerId(2)) {
            Begin::Granted(_) => {}
            Begin::Plan(plan) => carry_out(routes, &mut state, plan)?,
            _ => return None,
        }
        let _ = state.release(routes, OwnerId(2), dml::core::internal::state::Outcome::Done);
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
        state.begin(routes, &Request { kernel: KernelId(grant.0), grant, arena, claims })
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
                purpose: dml::core::internal::state::Purpose::Kernel,
                arena: wanted.0,
                steps: Vec::new(),
                cost: Cost::ZERO,
            }),
        }
    }

    /// Returns the paths from the source to the destination that visit no arena twice, up to the two limits.
    fn ways(&self) -> Vec<Vec<LinkId>> {
        let links: Vec<(LinkId, &Link)> = self
            .platform
            .links()
            .iter()
            .enumerate()
            .map(|(index, link)| (LinkId(index as u16), link))
            .collect();
        let mut open = vec![(vec![self.from], Vec::new())];
        let mut found = Vec::new();
        while let Some((visited, way)) = open.pop() {
            let here = visited[visited.len() - 1];
            for (id, link) in
                links.iter().filter(|(_, link)| link.from == here && !visited.contains(&link.to))
            {
                let way: Vec<LinkId> = way.iter().copied().chain([*id]).collect();
                if link.to == self.to {
                    found.push(way);
                } else if way.len() < MOST_HOPS {
                    open.push((visited.iter().copied().chain([link.to]).collect(), way));
                }
                if found.len() == MOST_WAYS {
                    return found;
                }
            }
        }
        found
    }

    /// Returns whether a path of any length leads from the source to the destination.
    fn is_linked(&self) -> bool {
        let mut reached = vec![self.from];
        let mut next = 0;
        while let Some(&here) = reached.get(next) {
            next += 1;
            for link in self.platform.links().iter().filter(|link| link.from == here) {
                if !reached.contains(&link.to) {
                    reached.push(link.to);
                }
            }
        }
        reached.contains(&self.to)
    }

    fn hop(&self, link: LinkId) -> json::Hop {
        let Link { from, to, .. } = self.platform.links()[usize::from(link.0)];
        let name = |arena: ArenaId| self.platform.desc(arena).name.to_string();
        let mechanism = self.platform.cross_arena(link).name().to_owned();
        json::Hop { from: name(from), to: name(to), mechanism }
    }

    fn step(&self, step: &Step) -> String {
        let name = |arena: ArenaId| self.platform.desc(arena).name.clone();
        let device = |device: DeviceId| self.platform.devices()[usize::from(device.0)].name.clone();
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

/// Merges repeated steps into one with a count. These are the pieces of a long copy.
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

/// Returns the plan as text.
pub(crate) fn text(plan: &json::Plan, prices: &str) -> String {
    let time = |ns: u64| table::seconds(ns as f64 / 1e9);
    let mut lines = vec![format!("{} to {}, {}; {prices}", plan.from, plan.to, table::bytes(plan.bytes))];
    for (title, steps) in [("first", &plan.first), ("again", &plan.again)] {
        let Some(steps) = steps else { continue };
        lines.push(format!("\n{title}: {}", time(steps.cost_ns)));
        lines.extend(steps.steps.iter().map(|step| format!("  {step}")));
    }
    if !plan.rejected.is_empty() {
        lines.push("\nrejected:".to_owned());
        let rows: Vec<_> = plan
            .rejected
            .iter()
            .map(|other| {
                let hops: Vec<_> = other
                    .way
                    .iter()
                    .map(|hop| format!("{} -> {} ({})", hop.from, hop.to, hop.mechanism))
                    .collect();
                let cost = other.cost_ns.map_or_else(|| "-".to_owned(), time);
                vec![cost, hops.join(", "), other.reason.clone().unwrap_or_default()]
            })
            .collect();
        lines.extend(table::lines(&rows).into_iter().map(|line| format!("  {line}")));
    }
    lines.push(String::new());
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dml::arenas::{Null, kit};
    use dml::core::{
        Allocation, ArenaKind, Concurrency, CopyJob, CrossArena, DeviceDesc, DeviceKind, DeviceSet, Fence,
        LinkSpeed, PlatformBuilder, TransferError,
    };
    use std::sync::Arc;

    /// A platform of the processor and this many cards, each with its memory, without links.
    fn machine(cards: u16) -> PlatformBuilder {
        let mut builder = PlatformBuilder::default().without_default_links();
        let cpu = builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
        let kind = ArenaKind("test");
        let main = ArenaDesc::new("main", kind, cpu).with_remotes((1..=cards).map(DeviceId).collect());
        builder.add_arena(Arc::new(Null::new(main)));
        for card in 1..=cards {
            let device = builder.add_device(DeviceDesc::new(&format!("card:{card}"), DeviceKind::Gpu));
            let memory = ArenaDesc::new(&format!("video {card}"), kind, device);
            builder.add_arena(Arc::new(Null::new(memory.with_remotes(DeviceSet::of(cpu)))));
        }
        builder
    }

    fn built(builder: PlatformBuilder) -> Platform {
        builder.build().expect("it has all that it needs")
    }

    /// A mechanism that declines every copy.
    #[derive(Debug)]
    struct Closed;

    impl CrossArena for Closed {
        fn name(&self) -> &str {
            "closed"
        }

        fn can_copy(&self, _: &CopyQuery) -> Option<Cost> {
            None
        }

        fn copy(&self, _: CopyJob) -> Result<Fence, TransferError> {
            unreachable!("it was never chosen")
        }
    }

    /// A platform whose cards form a chain, with main memory at its start.
    fn chain(cards: u16) -> Platform {
        let mut builder = machine(cards);
        for card in 1..=cards as u8 {
            kit::join_staged(&mut builder, ArenaId(card - 1), ArenaId(card), LinkSpeed::default());
        }
        built(builder)
    }

    #[test]
    fn the_longest_way_that_is_compared_has_four_hops() {
        let platform = chain(5);
        let hops = |to: u8| -> Vec<usize> {
            let question = Question { platform: &platform, from: ArenaId(0), to: ArenaId(to), bytes: 1 };
            question.ways().iter().map(Vec::len).collect()
        };
        assert_eq!([hops(1), hops(4), hops(5)], [vec![1], vec![4], vec![]]);
    }

    /// The plan may use a path that is too long to compare. Overwritten bytes use the same path again.
    #[test]
    fn a_plan_takes_any_way_and_again_needs_no_storage() {
        let plan = plan(&chain(5), ("cpu", "card:5"), 64).expect("there is a way");
        let copy = |to: u8| match to {
            1 => "copy main to video 1 (staged)".to_owned(),
            _ => format!("copy video {} to video {to} (staged)", to - 1),
        };
        let again: Vec<_> = (1..=5).map(copy).collect();
        assert_eq!(plan.again.as_ref().map(|steps| &steps.steps), Some(&again));
        let first = plan.first.expect("there is a way").steps;
        assert!(first.contains(&"allocate video 3".to_owned()), "{first:?}");
        assert!(again.iter().all(|step| first.contains(step)), "{first:?}");
        assert!(plan.rejected.is_empty(), "there is no other way");
    }

    #[test]
    fn without_links_there_is_no_plan_and_a_way_that_is_closed_is_rejected() {
        let told = plan(&built(machine(1)), ("cpu", "card:1"), 64);
        let Err(Failure::Work(told)) = told else { panic!("{told:?}") };
        assert_eq!(told, "no links lead from main to video 1");

        let mut builder = machine(1);
        let (from, to) = (ArenaId(0), ArenaId(1));
        let (source_via, target_via) = (builder.native(from), builder.native(to));
        let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
        builder.add_link(link, Arc::new(Closed));
        let plan = plan(&built(builder), ("cpu", "card:1"), 64).expect("there is a link");
        assert!(plan.first.is_none() && plan.again.is_none(), "{plan:?}");
        let [json::Rejected { way, cost_ns: None, reason: Some(reason) }] = &plan.rejected[..] else {
            panic!("{plan:?}")
        };
        assert_eq!((way.len(), &*way[0].mechanism), (1, "closed"));
        assert_eq!(reason, "video 1 cannot be reached this way");
    }

    /// The cards form a chain whose links decline every copy.
    #[test]
    fn a_way_too_long_to_be_compared_that_is_closed_is_no_lack_of_links() {
        for (cards, expected) in [
            (5, "no path from main to video 5 is usable, and all have more than 4 hops"),
            (6, "no links lead"),
        ] {
            let mut builder = machine(cards);
            for card in 1..=5 {
                let (from, to) = (ArenaId(card - 1), ArenaId(card));
                let (source_via, target_via) = (builder.native(from), builder.native(to));
                let link = Link { from, to, source_via, target_via, allocation: Allocation::Internal };
                builder.add_link(link, Arc::new(Closed));
            }
            let told = plan(&built(builder), ("cpu", &format!("card:{cards}")), 64);
            let Err(Failure::Work(told)) = told else { panic!("{told:?}") };
            assert!(told.starts_with(expected), "{told}");
        }
    }

    #[test]
    fn a_lost_device_is_named_by_its_memory() {
        let platform = chain(2);
        let question = Question { platform: &platform, from: ArenaId(0), to: ArenaId(2), bytes: 1 };
        let lost = Refusal::DeviceLost { arena: ArenaId(2) };
        assert_eq!(question.reason(&lost), "the device of video 2 is lost");
    }

    /// Two memories that are linked only by a binding need it, on every path that contains the link.
    #[test]
    fn a_binding_is_needed_on_ways_over_it_alone() {
        let mut builder = machine(2);
        let [main, bound, copied] = [0, 1, 2].map(ArenaId);
        kit::join_bound(&mut builder, main, bound, Concurrency::Exclusive, LinkSpeed::default());
        kit::join_staged(&mut builder, main, copied, LinkSpeed::default());
        let platform = built(builder);
        let find = |ends: [ArenaId; 2]| {
            let found = platform.links().iter().position(|link| [link.from, link.to] == ends);
            LinkId(found.expect("they are joined") as u16)
        };
        let (binding, back, copy) = (find([main, bound]), find([bound, main]), find([main, copied]));
        let only = Only { routes: platform.routes(), links: &[binding, copy] };
        assert_eq!([binding, back, copy].map(|link| platform.routes().is_needed(link)), [true, true, false]);
        assert_eq!([binding, back, copy].map(|link| only.is_needed(link)), [true, false, false]);
        // Overwritten bytes are handed over without a copy.
        let plan = plan(&platform, ("cpu", "card:1"), 64).expect("they share storage");
        let again = plan.again.expect("the storage changes hands").steps;
        assert!(!again.is_empty() && again.iter().all(|step| !step.starts_with("copy")), "{again:?}");
    }

    #[test]
    fn steps_that_repeat_are_counted() {
        let steps = ["a", "b", "b", "b", "c", "b"].map(str::to_owned);
        assert_eq!(counted(steps.into_iter()), ["a", "b, in 3 pieces", "c", "b"]);
    }

    #[test]
    fn every_figure_of_a_plan_stands_in_its_text() {
        let steps = |cost_ns, step: &str| json::Steps { cost_ns, steps: vec![step.to_owned()] };
        let hop = json::Hop { from: "a".to_owned(), to: "b".to_owned(), mechanism: "copy".to_owned() };
        let plan = json::Plan {
            from: "a".to_owned(),
            to: "b".to_owned(),
            bytes: 4096,
            first: Some(steps(2_500_000_000, "allocate b")),
            again: Some(steps(2_500_000, "copy a to b (copy)")),
            rejected: vec![json::Rejected {
                way: vec![hop],
                cost_ns: Some(2_500),
                reason: Some("dear".to_owned()),
            }],
        };
        let expected = "a to b, 4.0 KiB; guessed\n\nfirst: 2.500 s\n  allocate b\n\nagain: 2.50 ms\n  copy a to b (copy)\n\
                        \nrejected:\n  2.5 us  a -> b (copy)  dear\n";
        assert_eq!(text(&plan, "guessed"), expected);
    }
}
