//! `dml devices`: what this machine has.

use crate::cli::DevicesOptions;
use crate::failure::{self, Failure};
use crate::{json, table};
use dml::arenas::calibrate;
use dml::core::DeviceId;
use dml::prelude::*;

/// Finds, measures and prints.
pub(crate) fn run(options: &DevicesOptions) -> Result<(), Failure> {
    let wanted = options.workers.discover_options();
    let builder = Platform::builder().discover_with(&wanted).map_err(Failure::usage)?;
    let platform = builder.build().map_err(Failure::work)?;
    let found = describe(&platform);
    if options.json { json::print(&found) } else { failure::print(&text(&found)) }
}

fn describe(platform: &Platform) -> json::Devices {
    let name = |device: DeviceId| platform.devices()[usize::from(device.0)].name.to_string();
    let arena_name = |arena| platform.arena(arena).desc().name.to_string();
    let measured = calibrate::measure(platform);
    json::Devices {
        devices: platform
            .devices()
            .iter()
            .map(|device| json::Device {
                name: device.name.to_string(),
                kind: device.kind.to_string(),
                description: device.description.clone(),
                units: device.units,
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
        links: measured
            .into_iter()
            .map(|link| json::Link {
                from: arena_name(link.from),
                to: arena_name(link.to),
                latency_ns: link.speed().ok().map(|speed| speed.latency_ns),
                bytes_per_s: link.speed().ok().map(|speed| speed.bytes_per_s),
                error: link.speed().err().map(ToString::to_string),
                mechanism: link.mechanism,
            })
            .collect(),
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

/// The findings as tables for people.
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
    let mut rows = vec![["link", "mechanism", "latency", "bandwidth"].map(str::to_owned).to_vec()];
    for link in &found.links {
        let (latency, bandwidth) = match (link.latency_ns, link.bytes_per_s, &link.error) {
            (Some(ns), Some(rate), _) => {
                (format!("{:.1} us", ns as f64 / 1e3), format!("{:.2} GB/s", rate as f64 / 1e9))
            }
            (_, _, error) => ("-".to_owned(), error.clone().unwrap_or_default()),
        };
        rows.push(vec![format!("{} -> {}", link.from, link.to), link.mechanism.clone(), latency, bandwidth]);
    }
    if found.links.is_empty() {
        lines.extend(["links: none, there is one memory only".to_owned(), String::new()]);
    } else {
        lines.extend(paragraph(&rows));
    }
    for missing in &found.unavailable {
        lines.push(format!("unavailable: {}: {}", missing.backend, missing.reason));
    }
    lines.push(String::new());
    lines.join("\n")
}

/// A table and an empty line.
fn paragraph(rows: &[Vec<String>]) -> Vec<String> {
    let mut lines = table::lines(rows);
    lines.push(String::new());
    lines
}
