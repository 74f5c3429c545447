//! What discovery adds, and what it says of devices that it cannot.

use super::{DEVICES, arena, discovered, nothing_is_left, platform, platform_with, sub_devices_are_left};
use crate::driver::{code, stand_in};
use crate::stand_in::{again, is_child};
use dml_arenas::{Discover, DiscoverError, DiscoverOptions, HostArena, OpenClArena, Sharing};
use dml_core::{DeviceDesc, DeviceKind, Platform};

fn desc<'a>(platform: &'a Platform, device: &str) -> &'a DeviceDesc {
    &platform.devices()[usize::from(platform.device(device).unwrap().0)]
}

/// Everything that is said of OpenCL.
fn said(platform: &Platform) -> Vec<String> {
    let said = platform.unavailable().iter().filter(|said| said.backend == "opencl");
    said.map(|said| said.reason.clone()).collect()
}

/// All that there is, without workers.
fn all(options: DiscoverOptions) -> Platform {
    let builder = Platform::builder().discover_with(&options.offload(0)).expect("no device is named");
    builder.build().expect("what discovery adds fits together")
}

#[test]
fn devices_are_described_as_their_drivers_do_in_one_order() {
    stand_in();
    let platform = all(DiscoverOptions::default());
    let expected = [
        ("Quick GPU", DeviceKind::Gpu, 4, Some("pci 0001:1a:03.1")),
        ("Cores", DeviceKind::Cpu, 8, None),
        ("Board", DeviceKind::Accelerator, 2, None),
        ("Other GPU", DeviceKind::Gpu, 6, Some("pci 0002:65:0a.2")),
    ];
    for (device, (name, kind, units, hardware)) in DEVICES.into_iter().zip(expected) {
        let desc = desc(&platform, device);
        let text = format!("{name} (B stand-in)");
        assert_eq!((&*desc.description, desc.model.as_deref()), (&*text, Some(&*text)));
        assert_eq!((desc.kind, desc.compute_units, &*desc.driver), (kind, units, "stand-in 1.0"), "{device}");
        assert_eq!(desc.hardware.as_deref(), hardware, "{device}");
        let own = arena(&platform, device);
        let own = (*own).downcast_ref::<OpenClArena>().unwrap();
        assert_eq!((own.max_alloc_bytes(), own.capacity_bytes()), (64 << 20, 256 << 20));
        assert_eq!(dml_core::Arena::desc(own).alloc_align, 128);
    }
    // The platform that has the same devices again adds none.
    assert_eq!(platform.devices().len(), 1 + DEVICES.len());
    assert_eq!(
        said(&platform),
        [
            "platform A empty, DML, OpenCL 3.0 has no devices",
            "platform A fails, DML, OpenCL 3.0 does not list its devices: CL_OUT_OF_RESOURCES",
            "opencl:4, Away (C defects): its driver says that it is not available",
            "opencl:5, Bare (C defects): its driver has no compiler",
            "opencl:6, Old (C defects): it offers OpenCL 1.1 old, and OpenCL 1.2 is needed",
            "opencl:7, unnamed device of C defects: its driver does not describe it: CL_OUT_OF_RESOURCES",
        ]
    );
}

#[test]
fn a_device_that_is_named_and_of_no_use_is_an_error() {
    stand_in();
    for (device, reason) in
        [("opencl:4", "its driver says that it is not available"), ("opencl:5", "its driver has no compiler")]
    {
        let refused = discovered(DiscoverOptions::default(), &["opencl:0", device]).map(drop).unwrap_err();
        assert_eq!(refused, DiscoverError::unusable(device, reason));
    }
    let unknown = discovered(DiscoverOptions::default(), &["opencl:8"]).map(drop).unwrap_err();
    assert!(matches!(&unknown, DiscoverError::UnknownDevice { name, .. } if name == "opencl:8"), "{unknown}");
}

