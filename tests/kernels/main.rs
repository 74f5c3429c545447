//! Kernels that other people wrote: run in packages they compute what they compute at once, or are refused.
//!
//! | room | what is in it |
//! |---|---|
//! | `groups.rs` | numbers of work-groups in packages, and their sizes |
//! | `arguments.rs` | arguments without bytes, of types that no launch can pass, of types that the source names |
//! | `footprints.rs` | footprints that see scalars, and the check on kernels that gather, square and make do |
//! | `mistakes.rs` | what a program hears that uses the library wrongly |
//! | `sources.rs` | files that a source includes, and sources that many threads compile |
//! | `threads.rs` | runs that are started on threads of rayon |
//! | `undivided.rs` | kernels that one device computes, and items along any dimension |

#![cfg(all(not(dml_loom), feature = "opencl"))]

mod arguments;
mod footprints;
mod groups;
mod mistakes;
mod sources;
mod threads;
mod undivided;

use dml::Kernel;
use dml::core::{Fence, Launch, LaunchArg, LaunchError, Launcher, Misfit};
use dml::prelude::*;

/// A platform of these devices, if the machine has them. A run that was told that it has them fails without.
fn platform_of(options: &DiscoverOptions, device: &str) -> Option<(Platform, DeviceId)> {
    let backend = device.split(':').next().unwrap_or(device);
    let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains(backend));
    let platform = Platform::builder().discover_with(options).ok();
    let platform = platform.map(|builder| builder.build().expect("a sound platform"));
    let found = platform.and_then(|platform| Some((platform.clone(), platform.device(device).ok()?)));
    assert!(found.is_some() || !expected, "DML_EXPECT names {backend}, and there is no {device}");
    if found.is_none() {
        eprintln!("skipped: no {device}");
    }
    found
}

/// The processor and the first OpenCL device.
fn opencl() -> Option<(Platform, DeviceId)> {
    platform_of(&DiscoverOptions::default().only(["opencl:0"]), "opencl:0")
}

/// The processor and the first CUDA device.
#[cfg(feature = "cuda")]
fn cuda() -> Option<(Platform, DeviceId)> {
    platform_of(&DiscoverOptions::default().only(["cuda:0"]), "cuda:0")
}

/// Runs a kernel on one device in so many packages, none of which fails.
fn run_on(platform: &Platform, device: DeviceId, kernel: &Kernel, items: u64, packages: u64) {
    let policy = format!("dynamic:{packages}").parse().expect("a policy");
    let run = Coexecutor::new(platform).devices([device]).policy(policy).run(kernel, items);
    let report = run.unwrap_or_else(|error| panic!("{error}"));
    assert!(report.failures.is_empty(), "{:?}", report.failures);
}

/// A launcher that gets at all that was granted, as a kernel in C does.
struct Loose(fn(&Launch<'_>, &mut Grants));

impl Launcher for Loose {
    fn check(&self, _: &[LaunchArg]) -> Result<(), Misfit> {
        Ok(())
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        self.0(launch, grants);
        Ok(Fence::done(0))
    }
}

/// The two buffers of a kernel.
fn buffers<'a>(launch: &Launch<'a>) -> [&'a RawBuffer; 2] {
    match launch.arguments {
        [LaunchArg::Buffer { buffer: one, .. }, LaunchArg::Buffer { buffer: other, .. }] => [one, other],
        _ => panic!("two buffers"),
    }
}
