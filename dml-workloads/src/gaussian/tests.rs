use super::*;
use crate::packages;
use proptest::prelude::*;

/// Computes a package from exactly the pixels that it reads.
fn solve_package(problem: &Problem, items: Range<u64>, out: &mut [[u8; 4]]) {
    let input = input_pixels(items.clone(), problem.width(), problem.height(), problem.radius());
    host(
        Team::global(),
        items,
        problem.width(),
        problem.height(),
        problem.radius(),
        problem.weights(),
        &problem.image()[input.start as usize..input.end as usize],
        input.start,
        out,
    );
}

fn solve(problem: &Problem) -> Vec<[u8; 4]> {
    let mut out = vec![[77; 4]; problem.image().len()];
    solve_package(problem, 0..problem.items(), &mut out);
    out
}

/// Computes a pixel by the definition, tap by tap.
fn blur_by_definition(problem: &Problem, pixel: usize) -> [f64; 4] {
    let (width, height) = (problem.width() as i64, problem.height() as i64);
    let radius = i64::from(problem.radius());
    let (x, y) = (pixel as i64 % width, pixel as i64 / width);
    let mut sum = [0.0; 4];
    let mut weights = problem.weights().iter();
    for down in -radius..=radius {
        for across in -radius..=radius {
            let weight = f64::from(*weights.next().unwrap());
            let row = (y + down).clamp(0, height - 1);
            let column = (x + across).clamp(0, width - 1);
            let source = problem.image()[(row * width + column) as usize];
            for channel in 0..4 {
                sum[channel] += weight * f64::from(source[channel]);
            }
        }
    }
    sum
}

#[test]
fn host_output_passes_the_check_at_every_awkward_size() {
    for (width, height) in [(0, 0), (0, 4), (4, 0), (1, 1), (1, 40), (40, 1), (127, 3), (129, 2), (300, 5)] {
        for filter in [1, 3, 9, 61] {
            let problem = Problem::generate(width, height, filter, 9).unwrap();
            problem.check(&solve(&problem)).unwrap();
        }
    }
    let problem = Problem::of_size(TINY, 1).unwrap();
    problem.check(&solve(&problem)).unwrap();
}

#[test]
fn host_output_is_the_definition() {
    for (width, height, filter) in [(31, 23, 7), (9, 40, 21), (5, 4, 31)] {
        let problem = Problem::generate(width, height, filter, 4).unwrap();
        for (pixel, found) in solve(&problem).iter().enumerate() {
            for (found, exact) in found.iter().zip(blur_by_definition(&problem, pixel)) {
                assert!((f64::from(*found) - exact).abs() < 0.501, "pixel {pixel}: {found}, not {exact}");
            }
        }
    }
}

#[test]
fn filter_of_one_copies() {
    let problem = Problem::generate(50, 20, 1, 6).unwrap();
    assert_eq!(solve(&problem), problem.image());
}

#[test]
fn uniform_white_stays_white_under_the_largest_filter() {
    let picture = Picture::new(20, 20, vec![[255, 254, 1, 0]; 400]).unwrap();
    let problem = Problem::from_picture(picture, Problem::LARGEST_FILTER).unwrap();
    assert_eq!(solve(&problem), problem.image());
    problem.check(problem.image()).unwrap();
}

/// The check processes bands of rows, and names a pixel by its number in the picture.
#[test]
fn check_names_the_wrong_pixel_in_every_band() {
    let problem = Problem::generate(5, 200, 7, 3).unwrap();
    let right = solve(&problem);
    for pixel in [0, 5 * 64 - 1, 5 * 64, 5 * 65 + 3, 5 * 128, 5 * 200 - 1] {
        let mut wrong = right.clone();
        wrong[pixel][2] = right[pixel][2].wrapping_add(128);
        let told = problem.check(&wrong).unwrap_err();
        assert_eq!((told.item, told.found), (pixel as u64, crate::check::Value::Pixel(wrong[pixel])));
        let crate::check::Value::Pixel(expected) = told.expected else { panic!("{told}") };
        assert!(expected.iter().zip(right[pixel]).all(|(is, found)| is.abs_diff(found) <= 1), "{told}");
    }
}

#[test]
fn weights_sum_to_one_and_are_symmetric() {
    for filter in [1, 3, 61, 255] {
        let weights = weights(filter).unwrap();
        assert_eq!(weights.len(), (filter * filter) as usize);
        let sum: f64 = weights.iter().map(|weight| f64::from(*weight)).sum();
        assert!((sum - 1.0).abs() < 1e-6, "{sum}");
        assert!(weights.iter().eq(weights.iter().rev()));
    }
}

#[test]
fn impossible_problems_are_refused() {
    assert_eq!(weights(0), Err(GaussianError::EvenFilter { filter: 0 }));
    assert_eq!(Problem::generate(4, 4, 60, 1).unwrap_err(), GaussianError::EvenFilter { filter: 60 });
    assert!(matches!(weights(257), Err(GaussianError::FilterTooLarge { filter: 257, .. })));
    assert!(matches!(weights(u32::MAX), Err(GaussianError::FilterTooLarge { .. })));
    assert!(matches!(
        Problem::generate(u32::MAX, u32::MAX, 3, 1),
        Err(GaussianError::PictureTooLarge { .. })
    ));
}

#[test]
fn check_names_the_first_wrong_item() {
    let problem = Problem::of_size(TINY, 8).unwrap();
    let right = solve(&problem);
    let mut out = right.clone();
    out[2_000] = [0; 4];
    out[1_234][3] ^= 4;
    out[5][0] ^= 1;
    assert_eq!(problem.check(&out).unwrap_err().item, 1_234);
    assert_eq!(problem.check(&right[..100]).unwrap_err().item, 100);
    assert!(problem.check(problem.image()).is_err());
    let mut shifted = right.clone();
    shifted.rotate_left(TINY.width as usize);
    assert!(problem.check(&shifted).is_err());
}

#[test]
fn input_pixels_are_the_rows_that_a_package_reads() {
    assert_eq!(input_pixels(0..0, 10, 10, 2), 0..0);
    assert_eq!(input_pixels(7..7, 10, 10, 2), 0..0);
    assert_eq!(input_pixels(0..0, 0, 0, 2), 0..0);
    assert_eq!(input_pixels(0..1, 10, 10, 2), 0..30);
    assert_eq!(input_pixels(49..51, 10, 10, 2), 20..80);
    assert_eq!(input_pixels(99..100, 10, 10, 2), 70..100);
    assert_eq!(input_pixels(0..100, 10, 10, 50), 0..100);
    assert_eq!(input_pixels(55..56, 10, 10, 0), 50..60);
}

proptest! {
    #[test]
    fn packages_give_the_bytes_of_the_whole(
        width in 0_u32..80,
        height in 0_u32..40,
        radius in 0_u32..12,
        seed: u64,
        cuts in packages::cuts(),
    ) {
        let problem = Problem::generate(width, height, 2 * radius + 1, seed).unwrap();
        let whole = solve(&problem);
        problem.check(&whole).unwrap();
        let mut out = vec![[77; 4]; whole.len()];
        for package in packages::split(problem.items(), &cuts) {
            solve_package(&problem, package.clone(), packages::part(&mut out, &package, 1));
        }
        prop_assert_eq!(out, whole);
    }
}
