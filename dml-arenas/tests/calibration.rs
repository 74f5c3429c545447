//! Measured figures in files: what is kept, what is ignored and why, and what discovery does with them.

#![cfg(all(not(dml_loom), feature = "calibration"))]

use dml_arenas::Null;
use dml_arenas::calibrate::{
    CacheError, Calibration, CalibrationSource, FORMAT, LinkTable, MapChanges, Measured, Priced, SizeClass,
    links,
};
use dml_arenas::kit::{join_mapped, join_staged};
use dml_arenas::{Discover, DiscoverOptions};
use dml_core::{
    ArenaDesc, ArenaId, ArenaKind, Concurrency, CopyQuery, Cost, CrossArena, DeviceDesc, DeviceId,
    DeviceKind, DeviceSet, HostStaged, LinkId, LinkSpeed, Platform, PlatformBuilder,
};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const CPU: DeviceId = DeviceId(0);
const GPU: DeviceId = DeviceId(1);

/// A folder of this test's own, which is removed in the end.
struct Folder(PathBuf);

impl Folder {
    fn new(test: &str) -> Self {
        static FOLDERS: AtomicU64 = AtomicU64::new(0);
        let (process, number) = (std::process::id(), FOLDERS.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("dml-calibration-{process}-{number}-{test}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("temporary folders can be made");
        Self(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join("links.json")
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Main memory and a device, joined by read and write calls and by mapping.
fn builder(driver: &str, units: u32) -> PlatformBuilder {
    let mut builder = PlatformBuilder::default();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let gpu = DeviceDesc::new("gpu", DeviceKind::Gpu).with_description("A card");
    builder.add_device(gpu.with_driver(driver).with_compute_units(units));
    let main = ArenaDesc::new("main", ArenaKind("main_mem"), CPU)
        .with_remotes(DeviceSet::of(CPU))
        .with_concurrency(Concurrency::BimapFull);
    let device = ArenaDesc::new("gpu", ArenaKind("test"), GPU).with_remotes(DeviceSet::of(CPU));
    builder.add_arena(Arc::new(Null::backed(main)));
    builder.add_arena(Arc::new(Null::backed(device)));
    join_staged(&mut builder, ArenaId(0), ArenaId(1), LinkSpeed::default());
    join_mapped(&mut builder, ArenaId(0), ArenaId(1), LinkSpeed::default());
    builder
}

fn platform() -> Platform {
    builder("1.0", 8).build().unwrap()
}

fn table(scale: u64) -> LinkTable {
    let classes = [(4, 100), (65_536, 9_000), (1 << 20, 120_000)];
    let class = |(bytes, ns)| SizeClass { bytes, copy_ns: ns * scale };
    LinkTable::new(classes.map(class).to_vec()).unwrap()
}

/// Figures of all links of a platform: those of link n are `scale + n` times as slow as [`table`]'s first.
fn figures(platform: &Platform, scale: u64) -> Calibration {
    let scripted = (scale..).zip(links(platform));
    let scripted: Vec<_> =
        scripted.map(|(scale, link)| Measured::new(platform, link, Ok(table(scale)))).collect();
    Calibration::of(platform, &scripted)
}

/// The figures of the links of [`builder`].
fn calibration() -> Calibration {
    static ONCE: OnceLock<Calibration> = OnceLock::new();
    ONCE.get_or_init(|| figures(&platform(), 1)).clone()
}

/// The text of a valid file.
fn text() -> String {
    let folder = Folder::new("text");
    calibration().store(&folder.file()).unwrap();
    fs::read_to_string(folder.file()).unwrap()
}

/// What loading a file of this text answers.
fn loaded(test: &str, text: &[u8]) -> Result<Option<Calibration>, CacheError> {
    let folder = Folder::new(test);
    fs::write(folder.file(), text).unwrap();
    Calibration::load(&folder.file())
}

/// The text of a valid file after a change.
fn changed(change: impl FnOnce(&mut Value)) -> Vec<u8> {
    let mut value: Value = serde_json::from_str(&text()).unwrap();
    change(&mut value);
    serde_json::to_vec(&value).unwrap()
}

fn query(bytes: u64) -> CopyQuery {
    CopyQuery { bytes, remap_source: false, remap_target: false, allocates: false }
}

#[test]
fn figures_come_back_as_they_were_stored() {
    let folder = Folder::new("round_trip");
    let file = folder.0.join("not").join("there").join("yet.json");
    assert_eq!(Calibration::load(&file), Ok(None));
    let calibration = calibration();
    calibration.store(&file).unwrap();
    assert_eq!(Calibration::load(&file), Ok(Some(calibration.clone())));
    // Again, over a file that is there.
    calibration.store(&file).unwrap();
    assert_eq!(Calibration::load(&file), Ok(Some(calibration.clone())));
    assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "nothing else was left");
    let platform = platform();
    assert_eq!(calibration.links().len(), 4);
    for (index, link) in links(&platform).into_iter().enumerate() {
        let figures = calibration.figures_of(&platform, link).expect("measured");
        assert_eq!(figures.classes, table(index as u64 + 1));
        assert!(figures.measured_unix_s > 1_700_000_000);
    }
}

#[test]
fn every_damaged_file_is_ignored_with_a_reason() {
    let whole = text();
    assert!(loaded("whole", whole.as_bytes()).is_ok());
    let is_malformed = |text: &[u8]| matches!(loaded("damaged", text), Err(CacheError::Malformed { .. }));
    for cut in (0..whole.trim_end().len()).step_by(97) {
        assert!(is_malformed(&whole.as_bytes()[..cut]), "cut after {cut} bytes");
    }
    let wrong: [&[u8]; 7] =
        [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"{\"format\": 1}", b"{\"format\": -1}"];
    for text in wrong {
        assert!(is_malformed(text), "{}", String::from_utf8_lossy(text));
    }
    assert!(is_malformed(&vec![b' '; 5 << 20]), "larger than any cache");
    let deep = "[".repeat(100_000);
    assert!(is_malformed(format!("{{\"format\": 1, \"links\": {deep}").as_bytes()));
    let missing = changed(|value| drop(value["links"][0].as_object_mut().unwrap().remove("mechanism")));
    assert!(is_malformed(&missing));
}

#[test]
fn a_file_of_another_format_is_ignored() {
    for found in [0, 2, 4_000_000_000_u32] {
        let error = loaded("format", &changed(|value| value["format"] = json!(found))).unwrap_err();
        assert!(matches!(error, CacheError::OtherFormat { found: format, .. } if format == found), "{error}");
        assert!(error.to_string().contains(&format!("format {found}, not {FORMAT}")), "{error}");
    }
    // Whatever else the file of another format contains.
    let error = loaded("next", b"{\"format\": 2, \"tables\": []}").unwrap_err();
    assert!(matches!(error, CacheError::OtherFormat { found: 2, .. }), "{error}");
}

#[test]
fn figures_of_another_machine_are_ignored() {
    let changes: [fn(&mut Value); 3] = [
        |machine| machine["processor"] = json!("Z80"),
        |machine| machine["cores"] = json!(machine["cores"].as_u64().unwrap() + 1),
        |machine| machine["os"] = json!("CP/M"),
    ];
    for change in changes {
        let error = loaded("machine", &changed(|value| change(&mut value["machine"]))).unwrap_err();
        assert!(matches!(error, CacheError::OtherMachine { .. }), "{error}");
        assert!(error.to_string().contains("another machine"), "{error}");
    }
}

#[test]
fn impossible_figures_are_ignored() {
    let classes: [Value; 6] = [
        json!([]),
        json!([{"bytes": 4, "copy_ns": 1}]),
        json!([{"bytes": 4, "copy_ns": 0}, {"bytes": 8, "copy_ns": 1}]),
        json!([{"bytes": 4, "copy_ns": 1}, {"bytes": 67_108_864, "copy_ns": u64::MAX}]),
        json!([{"bytes": 4, "copy_ns": 1}, {"bytes": 67_108_864, "copy_ns": 2}]),
        json!([{"bytes": 8, "copy_ns": 1}, {"bytes": 4, "copy_ns": 2}]),
    ];
    for classes in classes {
        let text = changed(|value| value["links"][1]["classes"] = classes.clone());
        let error = loaded("impossible", &text).unwrap_err();
        assert!(matches!(error, CacheError::Malformed { .. }), "{classes}: {error}");
        let words = ["impossible figure", "a size class of", "at least 2"];
        assert!(words.iter().any(|word| error.to_string().contains(word)), "{classes}: {error}");
    }
}

#[test]
fn a_file_that_cannot_be_written_or_read_is_an_error() {
    let folder = Folder::new("unwritable");
    let blocked = folder.0.join("file");
    fs::write(&blocked, "no folder").unwrap();
    let inside = blocked.join("links.json");
    assert!(matches!(calibration().store(&inside), Err(CacheError::Unwritable { .. })));
    // A folder in the place of the file: nothing is left behind.
    let occupied = folder.0.join("occupied.json");
    fs::create_dir(&occupied).unwrap();
    fs::write(occupied.join("x"), "x").unwrap();
    let error = calibration().store(&occupied).unwrap_err();
    assert!(error.to_string().contains("occupied.json"), "{error}");
    assert!(matches!(Calibration::load(&occupied), Err(CacheError::Unreadable { .. })));
    assert!(folder.names().iter().all(|name| !name.contains("tmp")), "{:?}", folder.names());
}

#[cfg(target_os = "linux")]
#[test]
fn a_pipe_in_the_place_of_the_file_is_not_waited_for() {
    let folder = Folder::new("pipe");
    let made = std::process::Command::new("mkfifo").arg(folder.file()).status();
    assert!(made.is_ok_and(|status| status.success()), "mkfifo makes a pipe");
    let error = Calibration::load(&folder.file()).unwrap_err();
    assert!(matches!(error, CacheError::Unreadable { .. }), "{error}");
    assert!(error.to_string().contains("no regular file"), "{error}");
}

#[test]
fn figures_of_arenas_that_a_platform_lacks_are_left_out() {
    let mut alone = PlatformBuilder::default();
    alone.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    let main = ArenaDesc::new("main", ArenaKind("main_mem"), CPU).with_remotes(DeviceSet::of(CPU));
    alone.add_arena(Arc::new(Null::backed(main.with_concurrency(Concurrency::BimapFull)).with_host(CPU)));
    let measured = [Measured::new(&platform(), LinkId(0), Ok(table(5)))];
    assert_eq!(Calibration::of(&alone.build().unwrap(), &measured).links().len(), 0);
    assert_eq!(Calibration::of(&platform(), &measured).links().len(), 1);
}

#[test]
fn links_that_were_not_measured_again_are_kept() {
    let folder = Folder::new("merge");
    calibration().store(&folder.file()).unwrap();
    // Half of the device has figures of its own, beside those of the whole device.
    let half = builder("1.0", 4).build().unwrap();
    figures(&half, 10).store(&folder.file()).unwrap();
    // Of the whole device, one link is measured again.
    let again = [Measured::new(&platform(), LinkId(2), Ok(table(77)))];
    Calibration::of(&platform(), &again).store(&folder.file()).unwrap();
    let all = Calibration::load(&folder.file()).unwrap().unwrap();
    assert_eq!(all.links().len(), 8);
    let kept = |platform: &Platform| {
        let figures = links(platform).into_iter().map(|link| all.figures_of(platform, link).expect("kept"));
        figures.map(|figures| figures.classes.clone()).collect::<Vec<_>>()
    };
    assert_eq!(kept(&half), [10, 11, 12, 13].map(table));
    assert_eq!(kept(&platform()), [1, 2, 77, 4].map(table));
    // A damaged file is replaced.
    fs::write(folder.file(), "{").unwrap();
    calibration().store(&folder.file()).unwrap();
    assert_eq!(Calibration::load(&folder.file()).unwrap().unwrap().links().len(), 4);
}

#[test]
fn writers_at_once_leave_a_whole_file() {
    let folder = Folder::new("writers");
    let calibration = calibration();
    calibration.store(&folder.file()).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    calibration.store(&folder.file()).unwrap();
                }
            });
        }
        for _ in 0..200 {
            assert_eq!(Calibration::load(&folder.file()), Ok(Some(calibration.clone())));
        }
    });
    assert_eq!(folder.names(), ["links.json"]);
}

