//! `dml devices --plan FROM TO --bytes N`: the sync path between two memories, and the rejected alternatives.

use crate::failure::Failure;
use crate::{json, table};
use dml::core::record::ExplainedPlan;
use dml::core::{ArenaId, Link, LinkId};
use dml::prelude::*;
use std::collections::BTreeSet;

/// Plans the copy of this many bytes between two memories, each named by an arena or a device.
pub(crate) fn plan(platform: &Platform, (from, to): (&str, &str), bytes: u64) -> Result<json::Plan, Failure> {
    let (source, target) = (arena(platform, from)?, arena(platform, to)?);
    if source == target {
        return Err(Failure::Usage(format!(
            "--plan {from} {to}: both are one memory, so there is nothing to copy"
        )));
    }
    let name = |arena: ArenaId| platform.desc(arena).name.to_string();
    let explained = platform.explain(source, target, bytes);
    if explained.first.is_none() && explained.rejected.is_empty() {
        let (from, to) = (name(source), name(target));
        return Err(Failure::Work(format!("no usable path leads from {from} to {to}")));
    }
    let hop = |link: LinkId| {
        let Link { from, to, .. } = platform.links()[usize::from(link.0)];
        let mechanism = platform.cross_arena(link).name().to_owned();
        json::Hop { from: name(from), to: name(to), mechanism }
    };
    let steps = |plan: ExplainedPlan| json::Steps {
        cost_ns: plan.cost.as_ns().unwrap_or(u64::MAX),
        steps: plan.steps,
    };
    let rejected = explained.rejected.into_iter().map(|path| json::Rejected {
        way: path.links.into_iter().map(hop).collect(),
        cost_ns: path.cost.as_ref().ok().and_then(|cost| cost.as_ns()),
        reason: path.cost.err(),
    });
    Ok(json::Plan {
        from: name(source),
        to: name(target),
        bytes,
        first: explained.first.map(steps),
        again: explained.again.map(steps),
        rejected: rejected.collect(),
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
