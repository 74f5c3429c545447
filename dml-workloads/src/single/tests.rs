use super::*;

/// Sides with given times, which record their calls.
#[derive(Default)]
struct Told {
    hand_ms: Vec<u64>,
    dml_ms: Vec<u64>,
    calls: String,
    /// Number of the comparison that fails, from zero on.
    differs_at: Option<usize>,
    compared: std::cell::Cell<usize>,
}

impl Sides for Told {
    type Error = &'static str;

    fn hand(&mut self) -> Result<Duration, Self::Error> {
        self.calls.push('h');
        Ok(Duration::from_millis(self.hand_ms.remove(0)))
    }

    fn dml(&mut self) -> Result<Duration, Self::Error> {
        self.calls.push('d');
        Ok(Duration::from_millis(self.dml_ms.remove(0)))
    }

    fn compare(&self) -> Result<(), Self::Error> {
        let number = self.compared.replace(self.compared.get() + 1);
        if self.differs_at == Some(number) { Err("differs") } else { Ok(()) }
    }
}

fn measured(pairs: &[(u64, u64)]) -> Measured {
    let of = Duration::from_millis;
    let pairs = pairs.iter().map(|&(hand, dml)| Pair::new(of(hand), of(dml)));
    Measured::new(3, pairs.collect()).unwrap()
}

#[test]
fn the_first_pair_does_not_count_and_the_sides_take_turns_to_begin() {
    let mut told = Told { hand_ms: vec![900, 10, 20, 30], dml_ms: vec![1, 11, 22, 33], ..Told::default() };
    let mut after = 0;
    let pairs = take_turns(&mut told, 3, || after += 1).unwrap();
    assert_eq!(pairs, measured(&[(10, 11), (20, 22), (30, 33)]).pairs);
    assert_eq!((told.calls.as_str(), after, told.compared.get()), ("hddhhddh", 4, 4));
}

#[test]
fn a_difference_in_any_pair_ends_the_measurement() {
    for number in 0..=2 {
        let (hand_ms, dml_ms) = (vec![1; 3], vec![1; 3]);
        let mut told = Told { hand_ms, dml_ms, differs_at: Some(number), ..Told::default() };
        assert_eq!(take_turns(&mut told, 2, || {}), Err("differs"), "{number}");
    }
}

/// The ratio of the medians would be 1, that of hand over DML 0.5, and the median of a side is neither.
#[test]
fn the_figure_is_the_median_of_dml_over_hand_within_the_pairs() {
    let measured = measured(&[(1, 3), (20, 40), (3, 1)]);
    assert_eq!(measured.ratio().median, 2.0);
    assert_eq!((measured.ratio().min, measured.ratio().max), (1.0 / 3.0, 3.0));
    assert_eq!((measured.hand().median, measured.dml().median), (3e-3, 3e-3));
    assert_eq!(measured.hand().max, 20e-3);
    assert_eq!(measured.dml().max, 40e-3);
    assert!((measured.more().median - 2e-3).abs() < 1e-12);
    assert!((measured.more().min + 2e-3).abs() < 1e-12);
}

#[test]
fn nothing_is_said_of_no_pairs_nor_of_no_time() {
    assert_eq!(Measured::new(3, Vec::new()), None);
    assert_eq!(Measured::new(3, vec![Pair::new(Duration::ZERO, Duration::from_millis(1))]), None);
}

#[test]
fn every_length_has_the_goal_that_was_set() {
    let goals = Length::ALL.map(|length| (length.name(), length.duration().as_millis(), length.goal()));
    assert_eq!(goals, [("1 ms", 1, 1.05), ("50 ms", 50, 1.02), ("1 s", 1000, 1.01)]);
}

