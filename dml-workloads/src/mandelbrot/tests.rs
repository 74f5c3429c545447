use super::*;
use crate::packages;
use proptest::prelude::*;

fn solve(problem: &Problem) -> Vec<[u8; 4]> {
    let mut out = vec![[1; 4]; problem.pixels() as usize];
    host(Team::global(), 0..problem.items(), problem, &mut out);
    out
}

#[test]
fn host_output_passes_the_check_at_every_awkward_size() {
    for items in [0, 1, 2, 3, 7, 255, 256, 257, TINY.items] {
        for max_iterations in [0, 1, 7, 8, 9, 100] {
            let problem = Problem::of_size(Size { items, max_iterations }).unwrap();
            problem.check(&solve(&problem)).unwrap();
        }
    }
    for (width, height) in [(0, 5), (4, 0), (4, 9), (8, 1), (64, 48), (100, 3)] {
        let problem = Problem::new(width, height, 300).unwrap();
        assert_eq!(problem.items(), u64::from(width) / 4 * u64::from(height));
        problem.check(&solve(&problem)).unwrap();
    }
}

/// The view is 3.2 by 2.4 around -0.7. Points are at the centres of pixels.
#[test]
fn pixels_are_where_the_view_says() {
    for (width, height, step) in [(64, 48, 0.05), (640, 480, 0.005), (4, 48, 0.8), (64, 3, 0.8)] {
        let problem = Problem::new(width, height, 1).unwrap();
        let middle = |first: f32, pixels: u32, down: f32| first + down * step * (pixels - 1) as f32 / 2.0;
        assert!((problem.step - step).abs() < 1e-6, "{width}x{height}: {}", problem.step);
        assert!((middle(problem.left, width, 1.0) + 0.7).abs() < 1e-5, "{width}x{height}: {}", problem.left);
        assert!(middle(problem.top, height, -1.0).abs() < 1e-5, "{width}x{height}: {}", problem.top);
    }
}

#[test]
fn rows_are_full_where_a_quarter_more_or_less_allows_it() {
    // The ideal is `sqrt(items / 3)`. Neither 4 nor 3 divides 55, and 5 does.
    for (items, expected) in
        [(0, 0), (1, 1), (3, 1), (48, 4), (55, 5), (75, 5), (65, 5), (51, 3), (53, 4), (291, 10)]
    {
        assert_eq!(items_per_row(items), expected, "{items}");
    }
}

#[test]
fn picture_shows_the_set() {
    let problem = Problem::new(64, 48, 200).unwrap();
    let out = solve(&problem);
    let at = |real: f32, imaginary: f32| {
        let column = ((real - problem.left) / problem.step).round() as usize;
        let row = ((problem.top - imaginary) / problem.step).round() as usize;
        out[row * 64 + column]
    };
    assert_eq!(at(0.0, 0.0), BLACK);
    assert_eq!(at(-1.0, 0.0), BLACK);
    assert_ne!(at(0.8, 0.8), BLACK);
    assert_ne!(at(-2.2, 1.1), BLACK);
    let inside = out.iter().filter(|pixel| **pixel == BLACK).count();
    // The set has an area of 1.507 in a view of 7.68.
    assert!((530..680).contains(&inside), "{inside} of 3072 pixels inside");
}

#[test]
fn check_names_the_first_wrong_item() {
    let problem = Problem::of_size(TINY).unwrap();
    let right = solve(&problem);
    let mut out = right.clone();
    out[4 * 900] = [9, 9, 9, 9];
    out[4 * 333 + 2][3] ^= 1;
    let mismatch = problem.check(&out).unwrap_err();
    assert_eq!((mismatch.item, mismatch.what), (333, "third pixel of a mandelbrot item"));
    assert_eq!(problem.check(&right[..40]).unwrap_err().item, 10);
    let mut shifted = right.clone();
    shifted.rotate_right(4);
    assert!(problem.check(&shifted).is_err());
}

#[test]
fn item_counts_make_pictures_near_four_to_three() {
    for items in (0..400).chain([1_000_003, SMALL.items, PAPER.items, Problem::LARGEST_ITEMS]) {
        let problem = Problem::of_items(items).unwrap();
        let (width, height) = (u64::from(problem.width), u64::from(problem.height));
        assert_eq!(problem.items(), items);
        assert_eq!(width % 4, 0);
        assert!(width * height >= 4 * items && (items == 0 || width * (height - 1) < 4 * items), "{items}");
        if items >= 48 {
            let ratio = width as f64 / height as f64;
            assert!((0.6..2.4).contains(&ratio), "{items}: {width} x {height}");
        }
    }
    let paper = Problem::of_size(PAPER).unwrap();
    assert_eq!((paper.width, paper.height), (19_360, 14_525));
    assert_eq!(4 * paper.items, u64::from(paper.width) * u64::from(paper.height));
    let small = Problem::of_size(SMALL).unwrap();
    assert_eq!((small.width, small.height), (3600, 2700));
}

#[test]
fn partial_last_row_is_padded_with_black() {
    let problem = Problem::of_size(Size { items: 1_201, max_iterations: 50 }).unwrap();
    let out = solve(&problem);
    let picture = problem.picture(&out);
    let (covered, padding) = picture.pixels().split_at(out.len());
    assert_eq!(covered, out);
    assert!(!padding.is_empty() && padding.len() < problem.width as usize);
    assert!(padding.iter().all(|pixel| *pixel == BLACK));
}

#[test]
fn impossible_problems_are_refused() {
    assert_eq!(Problem::new(6, 4, 9), Err(MandelbrotError::WidthNotMultipleOfFour { width: 6 }));
    assert!(matches!(Problem::new(4, u32::MAX, 9), Err(MandelbrotError::PictureTooLarge { .. })));
    assert!(matches!(Problem::of_items(u64::MAX), Err(MandelbrotError::TooManyItems { .. })));
}

#[test]
fn opencl_source_holds_the_palette_of_the_host() {
    let compact: String = OPENCL_SOURCE.split_whitespace().collect();
    let stops: Vec<String> =
        PALETTE.iter().map(|[red, green, blue]| format!("(uchar4)({red},{green},{blue},255)")).collect();
    assert!(compact.contains(&format!("palette[16]={{{}}};", stops.join(","))));
}

proptest! {
    #[test]
    fn packages_give_the_bytes_of_the_whole(
        items in 0_u64..2_000,
        max_iterations in 0_u32..200,
        cuts in packages::cuts(),
    ) {
        let problem = Problem::of_size(Size { items, max_iterations }).unwrap();
        let whole = solve(&problem);
        problem.check(&whole).unwrap();
        let mut out = vec![[1; 4]; whole.len()];
        for package in packages::split(items, &cuts) {
            host(Team::global(), package.clone(), &problem, packages::part(&mut out, &package, 4));
        }
        prop_assert_eq!(out, whole);
    }

    #[test]
    fn colours_agree_with_the_reference(iterations: u32) {
        let expected = reference::cycle_of_colours()[iterations as usize % 64];
        prop_assert_eq!(colour_of(iterations, u32::MAX), if iterations == u32::MAX { BLACK } else { expected });
    }
}