#[test]
fn a_platform_is_priced_by_the_figures_of_its_own_links() {
    let mut builder = builder("1.0", 8);
    assert_eq!(calibration().price(&mut builder), 4);
    let platform = builder.build().unwrap();
    for (index, link) in (0..).zip(links(&platform)) {
        let mechanism = platform.cross_arena(link);
        let ends = platform.links()[usize::from(link.0)];
        let contained = MapChanges::of(&ends, platform.desc(ends.from), platform.desc(ends.to));
        let query =
            CopyQuery { remap_source: contained.source, remap_target: contained.target, ..query(65_536) };
        assert_eq!(mechanism.can_copy(&query), Some(Cost::from_ns(9_000 * (index + 1))), "{link:?}");
        assert_eq!(mechanism.name(), if index < 2 { "staged" } else { "mapped" });
    }
}

#[test]
fn figures_of_a_changed_device_are_not_used() {
    for (driver, units) in [("2.0", 8), ("1.0", 4)] {
        let mut builder = builder(driver, units);
        assert_eq!(calibration().price(&mut builder), 0);
        let changes = calibration().changed_devices(builder.devices(), builder.descs());
        assert_eq!(changes.len(), 1, "{changes:?}");
        let was_is = ["driver 1.0, 8 units", &format!("driver {driver}, {units} units")];
        assert!(was_is.iter().all(|words| changes[0].contains(words)), "{changes:?}");
        let guess = LinkSpeed::default().cost(&query(65_536));
        assert_eq!(builder.build().unwrap().cross_arena(LinkId(0)).can_copy(&query(65_536)), Some(guess));
    }
    let same = builder("1.0", 8);
    assert!(calibration().changed_devices(same.devices(), same.descs()).is_empty());
}

