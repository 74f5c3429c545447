//! The last suite of this machine with the same options, for comparison.
//!
//! ```text
//!   suites-<digest of the machine>.json: one suite for each set of options, the newest first
//! ```
//! The program's version is not one of the options: the comparison shows how a new version changes the times.

use crate::cache;
use crate::cli::{BenchOptions, MachineOptions, PerDevice};
use crate::json;
use crate::machine::Machine;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Version of the file's format.
const FORMAT: u32 = 1;
/// Maximum number of suites in the file. The oldest ones are dropped first.
const MOST_SUITES: usize = 64;

/// The contents of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suites {
    format: u32,
    suites: Vec<Suite>,
}

/// One suite: its options, the time of its measurement, and its rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Suite {
    options: String,
    measured_unix_s: u64,
    rows: Vec<Row>,
}

/// The time of one workload on all devices together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    workload: String,
    items: u64,
    coexec_s: f64,
}

/// The user's file of suites, and the options to look up in it.
#[derive(Debug)]
pub(crate) struct Last {
    file: PathBuf,
    options: String,
}

impl Last {
    /// Locates the file of this machine. Returns `None` without a cache folder.
    pub(crate) fn of(options: &BenchOptions, machine: &Machine) -> Option<Self> {
        Some(Self { file: cache::file("suites", "json")?, options: described(options, &devices(machine)) })
    }

    /// Compares a suite with the last one, and replaces the last one by it in the file. A failed read or
    /// write becomes a note.
    pub(crate) fn compare(&self, suite: &mut json::Suite, notes: &mut Vec<String>) {
        let file = self.file.display();
        let kept = read(&self.file).unwrap_or_else(|reason| {
            notes.push(format!("the suites measured earlier are ignored: {file}: {reason}"));
            Vec::new()
        });
        let then = kept.iter().find(|suite| suite.options == self.options);
        suite.last = then.map(|then| then.beside(&suite.workloads));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let new = Suite::of(&self.options, now, &suite.workloads);
        let text = serde_json::to_string_pretty(&with(kept, new)).map_err(|error| error.to_string());
        if let Err(reason) =
            text.and_then(|text| cache::write(&self.file, &(text + "\n")).map_err(|error| error.to_string()))
        {
            notes.push(format!("this suite is not saved for the next comparison: {file}: {reason}"));
        }
    }
}

impl Suite {
    fn of(options: &str, measured_unix_s: u64, workloads: &[json::Bench]) -> Self {
        let row = |result: &json::Bench| Row {
            workload: result.workload.clone(),
            items: items(result),
            coexec_s: result.coexec_s,
        };
        Self { options: options.to_owned(), measured_unix_s, rows: workloads.iter().map(row).collect() }
    }

    /// Returns the ratios of the current times to these. Workloads whose size has changed are omitted.
    fn beside(&self, now: &[json::Bench]) -> json::SuiteLast {
        let ratio = |result: &json::Bench| {
            let then =
                self.rows.iter().find(|row| row.workload == result.workload && row.items == items(result))?;
            Some((result.workload.clone(), result.coexec_s / then.coexec_s))
        };
        json::SuiteLast {
            measured_unix_s: self.measured_unix_s,
            ratios: now.iter().filter_map(ratio).collect(),
        }
    }
}

fn items(result: &json::Bench) -> u64 {
    result.size.get("items").copied().unwrap_or_default()
}

/// Returns the suites with a new one, which replaces the one with the same options.
fn with(mut kept: Vec<Suite>, new: Suite) -> Suites {
    kept.retain(|suite| suite.options != new.options);
    kept.insert(0, new);
    kept.sort_by_key(|suite| std::cmp::Reverse(suite.measured_unix_s));
    kept.truncate(MOST_SUITES);
    Suites { format: FORMAT, suites: kept }
}

