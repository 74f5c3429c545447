//! `dml devices`: lists the devices, arenas and links of this machine.

use crate::cli::DevicesOptions;
use crate::failure::{self, Failure};
use crate::progress::Progress;
use crate::speeds::{self, Cache};
use crate::{json, machine, plan, table};
use dml::arenas::calibrate::{self, Measured};
use dml::core::DeviceId;
use dml::prelude::*;

/// Discovers the machine and prints it. Measures the links if they are unmeasured, or on request.
pub(crate) fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let mut wanted = options.workers.discover_options();
    for limit in &options.limit {
        wanted = wanted.limit(&limit.device, limit.value);
    }
    let mut cache = Cache::open();
    if let (Some([from, to]), Some(bytes)) = (options.plan.as_deref(), options.bytes) {
        wanted = wanted.sharing(options.bind.iter().fold(Sharing::default(), Sharing::bind));
        return show_plan(options, wanted, cache, ((from, to), bytes));
    }
    let platform = found(wanted, options)?;
    let links = match cache.of_all(&platform).filter(|_| !options.measure) {
        Some(known) => known.iter().map(|(link, when)| described(&platform, link, Some(*when))).collect(),
        None => {
            let progress = Progress::new(1).on("measures the links");
            let measured = calibrate::measure(&platform);
            drop(progress);
            cache.store(&platform, &measured);
            measured.iter().map(|link| described(&platform, link, None)).collect()
        }
    };
    let speeds = json::Speeds { file: cache.file(), notes: cache.notes };
    let described = describe(&platform, links, speeds);
    if options.json { json::print(&described) } else { failure::print(&text(&described)) }
}

/// Returns the platform of this machine, with page-locked memory if the options request it.
fn found(wanted: DiscoverOptions, options: &DevicesOptions) -> Result<Platform, Failure> {
    let platform = machine::discover(&wanted)?;
    match options.pinned.pinned {
        Some(limit_bytes) => Ok(machine::page_locked(wanted, platform, limit_bytes)?.1),
        None => Ok(platform),
    }
}

/// Plans with the link prices that `dml bench` uses, and prints the plan.
fn show_plan(
    options: &DevicesOptions,
    wanted: DiscoverOptions,
    cache: Cache,
    (ends, bytes): ((&str, &str), u64),
) -> Result<(), Failure> {
    let platform = found(wanted.calibration(cache.source()), options)?;
    let (measured, guessed, _) = cache.known(&platform);
    let plan = plan::plan(&platform, ends, bytes)?;
    if options.json {
        return json::print(&plan);
    }
    let prices = match (measured, guessed) {
        (_, 0) => "all link prices measured".to_owned(),
        (0, _) => "all link prices guessed".to_owned(),
        _ => format!("{measured} of {} link prices measured, the others guessed", measured + guessed),
    };
    failure::print(&plan::text(&plan, &prices))
}

/// Returns a link and its figures. They come from the cache if the time of their measurement is given.
fn described(platform: &Platform, link: &Measured, cached_unix_s: Option<u64>) -> json::Link {
    let arena_name = |arena| platform.arena(arena).desc().name.to_string();
    let speed = link.speed().ok();
    let classes = link.table.as_ref().map_or(&[][..], |table| table.classes());
    json::Link {
        from: arena_name(link.from),
        to: arena_name(link.to),
        mechanism: link.mechanism.clone(),
        figures: match (speed, cached_unix_s) {
            (None, _) => "guessed",
            (Some(_), None) => "measured",
            (Some(_), Some(_)) => "cached",
        },
        measured_unix_s: cached_unix_s,
        latency_ns: speed.map(|speed| speed.latency_ns),
        bytes_per_s: speed.map(|speed| speed.bytes_per_s),
        classes: classes
            .iter()
            .map(|class| json::SizeClass { bytes: class.bytes, copy_ns: class.copy_ns })
            .collect(),
        error: link.speed().err().map(ToString::to_string),
    }
}

fn describe(platform: &Platform, links: Vec<json::Link>, speeds: json::Speeds) -> json::Devices {
    // No kernels run on a store.
    let device = |id: DeviceId| platform.devices().get(usize::from(id.0));
    let name = |id: DeviceId| device(id).map_or_else(|| "-".to_owned(), |device| device.name.to_string());
    json::Devices {
        devices: platform
            .devices()
            .iter()
            .map(|device| json::Device {
                name: device.name.to_string(),
                kind: device.kind.to_string(),
                description: device.description.clone(),
                units: device.compute_units,
            })
            .collect(),
        arenas: platform
            .arenas()
            .iter()
            .map(|arena| json::Arena {
                name: arena.desc().name.to_string(),
                kind: arena.desc().kind.to_string(),
                native: name(arena.desc().native),
                remotes: arena.desc().remotes.iter().map(name).collect(),
            })
            .collect(),
        links,
        speeds,
        unavailable: platform
            .unavailable()
            .iter()
            .map(|missing| json::Unavailable {
                backend: missing.backend.to_owned(),
                reason: missing.reason.clone(),
            })
            .collect(),
    }
}

