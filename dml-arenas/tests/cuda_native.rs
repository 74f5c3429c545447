//! Programs written by hand against CUDA, on a real device. Without one the tests say so and pass, unless
//! `DML_EXPECT=cuda`.

#![cfg(all(feature = "cuda", not(dml_loom)))]

mod common;
#[cfg(target_os = "linux")]
#[allow(dead_code, reason = "each test binary uses its own part")]
#[path = "common/forks.rs"]
mod forks;

use common::{pattern, with_cuda};
use dml_arenas::cuda::native::hand::{Arg, Calls, Device, PageLocked};
use dml_arenas::cuda::native::{Baseline, BaselineArg, BaselineError, BaselineSpec};
use dml_arenas::native::HandWritten;

/// It touches no word past the last of its items, which the caller has within both blocks.
const SCALE: &str = r#"
    extern "C" __global__ void scale(const unsigned* in, unsigned* out, unsigned factor, unsigned long long end,
                                     DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) out[i] = in[i] * factor + (unsigned)i;
    }"#;

const WORDS: usize = 1001;

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

fn input() -> Vec<u8> {
    pattern(WORDS * 4, 8)
}

fn scaled(factor: u32) -> Vec<u32> {
    words(&input()).into_iter().zip(0..).map(|(word, i)| word.wrapping_mul(factor).wrapping_add(i)).collect()
}

/// Scales the input by 11.
fn spec(source: &str, limit: Option<u32>) -> BaselineSpec<'_> {
    BaselineSpec {
        device: 0,
        limit,
        source,
        kernel: "scale",
        options: "",
        args: vec![
            BaselineArg::Input(input()),
            BaselineArg::Output(WORDS * 4),
            BaselineArg::U32(11),
            BaselineArg::U64(WORDS as u64),
        ],
        items: [WORDS, 1],
        local: [64, 1],
    }
}

#[test]
fn the_baseline_does_the_same_by_hand() {
    let Some((platform, device)) = with_cuda("the_baseline_does_the_same_by_hand") else { return };
    let units = platform.devices()[usize::from(device.0)].units;
    for make in [Baseline::new, Baseline::suited] {
        for limit in [None, Some(units)] {
            let mut baseline = make(spec(SCALE, limit)).unwrap();
            assert!(baseline.output(0).iter().all(|byte| *byte == 0), "nothing was computed yet");
            // The second run finds the buffers as the first has left them.
            for _ in 0..2 {
                assert!(baseline.run().unwrap().as_nanos() > 0);
                assert_eq!(words(baseline.output(0)), scaled(11));
            }
        }
    }
    assert!(matches!(Baseline::new(spec("nonsense", None)), Err(BaselineError::Build { .. })));
    let other = Baseline::new(spec(SCALE, Some(units + 1))).unwrap_err();
    assert!(matches!(&other, BaselineError::Device { device, .. } if device == "cuda:0"), "{other}");
}

/// No items are no launch, and arguments without bytes are no transfers.
#[test]
fn the_baseline_of_no_work_does_nothing() {
    if with_cuda("the_baseline_of_no_work_does_nothing").is_none() {
        return;
    }
    for make in [Baseline::new, Baseline::suited] {
        let args = vec![
            BaselineArg::Input(Vec::new()),
            BaselineArg::Output(0),
            BaselineArg::U32(1),
            BaselineArg::U64(0),
        ];
        let mut baseline = make(BaselineSpec { args, items: [0, 1], ..spec(SCALE, None) }).unwrap();
        baseline.run().unwrap();
        assert!(baseline.output(0).is_empty());
    }
}

/// Each axis is padded by the size of its own groups.
#[test]
fn the_baseline_computes_every_item_of_both_axes() {
    const SOURCE: &str = r#"extern "C" __global__ void place(unsigned* out, unsigned long long rows, DmlItems items) {
        unsigned long long column = items.x(), row = items.y();
        if (row < rows && column < 12) { out[row * 12 + column] = (unsigned)(row * 100 + column + 1); }
    }"#;
    if with_cuda("the_baseline_computes_every_item_of_both_axes").is_none() {
        return;
    }
    for (rows, local) in [(15_usize, [4, 5]), (14, [4, 5]), (13, [12, 3]), (9, [3, 1]), (7, [0, 1])] {
        let mut baseline = Baseline::new(BaselineSpec {
            source: SOURCE,
            kernel: "place",
            args: vec![BaselineArg::Output(rows * 12 * 4), BaselineArg::U64(rows as u64)],
            items: [12, rows],
            local,
            ..spec(SOURCE, None)
        })
        .unwrap();
        baseline.run().unwrap();
        let expected = (0..rows as u32).flat_map(|row| (1..=12).map(move |column| row * 100 + column));
        assert!(words(baseline.output(0)).into_iter().eq(expected), "{rows} rows, groups of {local:?}");
    }
}

