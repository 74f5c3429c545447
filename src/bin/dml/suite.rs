//! `dml bench all`: the suite as one table, a line for each workload and one for the means.

use crate::{energy, json, speeds, table};
use dml::core::Unavailable;

/// Returns the results with their means.
pub(crate) fn of(workloads: Vec<json::Bench>) -> json::Suite {
    let means = means_of(&workloads.iter().collect::<Vec<_>>());
    json::Suite { workloads, means, last: None }
}

/// Returns the geometric means over some workloads.
pub(crate) fn means_of(workloads: &[&json::Bench]) -> json::SuiteMeans {
    let mean = |figure: fn(&json::Bench) -> f64| geometric_mean(workloads.iter().copied().map(figure));
    // A balance compares the ends of all devices, and an unused device has no end.
    let shared = workloads.iter().filter(|result| result.devices.iter().all(|device| device.items > 0));
    json::SuiteMeans {
        speedup: mean(|result| result.speedup),
        s_max: mean(|result| result.s_max),
        efficiency: mean(|result| result.efficiency),
        balance: geometric_mean(shared.map(|result| result.balance)),
        energy_over_fastest: mean_of_those(workloads, |energy| energy.energy_over_fastest),
        edp_over_fastest: mean_of_those(workloads, |energy| energy.edp_over_fastest),
    }
}

/// Returns the geometric mean of a figure over the workloads for which it is known.
fn mean_of_those(workloads: &[&json::Bench], figure: fn(&json::Energy) -> Option<f64>) -> Option<f64> {
    geometric_mean(workloads.iter().filter_map(|result| figure(&result.energy)))
}

/// Returns the geometric mean, or `None` without figures.
pub(crate) fn geometric_mean(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = figures.fold((0.0, 0_u32), |(sum, count), figure| (sum + figure.ln(), count + 1));
    (count > 0).then(|| (sum / f64::from(count)).exp())
}

