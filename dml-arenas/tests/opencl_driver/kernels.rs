//! Kernels as the driver is asked for them. What they compute is the stand-in's, by their names.

use super::{Arc, Arena, alloc, arena, nothing_is_left, opencl, platform};
use crate::common::{put, take};
use crate::driver::{code, stand_in};
use dml_arenas::launch::{BuildCause, BuildError, CompiledKernel, CompiledLauncher, Grid, KernelArg};
use dml_arenas::opencl::OpenClKernel;
use dml_core::MapState;
use dml_core::{
    Access, DeviceId, DeviceSet, ItemShape, LaunchArg, LaunchError, Launcher, Misfit, Platform, RawBuffer,
    Scalar, Span, TransferError,
};

const ADD: &str = "kernel void add(__global uint *data, uint what, ulong end)
    kernel void add_too(__constant uint *data, uint what, ulong end)";
const ONE: Grid = Grid::line(0, 1, 1);

fn kernel(arena: &Arc<dyn Arena>, source: &str, name: &str) -> OpenClKernel {
    opencl(arena).kernel(source, name, "").unwrap()
}

/// The text of the error with which a launch is refused.
#[track_caller]
fn refused(kernel: &OpenClKernel, args: &[KernelArg<'_>], launch: Grid) -> TransferError {
    // SAFETY: were it launched, it would do nothing.
    unsafe { kernel.launch(args, launch) }.map(drop).unwrap_err()
}

#[track_caller]
fn launched(kernel: &OpenClKernel, args: &[KernelArg<'_>], launch: Grid) {
    // SAFETY: the caller's kernel does nothing, or changes words that its block has.
    assert_eq!(unsafe { kernel.launch(args, launch) }.unwrap().wait(), Ok(0));
}

#[test]
fn arguments_of_every_kind_arrive_as_they_are() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let block = alloc(&arena, 4);
    let source = "kernel void all(__global float *a, __constant int *b, __local uchar *c, char d, uchar e, short f, \
        ushort g, int h, uint i, long j, ulong k, half l, float m, double n, float4 o, mine p)";
    let all = kernel(&arena, source, "all");
    let (block, scalar) = (KernelArg::Block(block.block()), KernelArg::Scalar);
    let bytes: [u8; 16] = std::array::from_fn(|byte| byte as u8);
    let args = [
        block,
        block,
        KernelArg::Local(1 << 33),
        scalar(Scalar::I8(-2)),
        scalar(Scalar::U8(3)),
        scalar(Scalar::I16(-4)),
        scalar(Scalar::U16(5)),
        scalar(Scalar::I32(-6)),
        scalar(Scalar::U32(7)),
        scalar(Scalar::I64(-8)),
        scalar(Scalar::U64(9)),
        scalar(Scalar::F16(10)),
        scalar(Scalar::F32(1.5)),
        scalar(Scalar::F64(-2.5)),
        KernelArg::Bytes(&bytes),
        KernelArg::Bytes(&bytes[..3]),
    ];
    launched(&all, &args, ONE);
    let expected = "all 0+1/1 memory memory local 8589934592 fe 03 fcff 0500 faffffff 07000000 f8ffffffffffffff \
        0900000000000000 0a00 0000c03f 00000000000004c0 000102030405060708090a0b0c0d0e0f 000102";
    assert_eq!(driver.launched(), expected);
    let source = "kernel void four(uint a, ulong b, int c, float d)";
    let four = kernel(&arena, source, "four");
    let args = [
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(2)),
        KernelArg::Scalar(Scalar::I32(-3)),
        KernelArg::Scalar(Scalar::F32(-1.5)),
    ];
    launched(&four, &args, ONE);
    assert_eq!(driver.launched(), "four 0+1/1 01000000 0200000000000000 fdffffff 0000c0bf");
}

