//! The figures of a trace in sentences, for readers who see a run for the first time.

use super::{DecisionKind, DeviceFigures, Summary, Trace};
use serde::Serialize;

/// Share of a run above which a finding mentions a wait or an idle time. It also applies to the parts of the
/// idle time.
const WORTH_SAYING: f64 = 0.1;
/// Slowdown of the slowest device, against the fastest, below which no device is called slow.
const ABOUT_AS_FAST: f64 = 1.15;
/// Slowdown against the fastest device above which a device is called slow, even if it is not the slowest.
const MUCH_SLOWER: f64 = 2.0;
/// Share of a slow device's busy time from which compute counts as its bottleneck.
const MOSTLY: f64 = 0.85;

/// One or two sentences about a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The topic.
    pub kind: FindingKind,
    /// The device concerned, as an index of [`Trace::devices`]; `None` if the finding is about the whole run.
    pub device: Option<usize>,
    /// The sentences.
    pub text: String,
}

/// The topic of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FindingKind {
    /// What was computed, and how fast.
    Outcome,
    /// A device was slow, and why; or no device was.
    Slow,
    /// A device waited for its input or for the return of its results.
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
    /// Returns the findings, the most important first.
    ///
    /// They tell a newcomer what was computed and how fast, which devices failed, were slow or waited, and
    /// which were idle or left out.
    #[must_use]
    pub fn findings(&self) -> Vec<Finding> {
        let summary = self.summary();
        let mut findings = vec![self.outcome(&summary)];
        findings.extend(self.of_kind(DecisionKind::GaveUp, FindingKind::Failure, |name, reason, at| {
            format!("{name} gave up after {}{reason}. Other devices computed the rest.", time(at))
        }));
        findings.extend(slow(self, &summary));
        findings.extend(summary.devices.iter().enumerate().filter_map(|(device, of)| self.data(device, of)));
        findings.extend(summary.devices.iter().enumerate().filter_map(|(device, of)| self.idle(device, of)));
        findings.extend(self.of_kind(DecisionKind::LeftOut, FindingKind::LeftOut, |name, reason, _| {
            format!("{name} was left out{reason}.")
        }));
        findings.extend(self.of_kind(DecisionKind::CalledUp, FindingKind::CalledUp, |name, reason, at| {
            format!("{name} was called up after {}{reason}.", time(at))
        }));
        findings
    }

    fn outcome(&self, summary: &Summary) -> Finding {
        let worked = summary.devices.iter().filter(|device| device.items > 0).count();
        let text = format!(
            "{} of {} devices computed {} items in {} {}. The run took {}.",
            worked,
            self.devices.len(),
            grouped(self.items),
            grouped(self.packages.len() as u64),
            if self.packages.len() == 1 { "package" } else { "packages" },
            time(self.total_ns)
        );
        let against = match (summary.speedup, summary.s_max, summary.efficiency) {
            (Some(speedup), Some(s_max), Some(efficiency)) => format!(
                " Speedup over the fastest device alone: {speedup:.2} of a possible {s_max:.2} (efficiency {efficiency:.2})."
            ),
            _ => String::new(),
        };
        Finding { kind: FindingKind::Outcome, device: None, text: text + &against }
    }

    /// Returns one finding for each decision of a kind. A reason, if there is one, follows a colon.
    fn of_kind(
        &self,
        kind: DecisionKind,
        finding: FindingKind,
        say: impl Fn(&str, &str, u64) -> String,
    ) -> Vec<Finding> {
        let of_kind = self.decisions.iter().filter(|decision| decision.kind == kind);
        let say = |decision: &super::TraceDecision| {
            let reason = match decision.reason.trim_end_matches('.') {
                "" => String::new(),
                reason => format!(": {reason}"),
            };
            let text = say(self.device_name(decision.device), &reason, decision.at_ns);
            Finding { kind: finding, device: Some(decision.device), text }
        };
        of_kind.map(say).collect()
    }

    /// Returns how long a device waited for data without computing, and what was copied.
    fn data(&self, device: usize, of: &DeviceFigures) -> Option<Finding> {
        let duration = self.duration_ns.max(1) as f64;
        let (inward, outward) = (of.fetching_ns as f64 / duration, of.returning_ns as f64 / duration);
        let ways = [(inward, Way::Inward, "input data"), (outward, Way::Outward, "results to return")];
        let worth_saying = ways.into_iter().filter(|(part, ..)| *part > WORTH_SAYING);
        let said: Vec<String> = worth_saying
            .map(|(part, way, what)| {
                format!("{} of the run for {what}{}", percent(part), self.moved(device, way))
            })
            .collect();
        let text = format!("{} waited {}, without computing.", of.name, said.join(" and "));
        (!said.is_empty()).then_some(Finding { kind: FindingKind::Data, device: Some(device), text })
    }

    /// Returns, in parentheses, what was copied into a device's memory or out of it.
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
        match copies {
            0 => String::new(),
            1 => format!(" ({} in one copy)", size(bytes)),
            _ => format!(" ({} in {copies} copies)", size(bytes)),
        }
    }

    fn idle(&self, device: usize, of: &DeviceFigures) -> Option<Finding> {
        let part = of.idle_ns as f64 / self.duration_ns.max(1) as f64;
        if part <= WORTH_SAYING || of.left_out {
            return None;
        }
        let (kind, device) = (FindingKind::Idle, Some(device));
        if of.packages == 0 {
            let text = format!(
                "{} took part but computed no package: the other devices computed them all.",
                of.name
            );
            return Some(Finding { kind, device, text });
        }
        let between = of.idle_ns.saturating_sub(of.idle_before_ns).saturating_sub(of.idle_after_ns);
        let last = self.packages.iter().max_by_key(|package| package.end_ns).map(|package| package.device);
        let went_on = last.filter(|last| Some(*last) != device).map(|last| self.device_name(last));
        let after = went_on.map_or_else(String::new, |name| format!(", while {name} was still running"));
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
        let text = format!("{} was idle for {} of the run: {}.", of.name, percent(part), said.join(", "));
        Some(Finding { kind, device, text })
    }
}