#[test]
fn an_edge_is_found_for_any_length() {
    for (fixed, per_element) in [(0.0, 1e-10), (0.0, 3e-8), (2e-5, 1e-12), (4e-4, 5e-13)] {
        let time = |edge: u64| {
            let seconds = fixed + per_element * (edge as f64).powi(3);
            Ok::<_, ()>(Duration::from_secs_f64(seconds))
        };
        for length in Length::ALL {
            let edge = fitting_edge(length.duration(), time).unwrap();
            let ratio = time(edge).unwrap().as_secs_f64() / length.duration().as_secs_f64();
            assert!(
                (1.0 / CLOSE..=CLOSE).contains(&ratio),
                "{fixed} {per_element} {length:?}: {edge}, {ratio}"
            );
        }
    }
    // No edge takes as long as that, or as short.
    let never = |_| Ok::<_, ()>(Duration::from_nanos(1));
    assert_eq!(fitting_edge(Duration::from_secs(1), never), Ok(matmul::Problem::LARGEST_EDGE));
    let always = |_| Ok::<_, ()>(Duration::from_secs(9));
    assert_eq!(fitting_edge(Duration::from_secs(1), always), Ok(1));
    assert_eq!(fitting_edge(Duration::from_secs(1), |_| Err::<Duration, _>("failed")), Err("failed"));
}

#[test]
fn results_are_compared_bit_by_bit() {
    assert_eq!(differs(&[1.0, -0.0, 3.0], &[1.0, -0.0, 3.0]), None);
    assert_eq!(differs(&[1.0, 2.0, 3.0], &[1.0, 2.0, 4.0]), Some((2, 3.0, 4.0)));
    assert_eq!(differs(&[0.0], &[-0.0]), Some((0, 0.0, -0.0)));
    for (one, other) in [(&[1.0][..], &[1.0, 2.0][..]), (&[1.0, 2.0], &[1.0])] {
        assert_eq!(differs(one, other).map(|found| found.0), Some(1));
    }
}

/// Both sides of a device with matrices of this edge.
fn both(bench: &Bench, edge: u64) -> Both<'_> {
    let device = [bench.device];
    let prepared = Workload::Matmul.prepare(&bench.platform, &device, &Input::Size(edge)).unwrap();
    let coexecutor = Coexecutor::new(&bench.platform).devices(device);
    Both { bench, edge, hand: Hand::new(&bench.platform, bench.form, edge).unwrap(), coexecutor, prepared }
}

/// The results of the host's sides are equal until one is changed.
#[test]
fn a_result_that_differs_or_is_wrong_is_told() {
    let bench = Bench::open("cpu", Memory::Found).unwrap();
    let mut both = both(&bench, 17);
    assert!(both.hand().unwrap() > Duration::ZERO && both.dml().unwrap() > Duration::ZERO);
    both.compare().unwrap();
    both.prepared.verify().unwrap();
    let Hand::Threads { out, .. } = &mut both.hand else { panic!("the host runs threads") };
    out[3 * 17 + 2] += 1.0;
    let told = both.compare().unwrap_err();
    assert!(matches!(told, SingleError::Differs { element: 53, .. }), "{told}");
    assert!(told.to_string().starts_with("cpu, matrices of edge 17: element 53 is "), "{told}");
    // A hand-written run overwrites all results of the run before.
    both.hand().unwrap();
    both.compare().unwrap();
    // Without a run on DML, the contents of its output do not pass for its result.
    both.prepared.reset().unwrap();
    assert!(matches!(both.compare(), Err(SingleError::Differs { element: 0, .. })));
}

/// Every run transfers all matrices to the device and back: no copy of the run before is valid.
#[test]
fn every_run_on_dml_begins_on_the_host_and_ends_there() {
    for memory in [Memory::Found, Memory::Bound] {
        let bench = match Bench::open("opencl:0", memory) {
            Ok(bench) => bench,
            Err(error) => {
                let expected = std::env::var("DML_EXPECT").is_ok_and(|names| names.contains("opencl"));
                assert!(!expected, "DML_EXPECT names opencl, and there is no device: {error}");
                eprintln!("SKIPPED every_run_on_dml: no OpenCL device: {error}");
                return;
            }
        };
        let edge = 17;
        let mut both = both(&bench, edge);
        both.dml().unwrap();
        for _ in 0..2 {
            bench.platform.counters().reset();
            both.dml().unwrap();
            let moved: u64 =
                bench.platform.counters().transfers().iter().map(|transfer| transfer.bytes).sum();
            let matrices = if memory == Memory::Bound { 0 } else { 3 };
            assert_eq!(moved, matrices * edge * edge * 4, "{memory:?}");
        }
    }
}
