//! The files that the `dml` command reads and writes: full disks, links, pipes, devices, two names of one
//! file.

#![cfg(all(not(dml_loom), unix))]

mod program;

use program::{command, dml, folder};
use serde_json::Value;
use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

const SAXPY: [&str; 8] = ["bench", "saxpy", "--size", "100", "--runs", "1", "--devices", "cpu"];
const PICTURE: [&str; 8] = ["bench", "mandelbrot", "--size", "tiny", "--runs", "1", "--devices", "cpu"];

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn succeeds(folder: &Path, arguments: &[&str]) -> String {
    let output = dml(folder, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// What a command says that ends so.
fn fails(code: i32, output: &Output) -> String {
    let errors = text(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{errors}");
    errors
}

/// Runs the command where no file may have more than one block.
fn on_a_full_disk(folder: &Path, arguments: &[&str]) -> Output {
    let plain = command(folder, arguments);
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; ulimit -f 1; exec \"$@\"", "sh"]);
    shell.arg(plain.get_program()).args(plain.get_args()).current_dir(folder);
    shell.envs(plain.get_envs().filter_map(|(name, value)| Some((name, value?))));
    shell.output().expect("there is a shell")
}

/// The names in a folder, but for the cache.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).expect("its own").flatten();
    let mut names: Vec<_> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "cache")
        .collect();
    names.sort();
    names
}

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().expect("it is there").success());
}

#[test]
fn results_are_printed_where_a_file_cannot_be_written() {
    let folder = folder("printed");
    for (bench, option) in
        [(PICTURE, "--output"), (SAXPY, "--trace"), (SAXPY, "--html"), (SAXPY, "--decisions")]
    {
        for file in ["/dev/full", "no/such/folder/file", "."] {
            let output = dml(&folder, &[&bench[..], &[option, file]].concat());
            let (said, printed) = (fails(1, &output), text(&output.stdout));
            assert!(said.contains(file), "{option} {file}: {said}");
            assert!(printed.contains("verified    every item"), "{option} {file}: {printed}");
            let names_a_file = |line: &str| {
                ["picture  ", "trace  ", "timeline  ", "decisions  "]
                    .iter()
                    .any(|name| line.starts_with(name))
            };
            assert!(!printed.lines().any(names_a_file), "it names what was not written: {printed}");
            let output = dml(&folder, &[&bench[..], &[option, file, "--json"]].concat());
            fails(1, &output);
            let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
            assert_eq!(printed["verified"], true);
            let field = if option == "--output" { "picture" } else { option.trim_start_matches('-') };
            assert_eq!(printed[field], Value::Null, "{option} {file}");
        }
    }
    // The other workload runs nevertheless.
    fs::create_dir(folder.join("mandelbrot.png")).expect("its own folder");
    let two = ["bench", "mandelbrot", "saxpy", "--size", "tiny", "--runs", "1", "--devices", "cpu"];
    let output = dml(&folder, &two);
    let (said, printed) = (fails(1, &output), text(&output.stdout));
    assert!(said.contains("mandelbrot.png"), "{said}");
    assert_eq!(printed.matches("verified    every item").count(), 2, "{printed}");
    let output = dml(&folder, &[&two[..], &["--json"]].concat());
    fails(1, &output);
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!((&printed[0]["picture"], &printed[1]["verified"]), (&Value::Null, &Value::Bool(true)));
}

#[test]
fn findings_and_tables_are_printed_where_their_files_cannot_be_written() {
    let folder = folder("findings");
    succeeds(&folder, &[&SAXPY[..], &["--trace", "t.json"]].concat());
    let output = dml(&folder, &["report", "t.json", "-o", "/dev/full"]);
    assert!(fails(1, &output).contains("/dev/full"));
    assert!(!output.stdout.is_empty() && !text(&output.stdout).contains("timeline"));
    let output = dml(&folder, &["report", "t.json", "-o", "/dev/full", "--json"]);
    fails(1, &output);
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert!(printed["html"].is_null() && printed["summary"].is_object(), "{printed}");
    fs::create_dir_all(folder.join("out/coexec.svg")).expect("its own folder");
    let table =
        ["reproduce", "coexec", "--size", "tiny", "--runs", "1", "--devices", "cpu", "--output", "out"];
    let output = dml(&folder, &table);
    let (said, printed) = (fails(1, &output), text(&output.stdout));
    assert!(said.contains("coexec.svg") && printed.contains("geometric mean"), "{said}{printed}");
}

