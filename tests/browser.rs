//! The page of a trace in a real browser: its contents and its interaction.
//!
//! The tests need Chromium or Chrome. Without a browser they are skipped with a message, or fail if
//! `DML_EXPECT` names `chromium`.

#![cfg(all(not(dml_loom), feature = "timeline"))]

use dml::timeline::Trace;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const BROWSERS: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];

/// Returns the first browser that works on this machine.
fn browser() -> Option<&'static str> {
    let works = |program: &&str| {
        let version =
            Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let found = BROWSERS.iter().copied().find(works);
    let expected =
        std::env::var("DML_EXPECT").is_ok_and(|all| all.split(',').any(|one| one.trim() == "chromium"));
    assert!(found.is_some() || !expected, "DML_EXPECT says that there is a browser: none of {BROWSERS:?}");
    if found.is_none() {
        println!("skipped: no browser, none of {BROWSERS:?}");
    }
    found
}

/// A page after its scripts have run.
struct Shown {
    dom: String,
    /// The values that the test's script reported, by name.
    found: Value,
}

/// Opens the page of a trace. `hands` is a script that runs in it and calls `tell(name, value)`. The page
/// must not write to the console.
fn open(browser: &str, test: &str, trace: &Trace, address: &str, hands: &str) -> Shown {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("browser_{test}"));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    let mut page = Vec::new();
    trace.write_page(&mut page).expect("a vector takes everything");
    let page = String::from_utf8(page).expect("HTML is text");
    let script = format!(
        "<script>'use strict'; {{
            const found = {{}};
            const tell = (name, value) => {{ found[name] = value; }};
            const find = (id) => document.getElementById(id);
            const texts = (selector) => [...document.querySelectorAll(selector)].map((each) => each.textContent);
            const canvas = find('canvas');
            const box = canvas.getBoundingClientRect();
            const at = (x, y) => ({{ clientX: box.left + x, clientY: box.top + y, bubbles: true, cancelable: true }});
            const point = (kind, x, y, more) => canvas.dispatchEvent(new PointerEvent(kind, {{ ...at(x, y), pointerId: 1, button: 0, ...more }}));
            const press = (key) => canvas.dispatchEvent(new KeyboardEvent('keydown', {{ key, bubbles: true, cancelable: true }}));
            const turn = (deltaY, x) => canvas.dispatchEvent(new WheelEvent('wheel', {{ ...at(x, 60), deltaY }}));
            {hands}
            document.body.append(Object.assign(document.createElement('pre'), {{ id: 'found', textContent: JSON.stringify(found) }}));
        }}</script></body>"
    );
    let file = folder.join("page.html");
    std::fs::write(&file, page.replace("</body>", &script)).expect("the target folder is writable");
    let (dom, said) = dump(browser, &folder, &format!("file://{}{address}", file.display()));
    let complaints: Vec<_> = said.lines().filter(|line| line.contains("CONSOLE")).collect();
    assert!(complaints.is_empty(), "the page writes to the console: {complaints:?}");
    assert!(dom.contains("data-shown=\"yes\""), "the page's script came to its end: {said}");
    let begin =
        dom.find("<pre id=\"found\">").expect("the hands came to their end") + "<pre id=\"found\">".len();
    let text = dom[begin..].split("</pre>").next().unwrap_or_default();
    let text = text.replace("&lt;", "<").replace("&gt;", ">").replace("&nbsp;", " ").replace("&amp;", "&");
    Shown { found: serde_json::from_str(&text).expect("JSON of the hands"), dom }
}

