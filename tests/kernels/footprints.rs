use super::{opencl, run_on};
use dml::Kernel;
use dml::arenas::launch;
use dml::prelude::*;
use dml::scheduler::{CheckError, Departure, Wrong, check_footprints};

const ITEMS: u64 = 200;

/// What the check says of a kernel, as one word and as an error for people.
#[track_caller]
fn wrong(platform: &Platform, device: DeviceId, kernel: &Kernel) -> (Wrong, String) {
    match check_footprints(platform, kernel, ITEMS, device) {
        Err(CheckError::Wrong(wrong)) => ((*wrong).clone(), wrong.to_string()),
        other => panic!("{other:?}"),
    }
}

fn floats(platform: &Platform, of: impl Fn(u64) -> f32) -> Buffer<f32> {
    platform.buffer_from((0..ITEMS).map(of).collect::<Vec<_>>()).unwrap()
}

/// With noise outside the footprints an index was any number, and the process ended.
#[test]
fn a_gather_is_checked_without_harm() {
    const SOURCE: &str = "kernel void gather(global const uint *index, global const float *table, global float *out, ulong end) {
        size_t i = get_global_id(0);
        if (i < end) out[i] = table[index[i]] + table[index[min(i + 1, (size_t)199)]];
    }";
    let Some((platform, device)) = opencl() else { return };
    let index = platform.buffer_from((0..ITEMS as u32).map(|i| i * 37 % 200).collect::<Vec<_>>());
    let index = index.unwrap();
    let table = floats(&platform, |i| (i * i % 97) as f32);
    let out = platform.buffer::<f32>(ITEMS).label("gathered").build().unwrap();
    let gather = |of_index, of_table| {
        // SAFETY: each index of the buffer is one of the table, wherever it stands.
        let built = unsafe { launch::opencl(&platform, SOURCE, "gather", "") }.expect("it compiles");
        Kernel::new("gather", 16)
            .argument(Argument::part(&index, Access::ReadOnly, of_index))
            .argument(Argument::part(&table, Access::ReadOnly, of_table))
            .write(&out)
            .end()
            .launchers(built)
            .unwrap()
    };
    let next = || Footprint::neighbourhood(4, 1);
    let checked = check_footprints(&platform, &gather(next(), Footprint::all()), ITEMS, device);
    assert!(checked.is_ok_and(|checked| checked.packages >= 6 && checked.unseen_reads.is_empty()));
    // The index of the next item, which belongs to the next package.
    let (found, told) = wrong(&platform, device, &gather(Footprint::one_to_one(4), Footprint::all()));
    assert_eq!((found.argument, found.byte, found.item), (0, 64, Some(15)), "{told}");
    assert_eq!(found.how, Departure::ReadsOutside);
    let expected = format!(
        "kernel gather on opencl:0, argument 0 ({}), items 0..16: element 16 (byte 64) is read, but no footprint covers it; \
         seen in the result of item 15",
        index.raw().name()
    );
    assert_eq!(told, expected);
    let (found, told) = wrong(&platform, device, &gather(next(), Footprint::one_to_one(4)));
    assert_eq!((found.argument, found.how), (1, Departure::ReadsOutside), "{told}");
}

/// Of some numbers of any bits one is too large when it is squared, whichever bits they are.
#[test]
fn numbers_keep_their_magnitude_outside_a_footprint() {
    const SOURCE: &str = "kernel void squares(global const float *in, global float *out, ulong end) {
        size_t i = get_global_id(0);
        float sum = 0;
        for (int j = 0; j < 16; ++j) sum += in[j] * in[j];
        if (i < end) out[i] = in[i] + (sum < 1e9f ? sum : 1e9f);
    }";
    let Some((platform, device)) = opencl() else { return };
    let (input, out) =
        (floats(&platform, |i| (i * 37 % 101) as f32), platform.buffer::<f32>(ITEMS).build().unwrap());
    let squares = |footprint| {
        // SAFETY: it reads and writes elements that there are.
        let built = unsafe { launch::opencl(&platform, SOURCE, "squares", "") }.expect("it compiles");
        let input = Argument::part(&input, Access::ReadOnly, footprint);
        Kernel::new("squares", 16).argument(input).write(&out).end().launchers(built).unwrap()
    };
    check_footprints(&platform, &squares(Footprint::all()), ITEMS, device).unwrap();
    let (found, told) = wrong(&platform, device, &squares(Footprint::one_to_one(4)));
    assert_eq!((found.argument, found.how), (0, Departure::ReadsOutside), "{told}");
    assert!(found.element() < 16 && found.items.start >= 16, "{told}");
}

