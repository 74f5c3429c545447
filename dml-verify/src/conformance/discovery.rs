//! Checks of a backend's way into a platform. They take the backend, because there is no arena yet.

use dml_arenas::kit::Backend;
use dml_arenas::{Discover, DiscoverError, DiscoverOptions};
use dml_core::{Platform, PlatformBuilder};

/// Returns options that find main memory and this backend.
fn options(backend: impl Backend + 'static) -> DiscoverOptions {
    DiscoverOptions::default().offload(0).only(backend.devices()).backend(backend)
}

fn found(options: &DiscoverOptions) -> PlatformBuilder {
    Platform::builder().discover_with(options).unwrap_or_else(|error| panic!("discovery fails: {error}"))
}

/// Two discoveries add the same devices and memories, with names that options may use. A device that the
/// options do not want is not added. `make` makes a backend that finds everything that it needs.
///
/// # Panics
/// When the backend breaks this rule.
pub fn discovery_adds_what_is_wanted<B: Backend + 'static>(make: impl Fn() -> B) {
    let names = make().devices();
    assert!(!names.is_empty(), "{:?} names no devices", make());
    let (first, second) = (found(&options(make())), found(&options(make())));
    assert_eq!(first.devices(), second.devices(), "devices of two discoveries");
    assert_eq!(first.descs(), second.descs(), "arenas of two discoveries");
    let count = |builder: &PlatformBuilder| (builder.devices().len(), builder.arenas().len());
    let added = &first.descs()[1..];
    assert!(!added.is_empty(), "nothing is added: {first:?}");
    for desc in added {
        let device = first.devices().get(usize::from(desc.native.0));
        let name = device.map_or(&desc.name, |device| &device.name);
        assert!(names.iter().any(|known| **known == **name), "{name} is added and not named: {names:?}");
    }
    let unwanted = DiscoverOptions::default().only(["cpu"]).backend(make());
    assert_eq!(count(&found(&unwanted)), (1, 1), "devices and arenas where none is wanted");
    let platform =
        first.build().unwrap_or_else(|error| panic!("what is added does not fit together: {error}"));
    let reached = platform.arenas().len() == 1 || platform.links().iter().any(|link| link.from.0 == 0);
    assert!(reached, "no link leads from main memory to {names:?}");
}

/// A backend that lacks something is noted with a reason. It adds nothing, and does not panic. Discovery
/// fails if the options name its device. `make` makes a backend that lacks what it needs.
///
/// # Panics
/// When the backend breaks this rule.
pub fn a_missing_backend_is_a_note<B: Backend + 'static>(make: impl Fn() -> B) {
    let (name, names) = (make().name(), make().devices());
    let builder = found(&DiscoverOptions::default().offload(0).backend(make()));
    let without = found(&DiscoverOptions::default().offload(0));
    assert_eq!(builder.devices(), without.devices(), "devices with a backend that is missing");
    assert_eq!(builder.descs(), without.descs(), "arenas with a backend that is missing");
    let platform = builder.build().expect("its parts are those of a platform");
    let note = platform.unavailable().iter().find(|missing| missing.backend == name);
    let note = note.unwrap_or_else(|| panic!("nothing says that {name} is missing"));
    let reason = note.reason.rsplit_once("cannot be used: ").map_or(&*note.reason, |(_, reason)| reason);
    assert!(reason.contains(' '), "{name} gives no reason: {:?}", note.reason);
    assert!(!reason.contains("panicked"), "{name} panics: {reason}");
    for device in names {
        let asked = DiscoverOptions::default().offload(0).only([device.clone()]).backend(make());
        let refused = Platform::builder().discover_with(&asked).map(drop);
        let is_told = matches!(&refused, Err(DiscoverError::Unusable { device: told, reason })
            if *told == device && reason.contains(' '));
        assert!(is_told, "{device}, asked for by name: {refused:?}");
    }
}