/// Returns the document after its scripts have run, and the browser's log.
fn dump(browser: &str, folder: &Path, address: &str) -> (String, String) {
    let (dom, said) = (folder.join("dom.html"), folder.join("said.txt"));
    let open = |path: &PathBuf| std::fs::File::create(path).expect("the target folder is writable");
    let mut child = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
            "--disable-extensions",
            "--disable-dev-shm-usage",
        ])
        .args([
            "--enable-logging=stderr",
            "--v=0",
            "--window-size=1280,1000",
            "--virtual-time-budget=4000",
            "--dump-dom",
        ])
        .arg(format!("--user-data-dir={}", folder.join("profile").display()))
        .arg(address)
        .stdin(Stdio::null())
        .stdout(open(&dom))
        .stderr(open(&said))
        .spawn()
        .expect("it told its version");
    let begun = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        if begun.elapsed() > Duration::from_secs(180) {
            let _ = child.kill();
            let _ = child.wait();
            panic!("the browser does not end: {}", std::fs::read_to_string(&said).unwrap_or_default());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let read =
        |path: &PathBuf| String::from_utf8_lossy(&std::fs::read(path).expect("just written")).into_owned();
    (read(&dom), read(&said))
}

/// Returns a run of `packages` packages on two devices, with a third one left out. The second device waits
/// for its data and is idle at the end.
fn trace(packages: u64, names: [&str; 3]) -> Trace {
    let device = |index: usize| {
        let own = if index == 2 { 0 } else { packages / 2 };
        json!({ "name": names[index], "kind": "gpu", "description": "", "units": 4, "is_host": index == 0, "arena": index,
            "packages": own, "items": own * 100, "busy_ns": 0, "end_ns": if index == 2 { 0 } else { 9_000_000 },
            "alone_ns": 10_000_000 + 5_000_000 * index, "known_items_per_s": null })
    };
    let length = 10_000_000 / (packages / 2);
    let package = |index: u64| {
        let (device, turn) = (index % 2, index / 2 * length);
        // The second device computes in the second half of each of its packages, and not at all in the last
        // fifth of the run.
        let (start, begun, end) = match device {
            0 => (turn, turn, turn + length),
            _ => (turn * 4 / 5, turn * 4 / 5 + length * 2 / 5, turn * 4 / 5 + length * 4 / 5),
        };
        json!({ "index": index, "device": device, "first_item": index * 100, "items": 100, "start_ns": start, "begun_ns": begun,
            "computed_ns": end, "end_ns": end })
    };
    let transfer = |index: u64| {
        let start = index * length * 4 / 5;
        json!({ "from": 0, "to": 1, "mechanism": "staged", "buffer": 3, "first_byte": 0, "bytes": 4000, "begin_ns": start,
            "end_ns": start + length * 2 / 5, "arrived": true })
    };
    let value = json!({
        "format": "dml-trace", "version": 1, "label": names[0], "kernel": "smooth", "items": packages * 100, "policy": "dynamic:8",
        "duration_ns": 10_000_000, "total_ns": 10_000_000,
        "devices": [device(0), device(1), device(2)],
        "arenas": names.iter().map(|name| json!({ "name": name, "kind": "m" })).collect::<Vec<_>>(),
        "packages": (0..packages).map(package).collect::<Vec<_>>(),
        "transfers": (0..packages / 2).map(transfer).collect::<Vec<_>>(),
        "waits": [{ "arena": 1, "buffer": 3, "begin_ns": 100, "end_ns": 400_000 }],
        "decisions": [{ "at_ns": 0, "device": 2, "kind": "left_out", "reason": "runs took 20 us with it and 10 us without" }],
    });
    Trace::read(&value.to_string()).expect("it is sound")
}

const NAMES: [&str; 3] = ["cpu", "gpu:0", "offload:0"];

