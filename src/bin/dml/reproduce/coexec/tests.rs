use super::*;
use crate::cli::{Arguments, Command};
use crate::suite::tests::result;
use clap::Parser;
use dml::core::{DeviceDesc, DeviceId, DeviceKind, Platform};

/// A table with speedups 2 and 8 of regular workloads, 3 and 27 of irregular ones, and 1 of nbody.
pub(crate) fn sample() -> json::Coexec {
    let of = |workload: Workload, speedup: f64, balance: f64| {
        let figures = [speedup, speedup * 2.0, 0.5, balance];
        row(workload.kind(), result(workload.name(), [30, 20], [4.0, 8.0], 2.0, figures))
    };
    let rows = vec![
        of(Workload::Mandelbrot, 3.0, 0.25),
        of(Workload::Saxpy, 2.0, 0.5),
        of(Workload::Nbody, 1.0, 0.125),
        of(Workload::Ray, 27.0, 1.0),
        of(Workload::Vecadd, 8.0, 0.125),
    ];
    let arguments =
        ["dml", "reproduce", "coexec", "--size", "tiny", "--policy", "dynamic:3", "--memory", "copy"];
    let Command::Reproduce(options) = Arguments::parse_from(arguments).command else { unreachable!() };
    table(&options, 7, rows)
}

#[test]
fn means_are_those_of_each_kind_and_nbody_counts_in_the_last_alone() {
    let json::ByKind { regular, irregular, all } = sample().means;
    let near = |mean: Option<f64>, expected: f64| (mean.expect("a mean") - expected).abs() < 1e-12;
    assert!(near(regular.speedup, 4.0) && near(irregular.speedup, 9.0), "{regular:?} {irregular:?}");
    assert!(near(all.speedup, 1296.0_f64.powf(0.2)), "{all:?}");
    assert!(near(regular.balance, 0.25) && near(irregular.balance, 0.5) && near(regular.s_max, 8.0));
}

#[test]
fn rows_stand_by_kind_with_every_figure_under_its_name() {
    let result = sample();
    assert_eq!((result.size, &*result.policy, result.memory, result.runs), ("tiny", "dynamic:3", "copy", 7));
    let about = About { devices: vec!["cpu (a processor, 1 unit)".to_owned()], note: Some("a note") };
    let text = text(&result, &about);
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "coexec: tiny size; policy dynamic:3; memory copy; median of 7 runs",
        "a note",
        "device: cpu (a processor, 1 unit)",
        "",
        "workload kind items cpu alone opencl:0 alone together speedup of efficiency balance packages",
        "saxpy regular 50 4.000 s 8.000 s 2.000 s 2.000 4.000 0.500 0.500 2",
        "vecadd regular 50 4.000 s 8.000 s 2.000 s 8.000 16.000 0.500 0.125 2",
        "mandelbrot irregular 50 4.000 s 8.000 s 2.000 s 3.000 6.000 0.500 0.250 2",
        "ray irregular 50 4.000 s 8.000 s 2.000 s 27.000 54.000 0.500 1.000 2",
        "nbody all-to-all 50 4.000 s 8.000 s 2.000 s 1.000 2.000 0.500 0.125 2",
        "geometric mean regular 4.000 8.000 0.500 0.250",
        "geometric mean irregular 9.000 18.000 0.500 0.500",
        "geometric mean all 4.193 8.386 0.500 0.287",
        "",
        "published policy over speedup efficiency balance",
        "Core i5-7500 and its HD Graphics 630 hguided all 1.65 0.92 -",
        "Xeon E-2176G and its UHD Graphics P630 hguided all 1.26 0.89 -",
        "Core i7-10700 and GeForce GT 1030 hguided all 1.31 0.91 0.99",
        "Core i7-10700 and GeForce GT 1030 static all 1.18 0.82 -",
        "Core i7-10700 and GeForce GT 1030 hguided irregular - 0.96 -",
        "Core i7-10700 and GeForce GT 1030 hguided rap 2.41 - -",
    ];
    assert_eq!(lines[..expected.len()], expected);
    assert_eq!(lines.iter().filter(|line| line.starts_with("source: ")).count(), 2, "each paper once");
}

#[test]
fn a_device_is_told_with_what_it_is_and_its_units() {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu).with_description("a processor"));
    builder.add_device(
        DeviceDesc::new("cuda:0", DeviceKind::Gpu).with_description("a card").with_compute_units(5),
    );
    let machine = Machine {
        platform: builder.build().expect("devices alone are a platform"),
        devices: vec![DeviceId(0), DeviceId(1)],
        note: None,
        link_prices: json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() },
        unavailable: Vec::new(),
    };
    assert_eq!(devices(&machine), ["cpu (a processor, 1 unit)", "cuda:0 (a card, 5 units)"]);
}

#[test]
fn the_markdown_has_whole_tables_and_the_chart_only_where_it_is_in_a_file() {
    let about = About { devices: vec!["cpu".to_owned()], note: None };
    let markdown = |chart| markdown(&sample(), &about, chart);
    assert!(!markdown(None).contains("!["));
    let text = markdown(Some("coexec.svg"));
    assert!(text.contains("](coexec.svg)"), "{text}");
    assert!(text.contains("**At this size"), "nothing follows from tiny sizes: {text}");
    let small = json::Coexec { size: "small", ..sample() };
    assert!(!super::markdown(&small, &about, None).contains("At this size"));
    let tables: Vec<Vec<&str>> = text
        .split("\n\n")
        .map(|block| block.lines().filter(|line| line.starts_with('|')).collect())
        .filter(|table: &Vec<&str>| !table.is_empty())
        .collect();
    assert_eq!(tables.iter().map(Vec::len).collect::<Vec<_>>(), [2 + 5 + 3, 2 + 6], "{text}");
    for table in tables {
        let bars = |line: &&str| line.matches('|').count();
        assert!(table.iter().all(|line| bars(line) == bars(&table[0])), "{table:?}");
    }
}