/// The platform of [`builder`] beside a store.
fn with_store(description: &str) -> PlatformBuilder {
    let mut builder = builder("1.0", 8);
    let disk = ArenaDesc::store("disk", ArenaKind("test")).with_description(description);
    let disk = builder.add_arena(Arc::new(Null::backed(disk)));
    join_staged(&mut builder, ArenaId(0), disk, LinkSpeed::default());
    builder
}

#[test]
fn figures_of_a_store_are_kept_and_used_as_long_as_it_is_the_same() {
    let folder = Folder::new("store");
    let platform = with_store("a file in /var").without_default_links().build().unwrap();
    let of_store = |platform: &Platform| {
        let links = links(platform).into_iter();
        let is_of_it = |link: &LinkId| {
            let ends = platform.links()[usize::from(link.0)];
            [ends.from, ends.to].contains(&ArenaId(2))
        };
        links.filter(is_of_it).collect::<Vec<_>>()
    };
    assert_eq!(of_store(&platform), [LinkId(4), LinkId(5)]);
    figures(&platform, 1).store(&folder.file()).unwrap();
    let kept = Calibration::load(&folder.file()).unwrap().unwrap();
    let found = of_store(&platform).into_iter().map(|link| kept.figures_of(&platform, link).expect("kept"));
    assert_eq!(found.map(|figures| figures.classes.clone()).collect::<Vec<_>>(), [5, 6].map(table));

    let mut same = with_store("a file in /var");
    assert_eq!(kept.price(&mut same), 6);
    assert!(kept.changed_devices(same.devices(), same.descs()).is_empty());
    let same = same.build().unwrap();
    assert_eq!(same.cross_arena(LinkId(5)).can_copy(&query(65_536)), Some(Cost::from_ns(6 * 9_000)));

    let mut other = with_store("a file in /mnt");
    assert_eq!(kept.price(&mut other), 4, "only the links that are no store's");
    let told = kept.changed_devices(other.devices(), other.descs());
    let expected =
        "the speeds of disk are guesses: measured as a file in /var, it is now a file in /mnt".to_owned();
    assert_eq!(told, [expected]);
}