/// Reads the suites in the file. Returns none if there is no file.
fn read(file: &Path) -> Result<Vec<Suite>, String> {
    cache::read(file)?.map_or(Ok(Vec::new()), |text| parsed(&text))
}

/// Parses and checks the file's text. Invalid times are rejected, because ratios are computed from them.
fn parsed(text: &str) -> Result<Vec<Suite>, String> {
    let Suites { format, suites } = serde_json::from_str(text).map_err(|error| error.to_string())?;
    if format != FORMAT {
        return Err(format!("it has format {format}, not {FORMAT}"));
    }
    for suite in &suites {
        let is_time = |seconds: f64| seconds.is_finite() && seconds > 0.0;
        if let Some(row) = suite.rows.iter().find(|row| !is_time(row.coexec_s)) {
            return Err(format!("{} took {} seconds", row.workload, row.coexec_s));
        }
    }
    Ok(suites)
}

/// Returns the devices of a suite, with all properties that affect its times.
fn devices(machine: &Machine) -> Vec<String> {
    let desc = |device: &dml::core::DeviceId| machine.platform.device_desc(*device);
    let shown = |device| {
        let dml::core::DeviceDesc { name, description, driver, compute_units: units, .. } = desc(device);
        format!("{name} ({description}, driver {driver:?}, {units} units)")
    };
    machine.devices.iter().map(shown).collect()
}