/// The page shows which device was slow and why, and which one was left out.
#[test]
fn a_newcomer_reads_what_happened() {
    let Some(browser) = browser() else { return };
    let trace = trace(10, NAMES);
    let hands = "tell('findings', texts('#findings .text')); tell('lanes', texts('.lane')); tell('tiles', texts('.tile'));
        tell('devices', texts('#devices tbody tr')); tell('links', texts('#links tbody td')); tell('decisions', texts('#decisions tbody td'));
        tell('range', find('range').textContent); tell('fault', find('fault').hidden);
        const pen = canvas.getContext('2d');
        const colours = new Set();
        const data = pen.getImageData(0, 0, canvas.width, canvas.height).data;
        for (let i = 0; i < data.length; i += 4) if (data[i + 3] > 0) colours.add((data[i] << 16) | (data[i + 1] << 8) | data[i + 2]);
        tell('colours', ['0072b2', 'e69f00', '56b4e9', 'd55e00'].filter((colour) => colours.has(parseInt(colour, 16))));";
    let Shown { found, dom } = open(browser, "newcomer", &trace, "", hands);
    let said: Vec<_> = trace.findings().into_iter().map(|finding| finding.text).collect();
    assert_eq!(found["findings"], json!(said), "every finding is shown");
    assert!(said.iter().any(|text| text.starts_with("gpu:0 was idle")), "{said:?}");
    assert!(said.iter().any(|text| text.starts_with("offload:0 was left out: runs took 20 us")), "{said:?}");
    let lanes = found["lanes"].as_array().expect("a list");
    assert_eq!(lanes.len(), 3);
    assert!(
        lanes[1].as_str().is_some_and(|lane| lane.contains("gpu:0") && lane.contains("copies in")),
        "{lanes:?}"
    );
    assert!(lanes[2].as_str().is_some_and(|lane| lane.contains("left out")), "{lanes:?}");
    // The page shows the figures of the summary.
    let summary = trace.summary();
    let tiles = found["tiles"].to_string();
    for figure in [
        format!("{:.2}\u{d7}", summary.speedup.unwrap()),
        format!("{:.2}", summary.efficiency.unwrap()),
        "10 ms".to_owned(),
    ] {
        assert!(tiles.contains(&figure), "{figure} in {tiles}");
    }
    let idle = summary.devices[1].idle_ns as f64 / 1e7 * 100.0;
    assert!(
        found["devices"][1].as_str().is_some_and(|row| row.contains(&format!("{idle:.0}%"))),
        "{idle}: {found}"
    );
    assert_eq!(
        found["links"],
        json!(["cpu", "gpu:0", "staged", "20 kB", "5", "4 kB", "4 ms40% of the run", "5 MB/s"])
    );
    assert_eq!(found["range"], "whole trace: 10 ms");
    assert_eq!(
        (&found["fault"], &found["colours"]),
        (&json!(true), &json!(["0072b2", "e69f00", "56b4e9", "d55e00"])),
        "{dom}"
    );
}