#[derive(Clone, Copy)]
enum Way {
    Inward,
    Outward,
}

/// Returns which devices were slow and why, if several computed: the slowest, and every device that is more
/// than twice as slow as the fastest.
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
            format!("No device was slow: all rates are between {} and {}.", rate(slowest), rate(fastest));
        return vec![Finding { kind: FindingKind::Slow, device: None, text }];
    }
    let is_slow = |(rank, (_, of)): &(usize, &(usize, &DeviceFigures))| *rank == 0 || times(of) > MUCH_SLOWER;
    let say = |(rank, (device, of)): (usize, &(usize, &DeviceFigures))| {
        let what = if rank == 0 { "the slowest device" } else { "also slow" };
        let (name, rate, fast) = (&of.name, rate(of), rate(fastest));
        let text = format!(
            "{name} was {what}: {rate}, {:.1} times slower than {} ({fast}). {}",
            times(of),
            fastest.name,
            why_slow(of, trace.duration_ns)
        );
        Finding { kind: FindingKind::Slow, device: Some(*device), text }
    };
    workers.iter().enumerate().filter(is_slow).map(say).collect()
}

/// Returns what a slow device did in its busy time, in which it had a package.
fn why_slow(of: &DeviceFigures, duration_ns: u64) -> String {
    let busy = duration_ns.saturating_sub(of.idle_ns).max(1) as f64;
    let computing = of.computing_ns as f64 / busy;
    if computing >= MOSTLY {
        let part = percent(computing);
        return format!("Compute was its bottleneck: it computed for {part} of its busy time.");
    }
    format!(
        "It computed for {} of its busy time, at {} items/s. For the rest it waited for input data ({}) or for results to return ({}).",
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

/// Formats a time in the unit that suits it.
pub(super) fn time(ns: u64) -> String {
    match ns as f64 {
        long if long >= 1e9 => format!("{:.3} s", long / 1e9),
        long if long >= 1e6 => format!("{:.2} ms", long / 1e6),
        long if long >= 1e3 => format!("{:.1} us", long / 1e3),
        short => format!("{short:.0} ns"),
    }
}

/// Formats a number with a metric prefix, from 10,000 on.
pub(super) fn count(value: f64) -> String {
    match value {
        value if value >= 1e9 => format!("{:.2} G", value / 1e9),
        value if value >= 1e6 => format!("{:.2} M", value / 1e6),
        value if value >= 1e4 => format!("{:.1} k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// Formats a number with commas between groups of three digits.
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

#[cfg(test)]
mod tests {
    use super::super::{TraceArena, TraceDevice, TracePackage, TraceTransfer};
    use super::*;

    /// The figures of a device, with only its items and its rate set.
    fn figures(name: &str, items: u64, items_per_s: f64) -> DeviceFigures {
        DeviceFigures {
            name: name.to_owned(),
            left_out: false,
            packages: items.min(1),
            items,
            share: 0.0,
            computing_ns: 0,
            fetching_ns: 0,
            returning_ns: 0,
            idle_ns: 0,
            idle_before_ns: 0,
            idle_after_ns: 0,
            computing_items_per_s: 0.0,
            items_per_s,
            busy_part: 0.0,
        }
    }

    fn summary(devices: Vec<DeviceFigures>) -> Summary {
        Summary {
            speedup: None,
            s_max: None,
            efficiency: None,
            balance: 1.0,
            bytes: 0,
            devices,
            links: Vec::new(),
        }
    }

    /// A run of one second on two devices, each with its own memory. The second device's package ends last.
    fn trace() -> Trace {
        let device = |name: &str, arena| TraceDevice {
            name: name.to_owned(),
            kind: "cpu".to_owned(),
            description: String::new(),
            units: 1,
            is_host: arena == 0,
            arena: Some(arena),
            packages: 1,
            items: 1,
            busy_ns: 0,
            end_ns: 0,
            alone_ns: None,
            known_items_per_s: None,
        };
        let arena = |name: &str| TraceArena { name: name.to_owned(), kind: "null".to_owned() };
        let package = |device: usize, end_ns| TracePackage {
            index: device as u64,
            device,
            first_item: 0,
            items: 1,
            start_ns: 0,
            begun_ns: 0,
            computed_ns: end_ns,
            end_ns,
        };
        let transfer = |from, to, bytes, arrived| TraceTransfer {
            from,
            to,
            mechanism: "copy".to_owned(),
            buffer: 0,
            first_byte: 0,
            bytes,
            begin_ns: 0,
            end_ns: 1,
            arrived,
        };
        Trace {
            format: String::new(),
            version: 1,
            label: String::new(),
            kernel: String::new(),
            items: 1_234_567,
            policy: String::new(),
            duration_ns: 1_000_000_000,
            total_ns: 1_500_000_000,
            devices: vec![device("cpu", 0), device("gpu", 1)],
            arenas: vec![arena("main"), arena("there")],
            packages: vec![package(0, 1), package(1, 2)],
            transfers: vec![
                transfer(Some(0), 1, 1000, true),
                transfer(Some(0), 1, 500, true),
                transfer(Some(0), 1, 7000, false),
                transfer(None, 1, 9000, true),
                transfer(Some(1), 0, 2_000_000, true),
            ],
            waits: Vec::new(),
            decisions: Vec::new(),
        }
    }

    #[test]
    fn numbers_have_the_unit_that_suits_them() {
        let times = [0, 999, 1000, 999_000, 1_000_000, 2_500_000, 1_000_000_000, 12_345_000_000].map(time);
        let texts = ["0 ns", "999 ns", "1.0 us", "999.0 us", "1.00 ms", "2.50 ms", "1.000 s", "12.345 s"];
        assert_eq!(times, texts);
        let counts = [0.0, 9999.0, 1e4, 1e6, 2.5e6, 1e9, 1.25e10].map(count);
        assert_eq!(counts, ["0", "9999", "10.0 k", "1.00 M", "2.50 M", "1.00 G", "12.50 G"]);
        let sizes = [0, 999, 1000, 999_900, 1_000_000, 1_000_000_000, 2_500_000_000].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1.0 kB", "999.9 kB", "1.00 MB", "1.00 GB", "2.50 GB"]);
        let grouped = [0, 12, 999, 1000, 65_536, 123_456, 1_234_567].map(grouped);
        assert_eq!(grouped, ["0", "12", "999", "1,000", "65,536", "123,456", "1,234,567"]);
        let parts = [0.0, 0.0004, 0.009, 0.01, 0.5, 0.994, 0.9968, 0.9999, 1.0].map(percent);
        assert_eq!(parts, ["0%", "0.0%", "0.9%", "1%", "50%", "99%", "99.7%", "100%", "100%"]);
    }

    #[test]
    fn the_outcome_names_what_was_computed_and_how_fast() {
        let mut summary = summary(vec![figures("cpu", 1, 1.0), figures("gpu", 0, 0.0)]);
        let text = "1 of 2 devices computed 1,234,567 items in 2 packages. The run took 1.500 s.";
        assert_eq!(trace().outcome(&summary).text, text);
        let both = self::summary(vec![figures("cpu", 1, 1.0), figures("gpu", 1, 1.0)]);
        assert_eq!(trace().outcome(&both).text, text.replacen('1', "2", 1));
        (summary.speedup, summary.s_max, summary.efficiency) = (Some(1.5), Some(2.0), Some(0.75));
        let against = " Speedup over the fastest device alone: 1.50 of a possible 2.00 (efficiency 0.75).";
        assert_eq!(trace().outcome(&summary).text, format!("{text}{against}"));
    }

    #[test]
    fn the_slowest_is_slow_and_whoever_takes_twice_as_long() {
        let slow = |devices: &[(&str, u64, f64)]| -> Vec<(Option<usize>, String)> {
            let devices = devices.iter().map(|&(name, items, rate)| figures(name, items, rate)).collect();
            slow(&trace(), &summary(devices))
                .into_iter()
                .map(|finding| (finding.device, finding.text))
                .collect()
        };
        assert!(slow(&[("a", 1, 100.0)]).is_empty(), "there is no device to compare with");
        assert!(slow(&[("a", 1, 100.0), ("b", 0, 1.0), ("c", 1, 0.0)]).is_empty(), "the others did nothing");
        let even = "No device was slow: all rates are between 100 items/s and 114 items/s.";
        assert_eq!(slow(&[("a", 1, 114.0), ("b", 1, 100.0)]), [(None, even.to_owned())]);
        let found = slow(&[("a", 1, 100.0), ("b", 1, 30.0), ("c", 1, 51.0), ("d", 1, 40.0)]);
        assert_eq!(found.iter().map(|(device, _)| *device).collect::<Vec<_>>(), [Some(1), Some(3)]);
        assert!(
            found[0]
                .1
                .starts_with("b was the slowest device: 30 items/s, 3.3 times slower than a (100 items/s). ")
        );
        assert!(
            found[1].1.starts_with("d was also slow: 40 items/s, 2.5 times slower than a (100 items/s). ")
        );
    }

    #[test]
    fn a_slow_device_computed_slowly_or_waited() {
        let of = |computing_ns, fetching_ns, returning_ns| DeviceFigures {
            computing_ns,
            fetching_ns,
            returning_ns,
            idle_ns: 200,
            computing_items_per_s: 1234.0,
            ..figures("gpu", 1, 1.0)
        };
        // The device is busy for 800 of 1,000 ns.
        let computing = "Compute was its bottleneck: it computed for 85% of its busy time.";
        assert_eq!(why_slow(&of(680, 0, 0), 1000), computing);
        let waiting = "It computed for 50% of its busy time, at 1234 items/s. For the rest it waited for input data (40%) \
                       or for results to return (10%).";
        assert_eq!(why_slow(&of(400, 320, 80), 1000), waiting);
    }

    /// Only waits above a tenth of the run are reported. Failed copies and fills with zeros are not data.
    #[test]
    fn who_waited_for_data_is_told_what_moved() {
        let data = |fetching_ns, returning_ns| {
            let of = DeviceFigures { fetching_ns, returning_ns, ..figures("gpu", 1, 1.0) };
            trace().data(1, &of).map(|finding| finding.text)
        };
        assert_eq!(data(100_000_000, 100_000_000), None);
        let inward = "gpu waited 20% of the run for input data (1.5 kB in 2 copies), without computing.";
        assert_eq!(data(200_000_000, 0).as_deref(), Some(inward));
        let outward =
            "gpu waited 30% of the run for results to return (2.00 MB in one copy), without computing.";
        assert_eq!(data(0, 300_000_000).as_deref(), Some(outward));
        assert!(data(200_000_000, 300_000_000).unwrap().contains("copies) and 30% of the run for results"));
        let of = DeviceFigures { fetching_ns: 200_000_000, ..figures("gpu", 1, 1.0) };
        let without_copies = Trace { transfers: Vec::new(), ..trace() };
        let waited = "gpu waited 20% of the run for input data, without computing.";
        assert_eq!(without_copies.data(1, &of).unwrap().text, waited);
    }

    /// Only idle times above a tenth of the run are reported, and of these only parts above a tenth of the
    /// idle time.
    #[test]
    fn who_had_no_work_is_told_when() {
        let idle = |device: usize, [before, between, after]: [u64; 3]| {
            let of = DeviceFigures {
                idle_ns: before + between + after,
                idle_before_ns: before,
                idle_after_ns: after,
                ..figures("x", 1, 1.0)
            };
            trace().idle(device, &of).map(|finding| finding.text)
        };
        assert_eq!(idle(0, [100_000_000, 0, 0]), None);
        let all = "x was idle for 60% of the run: 100.00 ms before its first package, 200.00 ms between packages, \
                   300.00 ms after its last package, while gpu was still running.";
        assert_eq!(idle(0, [100_000_000, 200_000_000, 300_000_000]).as_deref(), Some(all));
        let last = "x was idle for 20% of the run: 180.00 ms after its last package.";
        assert_eq!(idle(1, [20_000_000, 0, 180_000_000]).as_deref(), Some(last));
        let of = |left_out| DeviceFigures { idle_ns: 1_000_000_000, left_out, ..figures("x", 0, 0.0) };
        let nothing = "x took part but computed no package: the other devices computed them all.";
        assert_eq!(trace().idle(0, &of(false)).map(|finding| finding.text).as_deref(), Some(nothing));
        assert_eq!(trace().idle(0, &of(true)), None);
    }
}
