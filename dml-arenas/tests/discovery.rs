//! Discovery on this machine, and on machines that lack something: child processes whose environment hides
//! it.

#![cfg(not(dml_loom))]

mod common;

use common::{with_opencl, with_opencl_options};
use dml_arenas::kit::{Backend, join_staged};
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, Mechanisms, Null, OpenClArena, Sharing};
use dml_core::{
    ArenaDesc, ArenaId, ArenaKind, DeviceDesc, DeviceKind, LinkId, LinkSpeed, NativeHandle, Platform,
    PlatformBuilder,
};
use dml_verify::{Audited, conformance};
use std::process::Command;

#[test]
fn the_processor_and_main_memory_come_first() {
    let platform = Audited::new(Platform::builder().discover().unwrap().build().unwrap());
    let cpu = &platform.devices()[0];
    assert_eq!((&*cpu.name, cpu.kind), ("cpu", DeviceKind::Cpu));
    assert!(cpu.compute_units >= 1 && !cpu.description.is_empty());
    assert_eq!(&*platform.arenas()[0].desc().name, "main_mem");
    assert!(platform.arenas()[0].desc().is_always_bimapped());
}

#[test]
fn two_discoveries_find_the_same() {
    let find = || Audited::new(Platform::builder().discover().unwrap().build().unwrap());
    let (first, second) = (find(), find());
    assert_eq!(first.devices(), second.devices());
    assert_eq!(first.links(), second.links());
    assert_eq!(first.unavailable(), second.unavailable());
}

#[test]
fn limits_and_names_that_cannot_be_are_refused() {
    let refusal = |options: DiscoverOptions| Platform::builder().discover_with(&options).unwrap_err();
    let options = DiscoverOptions::default;
    assert!(matches!(refusal(options().limit("cpu", 0)), DiscoverError::BadLimit { units: 0, .. }));
    assert!(matches!(refusal(options().limit("cpu", 1 << 30)), DiscoverError::BadLimit { .. }));
    let DiscoverError::UnknownDevice { name, known } = refusal(options().only(["cpu", "warp:7"])) else {
        panic!()
    };
    assert_eq!((name.as_str(), known[0].as_str()), ("warp:7", "cpu"));
    assert!(
        refusal(options().limit("warp:7", 1)).to_string().contains("unknown device warp:7: there are cpu")
    );
}

#[test]
fn all_problems_are_told_at_once() {
    let refusal = |options: DiscoverOptions| Platform::builder().discover_with(&options).unwrap_err();
    let options = DiscoverOptions::default().limit("warp:7", 1).sharing(Sharing::bound("cpu"));
    let several = refusal(options);
    let DiscoverError::Several(problems) = &several else { panic!("{several:?}") };
    let [DiscoverError::UnknownDevice { .. }, DiscoverError::BadBinding { .. }] = &problems[..] else {
        panic!("{problems:?}")
    };
    let text = several.to_string();
    assert!(text.starts_with("2 problems:\n- unknown device warp:7: there are cpu"), "{text}");
    assert!(
        text.ends_with("\n- cpu cannot be bound to main memory: only opencl and cuda devices can be"),
        "{text}"
    );
    // Problems that only the backends find.
    let broken = DiscoverOptions::default().offload(0).limit("stranger:0", 1);
    let broken = broken.backend(Stranger::FailsHalfWay).backend(Stranger::PanicsHalfWay);
    let several = refusal(broken);
    assert!(matches!(&several, DiscoverError::Several(problems) if problems.len() == 2), "{several}");
}

#[test]
fn a_device_is_linked_by_the_mechanisms_asked_for() {
    let test = "a_device_is_linked_by_the_mechanisms_asked_for";
    if with_opencl(test).is_none() {
        return;
    }
    for (mechanisms, expected) in [
        (None, &["mapped", "staged"][..]),
        (Some(Mechanisms::All), &["mapped", "staged"]),
        (Some(Mechanisms::Mapped), &["mapped"]),
        (Some(Mechanisms::Staged), &["staged"]),
    ] {
        let mut options = DiscoverOptions::default().only(["opencl:0"]);
        if let Some(mechanisms) = mechanisms {
            options = options.mechanisms(mechanisms);
        }
        let Some((platform, device)) = with_opencl_options(test, &options) else { return };
        let (host, home) = (platform.arenas()[0].desc(), platform.home(device).unwrap());
        assert_eq!(&*host.name, "main_mem");
        for (from, to) in
            [(platform.home(host.native).unwrap(), home), (home, platform.home(host.native).unwrap())]
        {
            let links = (0..).map(LinkId).zip(platform.links());
            let links = links.filter(|(_, link)| (link.from, link.to) == (from, to));
            let mut names: Vec<_> = links.map(|(id, _)| platform.cross_arena(id).name().to_owned()).collect();
            names.sort_unstable();
            assert_eq!(names, expected, "{mechanisms:?}");
        }
        // The data arrives by whichever there is.
        let words: Vec<u32> = (0..3_001_u32).map(|word| word.wrapping_mul(2_654_435_761)).collect();
        let buffer = platform.buffer_from(words.clone()).unwrap();
        let grants = platform.acquire(device).read_write(&buffer).wait().unwrap();
        grants.release().unwrap();
        assert!(*buffer.read().unwrap() == words[..], "{mechanisms:?}");
    }
}