/// Returns the options that affect the times, as readable text.
fn described(options: &BenchOptions, devices: &[String]) -> String {
    let BenchOptions { machine, policy, powers, size, runs, by_hand, .. } = options;
    let MachineOptions { memory, pinned, workers, .. } = machine;
    let power = |PerDevice { device, value }: &PerDevice<f64>| format!("{device}={value}");
    let powers = powers.iter().map(power).collect::<Vec<_>>().join(",");
    let pins = workers.pin.iter().map(|pin| format!("{}={:?}", pin.device, pin.value.0));
    let pins = pins.collect::<Vec<_>>().join(",");
    let (size, memory, devices) = (format!("{size:?}").to_lowercase(), memory.name(), devices.join(" + "));
    // Without the option, the text equals that of versions without it, so that their suites are found.
    let pinned = pinned.pinned.map_or_else(String::new, |limit| format!(" pinned {limit}"));
    format!(
        "size {size}; policy {policy}; memory {memory}{pinned}; runs {runs}; by_hand {by_hand}; powers {powers:?}; \
         pins {pins:?}; devices {devices}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Arguments, Command};
    use crate::suite::tests::result;
    use clap::Parser;
    use dml::core::{DeviceDesc, DeviceKind, Platform};

    fn bench(workload: &str, items: u64, coexec_s: f64) -> json::Bench {
        result(workload, [items, 0], [1.0, 1.0], coexec_s, [1.0; 4])
    }

    fn suite(options: &str, measured_unix_s: u64, coexec_s: f64) -> Suite {
        Suite::of(options, measured_unix_s, &[bench("rap", 10, coexec_s)])
    }

    #[test]
    fn a_row_is_compared_with_the_same_workload_and_size_alone() {
        let then = Suite::of("", 7, &[bench("rap", 10, 2.0), bench("ray", 20, 4.0), bench("nbody", 30, 8.0)]);
        let now =
            [bench("ray", 20, 5.0), bench("rap", 11, 1.0), bench("nbody", 30, 4.0), bench("new", 1, 1.0)];
        let last = then.beside(&now);
        let expected = [("nbody".to_owned(), 0.5), ("ray".to_owned(), 1.25)];
        assert_eq!((last.measured_unix_s, last.ratios), (7, expected.into()));
    }

    #[test]
    fn one_suite_is_kept_for_each_set_of_options_and_the_oldest_go() {
        let kept = with(vec![suite("a", 1, 1.0), suite("b", 2, 2.0)], suite("a", 3, 3.0));
        assert_eq!(kept.suites, [suite("a", 3, 3.0), suite("b", 2, 2.0)]);
        let many = (0..MOST_SUITES as u64).map(|at| suite(&at.to_string(), at, 1.0)).collect();
        let kept = with(many, suite("new", 1000, 1.0)).suites;
        assert_eq!((kept.len(), kept[0].measured_unix_s), (MOST_SUITES, 1000));
        assert!(kept.iter().all(|suite| suite.measured_unix_s > 0), "the oldest went");
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else_is() {
        let text =
            serde_json::to_string(&with(vec![suite("b", 2, 2.0)], suite("a", 1, 0.1))).expect("values");
        assert_eq!(parsed(&text), Ok(vec![suite("b", 2, 2.0), suite("a", 1, 0.1)]));
        for (wrong, named) in [
            (text.replace("\"format\":1", "\"format\":2"), "format 2"),
            (text.replace("0.1", "0.0"), "rap took 0 seconds"),
            (text.replace("0.1", "-0.1"), "rap took -0.1 seconds"),
            (text.replace("\"items\":10", "\"items\":-10"), "-10"),
            (text.replace("\"items\"", "\"things\""), "things"),
            (text[..text.len() - 1].to_owned(), "EOF"),
            (String::new(), "EOF"),
        ] {
            let told = parsed(&wrong).expect_err(&wrong);
            assert!(told.contains(named), "{told} does not name {named}");
        }
    }

    /// Only the devices that take part are described, in their order.
    #[test]
    fn a_device_is_told_with_all_that_its_times_depend_on() {
        let mut builder = Platform::builder();
        builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu).with_description("a processor"));
        builder.add_device(DeviceDesc::new("opencl:0", DeviceKind::Gpu).with_description("another"));
        let card = DeviceDesc::new("cuda:0", DeviceKind::Gpu).with_description("a card");
        builder.add_device(card.with_driver("7.1").with_compute_units(5));
        let machine = Machine {
            platform: builder.build().expect("devices alone are a platform"),
            devices: [2, 0].map(dml::core::DeviceId).to_vec(),
            note: None,
            link_prices: json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: vec![] },
            unavailable: Vec::new(),
        };
        let expected =
            ["cuda:0 (a card, driver \"7.1\", 5 units)", "cpu (a processor, driver \"\", 1 units)"];
        assert_eq!(devices(&machine), expected);
    }

    /// Everything that affects the times is part of the options.
    #[test]
    fn other_options_are_another_suite() {
        let of = |arguments: &[&str], devices: &[&str]| {
            let arguments = ["dml", "bench", "saxpy"].iter().chain(arguments);
            let Command::Bench(command) = Arguments::parse_from(arguments).command else { unreachable!() };
            described(
                &command.options,
                &devices.iter().map(|device| (*device).to_owned()).collect::<Vec<_>>(),
            )
        };
        let all = [
            of(&[], &["cpu"]),
            of(&[], &["cpu", "opencl:0"]),
            of(&["--size", "tiny"], &["cpu"]),
            of(&["--size", "7"], &["cpu"]),
            of(&["--size", "8"], &["cpu"]),
            of(&["--policy", "static"], &["cpu"]),
            of(&["--memory", "copy"], &["cpu"]),
            of(&["--pinned", "1M"], &["cpu"]),
            of(&["--pinned", "2M"], &["cpu"]),
            of(&["--runs", "3"], &["cpu"]),
            of(&["--by-hand"], &["cpu"]),
            of(&["--powers", "cpu=2"], &["cpu"]),
            of(&["--powers", "cpu=3"], &["cpu"]),
            of(&["--pin", "offload:0=1"], &["cpu"]),
        ];
        for (index, one) in all.iter().enumerate() {
            assert!(all[..index].iter().all(|other| other != one), "{one}");
        }
        assert_eq!(of(&["--json"], &["cpu"]), all[0], "how it is printed changes no time");
    }
}