#[test]
fn work_items_are_those_asked_for_in_whole_groups() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let source = "kernel void one() kernel void narrow() kernel void wide()";
    let [one, narrow, wide] = ["one", "narrow", "wide"].map(|name| kernel(&arena, source, name));
    assert_eq!([&one, &narrow, &wide].map(OpenClKernel::max_local), [256, 48, 1024]);
    assert_eq!((one.name(), narrow.name()), ("one", "narrow"));
    for (kernel, [offset, items, local], expected) in [
        (&one, [0, 1, 1], "one 0+1/1"),
        (&one, [7, 100, 0], "one 7+100"),
        (&one, [7, 100, 64], "one 7+128/64"),
        (&one, [7, 128, 64], "one 7+128/64"),
        (&one, [0, 1000, 256], "one 0+1024/256"),
        (&narrow, [0, 100, 48], "narrow 0+144/48"),
        (&wide, [0, 10, 256], "wide 0+256/256"),
    ] {
        launched(kernel, &[], Grid::line(offset, items, local));
        assert_eq!(driver.launched(), expected);
    }
    // A size is never cut.
    for (kernel, local, reason) in [
        (&one, 257, "the device allows 256 along dimension 0"),
        (&narrow, 64, "it allows 48 in a group on this device, not 64"),
        (&wide, u64::MAX, "the device allows 256 along dimension 0"),
    ] {
        let said = refused(kernel, &[], Grid::line(0, 100, local));
        let TransferError::Framework { call: "clEnqueueNDRangeKernel", code: -54, message } = said else {
            panic!("{said}")
        };
        assert!(message.ends_with(reason), "{message}");
        let name = kernel.name();
        let told = kernel.check_groups(&ItemShape::line(local)).unwrap_err();
        assert_eq!(
            told.to_string(),
            format!("kernel {name} on opencl:0 cannot run in groups of {local} work-items: {reason}")
        );
        assert_eq!(kernel.check_groups(&ItemShape::line(48)), Ok(()));
    }
    for nothing in [0, 1, u64::MAX] {
        let (made, ()) = driver.made_by("clEnqueueNDRangeKernel", || {
            launched(&one, &[], Grid::line(nothing, 0, nothing));
        });
        assert_eq!(made, 0);
    }
    for (offset, items, local) in [(1, u64::MAX, 0), (0, u64::MAX, 2), (u64::MAX - 6, 7, 4), (u64::MAX, 1, 1)]
    {
        let launch = Grid::line(offset, items, local);
        let said = refused(&one, &[], launch).to_string();
        let expected = format!(
            "clEnqueueNDRangeKernel failed: kernel one: {launch} exceed what can be counted (code -63)"
        );
        assert_eq!(said, expected);
    }
    launched(&one, &[], Grid::line(u64::MAX - 8, 7, 4));
    launched(&one, &[], Grid::line(0, u64::MAX, 1));
}