#[test]
fn only_the_named_devices_are_opened() {
    let platform = Platform::builder()
        .discover_with(&DiscoverOptions::default().only(["cpu"]))
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(platform.devices().len(), 1);
    let platform = Platform::builder()
        .discover_with(&DiscoverOptions::default().limit("cpu", 1))
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(platform.devices()[0].compute_units, 1);
}

#[test]
fn an_opencl_device_is_joined_with_main_memory_both_ways_twice() {
    let Some((platform, device)) = with_opencl("an_opencl_device_is_joined_with_main_memory") else { return };
    let arena = platform.home(device).unwrap();
    let touching = platform.links().iter().filter(|link| [link.from, link.to].contains(&arena));
    let of_main = touching.filter(|link| link.from.0 == 0 || link.to.0 == 0);
    assert_eq!(of_main.count(), 4);
}

#[test]
fn a_limit_makes_a_sub_device() {
    let Some((platform, device)) = with_opencl("a_limit_makes_a_sub_device") else { return };
    let units = platform.device_desc(device).compute_units;
    let named = DiscoverOptions::default().only(["opencl:0"]);
    let limited = |units| Platform::builder().discover_with(&named.clone().limit("opencl:0", units));
    for impossible in [0, units + 1] {
        let error = limited(impossible).unwrap_err();
        assert!(matches!(&error, DiscoverError::BadLimit { device, .. } if device == "opencl:0"), "{error}");
    }
    let builder = match limited(1) {
        Ok(builder) => builder,
        Err(error) => return assert!(error.to_string().contains("cannot split"), "{error}"),
    };
    let platform = builder.build().unwrap();
    assert_eq!(platform.device_desc(platform.device("opencl:0").unwrap()).compute_units, 1);
    if units > 1 {
        let another = limited(1).unwrap().build().unwrap();
        assert_eq!(sub_device(&platform), sub_device(&another), "made once, because it is never released");
    }
}

fn sub_device(platform: &Platform) -> NativeHandle {
    let device = platform.device("opencl:0").unwrap();
    platform.home_as::<OpenClArena>(device).expect("its own memory").device()
}

const CHILD: &str = "DML_ARENAS_CHILD";

/// Runs in a child process only: says what is missing.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let builder = Platform::builder().discover_with(&DiscoverOptions::default().offload(0));
    let platform = Audited::new(builder.unwrap().build().unwrap());
    println!("devices: {}", platform.devices().len());
    for missing in platform.unavailable() {
        println!("missing {missing}");
    }
}