/// Returns the suite as text.
pub(crate) fn text(suite: &json::Suite, note: Option<&str>, unavailable: &[Unavailable]) -> String {
    let Some(first) = suite.workloads.first() else { return String::new() };
    let (policy, memory, runs) = (&first.policy, first.memory, first.runs);
    let pinned = table::pinned(first.pinned_bytes);
    let mut lines = vec![format!("suite: policy {policy}; memory {memory}{pinned}; median of {runs} runs")];
    lines.extend(note.map(str::to_owned));
    lines.extend(unavailable.iter().map(|missing| format!("unavailable: {missing}")));
    lines.extend(
        suite.last.iter().map(|last| format!("last: this suite of {}", speeds::date(last.measured_unix_s))),
    );
    lines.push(String::new());
    let names = names(&suite.workloads);
    let mut rows = vec![columns(&names)];
    rows.extend(suite.workloads.iter().map(|result| row(result, &names)));
    rows.push(means_row(&suite.means, names.len()));
    if let Some(last) = &suite.last {
        for (row, cell) in rows.iter_mut().zip(changes(suite, last)) {
            row.push(cell);
        }
    }
    lines.extend(table::lines(&rows).into_iter().map(|line| format!("  {line}")));
    let energy: Vec<_> = suite.workloads.iter().map(|result| (&*result.workload, &result.energy)).collect();
    lines.push(String::new());
    let pictures: Vec<_> = suite.workloads.iter().filter_map(|result| result.picture.as_deref()).collect();
    lines.push("verified    every item of every workload, each device alone and all together".to_owned());
    lines.extend(energy::suite_lines(&energy, &suite.means));
    if !pictures.is_empty() {
        lines.push(format!("pictures    {}", pictures.join(", ")));
    }
    for result in &suite.workloads {
        lines.extend(
            result.failures.iter().map(|failure| format!("failed      {}: {failure}", result.workload)),
        );
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the devices of all workloads. A device may lack a kernel of a workload.
pub(crate) fn names<'a>(workloads: impl IntoIterator<Item = &'a json::Bench>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for device in workloads.into_iter().flat_map(|result| &result.devices) {
        if !names.contains(&device.name.as_str()) {
            names.push(&device.name);
        }
    }
    names
}

/// Returns the headings of the cells of [`row`].
pub(crate) fn columns(names: &[&str]) -> Vec<String> {
    let mut columns = vec!["workload".to_owned(), "items".to_owned()];
    columns.extend(names.iter().map(|name| format!("{name} alone")));
    columns.extend(["together", "speedup", "of", "efficiency", "balance"].map(str::to_owned));
    columns
}

/// Returns the cells of one workload.
pub(crate) fn row(result: &json::Bench, names: &[&str]) -> Vec<String> {
    let items = result.size.get("items").copied().unwrap_or_default();
    let mut row = vec![result.workload.clone(), items.to_string()];
    row.extend(names.iter().map(|name| {
        let device = result.devices.iter().find(|device| device.name == *name);
        device.map_or_else(|| "-".to_owned(), |device| table::seconds(device.alone_s))
    }));
    row.push(table::seconds(result.coexec_s));
    row.extend(
        [result.speedup, result.s_max, result.efficiency, result.balance]
            .map(|figure| format!("{figure:.3}")),
    );
    row
}

/// Returns the column with each row's change of time since the last suite, heading and mean included.
fn changes(suite: &json::Suite, last: &json::SuiteLast) -> Vec<String> {
    let change = |ratio: f64| format!("{:+.1}%", (ratio - 1.0) * 100.0);
    let ratios = suite.workloads.iter().map(|result| last.ratios.get(&result.workload).copied());
    let ratios = ratios.chain([geometric_mean(last.ratios.values().copied())]);
    let cells = ratios.map(|ratio| ratio.map_or_else(|| "-".to_owned(), change));
    ["vs last".to_owned()].into_iter().chain(cells).collect()
}

/// Returns the cells of the means, as many as [`row`] has with this number of devices.
pub(crate) fn means_row(means: &json::SuiteMeans, devices: usize) -> Vec<String> {
    let json::SuiteMeans { speedup, s_max, efficiency, balance, .. } = *means;
    let mut row = vec!["geometric mean".to_owned()];
    // Means of items and times over different workloads are meaningless.
    row.resize(devices + 3, String::new());
    let figures = [speedup, s_max, efficiency, balance];
    row.extend(figures.map(|figure| figure.map_or("-".to_owned(), |figure| format!("{figure:.3}"))));
    row
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn device(name: &str, alone_s: f64, items: u64) -> json::BenchDevice {
        json::BenchDevice {
            name: name.to_owned(),
            arena: "a memory".to_owned(),
            units: 1,
            alone_s,
            power: 1.0,
            busy_s: 0.0,
            end_s: 0.0,
            packages: 1,
            items,
            alone_energy: json::Energy::default(),
        }
    }

    /// `figures` are the speedup, the maximum speedup, the efficiency and the balance.
    pub(crate) fn result(
        workload: &str,
        items: [u64; 2],
        alone_s: [f64; 2],
        coexec_s: f64,
        figures: [f64; 4],
    ) -> json::Bench {
        let [speedup, s_max, efficiency, balance] = figures;
        json::Bench {
            workload: workload.to_owned(),
            size: [("items", items[0] + items[1]), ("edge", 3)].into(),
            policy: "calibrated".to_owned(),
            memory: "auto",
            pinned_bytes: None,
            runs: 9,
            verified: true,
            devices: vec![device("cpu", alone_s[0], items[0]), device("opencl:0", alone_s[1], items[1])],
            coexec_s,
            coexec_min_s: 0.0,
            coexec_max_s: 0.0,
            speedup,
            s_max,
            efficiency,
            balance,
            by_hand_s: [].into(),
            transfers: Vec::new(),
            under_compute: json::UnderCompute { transfer_s: 0.0, under_compute_s: 0.0, part: None },
            link_prices: json::LinkPrices {
                measured: 0,
                guessed: 0,
                measured_unix_s: None,
                notes: Vec::new(),
            },
            operations: [].into(),
            failures: Vec::new(),
            energy_j: None,
            energy: json::Energy { missing: Some("no counter".to_owned()), ..json::Energy::default() },
            picture: None,
            trace: None,
            decisions: None,
            html: None,
        }
    }

    fn suite() -> json::Suite {
        let mut drawn = result("ray", [40, 60], [4.0, 8.0], 3.0, [1.5, 1.8, 0.9, 0.5]);
        drawn.picture = Some("ray.png".to_owned());
        drawn.failures.push("opencl:0: it is tired".to_owned());
        // The second device is unused in the last workload.
        of(vec![
            result("rap", [30, 20], [2.0, 1.0], 0.5, [6.0, 3.2, 0.4, 0.98]),
            drawn,
            result("saxpy", [70, 0], [0.25, 5.0], 0.125, [3.0, 1.125, 0.6, 0.0]),
        ])
    }

    #[test]
    fn means_are_geometric_and_leave_out_balances_of_idle_devices() {
        let json::SuiteMeans { speedup, s_max, efficiency, balance, .. } = suite().means;
        let near = |mean: Option<f64>, expected: f64| (mean.unwrap() - expected).abs() < 1e-12;
        assert!(near(speedup, 3.0), "the third root of 27");
        assert!(near(s_max, (3.2_f64 * 1.8 * 1.125).cbrt()));
        assert!(near(efficiency, 0.6), "the third root of 0.216");
        assert!(near(balance, 0.7), "the root of 0.49");
        let none = of(Vec::new()).means;
        assert_eq!((none.speedup, none.balance), (None, None));
        assert_eq!((none.energy_over_fastest, none.edp_over_fastest), (None, None));
        let mut known = vec![result("rap", [1, 1], [1.0, 1.0], 1.0, [1.0; 4]); 3];
        for (result, (energy, edp)) in known.iter_mut().zip([(0.25, 0.5), (4.0, 8.0)]) {
            result.energy.energy_over_fastest = Some(energy);
            result.energy.edp_over_fastest = Some(edp);
        }
        let means = of(known).means;
        assert!(near(means.energy_over_fastest, 1.0) && near(means.edp_over_fastest, 2.0), "of two of three");
    }

    #[test]
    fn a_device_without_a_kernel_of_a_workload_has_a_dash_in_its_row() {
        let mut able = result("rap", [30, 20], [2.0, 1.0], 0.5, [6.0, 3.2, 0.4, 0.98]);
        able.devices.remove(0);
        let suite = of(vec![able, result("saxpy", [70, 0], [0.25, 5.0], 0.125, [3.0, 1.125, 0.6, 0.0])]);
        let names = names(&suite.workloads);
        assert_eq!(names, ["opencl:0", "cpu"]);
        let [rap, saxpy] = [0, 1].map(|index| row(&suite.workloads[index], &names));
        assert_eq!(rap[2..4], [table::seconds(1.0), "-".to_owned()]);
        assert_eq!(saxpy[2..4], [table::seconds(5.0), table::seconds(0.25)]);
        let heads = columns(&names).len();
        assert!(
            [rap.len(), saxpy.len(), means_row(&suite.means, names.len()).len()]
                .iter()
                .all(|len| *len == heads)
        );
    }

    #[test]
    fn the_table_shows_each_figure_under_its_name() {
        let text = text(&suite(), Some("a note"), &[]);
        let shown: Vec<String> =
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
        let expected = [
            "suite: policy calibrated; memory auto; median of 9 runs",
            "a note",
            "",
            "workload items cpu alone opencl:0 alone together speedup of efficiency balance",
            "rap 50 2.000 s 1.000 s 500.00 ms 6.000 3.200 0.400 0.980",
            "ray 100 4.000 s 8.000 s 3.000 s 1.500 1.800 0.900 0.500",
            "saxpy 70 250.00 ms 5.000 s 125.00 ms 3.000 1.125 0.600 0.000",
            "geometric mean 3.000 1.864 0.600 0.700",
            "",
            "verified every item of every workload, each device alone and all together",
            "energy not measured: no counter",
            "pictures ray.png",
            "failed ray: opencl:0: it is tired",
        ];
        assert_eq!(shown, expected);
    }

    #[test]
    fn the_change_stands_beside_each_row_that_was_measured_before() {
        let mut suite = suite();
        let ratios = [("rap".to_owned(), 1.25), ("saxpy".to_owned(), 0.2)].into();
        suite.last = Some(json::SuiteLast { measured_unix_s: 951_782_400, ratios });
        let text = text(&suite, None, &[]);
        assert!(text.contains("\nlast: this suite of 2000-02-29 00:00 UTC\n"), "{text}");
        let ends = |begin: &str| {
            let row = text.lines().find(|line| line.trim_start().starts_with(begin)).expect(begin);
            row.split_whitespace().last().expect("cells").to_owned()
        };
        assert!(text.contains("balance  vs last\n"), "{text}");
        assert_eq!([ends("rap"), ends("ray"), ends("saxpy")], ["+25.0%", "-", "-80.0%"]);
        assert_eq!(ends("geometric"), "-50.0%", "the root of a quarter");
    }
}