#[test]
fn grids_have_their_groups_along_each_dimension() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let one = kernel(&arena, "kernel void one()", "one");
    macro_rules! grid {
        ($offset:expr, $items:expr, $local:expr) => {{
            let grid = Grid::new($offset, $items, $local);
            // SAFETY: it does nothing.
            unsafe { one.launch(&[], grid) }.map(|fence| fence.wait())
        }};
    }
    assert_eq!(grid!([1], [10], [4]).unwrap(), Ok(0));
    assert_eq!(driver.launched(), "one 1+12/4");
    assert_eq!(grid!([1, 2], [10, 20], [4, 8]).unwrap(), Ok(0));
    assert_eq!(driver.launched(), "one 1+12/4 2+24/8");
    assert_eq!(grid!([1, 2, 3], [10, 20, 30], [4, 8, 0]).unwrap(), Ok(0));
    assert_eq!(driver.launched(), "one 1+12/4 2+24/8 3+32/8", "the framework chooses the last one");
    assert_eq!(grid!([1, 2], [10, 20], [0, 0]).unwrap(), Ok(0));
    assert_eq!(driver.launched(), "one 1+10 2+20", "the driver chooses");
    for items in [[0, 1, 1], [1, 0, 1], [1, 1, 0]] {
        let (made, done) = driver.made_by("clEnqueueNDRangeKernel", || grid!([0; 3], items, [1; 3]).unwrap());
        assert_eq!((made, done), (0, Ok(0)));
    }
    let said = grid!([0, 0], [1, u64::MAX], [1, 2]).map(drop).unwrap_err().to_string();
    assert!(
        said.contains("1 x 18446744073709551615 work-items from 0 x 0 in groups of 1 x 2 exceed"),
        "{said}"
    );
    // Groups that the device does not run are refused.
    let refused = grid!([0, 0], [512, 2], [256, 2]).map(drop).unwrap_err();
    assert!(matches!(refused, TransferError::Framework { call: "clEnqueueNDRangeKernel", code: -54, .. }));
    let grid = kernel(&arena, "kernel void grid(__global uint *data, ulong columns, ulong rows)", "grid");
    let block = alloc(&arena, 4 * 30);
    put(&block, 0, &[0; 120]);
    let args = [
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::U64(6)),
        KernelArg::Scalar(Scalar::U64(5)),
    ];
    let part = Grid::new([1, 2], [4, 2], [1, 1]);
    // SAFETY: it changes words that the block has.
    unsafe { grid.launch(&args, part) }.unwrap().wait().unwrap();
    let words = take(&block, Span::new(0, 120));
    for (index, word) in words.chunks_exact(4).enumerate() {
        let is_part = (1..5).contains(&(index % 6)) && (2..4).contains(&(index / 6));
        assert_eq!(word, [u8::from(is_part), 0, 0, 0], "word {index}");
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused_before_anything_is_done() {
    let driver = stand_in();
    let platform = platform(&["opencl:0", "opencl:1"]);
    let arena = arena(&platform, "opencl:0");
    let [add, add_too] = ["add", "add_too"].map(|name| kernel(&arena, ADD, name));
    let block = alloc(&arena, 40);
    let other = alloc(&super::arena(&platform, "opencl:1"), 40);
    let (data, word, long) = (
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(10)),
    );
    let (sets, ()) = driver.made_by("clSetKernelArg", || {
        for (args, code, reason) in [
            (vec![data, word], -49, "kernel add takes 3 arguments, not 2"),
            (vec![data, word, long, long], -49, "kernel add takes 3 arguments, not 4"),
            (vec![word, word, long], -50, "argument 0 of 3 of kernel add: takes a pointer, not uint"),
            (vec![data, data, long], -50, "argument 1 of 3 of kernel add: takes uint, not a buffer"),
            (vec![data, long, word], -50, "argument 1 of 3 of kernel add: takes uint, not ulong"),
            (
                vec![data, word, KernelArg::Scalar(Scalar::I32(1))],
                -50,
                "argument 2 of 3 of kernel add: takes ulong, not int",
            ),
            (
                vec![data, word, KernelArg::Scalar(Scalar::F32(1.0))],
                -50,
                "argument 2 of 3 of kernel add: takes ulong, not float",
            ),
            (
                vec![data, word, KernelArg::Bytes(&[0; 4])],
                -50,
                "argument 2 of 3 of kernel add: takes ulong, not a value of 4 bytes",
            ),
            (
                vec![data, KernelArg::Local(4), long],
                -50,
                "argument 1 of 3 of kernel add: takes uint, not local memory",
            ),
            (
                vec![KernelArg::Block(other.block()), word, long],
                -38,
                "argument 0 of 3 of kernel add: the block belongs to another arena",
            ),
        ] {
            let said = refused(&add, &args, ONE);
            let expected = TransferError::Framework { call: "clSetKernelArg", code, message: reason.into() };
            assert_eq!(said, expected);
        }
        let said = refused(&add_too, &[KernelArg::Local(3), word, long], ONE).to_string();
        assert!(said.contains("takes a pointer, not local memory"), "{said}");
    });
    assert_eq!(sets, 0);
    let host = DeviceId(0);
    block.map(host, MapState::Mapped(DeviceSet::of(host))).unwrap();
    let launch = || refused(&add, &[data, word, long], ONE);
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(launch)).unwrap_err();
    let said = panic.downcast_ref::<String>().unwrap();
    assert_eq!(said, "core bug: kernel add was given a block mapped for the host");
    block.unmap(MapState::Unmapped).unwrap();
    launched(&add_too, &[data, word, KernelArg::Bytes(&[0; 8])], ONE);
}

#[test]
fn what_the_driver_does_not_tell_of_parameters_it_judges_itself() {
    stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let source = "kernel void opaque(uint a, ulong b) kernel void untyped(uint a, ulong b)";
    for name in ["opaque", "untyped"] {
        let kernel = kernel(&arena, source, name);
        launched(&kernel, &[KernelArg::Scalar(Scalar::I32(1)), KernelArg::Scalar(Scalar::U64(2))], ONE);
        let said =
            refused(&kernel, &[KernelArg::Scalar(Scalar::U32(1)), KernelArg::Scalar(Scalar::U32(2))], ONE);
        let reason = format!("argument 1 of 2 of kernel {name}: CL_INVALID_ARG_SIZE");
        assert_eq!(
            said,
            TransferError::Framework { call: "clSetKernelArg", code: -51, message: reason.into() }
        );
        assert!(!arena.is_lost());
    }
}