/// A reader of the file sees its old contents, never a part of the new ones.
#[test]
fn a_file_that_cannot_be_written_whole_stays_as_it_was() {
    let folder = folder("whole");
    succeeds(&folder, &[&SAXPY[..], &["--trace", "t.json"]].concat());
    let report = ["report", "t.json", "-o", "old.html"];
    let trace = [&SAXPY[..], &["--trace", "old.json"]].concat();
    let picture = [&PICTURE[..], &["--output", "old.png"]].concat();
    for (arguments, file) in [(&report[..], "old.html"), (&trace, "old.json"), (&picture, "old.png")] {
        for before in [None, Some("what was there")] {
            let path = folder.join(file);
            let _ = fs::remove_file(&path);
            before.iter().for_each(|text| fs::write(&path, text).expect("its own folder"));
            let (there, output) = (names(&folder), on_a_full_disk(&folder, arguments));
            let said = fails(1, &output);
            assert!(said.contains(file) && said.contains("File too large"), "{said}");
            assert!(!output.stdout.is_empty());
            assert_eq!(fs::read_to_string(&path).ok().as_deref(), before, "{file}");
            assert_eq!(names(&folder), there, "something was left");
        }
    }
}

#[test]
fn a_file_is_replaced_where_its_links_lead() {
    let folder = folder("links");
    fs::create_dir(folder.join("far")).expect("its own folder");
    fs::write(folder.join("far/old.png"), "old").expect("its own folder");
    fs::set_permissions(folder.join("far/old.png"), fs::Permissions::from_mode(0o600)).expect("its own");
    for (link, to) in [("old.png", "far/old.png"), ("new.png", "far/new.png"), ("twice.png", "new.png")] {
        symlink(to, folder.join(link)).expect("its own folder");
        succeeds(&folder, &[&PICTURE[..], &["--output", link]].concat());
        let is_link = fs::symlink_metadata(folder.join(link)).expect("it is there").is_symlink();
        assert!(is_link, "{link} was replaced itself");
        let written = fs::read(folder.join(to)).expect("written");
        assert!(written.starts_with(b"\x89PNG"), "{link}");
    }
    let mode = fs::metadata(folder.join("far/old.png")).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(names(&folder.join("far")), ["new.png", "old.png"]);
    let twin = |file: &str| fs::metadata(folder.join(file)).expect("it is there").permissions().mode();
    fs::write(folder.join("plain"), "").expect("its own folder");
    assert_eq!(twin("far/new.png"), twin("plain"), "as of any new file");
}

#[test]
fn what_is_no_file_is_written_directly() {
    let folder = folder("direct");
    let before = fs::metadata("/dev/null").expect("it is there").permissions();
    succeeds(&folder, &[&PICTURE[..], &["--output", "/dev/null"]].concat());
    succeeds(&folder, &[&SAXPY[..], &["--trace", "/dev/null", "--html", "/dev/null"]].concat());
    assert_eq!(fs::metadata("/dev/null").expect("it is there").permissions(), before);
    let printed = dml(&folder, &[&PICTURE[..], &["--output", "/dev/stdout"]].concat()).stdout;
    let at = |part: &[u8]| printed.windows(part.len()).position(|window| window == part);
    assert!(at(b"verified").expect("the table") < at(b"\x89PNG").expect("the picture"));
    // The same with standard output in a file, which other lines of it go to.
    let file = fs::File::create(folder.join("all")).expect("its own folder");
    let mut bench = command(&folder, &[&PICTURE[..], &["--output", "/dev/stdout"]].concat());
    assert!(bench.stdout(file).status().expect("it was built").success());
    let printed = fs::read(folder.join("all")).expect("written");
    let at = |part: &[u8]| printed.windows(part.len()).position(|window| window == part);
    assert!(at(b"verified").expect("the table") < at(b"\x89PNG").expect("the picture"));
    pipe(&folder.join("pipe"));
    let reader =
        Command::new("cat").arg(folder.join("pipe")).stdout(Stdio::piped()).spawn().expect("it is there");
    succeeds(&folder, &[&PICTURE[..], &["--output", "pipe"]].concat());
    assert!(reader.wait_with_output().expect("it ends").stdout.starts_with(b"\x89PNG"));
}