#[test]
fn a_device_is_divided_as_its_driver_can() {
    let driver = stand_in();
    // A sub-device is made once, and kept.
    for (device, units, is_part, kept) in [
        ("opencl:1", 3, true, 1),
        ("opencl:1", 8, false, 1),
        ("opencl:1", 3, true, 1),
        ("opencl:2", 1, true, 2),
        ("opencl:3", 3, true, 3),
    ] {
        let platform = platform_with(DiscoverOptions::default().limit(device, units), &[device]);
        let desc = desc(&platform, device);
        assert_eq!(
            (desc.compute_units, desc.description.ends_with("(B stand-in), a part")),
            (units, is_part)
        );
        assert_eq!(
            desc.model.as_deref(),
            desc.description.strip_suffix(", a part").or(Some(&desc.description))
        );
        // One that is split into equal parts has several, of which one is used.
        assert_eq!(driver.count("devices"), kept, "{device}");
        drop(platform);
        sub_devices_are_left(driver, kept);
    }
    let refused = |device: &str, units| {
        discovered(DiscoverOptions::default().limit(device, units), &[device]).map(drop).unwrap_err()
    };
    for (device, units, reason) in [
        ("opencl:1", 9, "it has 8 compute units"),
        ("opencl:1", 0, "it has 8 compute units"),
        ("opencl:2", 3, "it has 2 compute units"),
    ] {
        let (device, reason) = (device.to_owned(), reason.to_owned());
        assert_eq!(refused(&device, units), DiscoverError::BadLimit { device, units, reason });
    }
    driver.fail("clCreateSubDevices", 1, -18);
    driver.fail("device info 0x1002", 0, code::OUT_OF_RESOURCES);
    let refused = refused("opencl:1", 4);
    assert!(refused.to_string().contains("CL_OUT_OF_RESOURCES"), "{refused}");
    sub_devices_are_left(driver, 3);
}

#[test]
fn a_device_that_cannot_be_split_says_so() {
    let driver = stand_in();
    let refused = |units| {
        discovered(DiscoverOptions::default().limit("opencl:0", units), &["opencl:0"]).map(drop).unwrap_err()
    };
    // By counts it cannot be split at all; in equal parts each call is made twice, for the number and for the
    // parts.
    driver.fail("clCreateSubDevices", 1, -68);
    let said = refused(3).to_string();
    assert!(said.ends_with("its driver cannot split it: CL_INVALID_DEVICE_PARTITION_COUNT"), "{said}");
    assert_eq!(driver.count("devices"), 0);
    if is_child() {
        let said = refused(3).to_string();
        assert!(said.ends_with("its driver made a sub-device of 2 compute units"), "{said}");
        nothing_is_left(driver);
        return;
    }
    again("discovery::a_device_that_cannot_be_split_says_so", &[("STAND_IN_UNITS", "2")]);
}

#[test]
fn a_device_that_does_not_open_says_which_call_failed_and_leaves_nothing() {
    let driver = stand_in();
    // Discovery describes devices once in a process, so that what fails from now on is their opening.
    drop(platform(&["opencl:0"]));
    let calls = [
        ("clCreateContext", 0, "clCreateContext failed: CL_OUT_OF_RESOURCES"),
        ("device info 0x1010", 0, "clGetDeviceInfo failed: CL_OUT_OF_RESOURCES"),
        ("device info 0x101f", 0, "clGetDeviceInfo failed: CL_OUT_OF_RESOURCES"),
        ("clCreateCommandQueue", 0, "clCreateCommandQueue failed: CL_OUT_OF_RESOURCES"),
        ("clCreateCommandQueue", 1, "clCreateCommandQueue failed: CL_OUT_OF_RESOURCES"),
        ("clCreateCommandQueue", 2, "clCreateCommandQueue failed: CL_OUT_OF_RESOURCES"),
        ("clCreateCommandQueue", 3, "clCreateCommandQueue failed: CL_OUT_OF_RESOURCES"),
    ];
    for (call, after, reason) in calls {
        nothing_is_left(driver);
        driver.fail(call, after, code::OUT_OF_RESOURCES);
        let refused = discovered(DiscoverOptions::default(), &["opencl:0"]).map(drop).unwrap_err();
        assert_eq!(refused, DiscoverError::unusable("opencl:0", reason), "{call} {after}");
        // If the options do not name the device, the other devices are there.
        driver.fail(call, after, code::OUT_OF_RESOURCES);
        let platform = all(DiscoverOptions::default());
        assert!(said(&platform).contains(&format!("opencl:0, Quick GPU (B stand-in): {reason}")));
        assert!(platform.device("opencl:0").is_err() && platform.device("opencl:1").is_ok());
    }
    nothing_is_left(driver);
}