#[test]
fn a_program_by_hand_reads_what_it_wrote_and_its_calls_are_counted() {
    if with_cuda("a_program_by_hand_reads_what_it_wrote_and_its_calls_are_counted").is_none() {
        return;
    }
    let device = Device::open(0).unwrap();
    let kernel = device.kernel(SCALE, "scale").unwrap();
    assert_eq!(kernel.name(), "scale");
    let ordinary = words(&input());
    let mut locked: PageLocked<u32> = device.page_locked(WORDS).unwrap();
    assert!(locked.iter().all(|word| *word == 0));
    locked.copy_from_slice(&ordinary);
    let mut found_locked: PageLocked<u32> = device.page_locked(WORDS).unwrap();
    let ((), calls) = device
        .run(|commands| {
            let mut from = commands.buffer::<u32>(WORDS)?;
            let to = commands.buffer::<u32>(WORDS)?;
            for (elements, factor) in [(&ordinary[..], 11), (&locked, 13)] {
                commands.write(&mut from, elements)?;
                let args = [Arg::Buffer(&from), Arg::Buffer(&to), Arg::U32(factor), Arg::U64(WORDS as u64)];
                // SAFETY: the kernel ends at the last word, which both buffers have.
                unsafe { commands.launch(&kernel, &args, [WORDS, 1], [64, 1]) }?;
                let mut found = vec![0_u32; WORDS];
                commands.read(&to, &mut found)?;
                assert_eq!(found, scaled(factor));
                commands.read(&to, &mut found_locked)?;
                assert_eq!(*found_locked, scaled(factor)[..]);
            }
            Ok::<_, BaselineError>(())
        })
        .unwrap();
    let Calls { alloc, bind, map, unmap, read, write, kernel: kernels, .. } = calls;
    assert_eq!([alloc, bind, map, unmap, read, write, kernels], [2, 0, 0, 0, 4, 2, 2]);
    assert!(matches!(device.kernel("nonsense", "scale"), Err(BaselineError::Build { .. })));
    let none = device.kernel(SCALE, "scala").unwrap_err();
    assert!(none.to_string().contains("no kernel scala"), "{none}");
}

#[test]
fn a_program_that_panics_has_ended_its_commands() {
    if with_cuda("a_program_that_panics_has_ended_its_commands").is_none() {
        return;
    }
    let device = Device::open(0).unwrap();
    let data = vec![7_u32; 1 << 20];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        device.run(|commands| -> Result<(), BaselineError> {
            let mut there = commands.buffer::<u32>(data.len())?;
            commands.write(&mut there, &data)?;
            panic!("as the test says")
        })
    }));
    assert!(panicked.is_err());
    drop(data);
    let (word, _) = device
        .run(|commands| {
            let mut there = commands.buffer::<u32>(1)?;
            commands.write(&mut there, &[77])?;
            let mut word = [0];
            commands.read(&there, &mut word)?;
            Ok::<_, BaselineError>(word[0])
        })
        .unwrap();
    assert_eq!(word, 77);
}

#[cfg(target_os = "linux")]
#[test]
fn in_a_fork_nothing_reaches_the_driver() {
    use forks::{Fork, Leave, fork, leave};
    for how in [Leave::AtOnce, Leave::InOrder] {
        if with_cuda("in_a_fork_nothing_reaches_the_driver").is_none() {
            return;
        }
        let mut baseline = Baseline::suited(spec(SCALE, None)).unwrap();
        baseline.run().unwrap();
        let device = Device::open(0).unwrap();
        let kernel = device.kernel(SCALE, "scale").unwrap();
        let locked = device.page_locked::<u32>(WORDS).unwrap();
        match fork() {
            Fork::Child => leave(how, || {
                assert!(baseline.run().is_err() && baseline.output(0).is_empty());
                assert!(locked.is_empty() && device.page_locked::<u8>(1).is_err());
                assert!(device.kernel(SCALE, "scale").is_err());
                assert!(device.run(|_| Ok::<_, BaselineError>(())).is_err());
                drop((baseline, kernel, locked, device));
            }),
            Fork::Parent(child) => child.ends_well(),
        }
        baseline.run().unwrap();
        assert_eq!(words(baseline.output(0)), scaled(11));
    }
}

/// With or without GPUs, a program learns what is missing.
#[test]
fn a_device_that_is_not_there_is_named() {
    let refused = Device::open(99).unwrap_err();
    let BaselineError::Device { device, reason } = &refused else { panic!("{refused}") };
    assert!(device == "cuda:99" && !reason.is_empty(), "{refused}");
    let refused = Baseline::new(BaselineSpec { device: 99, ..spec(SCALE, None) }).unwrap_err();
    assert!(refused.to_string().starts_with("cuda:99 cannot be used: "), "{refused}");
}