#[test]
fn a_priced_mechanism_copies_as_the_one_inside() {
    let mut builder = builder("1.0", 8);
    calibration().price(&mut builder);
    let platform = builder.build().unwrap();
    let buffer = platform.buffer_from((0..5_000_u32).map(|word| word * 7 + 3).collect::<Vec<_>>()).unwrap();
    platform.acquire(GPU).read_write(&buffer).wait().unwrap().release().unwrap();
    let view = buffer.read().unwrap();
    assert!(view.iter().zip(0_u32..).all(|(word, index)| *word == index * 7 + 3));
    drop(view);
    // A mechanism by itself, whose price is known and whose name is the one inside.
    let priced = Priced::new(Arc::new(HostStaged::default()), table(1), MapChanges::default());
    assert_eq!((priced.name(), priced.can_copy(&query(4))), ("staged", Some(Cost::from_ns(100))));
}

/// The prices of the links of a platform for a copy of 64 KiB.
fn prices(platform: &Platform) -> Vec<Option<Cost>> {
    let links = 0..platform.links().len() as u16;
    links.map(|link| platform.cross_arena(LinkId(link)).can_copy(&query(65_536))).collect()
}

#[test]
fn discovery_uses_a_file_only_if_it_is_asked_to() {
    let folder = Folder::new("discovery");
    let find = |source: CalibrationSource| {
        let options = DiscoverOptions::default().calibration(source);
        Platform::builder().discover_with(&options).unwrap().build().unwrap()
    };
    let guessed = find(CalibrationSource::Guesses);
    let by_default = Platform::builder().discover().unwrap().build().unwrap();
    assert_eq!(prices(&guessed), prices(&by_default));
    let file = CalibrationSource::File(folder.file());
    assert_eq!(prices(&find(file.clone())), prices(&guessed), "there is no file");
    assert!(folder.names().is_empty(), "nothing is measured or written without being asked");
    let notes = |platform: &Platform| -> Vec<String> {
        let notes = platform.unavailable().iter().filter(|one| one.backend == "calibration");
        notes.map(|one| one.reason.clone()).collect()
    };
    assert!(notes(&find(file.clone())).is_empty());
    let calibration = figures(&guessed, 7);
    calibration.store(&folder.file()).unwrap();
    for platform in [find(file.clone()), find(CalibrationSource::Figures(calibration.clone()))] {
        assert!(notes(&platform).is_empty(), "{:?}", notes(&platform));
        for (scale, link) in (7..).zip(links(&platform)) {
            let ends = platform.links()[usize::from(link.0)];
            let mechanism = platform.cross_arena(link);
            // Links between two devices are core's own, and mapping costs extra.
            if mechanism.name() == "staged" && (ends.from.0 == 0 || ends.to.0 == 0) {
                assert_eq!(
                    mechanism.can_copy(&query(65_536)),
                    Some(Cost::from_ns(9_000 * scale)),
                    "{ends:?}"
                );
            }
        }
        assert_eq!(links(&platform), links(&guessed));
    }
    fs::write(folder.file(), "corrupt").unwrap();
    let platform = find(file);
    assert_eq!(prices(&platform), prices(&guessed));
    assert!(matches!(&notes(&platform)[..], [note] if note.contains("links.json is ignored")));
}

#[test]
fn the_file_is_in_the_users_cache_folder() {
    let file = Calibration::cache_file();
    let is_right = |path: &Path| {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let digest =
            name.strip_prefix("links-").and_then(|rest| rest.strip_suffix(".json")).unwrap_or_default();
        path.is_absolute() && path.parent().unwrap().ends_with("dml") && digest.len() == 16
    };
    assert!(file.as_deref().map_or_else(|error| *error == CacheError::NoFolder, is_right), "{file:?}");
    assert_eq!(file, Calibration::cache_file());
}
