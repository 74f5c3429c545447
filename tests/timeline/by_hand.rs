//! The output for a trace made by hand, compared with values computed by hand.

use super::*;

/// Formats the fields of an event that differ within its kind: phase, process, track, time, duration, name
/// and arguments.
fn line(event: &Value) -> String {
    let [ph, pid, tid, ts, dur, name] = ["ph", "pid", "tid", "ts", "dur", "name"].map(|key| &event[key]);
    let rest = [tid, ts, dur].map(|value| if value.is_null() { "-".to_owned() } else { value.to_string() });
    format!("{} {pid} {} {} {}", ph.as_str().expect("a phase"), rest.join(" "), name, event["args"])
}

/// Returns the names of processes and tracks, and all other events. Checks that each name has its own number
/// as its sort index.
fn names_and_others(trace: &Trace) -> (Vec<String>, Vec<String>) {
    let (_, file) = perfetto(trace);
    let events = file["traceEvents"].as_array().expect("a list").clone();
    let (names, others): (Vec<_>, Vec<_>) = events.into_iter().partition(|event| event["ph"] == "M");
    for pair in names.chunks(2) {
        assert!(pair[0]["name"].as_str().unwrap().ends_with("_name"), "{pair:?}");
        let order = &pair[1]["args"]["sort_index"];
        let number = if pair[1]["tid"].is_null() { &pair[1]["pid"] } else { &pair[1]["tid"] };
        assert_eq!((order, &pair[0]["pid"]), (number, &pair[1]["pid"]));
    }
    let names = names.iter().step_by(2).map(|event| {
        let tid = event["tid"].as_u64().map_or(String::new(), |tid| format!(".{tid}"));
        format!("{}{tid} {}", event["pid"], event["args"]["name"].as_str().expect("a name"))
    });
    (names.collect(), others.iter().map(line).collect())
}

