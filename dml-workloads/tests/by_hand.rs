//! Programs by hand on real devices. Without an OpenCL device or a CUDA device, their tests print a note and
//! pass, unless `DML_EXPECT` names `opencl` or `cuda`.

#![cfg(all(any(feature = "cuda", feature = "opencl"), not(dml_loom)))]

use dml_arenas::{Discover, DiscoverOptions};
use dml_core::{DeviceId, Platform};
use dml_workloads::by_hand::{ByHandError, HostMemory, Program, language};
use dml_workloads::prepare::{Language, Plain, PlainArgument};

const SCALE_CL: &str = "
    __kernel void scale(__global const uint* in, __global uint* out, uint factor, float offset, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) out[i] = in[i] * factor + (uint)i + (uint)offset;
    }
    __kernel void place(__global uint* out, ulong rows) {
        size_t column = get_global_id(0), row = get_global_id(1);
        if (row < rows && column < 12) out[row * 12 + column] = (uint)(row * 100 + column + 1);
    }";
const SCALE_CU: &str = r#"
    extern "C" __global__ void scale(const unsigned* in, unsigned* out, unsigned factor, float offset,
                                     unsigned long long end, DmlItems items) {
        unsigned long long i = items.x();
        if (i < end) out[i] = in[i] * factor + (unsigned)i + (unsigned)offset;
    }
    extern "C" __global__ void place(unsigned* out, unsigned long long rows, DmlItems items) {
        unsigned long long column = items.x(), row = items.y();
        if (row < rows && column < 12) out[row * 12 + column] = (unsigned)(row * 100 + column + 1);
    }"#;
const WORDS: u32 = 1001;
/// More rows than a launch of CUDA has blocks along the second axis.
const MANY_ROWS: u32 = 70_000;

/// A device with its platform.
struct Scene {
    platform: Platform,
    device: DeviceId,
    language: Language,
}

impl Scene {
    /// Finds a device, limited to this many units, or prints a note if it does not exist.
    fn new(test: &str, name: &str, limit: Option<u32>) -> Option<Self> {
        let options = DiscoverOptions::default().only([name]);
        let options = limit.into_iter().fold(options, |options, units| options.limit(name, units));
        let platform = match Platform::builder().discover_with(&options) {
            Ok(builder) => builder.build().unwrap(),
            Err(reason) => {
                let kind = name.split(':').next().expect("a name has a first part");
                let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains(kind));
                assert!(!expected, "DML_EXPECT names {kind}, and there is no device: {reason}");
                eprintln!("SKIPPED {test}: no {kind} device: {reason}");
                return None;
            }
        };
        let device = platform.device(name).unwrap();
        let language = language(&platform, device).expect("both frameworks have programs");
        Some(Self { platform, device, language })
    }

    /// Finds both devices, as far as they exist.
    fn all(test: &'static str) -> impl Iterator<Item = Self> {
        ["opencl:0", "cuda:0"].into_iter().filter_map(move |name| Self::new(test, name, None))
    }

    fn source(&self) -> &'static str {
        match self.language {
            Language::OpenClC => SCALE_CL,
            _ => SCALE_CU,
        }
    }

    /// Scales `words` words by 11.
    fn scale(&self, words: u32) -> Plain {
        let input = input(words).into_iter().flat_map(u32::to_ne_bytes).collect();
        let arguments = vec![
            PlainArgument::Input(input),
            PlainArgument::Output(u64::from(words) * 4),
            PlainArgument::U32(11),
            PlainArgument::F32(3.0),
            PlainArgument::U64(words.into()),
        ];
        let items = [words.into(), 1];
        Plain { source: self.source(), kernel: "scale", arguments, items, local_size: [64, 1] }
    }

    fn program(&self, memory: HostMemory, plain: &Plain) -> Result<Program, ByHandError> {
        // SAFETY: the arguments are those of the kernels above, which end at the last word of the buffers.
        unsafe { Program::new(&self.platform, self.device, memory, plain) }
    }
}

fn input(words: u32) -> Vec<u32> {
    (0..words).map(|index| index.wrapping_mul(2_654_435_761)).collect()
}

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_ne_bytes(word.try_into().unwrap())).collect()
}

