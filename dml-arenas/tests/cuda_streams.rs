//! Submitted kernels of CUDA: in a fork, and on two GPUs. Without the devices the tests say so and pass,
//! unless `DML_EXPECT=cuda`.

#![cfg(all(feature = "cuda", target_os = "linux", not(dml_loom)))]

mod common;
#[path = "common/forks.rs"]
mod forks;

use common::with_cuda;
use dml_arenas::launch;
use dml_core::record::EventKind;
use dml_core::{Buffer, DeviceId, Items, Launcher, Platform};
use forks::child;
use std::sync::Arc;

const KERNELS: &str = r#"
    extern "C" __global__ void turn(unsigned* data, unsigned rounds, unsigned long long end, DmlItems items) {
        if (items.x() >= end) return;
        unsigned value = data[items.x()];
        for (unsigned round = 0; round < rounds; round++) value = value * 1664525u + 1013904223u;
        data[items.x()] = value;
    }
    extern "C" __global__ void add(const unsigned* from, unsigned* to, unsigned long long end, DmlItems items) {
        if (items.x() < end) to[items.x()] += from[items.x()] + 1;
    }"#;

const WORDS: u64 = 1000;

fn kernel(platform: &Platform, device: DeviceId, name: &str) -> Arc<dyn Launcher> {
    // SAFETY: the kernels touch the elements of their items, below their last argument.
    unsafe { launch::kernel(platform, device, KERNELS, name) }.expect("it compiles")
}

/// Kernels are in flight at the fork, and others are still to be launched. They are the parent's.
#[test]
fn kernels_in_flight_are_their_parents() {
    const TIMES: u32 = 40;
    const ROUNDS: u32 = 100_000;
    let Some((platform, gpu)) = with_cuda("kernels_in_flight_are_their_parents") else { return };
    let turn = kernel(&platform, gpu, "turn");
    let values: Vec<u32> = (0..WORDS as u32).collect();
    let buffer = platform.buffer_from(values.clone()).unwrap();
    let turns = |buffer: &Buffer<u32>| {
        platform.submit(gpu, &turn).read_write(buffer).scalar(ROUNDS).scalar(WORDS).items(WORDS)
    };
    (0..TIMES).for_each(|_| drop(turns(&buffer).unwrap()));
    let child = child(|| {
        assert!(platform.settle(gpu).is_err(), "a fork has no device");
        assert!(buffer.read().is_err());
        let mine = platform.buffer_from(vec![9_u32; WORDS as usize]).unwrap();
        let refused = turns(&mine).unwrap_err();
        assert!(refused.to_string().contains("lost"), "{refused}");
        assert_eq!(*mine.read().unwrap(), [9; WORDS as usize]);
    });
    child.ends_well();
    platform.settle(gpu).unwrap();
    let turned = |value: &u32| {
        (0..TIMES * ROUNDS).fold(*value, |value, _| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223))
    };
    assert!(*buffer.read().unwrap() == *values.iter().map(turned).collect::<Vec<_>>());
}

/// A diamond over two GPUs: only what crosses from one to the other is copied.
#[test]
fn a_diamond_over_two_gpus_copies_what_crosses() {
    let Some((platform, first)) = with_cuda("a_diamond_over_two_gpus_copies_what_crosses") else { return };
    let Ok(second) = platform.device("cuda:1") else { return };
    let adds = [first, second].map(|gpu| (gpu, kernel(&platform, gpu, "add")));
    let buffer = |value| platform.buffer_from(vec![value; WORDS as usize]).unwrap();
    let [x, a, b, c] = [1_u32, 0, 0, 0].map(buffer);
    let recording = platform.record();
    let add = |on: usize, from: &Buffer<u32>, to: &Buffer<u32>| {
        let (gpu, add) = &adds[on];
        platform.submit(*gpu, add).read(from).read_write(to).scalar(WORDS).items(WORDS).unwrap();
    };
    add(0, &x, &a);
    add(0, &a, &b);
    add(1, &a, &c);
    add(0, &c, &b);
    adds.iter().for_each(|(gpu, _)| platform.settle(*gpu).unwrap());
    let events = recording.finish();
    let copies = |of: &Buffer<u32>| {
        let of_it = events.iter().filter(|event| event.buffer == of.raw().id());
        of_it.filter(|event| matches!(event.kind, EventKind::CopyDone { .. })).count()
    };
    let counts = [&x, &a, &b, &c].map(copies);
    eprintln!("copies of x, a, b and c: {counts:?}");
    // Each starts on the host. Two GPUs copy to each other in one step, or in two where they cannot.
    assert!(
        counts[0] == 1 && counts[2] == 1 && (2..=3).contains(&counts[1]) && counts[1] == counts[3],
        "{counts:?}"
    );
    assert_eq!(b.read().unwrap()[0], (1 + 1) + 1 + (2 + 1) + 1);
}