#[test]
fn every_event_for_perfetto_is_what_the_trace_says() {
    let (names, events) = names_and_others(&read(&by_hand()).expect("it is sound"));
    assert_eq!(
        names,
        [
            "1 device cpu",
            "1.2000 computing",
            "2 device gpu",
            "2.1000 decisions",
            "2.2000 computing",
            "2.3000 handed out, not begun",
            "2.4000 results on their way",
            "2.5000 waits for other users",
            "3 device tpu (left out)",
            "3.1000 decisions",
            "3.5000 waits for other users",
            "1001 link main -> video (staged)",
            "1001.1 copies",
            "1001.2 copies (2)",
            "1002 link video -> main (staged)",
            "1002.1 copies",
            "1000 findings",
            "1000.1 findings",
            "1000.2 findings (2)",
            "1000.3 findings (3)",
            "1000.4 findings (4)",
            "1000.5 findings (5)",
            "1000.6 findings (6)",
        ]
    );
    let [one, two, three] = [66666666.666666664, 1e8, 3e8];
    let package = |first: u64, items: u64, rate: f64, index: u64| json!({ "first_item": first, "items": items, "items_per_s": rate, "package": index });
    let copy = |arrived: bool, buffer: u64, bytes: u64, rate: f64, first: u64| json!({ "arrived": arrived, "buffer": buffer, "bytes": bytes, "bytes_per_s": rate, "first_byte": first });
    let (zero, first, second) = (package(0, 60, one, 0), package(10, 10, two, 1), package(20, 30, three, 2));
    let value = |value: f64| json!({ "per second": value });
    let expected = [
        format!(r#"X 1 2000 0.0 0.9 "package 0: 60 items" {zero}"#),
        format!(r#"C 1 - 0.0 - "items" {}"#, value(one)),
        format!(r#"C 1 - 0.9 - "items" {}"#, value(0.0)),
        r#"X 2 1000 0.09 0.91 "called up" {"reason":""}"#.to_owned(),
        format!(r#"X 2 2000 0.5 0.1 "package 1: 10 items" {first}"#),
        format!(r#"X 2 2000 0.7 0.1 "package 2: 30 items" {second}"#),
        format!(r#"X 2 3000 0.1 0.4 "package 1 handed out, not begun" {first}"#),
        format!(r#"X 2 3000 0.55 0.15 "package 2 handed out, not begun" {second}"#),
        format!(r#"X 2 4000 0.6 0.05 "results of package 1" {first}"#),
        format!(r#"X 2 4000 0.8 0.08 "results of package 2" {second}"#),
        r#"X 2 5000 0.1 0.04 "waits for buffer b7" {"buffer":7}"#.to_owned(),
        format!(r#"C 2 - 0.5 - "items" {}"#, value(two)),
        format!(r#"C 2 - 0.6 - "items" {}"#, value(0.0)),
        format!(r#"C 2 - 0.7 - "items" {}"#, value(three)),
        format!(r#"C 2 - 0.8 - "items" {}"#, value(0.0)),
        r#"X 3 1000 0.0 1.0 "left out: it is no use" {"reason":"it is no use"}"#.to_owned(),
        r#"X 3 5000 0.1 0.04 "waits for buffer b7" {"buffer":7}"#.to_owned(),
        format!(r#"X 1001 1 0.1 0.4 "800 bytes of b7" {}"#, copy(true, 7, 800, 2e9, 0)),
        format!(r#"X 1001 2 0.4 0.2 "100 bytes of b7" {}"#, copy(true, 7, 100, 5e8, 800)),
        format!(r#"C 1001 - 0.1 - "bytes" {}"#, value(2e9)),
        format!(r#"C 1001 - 0.4 - "bytes" {}"#, value(2.5e9)),
        format!(r#"C 1001 - 0.5 - "bytes" {}"#, value(5e8)),
        format!(r#"C 1001 - 0.6 - "bytes" {}"#, value(0.0)),
        format!(r#"X 1002 1 0.8 0.08 "50 bytes of b8" {}"#, copy(false, 8, 50, 6.25e8, 0)),
        format!(r#"C 1002 - 0.8 - "bytes" {}"#, value(6.25e8)),
        format!(r#"C 1002 - 0.88 - "bytes" {}"#, value(0.0)),
    ];
    let (findings, events): (Vec<_>, Vec<_>) =
        events.into_iter().partition(|event| event.starts_with("X 1000 "));
    assert_eq!(events, expected);
    let told = read(&by_hand()).expect("it is sound").findings();
    assert_eq!(told.len(), 6);
    for (number, (finding, event)) in told.iter().zip(&findings).enumerate() {
        let of = finding.device.map(|device| ["cpu", "gpu", "tpu"][device]);
        let expected =
            format!("X 1000 {} 0.0 1.0 {} {}", number + 1, json!(finding.text), json!({ "device": of }));
        assert_eq!(*event, expected);
    }
    assert_eq!(told[5].text, "gpu was called up after 90 ns.");
}

/// No two processes share a number, nor do two tracks of one process, for any number of overlaps and devices.
#[test]
fn every_process_and_every_track_has_a_number_of_its_own() {
    let mut value = by_hand();
    let package = |index: u64| {
        json!({ "index": index, "device": 0, "first_item": 0, "items": 1, "start_ns": 0, "begun_ns": 10,
            "computed_ns": 500 + index, "end_ns": 9000 })
    };
    value["packages"] = (0..2300).map(package).collect();
    let decision = |_| json!({ "at_ns": 0, "device": 0, "kind": "gave_up", "reason": "x" });
    value["decisions"] = (0..1100).map(decision).collect();
    let copy = value["transfers"][0].clone();
    value["transfers"] = (0..1200).map(|_| copy.clone()).collect();
    let device = value["devices"][0].clone();
    for few in [3, 1400] {
        value["devices"] = (0..few).map(|_| device.clone()).collect();
        let (names, events) = names_and_others(&read(&value).expect("it is sound"));
        let number = |name: &String| name.split_once(' ').expect("a number and a name").0.to_owned();
        let numbers: std::collections::BTreeSet<_> = names.iter().map(number).collect();
        assert_eq!(numbers.len(), names.len(), "{few}");
        let is_main = |number: &&String| number.split_once('.').is_some_and(|(pid, tid)| pid == tid);
        assert_eq!(numbers.iter().find(is_main), None, "{few}");
        let tracks = events.iter().filter(|event| event.starts_with("X "));
        let track = |event: &String| event.split(' ').skip(1).take(2).collect::<Vec<_>>().join(".");
        assert!(tracks.map(track).all(|track| numbers.contains(&track)), "{few}");
    }
}

/// A decision lasts until the next one of the same device, whatever their order in the file.
#[test]
fn a_decision_holds_until_the_next_one() {
    let mut value = by_hand();
    let decision = |at: u64, device: u64, kind: &str, reason: &str| json!({ "at_ns": at, "device": device, "kind": kind, "reason": reason });
    value["decisions"] = json!([
        decision(700, 0, "gave_up", "it fell over"),
        decision(20, 0, "began", ""),
        decision(300, 1, "promoted", "who knows"),
        decision(300, 1, "called_up", "there is much to do"),
    ]);
    let (names, events) = names_and_others(&read(&value).expect("it is sound"));
    let decisions: Vec<_> = events
        .iter()
        .filter_map(|event| event.split_once(" {\"reason\"").map(|(decision, _)| decision))
        .collect();
    let expected = [
        r#"X 1 1000 0.02 0.68 "took part""#,
        r#"X 1 1000 0.7 0.3 "gave up: it fell over""#,
        r#"X 2 1000 0.3 0.0 "decision: who knows""#,
        r#"X 2 1001 0.3 0.7 "called up: there is much to do""#,
    ];
    assert_eq!(decisions, expected);
    assert!(
        names.contains(&"2.1001 decisions (2)".to_owned()),
        "overlapping decisions need a second track: {names:?}"
    );
}

/// Phases of no duration are omitted, except computing. A slice that begins where another ends follows it on
/// the same track. Rates that change at the same time are one step.
#[test]
fn turns_of_no_time_and_those_that_meet() {
    let mut value = by_hand();
    value["transfers"] = json!([]);
    value["waits"] = json!([]);
    value["decisions"] = json!([]);
    let package = |index: u64, turns: [u64; 4]| {
        json!({ "index": index, "device": 0, "first_item": 0, "items": 1, "start_ns": turns[0], "begun_ns": turns[1],
            "computed_ns": turns[2], "end_ns": turns[3] })
    };
    value["packages"] =
        json!([package(0, [5, 5, 10, 10]), package(1, [10, 10, 20, 20]), package(2, [30, 30, 30, 30])]);
    let (names, events) = names_and_others(&read(&value).expect("it is sound"));
    let of_cpu: Vec<_> =
        names.iter().filter(|name| name.starts_with("1 ") || name.starts_with("1.")).collect();
    assert_eq!(of_cpu, ["1 device cpu", "1.2000 computing"]);
    let brief: Vec<String> = events
        .iter()
        .filter(|event| !event.starts_with("X 1000 "))
        .map(|event| event.split_once(" \"").map_or("", |(brief, _)| brief).to_owned())
        .collect();
    assert_eq!(
        brief,
        [
            "X 1 2000 0.005 0.005",
            "X 1 2000 0.01 0.01",
            "X 1 2000 0.03 0.0",
            "C 1 - 0.005 -",
            "C 1 - 0.01 -",
            "C 1 - 0.02 -",
            "C 1 - 0.03 -",
            "C 1 - 0.031 -",
        ]
    );
    let values: Vec<_> = events
        .iter()
        .filter_map(|event| event.split_once("\"per second\":"))
        .map(|(_, value)| value)
        .collect();
    assert_eq!(values, ["200000000.0}", "100000000.0}", "0.0}", "0.0}", "0.0}"]);
}

/// Adding and subtracting rates leaves rounding errors. While nothing is in flight, the rate is exactly 0.
#[test]
fn where_nothing_is_under_way_nothing_is_left_of_a_rate() {
    let mut value = by_hand();
    let package = |index: u64, from: u64, to: u64| {
        json!({ "index": index, "device": 0, "first_item": 0, "items": 1, "start_ns": from, "begun_ns": from,
            "computed_ns": to, "end_ns": to })
    };
    value["packages"] = json!([package(0, 0, 10), package(1, 2, 5), package(2, 3, 9), package(3, 20, 27)]);
    let (_, file) = perfetto(&read(&value).expect("it is sound"));
    let events = file["traceEvents"].as_array().expect("a list").iter();
    let steps = events.filter(|event| event["ph"] == "C" && event["pid"] == 1);
    let steps: Vec<_> = steps.map(|event| event["args"]["per second"].as_f64().expect("a number")).collect();
    assert_eq!(steps.len(), 8);
    assert_ne!(
        0.1e9 + 1e9 / 3.0 + 1e9 / 6.0 - 1e9 / 3.0 - 1e9 / 6.0 - 0.1e9,
        0.0,
        "there is a rounding error"
    );
    assert_eq!([steps[5], steps[7]], [0.0, 0.0], "{steps:?}");
}

#[test]
fn what_ends_last_ends_the_trace() {
    let end = |change: &dyn Fn(&mut Value)| {
        let mut value = by_hand();
        change(&mut value);
        read(&value).expect("it is sound").end_ns()
    };
    assert_eq!(end(&|_| ()), 1000);
    assert_eq!(end(&|value| value["packages"][0]["end_ns"] = json!(1001)), 1001);
    assert_eq!(end(&|value| value["transfers"][1]["end_ns"] = json!(1002)), 1002);
    assert_eq!(end(&|value| value["waits"][0]["end_ns"] = json!(1003)), 1003);
    assert_eq!(end(&|value| value["decisions"][0]["at_ns"] = json!(1004)), 1004);
    let nothing = |value: &mut Value| {
        for list in ["packages", "transfers", "waits", "decisions"] {
            value[list] = json!([]);
        }
        value["duration_ns"] = json!(0);
    };
    assert_eq!(end(&nothing), 1, "there is something to divide by");
    assert_eq!(read(&by_hand()).expect("it is sound").version(), 1);
}

/// A transfer or a wait of no duration is valid; a wait that ends before it begins is not.
#[test]
fn ends_are_not_before_beginnings() {
    let mut value = by_hand();
    value["transfers"][0]["end_ns"] = json!(100);
    value["waits"][0]["end_ns"] = json!(100);
    read(&value).expect("they took no time");
    value["waits"][0]["end_ns"] = json!(98);
    let error = read(&value).expect_err("it ended before").to_string();
    assert!(error.contains("waits[0].end_ns is 98, before begin_ns at 100"), "{error}");
}

/// One of three copies failed, and two devices ended at different times beside one that was left out.
#[test]
fn figures_tell_apart_what_is_alike_in_other_traces() {
    let mut value = by_hand();
    value["transfers"][1]["arrived"] = json!(false);
    let third = value["transfers"][0].clone();
    value["transfers"].as_array_mut().expect("a list").push(third);
    for (device, end_ns) in [(0, 900), (1, 600), (2, 5)] {
        value["devices"][device]["end_ns"] = json!(end_ns);
    }
    let summary = read(&value).expect("it is sound").summary();
    let there = &summary.links[0];
    assert_eq!((there.copies, there.failed, there.bytes), (2, 1, 1600));
    assert_eq!(summary.balance, 600.0 / 900.0);
    let tpu = &summary.devices[2];
    assert_eq!(
        (tpu.items_per_s, tpu.computing_items_per_s),
        (0.0, 0.0),
        "a device without packages has rates of 0"
    );
}

#[test]
fn the_title_of_a_page_is_the_traces_own() {
    let mut value = by_hand();
    value["label"] = json!("a < b & \"c\" 'd' >");
    let page = page(&read(&value).expect("it is sound"));
    let title = page.split_once("<title>").and_then(|(_, rest)| rest.split_once("</title>"));
    let (title, _) = title.expect("it has one");
    assert!(title.contains("a &lt; b &amp; &quot;c&quot; &#39;d&#39; &gt;"), "{title}");
}