/// One flag among many that are not set, which hardly any move brings to the end of a package.
#[test]
fn rare_flags_outside_a_footprint_are_seen() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let flags = platform.buffer_from((0..ITEMS).map(|i| u32::from(i == 83)).collect::<Vec<_>>()).unwrap();
    let out = platform.buffer::<f32>(ITEMS).build().unwrap();
    // A kernel in C, as it were: it reads the next flag whether or not it was asked for.
    let kernel = |footprint| {
        let launcher = super::Loose(|launch, grants| {
            let [flags, out] = super::buffers(launch);
            for item in launch.items.clone() {
                let next = (item + 1).min(ITEMS - 1);
                let flag = grants.slice::<u32>(&flags.range(next * 4..next * 4 + 4)).unwrap()[0];
                grants.slice_mut::<f32>(&out.range(item * 4..item * 4 + 4)).unwrap()[0] = flag as f32;
            }
        });
        let flags = Argument::part(&flags, Access::ReadOnly, footprint);
        let kernel = Kernel::new("next", 16).argument(flags).write(&out);
        kernel.launchers([(platform.host().unwrap(), launcher)]).unwrap()
    };
    let right = kernel(Footprint::neighbourhood(4, 1));
    check_footprints(&platform, &right, ITEMS, platform.host().unwrap()).unwrap();
    let (found, told) = wrong(&platform, platform.host().unwrap(), &kernel(Footprint::one_to_one(4)));
    assert_eq!((found.argument, found.how), (0, Departure::ReadsOutside), "{told}");
}

/// Bytes of a type are moved one by one, or a pattern of sixteen would come to where it was.
#[test]
fn a_pattern_of_bytes_hides_no_wrong_read() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let cpu = platform.host().unwrap();
    for period in [2, 4, 16] {
        let input = platform.buffer_from((0..ITEMS).map(|i| (i % period) as u8).collect::<Vec<_>>()).unwrap();
        let out = platform.buffer::<u8>(ITEMS).build().unwrap();
        let launcher = super::Loose(|launch, grants| {
            let [input, out] = super::buffers(launch);
            for item in launch.items.clone() {
                let of = |at: u64| grants.slice::<u8>(&input.range(at..at + 1)).unwrap()[0];
                let sum = of(item) + 10 * of((item + 1) % ITEMS);
                grants.slice_mut::<u8>(&out.range(item..item + 1)).unwrap()[0] = sum;
            }
        });
        let kernel = Kernel::new("next", 1).read(&input).write(&out).launchers([(cpu, launcher)]).unwrap();
        let (found, told) = wrong(&platform, cpu, &kernel);
        assert_eq!((found.argument, found.how), (0, Departure::ReadsOutside), "{told}");
    }
}

/// Sums three neighbours on the host, of which those outside the view count as the nearest within.
fn clamped(platform: &Platform, input: &Buffer<f32>, out: &Buffer<f32>, footprint: Footprint) -> Kernel {
    let launchers = launch::host(platform, |call| {
        let (items, radius) = (call.items(), call.scalar::<u64>(0)?);
        let [input, out] = call.parts([1, 2])?;
        let first = input.span().start() / 4;
        let input = input.slice::<f32>()?;
        for (out, item) in out.slice_mut::<f32>()?.iter_mut().zip(items) {
            let around = item.saturating_sub(radius)..=item + radius;
            *out = around.map(|i| input[((i.max(first) - first) as usize).min(input.len() - 1)]).sum();
        }
        Ok(())
    });
    let input = Argument::part(input, Access::ReadOnly, footprint);
    let kernel = Kernel::new("blur", 16).scalar(1_u64).argument(input).write(out);
    kernel.launchers(launchers.unwrap()).unwrap()
}

