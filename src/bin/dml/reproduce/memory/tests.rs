use super::*;
use crate::bench::tests::Counted;
use crate::cli::{Arguments, Command, NO_FILES};
use clap::Parser;

/// Measures vecadd on the processor with copies and with the planner's choice, in two counted rounds. Returns
/// the runs of both, and the number of runs that each began.
fn paired_under(policy: &str) -> (Vec<Vec<Run>>, Vec<u32>) {
    let arguments = ["dml", "reproduce", "memory", "--size", "tiny", "--runs", "2", "--devices", "cpu"];
    let more = ["--limit", "cpu=1", "--policy", policy];
    let Command::Reproduce(options) = Arguments::parse_from(arguments.iter().chain(&more)).command else {
        unreachable!()
    };
    let open = |memory| Configuration::open(&options, memory).unwrap_or_else(|error| panic!("{error}"));
    let (workload, configurations) = (Workload::Vecadd, [Memory::Copy, Memory::Auto].map(open));
    let devices: Vec<Vec<DeviceId>> = configurations.iter().map(|one| one.machine.devices.clone()).collect();
    let each = || configurations.iter().zip(&devices);
    let prepared: Vec<Counted> = each()
        .map(|(one, devices)| {
            bench::prepare(&one.options, &NO_FILES, &one.machine.platform, devices, workload)
        })
        .map(|prepared| Counted::new(prepared.expect("a small problem"), 0))
        .collect();
    let benches: Vec<Bench<'_>> = each()
        .zip(&prepared)
        .map(|((one, devices), prepared)| {
            let found = (&one.machine.platform, &devices[..], &one.machine.link_prices, &one.knowledge);
            Bench::new(&one.options, &NO_FILES, found, prepared)
        })
        .collect();
    let alone = configurations[1].timed_alone(workload) as u64;
    let mut progress = Progress::new((2 + alone) * 3);
    let runs = paired(&configurations, &benches, &devices, &mut progress).expect("nothing is wrong");
    progress.done();
    (runs, prepared.iter().map(Counted::resets).collect())
}

/// The calibrated policy learns in uncounted runs. Other policies get measured powers.
#[test]
fn before_its_rounds_a_policy_learns_or_is_given_powers() {
    for (policy, expected) in [("calibrated", [LEARNING_RUNS + 3; 2]), ("static", [3, 3 + 5])] {
        let (runs, began) = paired_under(policy);
        assert_eq!(began, expected, "{policy}");
        assert_eq!(runs.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2], "one round does not count");
    }
}

/// The device counts as used if it computed items in the median run.
#[test]
fn a_device_is_used_that_computes() {
    let (runs, _) = paired_under("static");
    let mut runs: Vec<Run> = runs.into_iter().flatten().take(3).collect();
    for (run, (seconds, items)) in runs.iter_mut().zip([(4.0, 1), (1.0, 1), (2.0, 0)]) {
        run.seconds = seconds;
        run.report.devices[0].items = items;
    }
    let used = |runs: &[Run]| {
        let json::MemoryCost { seconds, seconds_min, seconds_max, used, .. } =
            cost(runs, 1.5, &["cpu".to_owned()]);
        (seconds, seconds_min, seconds_max, used)
    };
    assert_eq!(used(&runs), (2.0, 1.0, 4.0, Vec::new()));
    runs[2].report.devices[0].items = 1;
    assert_eq!(used(&runs), (2.0, 1.0, 4.0, vec!["cpu".to_owned()]));
}

/// The order favours no configuration: each has each place, and follows each other one, equally often.
#[test]
fn the_orders_of_rounds_are_balanced() {
    for place in 0..3 {
        for index in 0..3 {
            let count = (0..12).filter(|round| order(*round, 3).nth(place) == Some(index)).count();
            assert_eq!(count, 4, "configuration {index} at place {place}");
        }
    }
    for [one, other] in [[0, 1], [0, 2], [1, 0], [1, 2], [2, 0], [2, 1]] {
        let follows =
            |round: &u32| order(*round, 3).collect::<Vec<_>>().windows(2).any(|pair| pair == [one, other]);
        assert_eq!((0..12).filter(follows).count(), 4, "{other} after {one}");
    }
    let two: Vec<Vec<usize>> = (0..6).map(|round| order(round, 2).collect()).collect();
    assert_eq!(two.iter().filter(|order| **order == [0, 1]).count(), 3, "{two:?}");
    assert!(two.iter().all(|order| order.len() == 2));
}

#[test]
fn the_first_round_does_not_count_and_runs_stand_by_configuration() {
    let mut begun = Vec::new();
    let counted = rounds(2, 3, |index| {
        begun.push(index);
        Ok((index, begun.len()))
    });
    assert_eq!(begun, [ORDERS[0], ORDERS[1], ORDERS[2]].concat());
    let counted = counted.expect("nothing fails");
    assert!(
        counted.iter().zip(0..).all(|(runs, index)| runs.len() == 2 && runs.iter().all(|run| run.0 == index))
    );
    assert!(counted.iter().flatten().all(|(_, at)| *at > 3), "none of the first round: {counted:?}");
    let mut calls = 0;
    let failed: Result<Vec<Vec<()>>, Failure> = rounds(9, 2, |_| {
        calls += 1;
        if calls < 4 { Ok(()) } else { Err(Failure::Work("it broke".to_owned())) }
    });
    assert!(failed.is_err_and(|failure| failure.to_string() == "it broke"));
    assert_eq!(calls, 4, "the first failure ends it");
}

