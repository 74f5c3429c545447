//! The result of a benchmark as text.

use crate::speeds;
use crate::{energy, json, table};
use dml::core::Unavailable;

/// Returns the result as text.
pub(super) fn result(result: &json::Bench, note: Option<&str>, unavailable: &[Unavailable]) -> String {
    let mut lines = vec![heading(result)];
    lines.extend(note.map(str::to_owned));
    lines.extend(unavailable.iter().map(|missing| format!("unavailable: {missing}")));
    lines.extend(link_prices(&result.link_prices, result.pinned_bytes));
    lines.push(String::new());
    lines.extend(device_table(result));
    lines.push(String::new());
    lines.extend(times(result));
    lines.extend(energy::lines(result));
    lines.extend(traffic(result));
    lines.extend(outcome(result));
    lines.push(String::new());
    lines.join("\n")
}

/// Returns what was measured, as a heading.
fn heading(result: &json::Bench) -> String {
    let size: Vec<_> = result.size.iter().map(|(name, value)| format!("{value} {name}")).collect();
    let (size, workload) = (size.join(", "), &result.workload);
    let (policy, memory, runs) = (&result.policy, result.memory, result.runs);
    let pinned = table::pinned(result.pinned_bytes);
    format!("{workload}: {size}; policy {policy}; memory {memory}{pinned}; median of {runs} runs")
}

/// Returns the origin of the link prices. Links of page-locked memory are measured only with `--pinned`.
pub(super) fn link_prices(prices: &json::LinkPrices, pinned_bytes: Option<u64>) -> Vec<String> {
    let command = match pinned_bytes {
        Some(_) => "dml devices --pinned BYTES",
        None => "dml devices",
    };
    let mut lines: Vec<_> = prices.notes.iter().map(|note| format!("link prices: {note}")).collect();
    let links = prices.measured + prices.guessed;
    match prices.measured_unix_s.map(speeds::date) {
        Some(date) => {
            let others = match (pinned_bytes, prices.guessed) {
                (Some(_), 1..) => format!("; {command} measures the others"),
                _ => String::new(),
            };
            lines.push(format!("link prices: {} of {links} measured, {date}{others}", prices.measured));
        }
        None if links > 0 => lines.push(format!("link prices: guesses; {command} measures the links")),
        None => {}
    }
    lines
}

/// Returns a row for each device, after a row of column names.
fn device_table(result: &json::Bench) -> Vec<String> {
    let columns = ["device", "units", "alone", "power", "packages", "items", "busy", "end"];
    let mut rows = vec![columns.map(str::to_owned).to_vec()];
    for device in &result.devices {
        rows.push(vec![
            device.name.clone(),
            device.units.to_string(),
            table::seconds(device.alone_s),
            format!("{:.3}", device.power),
            device.packages.to_string(),
            device.items.to_string(),
            table::seconds(device.busy_s),
            table::seconds(device.end_s),
        ]);
    }
    table::lines(&rows).into_iter().map(|line| format!("  {line}")).collect()
}

/// Returns the time of all devices together, and the comparison with the hand-written programs.
fn times(result: &json::Bench) -> Vec<String> {
    let mut lines = vec![
        format!(
            "together    {} ({} to {})",
            table::seconds(result.coexec_s),
            table::seconds(result.coexec_min_s),
            table::seconds(result.coexec_max_s)
        ),
        format!(
            "speedup     {:.3} of {:.3}: efficiency {:.3}, balance {:.3}",
            result.speedup, result.s_max, result.efficiency, result.balance
        ),
    ];
    for (device, seconds) in &result.by_hand_s {
        let alone = result.devices.iter().find(|row| row.name == *device).map_or(0.0, |row| row.alone_s);
        let (seconds, ratio) = (table::seconds(*seconds), alone / seconds);
        lines.push(format!("by hand     {seconds} on {device}: dml takes {ratio:.3} times as long"));
    }
    lines
}

/// Returns the transfers and the operation counts.
fn traffic(result: &json::Bench) -> Vec<String> {
    let mut lines = Vec::new();
    for transfer in &result.transfers {
        lines.push(format!(
            "transfers   {} -> {}: {} in {} copies, {}",
            transfer.from,
            transfer.to,
            table::bytes(transfer.bytes),
            transfer.copies,
            table::seconds(transfer.seconds)
        ));
    }
    let json::UnderCompute { transfer_s, part, .. } = result.under_compute;
    if let Some(part) = part {
        let transfers = table::seconds(transfer_s);
        lines.push(format!("overlap     {part:.3} of {transfers} of transfers hidden under compute"));
    }
    let operations = result.operations.iter().filter(|(_, count)| **count > 0);
    let counts: Vec<_> = operations.map(|(name, count)| format!("{count} {name}")).collect();
    lines.push(format!("operations  {}", counts.join(", ")));
    lines
}

/// Returns the failed units, and what was verified.
fn outcome(result: &json::Bench) -> Vec<String> {
    let mut lines = Vec::new();
    for failure in &result.failures {
        lines.push(format!("failed      {failure}; others finished its work"));
    }
    lines.push("verified    every item, each device alone and all together".to_owned());
    lines
}

/// Returns the names of the written files, and an empty line.
pub(super) fn written(result: &json::Bench) -> String {
    let mut lines = Vec::new();
    lines.extend(result.picture.iter().map(|picture| format!("picture     {picture}")));
    lines.extend(
        result.trace.iter().map(|trace| format!("trace       {trace}, for ui.perfetto.dev and dml report")),
    );
    lines.extend(result.decisions.iter().map(|file| format!("decisions   {file}, for dml replay")));
    lines.extend(result.html.iter().map(|html| format!("timeline    {html}")));
    lines.extend([String::new(), String::new()]);
    lines.join("\n")
}