/// Returns the devices, arenas and links as tables.
fn text(found: &json::Devices) -> String {
    let mut lines = Vec::new();
    let mut rows = vec![["device", "kind", "units", "description"].map(str::to_owned).to_vec()];
    for device in &found.devices {
        let units = device.units.to_string();
        rows.push(vec![device.name.clone(), device.kind.clone(), units, device.description.clone()]);
    }
    lines.extend(paragraph(&rows));
    let mut rows = vec![["arena", "kind", "native", "remotes"].map(str::to_owned).to_vec()];
    for arena in &found.arenas {
        rows.push(vec![
            arena.name.clone(),
            arena.kind.clone(),
            arena.native.clone(),
            arena.remotes.join(" "),
        ]);
    }
    lines.extend(paragraph(&rows));
    let mut rows = vec![["link", "mechanism", "latency", "bandwidth", "figures"].map(str::to_owned).to_vec()];
    for link in &found.links {
        let (latency, bandwidth) = match (link.latency_ns, link.bytes_per_s, &link.error) {
            (Some(ns), Some(rate), _) => {
                (format!("{:.1} us", ns as f64 / 1e3), format!("{:.2} GB/s", rate as f64 / 1e9))
            }
            _ => ("-".to_owned(), "-".to_owned()),
        };
        let figures = match (link.measured_unix_s, &link.error) {
            (_, Some(error)) => format!("guessed: {error}"),
            (Some(unix_s), None) => format!("cached, {}", speeds::date(unix_s)),
            (None, None) => "measured now".to_owned(),
        };
        let way = format!("{} -> {}", link.from, link.to);
        rows.push(vec![way, link.mechanism.clone(), latency, bandwidth, figures]);
    }
    if found.links.is_empty() {
        lines.extend(["links: none, there is one memory only".to_owned(), String::new()]);
    } else {
        lines.extend(paragraph(&rows));
    }
    lines.extend(found.speeds.notes.iter().map(|note| format!("speeds: {note}")));
    if let (Some(file), false) = (&found.speeds.file, found.links.is_empty()) {
        lines.push(format!("speeds: kept in {file}; --measure measures again"));
    }
    for missing in &found.unavailable {
        lines.push(format!("unavailable: {}: {}", missing.backend, missing.reason));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the lines of a table, and an empty line.
fn paragraph(rows: &[Vec<String>]) -> Vec<String> {
    let mut lines = table::lines(rows);
    lines.push(String::new());
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(latency_ns: Option<u64>, measured_unix_s: Option<u64>, error: Option<&str>) -> json::Link {
        json::Link {
            from: "main".to_owned(),
            to: "gpu".to_owned(),
            mechanism: "copy".to_owned(),
            figures: "measured",
            measured_unix_s,
            latency_ns,
            bytes_per_s: latency_ns.map(|_| 12_345_000_000),
            classes: Vec::new(),
            error: error.map(str::to_owned),
        }
    }

    #[test]
    fn everything_found_stands_under_its_name() {
        let found = json::Devices {
            devices: vec![json::Device {
                name: "cpu".to_owned(),
                kind: "cpu".to_owned(),
                description: "a processor".to_owned(),
                units: 4,
            }],
            arenas: vec![json::Arena {
                name: "main".to_owned(),
                kind: "main".to_owned(),
                native: "cpu".to_owned(),
                remotes: vec!["gpu".to_owned(), "npu".to_owned()],
            }],
            links: vec![
                link(Some(2500), None, None),
                link(Some(2500), Some(0), None),
                link(None, None, Some("no answer")),
            ],
            speeds: json::Speeds { file: Some("speeds.json".to_owned()), notes: vec!["a note".to_owned()] },
            unavailable: vec![json::Unavailable {
                backend: "cuda".to_owned(),
                reason: "no driver".to_owned(),
            }],
        };
        let lines = |found: &json::Devices| -> Vec<String> {
            text(found).lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
        };
        let expected = [
            "device kind units description",
            "cpu cpu 4 a processor",
            "",
            "arena kind native remotes",
            "main main cpu gpu npu",
            "",
            "link mechanism latency bandwidth figures",
            "main -> gpu copy 2.5 us 12.35 GB/s measured now",
            "main -> gpu copy 2.5 us 12.35 GB/s cached, 1970-01-01 00:00 UTC",
            "main -> gpu copy - - guessed: no answer",
            "",
            "speeds: a note",
            "speeds: kept in speeds.json; --measure measures again",
            "unavailable: cuda: no driver",
        ];
        assert_eq!(lines(&found), expected);
        let alone = lines(&json::Devices { links: Vec::new(), ..found });
        assert!(alone.contains(&"links: none, there is one memory only".to_owned()), "{alone:?}");
        assert!(!alone.iter().any(|line| line.contains("speeds.json")), "{alone:?}");
    }
}