/// The wheel, the keys, the buttons and a drag change the range that is shown, within the trace. The pointer
/// shows the details of what is under it.
#[test]
fn hands_zoom_pan_and_ask() {
    let Some(browser) = browser() else { return };
    let hands = "const range = () => find('range').textContent; const width = box.width;
        point('pointermove', width * 0.05, 60); tell('tip', find('tip').textContent);
        point('pointermove', width * 0.9, 135); tell('idle', find('tip').textContent);
        turn(-240, width / 2); tell('in', range()); turn(240, width / 2); tell('out', range());
        press('+'); tell('plus', range()); press('ArrowRight'); tell('right', range());
        point('pointerdown', 100, 60); point('pointermove', 300, 60); point('pointerup', 300, 60); tell('dragged', range());
        press('0'); tell('all', range());
        for (let i = 0; i < 200; i++) press('+'); tell('deep', range()); press('0'); for (let i = 0; i < 4; i++) press('+'); for (let i = 0; i < 100; i++) press('ArrowRight'); tell('end', range());
        find('reset').click(); tell('reset', range());
        press('n'); tell('first', texts('#details dt, #details dd').join('|')); press('n'); tell('second', texts('#details dt').join('|'));
        tell('address', location.hash); press('Escape'); tell('gone', find('details').hidden);
        point('pointerdown', 100, 60, { shiftKey: true }); point('pointermove', 300, 60); point('pointerup', 300, 60); tell('chosen', range());";
    let Shown { found, .. } = open(browser, "hands", &trace(10, NAMES), "", hands);
    let said = |name: &str| found[name].as_str().unwrap_or_else(|| panic!("{name} in {found}")).to_owned();
    assert!(
        said("tip").starts_with("package 0 on cpu") && said("tip").contains("50 k items/s"),
        "{}",
        said("tip")
    );
    assert!(said("idle").starts_with("gpu:0 had no package"), "{}", said("idle"));
    let all = "whole trace: 10 ms";
    assert_ne!(said("in"), all);
    assert_eq!((said("out").as_str(), said("all").as_str(), said("reset").as_str()), (all, all, all));
    assert_ne!(said("plus"), said("right"));
    assert_ne!(said("right"), said("dragged"));
    let deep: Vec<_> = said("deep").split(" to ").map(str::to_owned).collect();
    assert!(deep.len() == 2 && !deep[1].starts_with(&deep[0]), "both ends can be told apart: {deep:?}");
    assert!(said("end").contains(" to 10.00 ms: "), "{}", said("end"));
    assert!(said("first").starts_with("package 0 on cpu|items|100"), "{}", said("first"));
    assert!(said("second").starts_with("package 1 on gpu:0"), "{}", said("second"));
    assert_eq!((said("address").as_str(), &found["gone"]), ("#package=1", &json!(true)));
    assert!(said("chosen").contains(" to "), "{}", said("chosen"));
}

/// An address with a package selects it.
#[test]
fn an_address_with_a_package_shows_it() {
    let Some(browser) = browser() else { return };
    let hands = "tell('details', texts('#details dt, #details dd').join('|'));";
    let Shown { found, .. } = open(browser, "address", &trace(10, NAMES), "#package=7", hands);
    let details = found["details"].as_str().expect("text");
    assert!(details.starts_with("package 7 on gpu:0|items|100 (10% of all), from 700|"), "{details}");
}

/// Ten thousand packages are drawn as blocks that tell their number of packages, and separate on zooming in.
#[test]
fn ten_thousand_packages_can_be_read() {
    let Some(browser) = browser() else { return };
    let hands =
        "const width = box.width; point('pointermove', width / 2, 60); tell('many', find('tip').textContent);
        for (let i = 0; i < 24; i++) turn(-240, width / 2);
        requestAnimationFrame(() => 0); press('n'); tell('one', texts('#details dt').join('|'));";
    let Shown { found, .. } = open(browser, "many", &trace(10_000, NAMES), "", hands);
    let said = |name: &str| found[name].as_str().unwrap_or_else(|| panic!("{name} in {found}")).to_owned();
    assert!(
        said("many").starts_with("5,000 packages, on cpu") && said("many").contains("items: 500,000"),
        "{}",
        said("many")
    );
    assert!(said("one").starts_with("package 0 on cpu"), "{}", said("one"));
}

/// Markup in names is shown as text and never runs.
#[test]
fn names_are_shown_and_never_run() {
    let Some(browser) = browser() else { return };
    let evil =
        "</script><img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script>";
    let hands = "point('pointermove', 60, 60); tell('title', document.title); tell('label', find('label').textContent);
        tell('lane', texts('.lane b')[0]); tell('images', document.images.length); tell('tip', find('tip').textContent);";
    let Shown { found, .. } = open(browser, "evil", &trace(10, [evil, "gpu:0", "x"]), "", hands);
    assert_eq!(found["title"], format!("{evil} - dml timeline"));
    assert_eq!((&found["label"], &found["lane"], &found["images"]), (&json!(evil), &json!(evil), &json!(0)));
    assert!(
        found["tip"].as_str().is_some_and(|tip| tip.contains(&format!("package 0 on {evil}"))),
        "{found}"
    );
}