fn scaled() -> Vec<u32> {
    input(WORDS).into_iter().zip(3..).map(|(word, more)| word.wrapping_mul(11).wrapping_add(more)).collect()
}

#[test]
fn every_run_computes_the_result_in_both_memories() {
    for scene in Scene::all("every_run_computes_the_result_in_both_memories") {
        for memory in [HostMemory::Ordinary, HostMemory::Suited] {
            let mut program = scene.program(memory, &scene.scale(WORDS)).unwrap();
            assert!(program.output(0).iter().all(|byte| *byte == 0), "nothing was computed yet");
            // The second run finds the buffers as the first has left them.
            for _ in 0..2 {
                assert!(program.run().unwrap().as_nanos() > 0);
                assert_eq!(words(program.output(0)), scaled(), "{memory:?}");
            }
            let none = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| program.output(1).len()));
            assert!(none.is_err(), "inputs are no outputs");
        }
    }
}

#[test]
fn every_item_of_both_axes_is_computed_once_with_padding() {
    for scene in Scene::all("every_item_of_both_axes_is_computed_once_with_padding") {
        for (rows, local_size) in
            [(15, [4, 5]), (14, [4, 5]), (13, [12, 3]), (9, [3, 1]), (7, [0, 1]), (MANY_ROWS, [16, 1])]
        {
            let arguments =
                vec![PlainArgument::Output(u64::from(rows) * 12 * 4), PlainArgument::U64(rows.into())];
            let items = [12, rows.into()];
            let plain = Plain { source: scene.source(), kernel: "place", arguments, items, local_size };
            let mut program = scene.program(HostMemory::Suited, &plain).unwrap();
            program.run().unwrap();
            let expected = (0..rows).flat_map(|row| (1..=12).map(move |column| row * 100 + column));
            assert!(
                words(program.output(0)).into_iter().eq(expected),
                "{rows} rows, groups of {local_size:?}"
            );
        }
    }
}

#[test]
fn no_items_are_not_launched_and_no_bytes_not_transferred() {
    for scene in Scene::all("no_items_are_not_launched_and_no_bytes_not_transferred") {
        for memory in [HostMemory::Ordinary, HostMemory::Suited] {
            let mut program = scene.program(memory, &scene.scale(0)).unwrap();
            program.run().unwrap();
            assert!(program.output(0).is_empty());
            let mut only_moves = Plain { items: [0, 1], ..scene.scale(WORDS) };
            only_moves.arguments[0] = PlainArgument::Input(vec![7; 4 * WORDS as usize]);
            let mut program = scene.program(memory, &only_moves).unwrap();
            program.run().unwrap();
            assert!(program.output(0).iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn a_kernel_that_cannot_be_built_is_an_error() {
    for scene in Scene::all("a_kernel_that_cannot_be_built_is_an_error") {
        let wrong = Plain { source: "nonsense", ..scene.scale(WORDS) };
        let refused = scene.program(HostMemory::Ordinary, &wrong).unwrap_err();
        assert!(matches!(&refused, ByHandError::Build { kernel, .. } if kernel == "scale"), "{refused}");
        let missing = Plain { kernel: "scala", ..scene.scale(WORDS) };
        scene.program(HostMemory::Ordinary, &missing).unwrap_err();
    }
}

#[test]
fn a_program_keeps_the_part_of_a_device_to_which_its_platform_is_limited() {
    for memory in [HostMemory::Ordinary, HostMemory::Suited] {
        let Some(scene) = Scene::new("a_program_keeps_the_part", "opencl:0", Some(1)) else { return };
        let mut program = scene.program(memory, &scene.scale(WORDS)).unwrap();
        drop(scene);
        program.run().unwrap();
        assert_eq!(words(program.output(0)), scaled());
    }
}

#[test]
fn a_device_of_another_framework_has_no_program() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let device = platform.device("cpu").unwrap();
    assert_eq!(language(&platform, device), None);
    let scene = Scene { platform, device, language: Language::OpenClC };
    let refused = scene.program(HostMemory::Ordinary, &scene.scale(WORDS)).unwrap_err();
    assert_eq!(refused.to_string(), "cpu cannot be used: there is no program for its memory");
}
