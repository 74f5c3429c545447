//! What the figures of a trace say, in sentences for people who look at a run for the first time.

use super::{DecisionKind, DeviceFigures, Summary, Trace};
use serde::Serialize;

/// A part of the run from which on it is worth a sentence.
const WORTH_SAYING: f64 = 0.1;
/// Up to this ratio of their rates no device is called slow.
const ABOUT_AS_FAST: f64 = 1.15;
/// From this ratio on every device is called slow.
const MUCH_SLOWER: f64 = 2.0;
/// A device that computes for such a part of its time is held up by nothing else.
const MOSTLY: f64 = 0.85;

/// One sentence or two about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// What it is about.
    pub kind: FindingKind,
    /// The device that it is about, an index of [`Trace::devices`].
    pub device: Option<usize>,
    /// The sentences.
    pub text: String,
}

/// What a finding is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// What was computed, in what time.
    Outcome,
    /// Which device was slow, and why; or that none was.
    Slow,
    /// A device waited for its data, or for its results to go.
    Data,
    /// A device had no package for part of the run.
    Idle,
    /// A device was left out, and why.
    LeftOut,
    /// A device was called up during the run.
    CalledUp,
    /// A device failed.
    Failure,
}

impl Trace {
    /// Says what a newcomer would want to know: what was computed in what time, which device was slow and why, who was idle, and who was
    /// left out and why. The most important come first.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let summary = self.summary();
        let mut findings = vec![self.outcome(&summary)];
        findings.extend(self.of_kind(DecisionKind::GaveUp, FindingKind::Failure, |name, reason, at| {
            format!("{name} gave up after {}, and others did its work: {reason}.", time(at))
        }));
        findings.extend(slow(self, &summary));
        findings.extend(summary.devices.iter().enumerate().filter_map(|(device, of)| self.data(device, of)));
        findings.extend(summary.devices.iter().enumerate().filter_map(|(device, of)| self.idle(device, of)));
        findings.extend(self.of_kind(DecisionKind::LeftOut, FindingKind::LeftOut, |name, reason, _| {
            format!("{name} was left out: {reason}.")
        }));
        findings.extend(self.of_kind(DecisionKind::CalledUp, FindingKind::CalledUp, |name, reason, at| {
            format!("{name} was called up after {}: {reason}.", time(at))
        }));
        findings
    }

    fn outcome(&self, summary: &Summary) -> Finding {
        let worked = summary.devices.iter().filter(|device| device.items > 0).count();
        let text = format!(
            "{} of {} devices computed {} items in {} packages. It took {}.",
            worked,
            self.devices.len(),
            grouped(self.items),
            grouped(self.packages.len() as u64),
            time(self.total_ns)
        );
        let against = match (summary.speedup, summary.s_max, summary.efficiency) {
            (Some(speedup), Some(s_max), Some(efficiency)) => format!(
                " That is {speedup:.2} times as fast as the fastest device alone, of {s_max:.2} times that are possible: efficiency {efficiency:.2}."
            ),
            _ => String::new(),
        };
        Finding { kind: FindingKind::Outcome, device: None, text: text + &against }
    }

    /// One finding for each decision of a kind.
    fn of_kind(
        &self,
        kind: DecisionKind,
        finding: FindingKind,
        say: impl Fn(&str, &str, u64) -> String,
    ) -> Vec<Finding> {
        let of_kind = self.decisions.iter().filter(|decision| decision.kind == kind);
        let say = |decision: &super::TraceDecision| {
            let reason = decision.reason.trim_end_matches('.');
            let text = say(self.device_name(decision.device), reason, decision.at_ns);
            Finding { kind: finding, device: Some(decision.device), text }
        };
        of_kind.map(say).collect()
    }

    /// How long a device waited for data alone, and what moved it.
    fn data(&self, device: usize, of: &DeviceFigures) -> Option<Finding> {
        let duration = self.duration_ns.max(1) as f64;
        let (inward, outward) = (of.fetching_ns as f64 / duration, of.returning_ns as f64 / duration);
        let ways = [(inward, Way::Inward, "its data to come"), (outward, Way::Outward, "its results to go")];
        let worth_saying = ways.into_iter().filter(|(part, ..)| *part > WORTH_SAYING);
        let said: Vec<String> = worth_saying
            .map(|(part, way, what)| {
                format!("{} of the run for {what}{}", percent(part), self.moved(device, way))
            })
            .collect();
        let text = format!("{} waited {}, and computed nothing meanwhile.", of.name, said.join(", and "));
        (!said.is_empty()).then_some(Finding { kind: FindingKind::Data, device: Some(device), text })
    }

    /// What moved into a device's memory or out of it, in parentheses.
    fn moved(&self, device: usize, way: Way) -> String {
        let Some(arena) = self.devices[device].arena else { return String::new() };
        let arrived = self.transfers.iter().filter(|transfer| transfer.arrived);
        let of_way = arrived.filter(|transfer| match way {
            Way::Inward => transfer.to == arena && transfer.from.is_some(),
            Way::Outward => transfer.from == Some(arena),
        });
        let (mut bytes, mut copies) = (0_u64, 0_u64);
        for transfer in of_way {
            bytes = bytes.saturating_add(transfer.bytes);
            copies += 1;
        }
        if copies == 0 { String::new() } else { format!(" ({} in {copies} copies)", size(bytes)) }
    }

    fn idle(&self, device: usize, of: &DeviceFigures) -> Option<Finding> {
        let part = of.idle_ns as f64 / self.duration_ns.max(1) as f64;
        if part <= WORTH_SAYING || of.left_out {
            return None;
        }
        let (kind, device) = (FindingKind::Idle, Some(device));
        if of.packages == 0 {
            let text = format!("{} took part, and got no package before the others were done.", of.name);
            return Some(Finding { kind, device, text });
        }
        let between = of.idle_ns.saturating_sub(of.idle_before_ns).saturating_sub(of.idle_after_ns);
        let last = self.packages.iter().max_by_key(|package| package.end_ns).map(|package| package.device);
        let went_on = last.filter(|last| Some(*last) != device).map(|last| self.device_name(last));
        let after = went_on.map_or_else(String::new, |name| format!(", while {name} went on"));
        let parts = [
            (of.idle_before_ns, "before its first package".to_owned()),
            (between, "between packages".to_owned()),
            (of.idle_after_ns, format!("after its last package{after}")),
        ];
        let said: Vec<String> = parts
            .iter()
            .filter(|(length, _)| *length as f64 > of.idle_ns as f64 * WORTH_SAYING)
            .map(|(length, place)| format!("{} {place}", time(*length)))
            .collect();
        let text = format!("{} had no work for {} of the run: {}.", of.name, percent(part), said.join(", "));
        Some(Finding { kind, device, text })
    }
}