#[test]
fn no_output_is_an_input_or_another_output() {
    let folder = folder("same");
    fs::create_dir(folder.join("sub")).expect("its own folder");
    succeeds(&folder, &[&PICTURE[..], &["--output", "gaussian.png"]].concat());
    succeeds(&folder, &[&SAXPY[..], &["--trace", "trace.html"]].concat());
    symlink("gaussian.png", folder.join("soft.png")).expect("its own folder");
    symlink("nowhere.png", folder.join("dangling.png")).expect("its own folder");
    symlink("sub", folder.join("way")).expect("its own folder");
    fs::hard_link(folder.join("gaussian.png"), folder.join("hard.png")).expect("its own folder");
    symlink("trace.html", folder.join("soft.html")).expect("its own folder");
    let before = fs::read(folder.join("gaussian.png")).expect("written");
    let gaussian = ["bench", "gaussian", "--runs", "1", "--devices", "cpu"];
    let absolute = folder.join("sub/t").display().to_string();
    for (bench, more, named) in [
        (&gaussian[..], &["--input", "gaussian.png"][..], &["--input", "--output", "gaussian.png"][..]),
        (&gaussian, &["--input", "hard.png"], &["--input", "--output", "hard.png"]),
        (&gaussian, &["--input", "./sub/../soft.png"], &["--input", "--output"]),
        (&gaussian, &["--input", "gaussian.png", "--output", "soft.png"], &["--input", "--output"]),
        (&gaussian, &["--input", "gaussian.png", "--output", "hard.png"], &["--input", "--output"]),
        (
            &gaussian,
            &["--input", "gaussian.png", "--output", "o.png", "--trace", "hard.png"],
            &["--input", "--trace"],
        ),
        (&gaussian, &["--size", "9", "--trace", "gaussian.png"], &["--trace", "picture"]),
        (&SAXPY, &["--trace", "t", "--html", "./t"], &["--trace", "--html"]),
        (&SAXPY, &["--trace", "way/t", "--html", &absolute], &["--trace", "--html"]),
        (&SAXPY, &["--trace", "dangling.png", "--decisions", "nowhere.png"], &["--trace", "--decisions"]),
        (&["report", "trace.html"], &[], &["trace.html", "would replace"]),
        (&["report", "trace.html"], &["-o", "soft.html"], &["trace.html", "would replace"]),
    ] {
        let output = dml(&folder, &[bench, more].concat());
        let said = fails(2, &output);
        assert!(named.iter().all(|named| said.contains(named)), "{more:?} does not name {named:?}: {said}");
        assert!(output.stdout.is_empty());
        assert_eq!(fs::read(folder.join("gaussian.png")).expect("untouched"), before, "{more:?}");
    }
    succeeds(&folder, &[&gaussian[..], &["--input", "gaussian.png", "--output", "other.png"]].concat());
}

/// The pipe has no writer, and the device has no end.
#[test]
fn inputs_without_an_end_or_a_writer_are_refused() {
    let folder = folder("endless");
    pipe(&folder.join("pipe"));
    for (arguments, file) in [
        (&["report"][..], "/dev/zero"),
        (&["replay"], "/dev/zero"),
        (&["bench", "gaussian", "--devices", "cpu", "--input"], "/dev/zero"),
        (&["report"], "pipe"),
        (&["replay"], "pipe"),
        (&["bench", "gaussian", "--devices", "cpu", "--input"], "pipe"),
    ] {
        let said = fails(2, &dml(&folder, &[arguments, &[file]].concat()));
        assert!(said.contains(file), "{arguments:?} {file}: {said}");
        let reason = if file == "pipe" { "pipe" } else { "device" };
        assert!(said.replace("/dev/", "").contains(reason), "{arguments:?} {file}: {said}");
    }
    // Only a name: it takes no disk.
    let large = fs::File::create(folder.join("large")).expect("its own folder");
    large.set_len(64 << 30).expect("a file with a hole");
    for command in ["report", "replay"] {
        let said = fails(2, &dml(&folder, &[command, "large"]));
        assert!(said.contains("large") && said.contains("at most"), "{said}");
    }
}