#[test]
fn a_launch_that_the_driver_refuses_says_at_which_step() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let add = kernel(&arena, ADD, "add");
    let block = alloc(&arena, 40);
    put(&block, 0, &[0; 40]);
    let args = [
        KernelArg::Block(block.block()),
        KernelArg::Scalar(Scalar::U32(1)),
        KernelArg::Scalar(Scalar::U64(10)),
    ];
    let ten = Grid::line(0, 10, 1);
    for (call, begins) in [("clSetKernelArg", false), ("clEnqueueNDRangeKernel", false), ("clFlush", true)] {
        driver.fail(call, 0, code::INVALID_OPERATION);
        let error = refused(&add, &args, ten);
        assert!(matches!(&error, TransferError::Framework { call: told, code: -59, .. } if *told == call));
        assert_eq!(OpenClKernel::may_have_begun(&error), begins, "{call}");
        let expected = if begins { 1 } else { 0 };
        assert_eq!(take(&block, Span::new(0, 4)), [expected, 0, 0, 0], "{call}");
    }
    driver.fail("end of clEnqueueNDRangeKernel", 0, code::OUT_OF_RESOURCES);
    // SAFETY: it changes words that the block has.
    let end = unsafe { add.launch(&args, ten) }.unwrap().wait();
    assert!(matches!(end, Err(TransferError::Framework { call: "clEnqueueNDRangeKernel", code: -5, .. })));
    assert!(!arena.is_lost());
    driver.fail("clSetKernelArg", 1, code::DEVICE_NOT_AVAILABLE);
    assert_eq!(refused(&add, &args, ten), TransferError::DeviceLost { loss: None });
    assert!(arena.is_lost());
}

#[test]
fn a_program_is_built_once_and_lives_as_long_as_its_kernels() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let own = opencl(&arena);
    let built = |source: &str, name: &str, options: &str| {
        driver.made_by("clBuildProgram", || own.kernel(source, name, options).unwrap())
    };
    let (first, add) = built(ADD, "add", "-DA");
    assert_eq!((first, driver.options()), (1, "-cl-kernel-arg-info -DA".to_owned()));
    assert_eq!(built(ADD, "add_too", "-DA").0, 0);
    assert_eq!(built(ADD, "add", "-DB").0, 1);
    assert_eq!(built(&format!("{ADD} "), "add", "-DA").0, 1);
    assert_eq!(built(ADD, "add", "-DB").0, 0);
    assert_eq!(driver.count("programs"), 3);
    drop((arena, platform));
    // The kernel keeps its device.
    assert_eq!((driver.count("contexts"), driver.count("programs")), (1, 1));
    drop(add);
    nothing_is_left(driver);
}

#[test]
fn two_who_build_one_program_at_once_share_it() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let kernels: Vec<_> = std::thread::scope(|scope| {
        let builders: Vec<_> = (0..8).map(|_| scope.spawn(|| kernel(&arena, ADD, "add"))).collect();
        builders.into_iter().map(|builder| builder.join().unwrap()).collect()
    });
    assert_eq!((driver.count("programs"), driver.count("kernels")), (1, 8));
    drop((kernels, arena, platform));
    nothing_is_left(driver);
}

