use super::*;
use crate::cli::{Arguments, Command};
use clap::Parser;
use dml::core::{AcquireError, RawBuffer};
use dml::scheduler::Kernel;
use dml_workloads::check::Mismatch;
use dml_workloads::prepare::{Plain, VerifyError};
use std::sync::atomic::{AtomicU32, Ordering};

/// A workload whose checks are counted, one of which fails.
#[derive(Debug)]
struct Counted {
    inner: Box<dyn Prepared>,
    resets: AtomicU32,
    checks: AtomicU32,
    wrong_check: u32,
}

impl Prepared for Counted {
    fn workload(&self) -> Workload {
        self.inner.workload()
    }

    fn items(&self) -> u64 {
        self.inner.items()
    }

    fn kernel(&self) -> &Kernel {
        self.inner.kernel()
    }

    fn inputs(&self) -> Vec<&RawBuffer> {
        self.inner.inputs()
    }

    fn output(&self) -> &RawBuffer {
        self.inner.output()
    }

    fn reset(&self) -> Result<(), AcquireError> {
        self.resets.fetch_add(1, Ordering::Relaxed);
        self.inner.reset()
    }

    fn verify(&self) -> Result<(), VerifyError> {
        if self.checks.fetch_add(1, Ordering::Relaxed) + 1 == self.wrong_check {
            return Err(VerifyError::NoPicture { workload: self.workload() });
        }
        self.inner.verify()
    }

    fn plain(&self) -> Plain {
        self.inner.plain()
    }

    fn verify_plain(&self, output: &[u8]) -> Result<(), Mismatch> {
        self.inner.verify_plain(output)
    }
}

/// What a benchmark of vecadd on the processor says, how often it began and how often it was checked.
fn measured(wrong_check: u32) -> (Result<json::Bench, String>, u32, u32) {
    let arguments = ["dml", "bench", "vecadd", "--size", "100", "--runs", "3"];
    let Command::Bench(options) = Arguments::parse_from(arguments).command else { unreachable!() };
    let only = DiscoverOptions::default().only(["cpu"]).limit("cpu", 1);
    let platform = Platform::builder().discover_with(&only).expect("a processor").build().expect("sound");
    let devices = [platform.device("cpu").expect("a processor")];
    let link_prices = json::LinkPrices { measured: 0, guessed: 0, measured_unix_s: None, notes: Vec::new() };
    let workload = Workload::Vecadd;
    let inner = prepare(&options, &platform, &devices, workload).expect("a small problem");
    let (resets, checks) = (AtomicU32::new(0), AtomicU32::new(0));
    let prepared = Counted { inner, resets, checks, wrong_check };
    let bench = Bench {
        options: &options,
        platform: &platform,
        devices: &devices,
        link_prices: &link_prices,
        workload,
        prepared: &prepared,
    };
    let result = bench.measure().map_err(|failure| failure.to_string());
    (result, prepared.resets.into_inner(), prepared.checks.into_inner())
}

#[test]
fn every_configuration_is_checked_and_one_run_of_each_does_not_count() {
    let (result, resets, checks) = measured(0);
    let result = result.expect("nothing is wrong");
    assert_eq!((result.runs, result.verified), (3, true));
    assert_eq!((resets, checks), (2 * (3 + 1), 2), "cpu alone, and all together");
}

#[test]
fn a_wrong_result_of_any_configuration_is_told() {
    let (alone, ..) = measured(1);
    assert!(alone.is_err_and(|error| error.contains("the result of cpu is wrong")));
    let (together, ..) = measured(2);
    assert!(together.is_err_and(|error| error.contains("the result of all devices together is wrong")));
}