#[test]
fn a_driver_that_does_not_tell_how_large_groups_are_or_how_memory_is_aligned_serves() {
    let driver = stand_in();
    drop(platform(&["opencl:0"]));
    driver.fail("device info 0x1005", 0, code::OUT_OF_RESOURCES);
    driver.fail("device info 0x1019", 0, code::OUT_OF_RESOURCES);
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    assert_eq!(arena.desc().alloc_align, 64);
    let kernel = super::opencl(&arena).kernel("kernel void some()", "some", "").unwrap();
    assert_eq!(kernel.max_local(), 1);
}

#[test]
fn a_loader_without_platforms_is_told() {
    if is_child() {
        stand_in();
        let expected = std::env::var("DML_TEST_SAYS").ok();
        assert_eq!(said(&all(DiscoverOptions::default())), expected.into_iter().collect::<Vec<_>>());
        return;
    }
    let test = "discovery::a_loader_without_platforms_is_told";
    let none = "the OpenCL loader lists no platforms";
    again(test, &[("STAND_IN_PLATFORMS", "0"), ("DML_TEST_SAYS", none)]);
    // The first platform has nothing but devices.
    again(test, &[("STAND_IN_PLATFORMS", "1")]);
    again(test, &[("STAND_IN_FAILS", "clGetPlatformIDs"), ("DML_TEST_SAYS", "CL_OUT_OF_HOST_MEMORY")]);
}

#[test]
fn a_device_that_another_framework_has_is_left_to_it_unless_it_is_named() {
    stand_in();
    // As another framework adds it, before.
    let with_other = |hardware: &str, name: &str, options: DiscoverOptions| {
        let mut builder = Platform::builder();
        let mut desc = DeviceDesc::new(name, DeviceKind::Gpu);
        desc.hardware = Some(hardware.to_owned());
        builder.add_device(desc);
        builder.discover_with(&options.offload(0)).unwrap().build().unwrap()
    };
    let platform = with_other("pci 0001:1a:03.1", "other:0", DiscoverOptions::default());
    let expected = "opencl:0, Quick GPU (B stand-in): same device as other:0; name it to use both";
    assert!(said(&platform).contains(&expected.to_owned()), "{:?}", said(&platform));
    assert!(platform.device("opencl:0").is_err() && platform.device("opencl:3").is_ok());
    let named = DiscoverOptions::default().only(["cpu", "opencl:0"]);
    assert!(with_other("pci 0001:1a:03.1", "other:0", named).device("opencl:0").is_ok());
    for (hardware, name) in [("pci 0000:1a:03.1", "other:0"), ("pci 0001:1a:03.1", "opencl:9")] {
        assert!(with_other(hardware, name, DiscoverOptions::default()).device("opencl:0").is_ok());
    }
}

#[test]
fn memory_is_shared_byte_by_byte_where_that_is_offered() {
    stand_in();
    let reason = "its driver offers no fine-grained shared virtual memory".to_owned();
    for device in ["opencl:3", "opencl:2"] {
        let refused =
            discovered(DiscoverOptions::default().sharing(Sharing::fine_grained(device)), &[device]);
        let (device, reason) = (device.to_owned(), reason.clone());
        assert_eq!(refused.map(drop).unwrap_err(), DiscoverError::BadSharing { device, reason });
    }
    // Where any will do, it is the first that offers it and has no memory of its own.
    let platform = all(DiscoverOptions::default().sharing(Sharing::in_place()));
    let arenas: Vec<_> = platform.arenas().iter().map(|arena| arena.desc().name.to_string()).collect();
    assert_eq!(arenas, ["main_mem", "opencl:0", "opencl:1", "svm", "opencl:2", "opencl:3"]);
    let svm = platform.arena(platform.arena_named("svm").unwrap());
    let svm = svm.downcast_ref::<HostArena>().unwrap();
    assert_eq!(svm.capacity_bytes(), 256 << 20);
}