#[test]
fn a_program_that_cannot_be_built_says_why() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let gpu = arena(&platform, "opencl:0");
    let own = opencl(&gpu);
    let refused = |source: &str, name: &str, options: &str| {
        let error = own.kernel(source, name, options).unwrap_err();
        assert_eq!((&*error.arena, &*error.kernel), ("opencl:0", name));
        error.cause
    };
    assert_eq!(refused("#error", "add", ""), BuildCause::Compile("the source is wrong".to_owned()));
    assert_eq!(refused(ADD, "add", "-refused-told"), BuildCause::Compile("an option is wrong".to_owned()));
    let framework = |call, code, message: &str| BuildCause::Framework { call, code, message: message.into() };
    assert_eq!(refused(ADD, "add", "-refused"), framework("clBuildProgram", -43, "CL_INVALID_BUILD_OPTIONS"));
    assert!(matches!(refused(ADD, "stretch", ""), BuildCause::NoKernel("a kernel is `kernel void`")));
    for (source, name, options, what) in
        [("a\0b", "add", "", "the source"), (ADD, "a\0", "", "the name"), (ADD, "add", "-D\0", "the options")]
    {
        assert_eq!(refused(source, name, options), BuildCause::ZeroCharacter(what));
    }
    for call in ["clCreateProgramWithSource", "clCreateKernel", "clGetKernelInfo", "clGetKernelWorkGroupInfo"]
    {
        driver.fail(call, 0, code::OUT_OF_RESOURCES);
        assert_eq!(refused(ADD, "add", "-DA"), framework(call, -5, "CL_OUT_OF_RESOURCES"));
    }
    driver.fail("clBuildProgram", 0, -11);
    assert_eq!(refused(ADD, "add", "-DB"), BuildCause::Compile(String::new()));
    driver.fail("clGetProgramBuildInfo", 0, code::OUT_OF_RESOURCES);
    assert_eq!(refused("#error", "add", ""), BuildCause::Compile(String::new()));
    assert_eq!((driver.count("kernels"), driver.count("programs")), (0, 2));
    drop((gpu, platform));
    nothing_is_left(driver);
}

fn argument(buffer: &RawBuffer) -> LaunchArg {
    let ranges = (0..buffer.len()).into();
    LaunchArg::Buffer { buffer: buffer.clone(), access: Access::ReadWrite, ranges }
}

#[test]
fn the_signature_of_a_kernel_is_held_against_the_arguments_of_a_launch() {
    stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    let source = "kernel void all(__global uint *a, uint b, float4 c, __local uint *d)";
    let kernel = kernel(&arena, source, "all");
    let buffer = platform.raw_buffer(40).build().unwrap();
    let bytes = |len: usize| LaunchArg::Bytes(vec![0; len].into());
    let fitting =
        || vec![argument(&buffer), LaunchArg::Scalar(Scalar::U32(1)), bytes(16), LaunchArg::Local(4)];
    assert_eq!(kernel.fits(&fitting()), Ok(()));
    let name = "all on opencl:0".to_owned();
    let count = |given| Misfit::Count { kernel: name.clone(), takes: 4, given };
    assert_eq!(kernel.fits(&fitting()[..3]), Err(count(3)));
    assert_eq!(kernel.fits(&[fitting(), fitting()].concat()), Err(count(8)));
    let misfit = |index: usize, given: LaunchArg| {
        let mut arguments = fitting();
        arguments[index] = given;
        kernel.fits(&arguments).unwrap_err()
    };
    let expected = |index, takes: &str, given: &str| Misfit::Argument {
        kernel: name.clone(),
        index,
        takes: takes.to_owned(),
        given: given.to_owned(),
    };
    let scalar = |scalar| LaunchArg::Scalar(scalar);
    assert_eq!(misfit(0, bytes(8)), expected(0, "a pointer", "a value of 8 bytes"));
    assert_eq!(misfit(0, LaunchArg::Local(8)), expected(0, "a pointer", "local memory"));
    assert_eq!(misfit(1, argument(&buffer)), expected(1, "uint", "a buffer"));
    assert_eq!(misfit(2, bytes(15)), expected(2, "float4", "a value of 15 bytes"));
    assert_eq!(misfit(3, scalar(Scalar::U32(1))), expected(3, "a pointer to local memory", "uint"));
    for (given, said) in [
        (Scalar::I8(1), "char"),
        (Scalar::U8(1), "uchar"),
        (Scalar::I16(1), "short"),
        (Scalar::U16(1), "ushort"),
        (Scalar::I32(1), "int"),
        (Scalar::I64(1), "long"),
        (Scalar::U64(1), "ulong"),
        (Scalar::F16(1), "half"),
        (Scalar::F32(1.0), "float"),
        (Scalar::F64(1.0), "double"),
    ] {
        assert_eq!(misfit(1, scalar(given)), expected(1, "uint", said));
    }
}

fn filled(platform: &Platform, byte: u8) -> RawBuffer {
    let buffer = platform.raw_buffer(100).build().unwrap();
    let mut grants = platform.acquire(DeviceId(0)).write(&buffer).wait().unwrap();
    grants.write_bytes(&buffer, &[byte; 100]).unwrap();
    grants.release().unwrap();
    buffer
}