/// Safe code cannot read outside its views, and this kernel makes do with what it has.
#[test]
fn a_halo_that_is_too_small_is_found_on_the_host() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let cpu = platform.host().unwrap();
    let input = platform.buffer::<f32>(ITEMS).label("picture").build().unwrap();
    let mut values = input.write().unwrap();
    values.iter_mut().zip(0..).for_each(|(value, i)| *value = (i * 37 % 101) as f32);
    values.release().unwrap();
    let out = platform.buffer::<f32>(ITEMS).build().unwrap();
    let check = |footprint| wrong(&platform, cpu, &clamped(&platform, &input, &out, footprint)).0;
    let right = clamped(&platform, &input, &out, Footprint::neighbourhood(4, 1));
    assert!(check_footprints(&platform, &right, ITEMS, cpu).unwrap().packages >= 6);
    // The scalar comes first.
    let found = check(Footprint::one_to_one(4));
    assert_eq!((found.argument, found.how, found.buffer.label()), (1, Departure::Lacks, Some("picture")));
    let outside = [found.items.start.wrapping_sub(1), found.items.end];
    assert!(outside.contains(&found.element()) && found.item.is_some(), "{found}");
    let below = check(Footprint::of(|items| items.start * 4..(items.end + 1).min(ITEMS) * 4));
    assert_eq!((below.element() + 1, below.item), (below.items.start, Some(below.items.start)), "{below}");
    let above = check(Footprint::of(|items| items.start.saturating_sub(1) * 4..items.end * 4));
    assert_eq!((above.element(), above.item), (above.items.end, Some(above.items.end - 1)), "{above}");
}

/// A kernel whose results depend on the length of its package, whatever it reads.
#[test]
fn results_that_depend_on_the_cut_are_told() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let (input, out) = (floats(&platform, |i| i as f32), platform.buffer::<f32>(ITEMS).build().unwrap());
    let launchers = launch::host(&platform, |call| {
        let items = call.items();
        let input: f32 = call.part(0)?.slice::<f32>()?.iter().sum();
        call.part(1)?.slice_mut::<f32>()?.fill(input + (items.end - items.start) as f32);
        Ok(())
    });
    let kernel = Kernel::new("whole", 16).read_all(&input).write(&out).launchers(launchers.unwrap()).unwrap();
    let (found, told) = wrong(&platform, platform.host().unwrap(), &kernel);
    assert_eq!((found.argument, found.how), (1, Departure::DependsOnCut), "{told}");
}

/// Equal elements at other places are the same.
#[test]
fn reads_that_could_not_be_seen_are_told() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let cpu = platform.host().unwrap();
    let out = platform.buffer::<f32>(ITEMS).build().unwrap();
    let unseen = |value: fn(u64) -> f32, footprint| {
        let kernel = clamped(&platform, &floats(&platform, value), &out, footprint);
        check_footprints(&platform, &kernel, ITEMS, cpu).expect("it is right").unseen_reads
    };
    assert_eq!(unseen(|_| 0.5, Footprint::neighbourhood(4, 1)), [1]);
    assert_eq!(unseen(|i| i as f32, Footprint::neighbourhood(4, 1)), [0; 0]);
    assert_eq!(unseen(|_| 0.5, Footprint::all()), [0; 0], "nothing is outside");
}

/// A kernel on views leaves out what its footprint does not name, in each package.
#[test]
fn results_that_no_part_of_the_items_has_are_found() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let out = platform.buffer::<f32>(ITEMS).build().unwrap();
    let launchers = launch::host(&platform, |call| {
        let items = call.items();
        call.part(0)?.slice_mut::<f32>()?.iter_mut().zip(items).for_each(|(out, item)| *out = item as f32);
        Ok(())
    });
    let short = Footprint::of(|items| items.start * 4..(items.end.max(1) - 1) * 4);
    let kernel = Kernel::new("short", 16).argument(Argument::part(&out, Access::WriteInvalidate, short));
    let kernel = kernel.launchers(launchers.unwrap()).unwrap();
    let (found, told) = wrong(&platform, platform.host().unwrap(), &kernel);
    assert_eq!((found.argument, found.element(), found.how), (0, 15, Departure::InNoPart), "{told}");
}