#[derive(Clone, Copy)]
enum Way {
    Inward,
    Outward,
}

/// Which devices were slow, and why, where several worked: the slowest, and whoever takes more than twice the fastest one's time.
fn slow(trace: &Trace, summary: &Summary) -> Vec<Finding> {
    let worked = |(_, of): &(usize, &DeviceFigures)| of.items > 0 && of.items_per_s > 0.0;
    let mut workers: Vec<(usize, &DeviceFigures)> =
        summary.devices.iter().enumerate().filter(worked).collect();
    workers.sort_by(|one, other| one.1.items_per_s.total_cmp(&other.1.items_per_s));
    let [(_, slowest), .., (_, fastest)] = workers[..] else { return Vec::new() };
    let rate = |of: &DeviceFigures| format!("{} items/s", count(of.items_per_s));
    let times = |of: &DeviceFigures| fastest.items_per_s / of.items_per_s;
    if times(slowest) < ABOUT_AS_FAST {
        let text =
            format!("No device was slow: all computed between {} and {}.", rate(slowest), rate(fastest));
        return vec![Finding { kind: FindingKind::Slow, device: None, text }];
    }
    let is_slow = |(rank, (_, of)): &(usize, &(usize, &DeviceFigures))| *rank == 0 || times(of) > MUCH_SLOWER;
    let say = |(rank, (device, of)): (usize, &(usize, &DeviceFigures))| {
        let what = if rank == 0 { "the slow device" } else { "slow too" };
        let (name, rate, fast) = (&of.name, rate(of), rate(fastest));
        let text = format!(
            "{name} was {what}: {rate}, {:.1} times less than the {fast} of {}. {}",
            times(of),
            fastest.name,
            why_slow(of, trace.duration_ns)
        );
        Finding { kind: FindingKind::Slow, device: Some(*device), text }
    };
    workers.iter().enumerate().filter(is_slow).map(say).collect()
}

/// What a slow device did in the time in which it had work.
fn why_slow(of: &DeviceFigures, duration_ns: u64) -> String {
    let busy = duration_ns.saturating_sub(of.idle_ns).max(1) as f64;
    let computing = of.computing_ns as f64 / busy;
    if computing >= MOSTLY {
        let part = percent(computing);
        return format!("Its computing is slow: it computed for {part} of the time in which it had work.");
    }
    format!(
        "It computed for {} of the time in which it had work, at {} items/s; else it waited for data to come ({}) or results to go ({}).",
        percent(computing),
        count(of.computing_items_per_s),
        percent(of.fetching_ns as f64 / busy),
        percent(of.returning_ns as f64 / busy),
    )
}

fn percent(part: f64) -> String {
    match part * 100.0 {
        all if all > 99.5 && all < 99.95 => format!("{all:.1}%"),
        some if some > 0.0 && some < 0.95 => format!("{some:.1}%"),
        some => format!("{some:.0}%"),
    }
}

/// A time in the unit that suits it, with three or four digits.
pub(super) fn time(ns: u64) -> String {
    match ns as f64 {
        long if long >= 1e9 => format!("{:.3} s", long / 1e9),
        long if long >= 1e6 => format!("{:.2} ms", long / 1e6),
        long if long >= 1e3 => format!("{:.1} us", long / 1e3),
        short => format!("{short:.0} ns"),
    }
}

/// A number with three digits and a prefix.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} G", value / 1e9),
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e4 => format!("{:.1} k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// A number with a comma after every three digits.
fn grouped(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e9 => format!("{:.2} GB", bytes / 1e9),
        bytes if bytes >= 1e6 => format!("{:.2} MB", bytes / 1e6),
        bytes if bytes >= 1e3 => format!("{:.1} kB", bytes / 1e3),
        bytes => format!("{bytes:.0} B"),
    }
}