/// What the driver gets together differs in everything: functions of two programs, their parameters, groups
/// and dimensions, local memory beyond the usual, and stacks.
#[test]
fn kernels_of_any_kind_follow_each_other() {
    const KINDS: &str = r#"
        extern "C" __global__ void shift(unsigned* data, unsigned by, unsigned long long end, DmlItems items) {
            if (items.x() < end) data[items.x()] += by;
        }
        extern "C" __global__ void around(unsigned* data, unsigned by, unsigned long long end, DmlItems items) {
            extern __shared__ unsigned shared[];
            unsigned last = 25 * 1024 - 1 - threadIdx.x;
            shared[last] = by;
            __syncthreads();
            if (items.x() < end) data[items.x()] ^= shared[last];
        }
        extern "C" __global__ void deep(unsigned* data, unsigned by, unsigned long long end, DmlItems items) {
            volatile unsigned stack[2048];
            for (unsigned at = 0; at < 2048; at++) stack[at] = at * by;
            if (items.x() < end) data[items.x()] += stack[(data[items.x()] + by) % 2048];
        }
        extern "C" __global__ void many(
            unsigned* data, unsigned a, unsigned long long b, unsigned char c, double d, unsigned e, unsigned f,
            unsigned g, unsigned h, unsigned i, unsigned j, unsigned k, unsigned l, unsigned m, unsigned n,
            unsigned o, unsigned p, unsigned q, unsigned long long end, DmlItems items
        ) {
            if (items.x() >= end) return;
            data[items.x()] += a + (unsigned)b + c + (unsigned)d + e + f + g + h + i + j + k + l + m + n + o + p + q;
        }
        extern "C" __global__ void plane(unsigned* data, unsigned by, unsigned long long end, DmlItems items) {
            if (items.x() < end && items.y() < 3) atomicAdd(&data[items.x()], by * (unsigned)(items.y() + 1));
        }"#;
    let Some((platform, gpu)) = with_cuda("kernels_of_any_kind_follow_each_other") else { return };
    let [shift, around, deep, many, plane] = ["shift", "around", "deep", "many", "plane"].map(|name| {
        // SAFETY: the kernels touch the elements of their items, below their last argument.
        unsafe { launch::kernel(&platform, gpu, KINDS, name) }.expect("it compiles")
    });
    let add = kernel(&platform, gpu, "turn");
    let buffer = platform.buffer_from((0..WORDS as u32).collect::<Vec<_>>()).unwrap();
    let mut expected: Vec<u32> = (0..WORDS as u32).collect();
    for number in 0..600_u32 {
        let kind = if number < 200 { number % 6 } else { number.wrapping_mul(2_654_435_761) >> 16 } % 6;
        let (by, submit) = (number + 1, |of| platform.submit(gpu, of).read_write(&buffer));
        let submitted = match kind {
            0 => submit(&shift).scalar(by).scalar(WORDS).items(Items::from(WORDS).in_groups([96, 1, 1])),
            1 => {
                let around = submit(&around).scalar(by).local(100 << 10).scalar(WORDS);
                around.items(Items::from(WORDS).in_groups([128, 1, 1]))
            }
            2 => submit(&deep).scalar(by).scalar(WORDS).items(WORDS),
            3 => {
                let first =
                    submit(&many).scalar(by).scalar(u64::from(by)).scalar(by as u8).scalar(f64::from(by));
                (0..13).fold(first, |many, at| many.scalar(at)).scalar(WORDS).items(WORDS)
            }
            4 => submit(&plane).scalar(by).scalar(WORDS).items([WORDS, 3]),
            _ => submit(&add).scalar(2_u32).scalar(WORDS).items(WORDS),
        };
        submitted.unwrap();
        for value in &mut expected {
            let turn = |value: u32| value.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *value = match kind {
                0 => value.wrapping_add(by),
                1 => *value ^ by,
                2 => value.wrapping_add((value.wrapping_add(by) % 2048).wrapping_mul(by)),
                3 => value.wrapping_add(3 * by + u32::from(by as u8) + (0..13).sum::<u32>()),
                4 => value.wrapping_add(6 * by),
                _ => turn(turn(*value)),
            };
        }
    }
    platform.settle(gpu).unwrap();
    assert!(*buffer.read().unwrap() == expected);
}