/// A slow round is slow for all configurations. Ratios of median times would differ.
#[test]
fn the_planners_choice_stands_beside_the_better_one_round_by_round() {
    let (copy, bound, auto) = (vec![4.0, 40.0, 8.0], vec![2.0, 10.0, 3.0], vec![2.5, 10.0, 6.0]);
    let compared = Compared::of(&[copy.clone(), bound.clone(), auto.clone()]);
    let expected =
        Compared { better: 1, over_better: vec![8.0 / 3.0, 1.0, 1.25], bound_over_copy: Some(0.375) };
    assert_eq!(compared, expected);
    // Only the other two are candidates for the better one, even if the planner's choice is faster.
    assert_eq!(Compared::of(&[copy.clone(), bound, vec![1.0, 1.0, 1.0]]).better, 1);
    // Without shared storage, copies are the only candidate.
    let compared = Compared::of(&[copy, auto]);
    assert_eq!((compared.better, compared.bound_over_copy), (0, None));
    assert_eq!(compared.over_better, [1.0, 0.625]);
}

fn cost_of(seconds: f64, over_better: f64, bytes: u64, used: &[&str]) -> json::MemoryCost {
    let calls = OPERATIONS.iter().zip(1..);
    json::MemoryCost {
        seconds,
        seconds_min: 0.0,
        seconds_max: 0.0,
        over_better,
        used: used.iter().map(|name| (*name).to_owned()).collect(),
        bytes,
        operations: calls.map(|(operation, count)| (operation.name(), bytes + count)).collect(),
    }
}

fn row_of(workload: Workload, bound_over_copy: Option<f64>, auto_over_better: f64) -> json::MemoryRow {
    json::MemoryRow {
        workload: workload.to_string(),
        kind: workload.kind().name(),
        size: [("items", 1)].into(),
        devices: vec!["cpu".to_owned(), "opencl:0".to_owned()],
        copy: cost_of(0.5, 2.0, 100, &["cpu", "opencl:0"]),
        bound: bound_over_copy.map(|_| cost_of(0.25, 1.0, 0, &["opencl:0"])),
        auto: cost_of(0.3, auto_over_better, 50, &["cpu"]),
        better: "bound",
        bound_over_copy,
        auto_over_better,
        kept: auto_over_better <= MOST_OVER_BETTER,
    }
}

fn table_of(rows: Vec<json::MemoryRow>, bound_missing: Option<&str>) -> json::MemoryTable {
    json::MemoryTable {
        table: "memory",
        size: "tiny",
        policy: "static".to_owned(),
        runs: 7,
        verified: true,
        devices: vec!["cpu".to_owned(), "opencl:0".to_owned()],
        bound_missing: bound_missing.map(str::to_owned),
        most_over_better: MOST_OVER_BETTER,
        missed: rows.iter().filter(|row| !row.kept).count() as u64,
        bound_over_copy: means(&rows),
        rows,
    }
}

#[test]
fn every_figure_of_the_table_stands_under_its_name() {
    let rows = vec![row_of(Workload::Saxpy, Some(0.25), 1.03), row_of(Workload::Ray, Some(0.5), 1.031)];
    let text = text(&table_of(rows, None), Some("a note"));
    let lines: Vec<String> =
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "memory: cpu + opencl:0; tiny size; policy static; median of 7 rounds, in which every memory runs once",
        "a note",
        "",
        "workload memory used time over better moved alloc bind map unmap read write copy fill kernel",
        "saxpy copy cpu+opencl:0 500.00 ms 2.000 100 B 101 102 103 104 105 106 107 108 109",
        "saxpy bound opencl:0 250.00 ms 1.000 0 B 1 2 3 4 5 6 7 8 9",
        "saxpy auto cpu 300.00 ms 1.030 50 B 51 52 53 54 55 56 57 58 59",
        "ray copy cpu+opencl:0 500.00 ms 2.000 100 B 101 102 103 104 105 106 107 108 109",
        "ray bound opencl:0 250.00 ms 1.000 0 B 1 2 3 4 5 6 7 8 9",
        "ray auto cpu 300.00 ms 1.031 missed 50 B 51 52 53 54 55 56 57 58 59",
        "",
        "Of 2 rows, 1 have auto within 1.03 of the better of the other two, and 1 miss it.",
    ];
    assert_eq!(lines[..expected.len()], expected);
    assert!(
        text.contains("0.250 of the time of copy on regular workloads, 0.500 on irregular ones"),
        "{text}"
    );
    assert!(text.contains("0.354 on all"), "the root of an eighth: {text}");
}

#[test]
fn what_cannot_be_had_is_said_and_has_no_figures() {
    let result = table_of(vec![row_of(Workload::Nbody, None, 1.0)], Some("cuda:0 has a memory of its own"));
    let json::ByKind { regular, irregular, all } = result.bound_over_copy;
    assert_eq!((regular, irregular, all), (None, None, None));
    let text = text(&result, None);
    assert!(text.contains("\nbound is unavailable: cuda:0 has a memory of its own\n"), "{text}");
    assert!(!text.contains("nbody     bound") && !text.contains("NaN"), "{text}");
    let markdown = markdown(&result, None);
    let rows: Vec<&str> = markdown.lines().filter(|line| line.starts_with('|')).collect();
    assert_eq!(rows.len(), 4, "a heading, its rule, copy and auto: {markdown}");
    assert!(rows.iter().all(|row| row.matches('|').count() == rows[0].matches('|').count()), "{markdown}");
}