#[test]
fn a_pipe_with_a_writer_is_read_to_its_end() {
    let folder = folder("pipes");
    succeeds(&folder, &[&SAXPY[..], &["--trace", "t.json", "--decisions", "t.txt"]].concat());
    for (command_name, file) in [("report", "t.json"), ("replay", "t.txt")] {
        let more: &[&str] = if command_name == "report" { &["-o", "page.html"] } else { &[] };
        let expected = succeeds(&folder, &[&[command_name, file], more].concat());
        let mut child = command(&folder, &[&[command_name, "/dev/stdin"], more].concat());
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it was built");
        let bytes = fs::read(folder.join(file)).expect("written");
        child.stdin.take().expect("a pipe").write_all(&bytes).expect("it reads all");
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        assert_eq!(text(&output.stdout), expected);
    }
}

/// A file beside the pipe would be one of a folder of the system.
#[test]
fn the_page_of_a_pipe_needs_a_name() {
    let folder = folder("unnamed");
    succeeds(&folder, &[&SAXPY[..], &["--trace", "t.json"]].concat());
    let trace = fs::File::open(folder.join("t.json")).expect("written");
    let mut cat = Command::new("cat").stdin(trace).stdout(Stdio::piped()).spawn().expect("it is there");
    let mut report = command(&folder, &["report", "/dev/stdin"]);
    let output = report.stdin(cat.stdout.take().expect("a pipe")).output().expect("it was built");
    assert!(fails(2, &output).contains("-o"));
    assert!(cat.wait().is_ok() && !Path::new("/dev/stdin.html").exists());
}

/// The measured speeds, what runs taught, and the suites.
#[test]
fn a_pipe_in_the_cache_is_ignored() {
    let folder = folder("cache");
    let all = ["bench", "all", "--size", "1", "--runs", "1", "--devices", "cpu"];
    succeeds(&folder, &all);
    succeeds(&folder, &["devices", "--offload", "1"]);
    let cache = folder.join("cache/dml");
    for name in names(&cache) {
        let file = cache.join(&name);
        if file.is_file() {
            fs::remove_file(&file).expect("its own");
            pipe(&file);
        }
    }
    succeeds(&folder, &all);
}

/// A pipe where a counter of energy is looked for.
#[test]
fn a_pipe_among_the_counters_is_no_counter() {
    let folder = folder("counters");
    let zone = folder.join("power/intel-rapl:0");
    fs::create_dir_all(&zone).expect("its own folder");
    fs::write(zone.join("name"), "package-0\n").expect("its own folder");
    pipe(&zone.join("energy_uj"));
    succeeds(&folder, &[&SAXPY[..], &["--powercap", "power"]].concat());
}

/// In JSON, which is UTF-8, and in messages U+FFFD stands for what is none.
#[test]
fn a_name_that_is_no_text_is_the_file_and_shown_with_replacements() {
    let folder = folder("names");
    let odd = |ending: &str| OsStr::from_bytes(&[b"odd\xff", ending.as_bytes()].concat()).to_owned();
    let written = |arguments: &[&str], more: &[(&str, &OsStr)]| {
        let mut bench = command(&folder, arguments);
        more.iter().for_each(|(option, file)| _ = bench.args([*option]).arg(file));
        bench.output().expect("it was built")
    };
    let (png, trace, html, decisions) = (odd(".png"), odd(".json"), odd(".html"), odd(".txt"));
    let files = [("--output", &*png), ("--trace", &trace), ("--html", &html), ("--decisions", &decisions)];
    let output = written(&[&PICTURE[..], &["--json"]].concat(), &files);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    for (field, ending) in [("picture", "png"), ("trace", "json"), ("html", "html"), ("decisions", "txt")] {
        assert_eq!(printed[field], format!("odd\u{fffd}.{ending}"));
        assert!(folder.join(odd(&format!(".{ending}"))).is_file(), "{ending}");
    }
    let mut report = command(&folder, &["report", "--json"]);
    let output = report.arg(&trace).output().expect("it was built");
    let printed: Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
    assert_eq!(printed["trace"], "odd\u{fffd}.json");
    assert!(command(&folder, &["replay"]).arg(&decisions).status().expect("it was built").success());
    let gone = written(&["bench", "gaussian", "--devices", "cpu"], &[("--input", &odd("-gone"))]);
    assert!(fails(2, &gone).contains("odd\u{fffd}-gone"));
    // Names of devices and workloads are text.
    for arguments in [&["bench"][..], &["bench", "saxpy", "--devices"]] {
        fails(2, &command(&folder, arguments).arg(&png).output().expect("it was built"));
    }
}