#[test]
fn a_launcher_gives_its_kernel_the_items_of_their_shape() {
    let driver = stand_in();
    let platform = platform(&["opencl:0"]);
    let arena = arena(&platform, "opencl:0");
    // SAFETY: it changes the words that its buffer has, up to the end that it is given.
    let launcher = unsafe { CompiledLauncher::new(kernel(&arena, ADD, "add")) };
    let device = platform.device("opencl:0").unwrap();
    let buffer = filled(&platform, 0);
    let mut grants = platform.acquire(device).read_write(&buffer).wait().unwrap();
    let arguments =
        [argument(&buffer), LaunchArg::Scalar(Scalar::U32(5)), LaunchArg::Scalar(Scalar::U64(20))];
    launcher.check(&arguments).unwrap();
    for (shape, expected) in [
        (ItemShape::line(8), "add 10+16/8 memory 05000000 1400000000000000"),
        (ItemShape::line(0), "add 10+12 memory 05000000 1400000000000000"),
    ] {
        let items = 10..22;
        let launch = dml_core::Launch::new(&items, &shape, &arguments);
        assert_eq!(launcher.launch(&launch, &mut grants).unwrap().wait(), Ok(0));
        assert_eq!(driver.launched(), expected);
    }
    // One that the driver refuses did not begin; one that it did not hand over may have.
    let (items, shape) = (10..22, ItemShape::line(8));
    let launch = dml_core::Launch::new(&items, &shape, &arguments);
    driver.fail("clEnqueueNDRangeKernel", 0, code::INVALID_OPERATION);
    assert!(matches!(launcher.launch(&launch, &mut grants), Err(LaunchError::NotStarted(_))));
    grants.release().unwrap();
    let grants = platform.acquire(DeviceId(0)).read(&buffer).wait().unwrap();
    let words = grants.read_bytes(&buffer).unwrap();
    for (index, word) in words.chunks_exact(4).enumerate() {
        let added = if (10..20).contains(&index) { 10 } else { 0 };
        assert_eq!(word, [added, 0, 0, 0], "word {index}");
    }
}

#[test]
fn a_launcher_hands_over_what_it_is_given_in_as_many_dimensions() {
    let driver = stand_in();
    let platform = platform(&["opencl:0", "opencl:1"]);
    let source = "kernel void some(float4 a, __local uint *b, uint c)";
    // SAFETY: it does nothing.
    let launchers = unsafe { dml_arenas::launch::opencl(&platform, source, "some", "-DX") }.unwrap();
    let devices: Vec<_> = launchers.iter().map(|(device, _)| *device).collect();
    assert_eq!(devices, ["opencl:0", "opencl:1"].map(|device| platform.device(device).unwrap()));
    assert_eq!(driver.options(), "-cl-kernel-arg-info -DX");
    // SAFETY: it is not made.
    let refused = unsafe { dml_arenas::launch::opencl(&platform, source, "other", "") };
    assert!(matches!(refused, Err(BuildError { cause: BuildCause::NoKernel(_), .. })));
    let bytes: std::sync::Arc<[u8]> = (0..16).collect::<Vec<u8>>().into();
    let arguments =
        [LaunchArg::Bytes(bytes), LaunchArg::Local(24), LaunchArg::Scalar(Scalar::U32(0x0403_0201))];
    let buffer = filled(&platform, 0);
    for (device, launcher) in &launchers {
        launcher.check(&arguments).unwrap();
        assert!(matches!(launcher.check(&arguments[..2]), Err(Misfit::Count { takes: 3, given: 2, .. })));
        let mut grants = platform.acquire(*device).read_write(&buffer).wait().unwrap();
        for (shape, sizes) in [
            (ItemShape::line(4), "3+4/4"),
            (ItemShape::rows(10, [4, 2]), "0+12/4 3+4/2"),
            (ItemShape::planes([10, 5], [4, 2, 1]), "0+12/4 0+6/2 3+4/1"),
        ] {
            let items = 3..7;
            let launch = dml_core::Launch::new(&items, &shape, &arguments);
            assert_eq!(launcher.launch(&launch, &mut grants).unwrap().wait(), Ok(0));
            let expected = format!("some {sizes} 000102030405060708090a0b0c0d0e0f local 24 01020304");
            assert_eq!(driver.launched(), expected);
        }
        grants.release().unwrap();
    }
}
