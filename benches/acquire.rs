//! What the data layer costs when there is nothing to copy: acquire and release of valid, uncontended
//! buffers.
//!
//! `cargo bench --bench acquire`; the mutex pair calibrates the machine.

#![allow(missing_docs, reason = "criterion's macros make public items")]

use criterion::{Criterion, criterion_group, criterion_main};
use dml::arenas::MainMem;
use dml::core::{DeviceDesc, DeviceId, DeviceKind, Platform, RawBuffer};
use std::hint::black_box;
use std::sync::Arc;

const CPU: DeviceId = DeviceId(0);

fn platform() -> Platform {
    let mut builder = Platform::builder();
    builder.add_device(DeviceDesc::new("cpu", DeviceKind::Cpu));
    builder.add_arena(Arc::new(MainMem::new(CPU)));
    builder.build().expect("a sound platform")
}

fn written(platform: &Platform) -> RawBuffer {
    let buffer = platform.raw_buffer(4096).build().expect("a small buffer");
    platform
        .acquire(CPU)
        .write(&buffer)
        .wait()
        .expect("nobody else is there")
        .release()
        .expect("nothing is lost");
    buffer
}

fn acquire(criterion: &mut Criterion) {
    let platform = platform();
    let buffer = written(&platform);
    let mutex = dml::core::internal::sync::Mutex::new(0u64);
    let mut group = criterion.benchmark_group("acquire_release");
    group.bench_function("mutex_pair", |b| b.iter(|| *black_box(&mutex).lock() += 1));
    group.bench_function("read", |b| b.iter(|| platform.acquire(CPU).read(black_box(&buffer)).wait()));
    group.bench_function("try_read", |b| b.iter(|| platform.acquire(CPU).read(black_box(&buffer)).try_now()));
    group.bench_function("read_write", |b| {
        b.iter(|| platform.acquire(CPU).read_write(black_box(&buffer)).wait().map(dml::Grants::release));
    });
    group.bench_function("write", |b| {
        b.iter(|| platform.acquire(CPU).write(black_box(&buffer)).wait().map(dml::Grants::release));
    });
    let buffers: Vec<_> = (0..10).map(|_| written(&platform)).collect();
    group.bench_function("ten_buffers_read", |b| {
        b.iter(|| buffers.iter().fold(platform.acquire(CPU), |acquire, buffer| acquire.read(buffer)).wait());
    });
    group.finish();
}

fn ranges(criterion: &mut Criterion) {
    let platform = platform();
    let mut group = criterion.benchmark_group("read_one_of_ranges");
    for ranges in [1u64, 10, 1000, 100_000] {
        // Every other page is committed and every other one is not: as many segments as there are ranges.
        let buffer = platform.raw_buffer(ranges * 8).build().expect("a buffer of ranges");
        for range in (0..ranges).step_by(2) {
            let part = buffer.range(range * 8..range * 8 + 8);
            platform.acquire(CPU).write(&part).wait().expect("granted").release().expect("nothing is lost");
        }
        let part = buffer.range(ranges / 4 * 2 * 8..ranges / 4 * 2 * 8 + 8);
        group.bench_function(ranges.to_string(), |b| b.iter(|| platform.acquire(CPU).read(&part).wait()));
    }
    group.finish();
}

criterion_group!(benches, acquire, ranges);
criterion_main!(benches);