/// What packages add to is as large as their items are many.
#[test]
fn a_reduction_may_depend_on_the_cut() {
    let platform = Platform::builder().discover_with(&DiscoverOptions::default().only(["cpu"])).unwrap();
    let platform = platform.build().unwrap();
    let (input, sum) = (floats(&platform, |i| i as f32), platform.buffer_from(vec![0.0_f32; 2]).unwrap());
    let launchers = launch::host(&platform, |call| {
        let [input, sum] = call.parts([0, 1])?;
        sum.slice_mut::<f32>()?[0] += input.slice::<f32>()?.iter().sum::<f32>();
        Ok(())
    });
    let kernel = Kernel::new("sum", 16).read(&input).reduce(&sum, 0.0, |a, b| a + b);
    let kernel = kernel.launchers(launchers.unwrap()).unwrap();
    let checked = check_footprints(&platform, &kernel, ITEMS, platform.host().unwrap()).unwrap();
    assert!(checked.packages >= 6 && checked.unseen_reads.is_empty(), "{checked:?}");
}

/// A scalar that was changed left the footprint as it was, and later packages read what they had not asked
/// for.
#[test]
fn a_footprint_sees_the_scalars_of_its_run() {
    let Some((platform, device)) = opencl() else { return };
    const SOURCE: &str = "kernel void window(ulong radius, global const float *in, global float *out, ulong end) {
        size_t i = get_global_id(0);
        if (i >= end) return;
        float sum = 0;
        for (long j = (long)i - (long)radius; j <= (long)(i + radius); ++j) if (j >= 0 && j < 200) sum += in[j];
        out[i] = sum;
    }";
    let (input, out) =
        (floats(&platform, |i| (i * 37 % 101) as f32), platform.buffer::<f32>(ITEMS).build().unwrap());
    let window = Footprint::of_launch(|items, scalars| {
        let radius = u64::try_from(scalars[0]).expect("the radius");
        // The second scalar is the end of these items.
        assert_eq!(u64::try_from(scalars[1]), Ok(items.end));
        items.start.saturating_sub(radius) * 4..(items.end + radius).min(ITEMS) * 4
    });
    // SAFETY: it reads and writes elements that there are.
    let built = unsafe { launch::opencl(&platform, SOURCE, "window", "") }.expect("it compiles");
    let mut kernel = Kernel::new("window", 8)
        .scalar(1_u64)
        .argument(Argument::part(&input, Access::ReadOnly, window))
        .write(&out)
        .end()
        .launchers(built)
        .unwrap();
    for radius in [1_u64, 5, 0, 60] {
        kernel.set_scalar(0, radius).unwrap();
        check_footprints(&platform, &kernel, ITEMS, device).unwrap();
        // The device's copy stays stale where no package asks for it.
        let mut values = input.write().unwrap();
        values.iter_mut().zip(0..).for_each(|(value, i)| *value = (i * 31 % 89) as f32 + radius as f32);
        values.release().unwrap();
        run_on(&platform, device, &kernel, ITEMS, 7);
        let input = input.read().unwrap();
        for (i, sum) in (0..).zip(&*out.read().unwrap()) {
            let around = (i - radius as i64).max(0) as usize..=(i + radius as i64).min(199) as usize;
            assert_eq!(*sum, input[around].iter().sum::<f32>(), "radius {radius}, item {i}");
        }
    }
    // A function that asks for scalars that there are not fails its package.
    let greedy = Footprint::of_launch(|items, scalars| {
        let _ = scalars[7];
        items
    });
    let kernel =
        Kernel::new("greedy", 8).argument(Argument::part(&input, Access::ReadOnly, greedy)).scalar(1_u32);
    let told = kernel.arguments()[0].ranges(0..8).unwrap_err().to_string();
    assert!(told.contains("the footprint panicked: index out of bounds"), "{told}");
}