/// What discovery says in a process with this environment.
fn discover_with(variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env_remove("OPENCL_DYLIB_PATH").env(CHILD, "1");
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[cfg(all(feature = "opencl", target_os = "linux"))]
#[test]
fn without_a_loader_opencl_is_unavailable() {
    // A file of the loader's name that is no library hides the real one.
    let folder = std::env::temp_dir().join(format!("dml-arenas-no-loader-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("libOpenCL.so.1"), "no library").unwrap();
    let text = discover_with(&[("LD_LIBRARY_PATH", folder.to_str().unwrap())]);
    std::fs::remove_dir_all(&folder).unwrap();
    assert!(text.contains("devices: 1"), "{text}");
    assert!(text.contains("missing opencl: no OpenCL loader was found"), "{text}");
}

#[cfg(all(feature = "opencl", target_os = "linux"))]
#[test]
fn a_library_that_is_no_loader_is_unavailable() {
    let text = discover_with(&[("OPENCL_DYLIB_PATH", "libc.so.6")]);
    assert!(text.contains("missing opencl: the OpenCL loader lacks a function"), "{text}");
}

#[cfg(all(feature = "opencl", target_os = "linux"))]
#[test]
fn without_a_driver_opencl_is_unavailable() {
    let text = discover_with(&[("OCL_ICD_VENDORS", "/nonexistent")]);
    assert!(text.contains("devices: 1") && text.contains("missing opencl: "), "{text}");
    // Where there is no loader either, that is what is said.
    let no_driver = text.contains("knows no driver") || text.contains("lists no platforms");
    assert!(no_driver || text.contains("no OpenCL loader was found"), "{text}");
}

#[cfg(not(feature = "opencl"))]
#[test]
fn a_feature_that_is_off_is_said() {
    assert!(
        discover_with(&[]).contains("missing opencl: this program was built without the feature `opencl`")
    );
}

/// A backend of an application, with what is wrong with it.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stranger {
    /// It adds a device and an arena.
    Works,
    /// It adds a device, and fails before it adds the arena.
    FailsHalfWay,
    /// It adds a device, and panics before it adds the arena.
    PanicsHalfWay,
    /// It panics when it is asked what it has.
    PanicsAtOnce,
    /// It does not ask what is wanted.
    AddsUnwanted,
    /// It fails without a reason.
    Reasonless,
}

impl Backend for Stranger {
    fn name(&self) -> &'static str {
        "stranger"
    }

    fn devices(&self) -> Vec<String> {
        assert!(*self != Self::PanicsAtOnce, "nothing to ask");
        vec!["stranger:0".to_owned()]
    }

    fn add(
        &self,
        builder: &mut PlatformBuilder,
        main: ArenaId,
        options: &DiscoverOptions,
    ) -> Result<(), DiscoverError> {
        if !options.wants("stranger:0") && *self != Self::AddsUnwanted {
            return Ok(());
        }
        let units = options.limit_of("stranger:0").unwrap_or(8);
        let desc = DeviceDesc::new("stranger:0", DeviceKind::Accelerator).with_compute_units(units);
        let native = builder.add_device(desc);
        match self {
            Self::FailsHalfWay => return Err(DiscoverError::unusable("stranger:0", "its fan is stuck")),
            Self::PanicsHalfWay => panic!("its fan is loose"),
            Self::Reasonless => return Err(DiscoverError::unusable("stranger:0", "")),
            _ => {}
        }
        let desc = ArenaDesc::new("stranger:0", ArenaKind("null"), native);
        let arena = builder.add_arena(std::sync::Arc::new(Null::backed(desc)));
        join_staged(builder, main, arena, LinkSpeed::default());
        Ok(())
    }
}

fn with(stranger: Stranger) -> DiscoverOptions {
    DiscoverOptions::default().offload(0).backend(stranger)
}

#[test]
fn a_backend_of_the_application_is_one_line() {
    let options = with(Stranger::Works).only(["stranger:0"]).limit("stranger:0", 3);
    let platform = Audited::new(Platform::builder().discover_with(&options).unwrap().build().unwrap());
    let device = platform.device("stranger:0").unwrap();
    assert_eq!(platform.device_desc(device).compute_units, 3);
    let data: Vec<u8> = (0..5003).map(|index| (index % 251) as u8).collect();
    let buffer = platform.buffer_from(data.clone()).unwrap();
    let grants = platform.acquire(device).read(&buffer).wait().unwrap();
    assert_eq!(grants.read_bytes(&buffer).unwrap(), data);
    conformance::discovery_adds_what_is_wanted(|| Stranger::Works);
}

#[test]
fn a_backend_that_fails_or_panics_adds_nothing_and_is_told() {
    let mut plain = None;
    for (stranger, says) in [
        (Stranger::FailsHalfWay, "stranger:0 cannot be used: its fan is stuck"),
        (Stranger::PanicsHalfWay, "its discovery panicked: its fan is loose"),
        (Stranger::PanicsAtOnce, "its discovery panicked: nothing to ask"),
    ] {
        let platform = Platform::builder().discover_with(&with(stranger)).unwrap().build().unwrap();
        let devices = plain.get_or_insert_with(|| {
            let options = DiscoverOptions::default().offload(0);
            Platform::builder().discover_with(&options).unwrap().devices().to_vec()
        });
        assert_eq!(platform.devices(), devices);
        let notes = platform.unavailable().iter().filter(|missing| missing.backend == "stranger");
        assert_eq!(notes.map(|note| note.reason.as_str()).collect::<Vec<_>>(), [says]);
        if stranger == Stranger::PanicsAtOnce {
            continue;
        }
        let refused = Platform::builder().discover_with(&with(stranger).only(["stranger:0"])).map(drop);
        assert!(matches!(refused, Err(DiscoverError::Unusable { .. })), "{refused:?}");
    }
    conformance::a_missing_backend_is_a_note(|| Stranger::FailsHalfWay);
}

#[test]
#[should_panic(expected = "devices and arenas where none is wanted")]
fn a_backend_that_adds_what_is_not_wanted_is_noticed() {
    conformance::discovery_adds_what_is_wanted(|| Stranger::AddsUnwanted);
}

#[test]
#[should_panic(expected = "gives no reason")]
fn a_backend_without_a_reason_is_noticed() {
    conformance::a_missing_backend_is_a_note(|| Stranger::Reasonless);
}

#[test]
#[should_panic(expected = "panics: its discovery panicked")]
fn a_backend_that_panics_is_noticed() {
    conformance::a_missing_backend_is_a_note(|| Stranger::PanicsHalfWay);
}
