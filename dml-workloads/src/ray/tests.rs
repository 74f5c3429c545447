use super::reference::{Real, Scene};
use super::*;
use crate::packages;
use proptest::prelude::*;

/// Double precision counts as exact, and has true roots.
impl Real for f64 {
    fn of(value: f32) -> Self {
        value.into()
    }

    fn inverse_root(self) -> Self {
        self.sqrt().recip()
    }

    fn floor(self) -> i64 {
        Self::floor(self) as i64
    }

    fn byte(self) -> u8 {
        (self.clamp(0.0, 1.0) * 255.0).round() as u8
    }
}

/// Spheres lie in rows, on the ground or above it, and differ from each other.
#[test]
fn the_scene_is_a_camera_two_lamps_a_ground_and_spheres_on_it() {
    for seed in 0..20 {
        let problem = Problem::generate(TINY, seed);
        assert_eq!(problem.items(), problem.items);
        let spheres = &problem.scene()[4..];
        assert_eq!(spheres.len() as u64, SPHERES[0] * SPHERES[1]);
        for (number, [x, y, z, radius, colours @ .., shine]) in spheres.iter().enumerate() {
            let (column, row) = (number as u64 % SPHERES[0], number as u64 / SPHERES[0]);
            let middle = 2.0 * column as f32 - (SPHERES[0] - 1) as f32;
            assert!((x - middle).abs() <= 0.5 && (z - 2.1 * row as f32).abs() <= 0.5, "{number}: {x}, {z}");
            assert!((0.35..=0.85).contains(radius), "{number}: {radius}");
            let above = y - radius;
            let range = if number % 3 == 0 { 0.2 - 1e-6..=1.2 + 1e-6 } else { 0.0..=0.0 };
            assert!(range.contains(&above), "{number}: {above}");
            assert!(
                colours.iter().all(|colour| (0.15..=1.0).contains(colour)) && (0.1..=0.8).contains(shine)
            );
        }
        let drawn = |at: usize| {
            spheres
                .iter()
                .map(|sphere| sphere[at])
                .fold((f32::MAX, f32::MIN), |(low, high), value| (low.min(value), high.max(value)))
        };
        for at in [3, 4, 5, 6, 7] {
            let (low, high) = drawn(at);
            assert!(high - low > 0.2, "spheres differ: {at}: {low}..{high}");
        }
    }
}

fn solve(problem: &Problem) -> Vec<[u8; 4]> {
    let mut pixels = vec![[1; 4]; problem.items as usize];
    host(Team::global(), 0..problem.items, &problem.scene, &problem.view, &mut pixels);
    pixels
}

#[test]
fn host_output_passes_the_check_at_every_awkward_size() {
    for items in [0, 1, 2, 3, 127, 128, 129, TINY.items, 40_001] {
        let problem = Problem::generate(Size { items }, items);
        problem.check(&solve(&problem)).unwrap();
    }
}

#[test]
fn inverse_roots_are_right_to_22_bits() {
    for index in 0..100_000 {
        let value = (f64::from(random::signed_unit(9, index)) * 60.0).exp2() as f32;
        let exact = f64::from(value).sqrt().recip();
        let off = (f64::from(inverse_root(value)) / exact - 1.0).abs();
        assert!(off < 2.4e-7, "{value}: off by {off}");
    }
}

/// The errors that kernels and reference have in common: roots and roundings. The picture may differ from
/// that of double precision only where a ray barely hits or misses something.
#[test]
fn picture_is_that_of_exact_arithmetic() {
    for seed in [1, 2, SEED] {
        let problem = Problem::generate(Size { items: 20_000 }, seed);
        let exact = Scene::<f64>::of(&problem.scene);
        let differs = |(item, pixel): (usize, &[u8; 4])| {
            let exact = exact.pixel(&problem.view, item as u64);
            pixel.iter().zip(exact).any(|(one, other)| one.abs_diff(other) > 1)
        };
        let differing = solve(&problem).iter().enumerate().filter(|pixel| differs(*pixel)).count();
        assert!(differing < 100, "{differing} of 20000 pixels");
    }
}

#[test]
fn picture_shows_sky_ground_spheres_mirrors_and_shadows() {
    let problem = Problem::generate(Size { items: 90_000 }, SEED);
    let pixels = solve(&problem);
    let sky = pixels[0];
    assert!(sky[2] > sky[0] && sky[2] > 200, "{sky:?}");
    // Without depth nothing is reflected. Without a lamp everything is as dark as a shadow.
    let flat = Problem { view: View { depth: 0, ..problem.view }, ..problem.clone() };
    let with_lamps = |lamps: usize| {
        let (mut few, mut met) = (flat.clone(), 0);
        few.scene.retain(|thing| {
            met += usize::from(thing[3] < 0.0);
            thing[3] >= 0.0 || met <= lamps
        });
        solve(&few)
    };
    let changed = |one: &[[u8; 4]], other: &[[u8; 4]]| one.iter().zip(other).filter(|(a, b)| a != b).count();
    assert!(changed(&pixels, &solve(&flat)) > 20_000);
    // The lower half shows only ground and spheres.
    let lower = |pixels: Vec<[u8; 4]>| pixels[45_000..].to_vec();
    let shadows = 45_000 - changed(&lower(with_lamps(1)), &lower(with_lamps(0)));
    assert!((300..15_000).contains(&shadows), "{shadows}");
    let colours: std::collections::BTreeSet<_> = pixels.iter().collect();
    assert!(colours.len() > 5_000, "{} colours", colours.len());
}

/// Rays that hit reflective things take many times as long as rays that reach the sky.
#[test]
fn work_differs_along_the_picture() {
    let problem = Problem::generate(Size { items: 40_000 }, SEED);
    let one_more = Problem { view: View { depth: 1, ..problem.view }, ..problem.clone() };
    let (deep, flat) = (solve(&problem), solve(&one_more));
    let row = |row: usize| {
        let width = problem.view.width as usize;
        (row * width..(row + 1) * width).filter(|&item| deep[item] != flat[item]).count()
    };
    assert_eq!(row(0), 0, "above the horizon is the sky");
    assert!((60..140).any(|middle| row(middle) > 20));
}

#[test]
fn check_rejects_one_wrong_item_first_last_and_between() {
    let problem = Problem::generate(TINY, 5);
    let right = solve(&problem);
    let last = right.len() - 1;
    for item in [0, 1, last / 2, last - 1, last] {
        for channel in 0..4 {
            let mut pixels = right.clone();
            pixels[item][channel] ^= 1;
            assert_eq!(problem.check(&pixels).unwrap_err().item, item as u64);
        }
    }
    let mut shifted = right.clone();
    shifted.rotate_left(1);
    assert!(problem.check(&shifted).is_err());
    assert_eq!(problem.check(&right[1..]).unwrap_err().item, TINY.items - 1);
    assert!(problem.check(&solve(&Problem::generate(TINY, 6))).is_err());
}

/// The smallest errors: one reflection too few, one missing thing, one sphere that is slightly displaced.
#[test]
fn check_rejects_one_mirror_or_one_sphere_too_few() {
    let problem = Problem::generate(Size { items: 40_000 }, 8);
    let shallow = Problem { view: View { depth: DEPTH - 1, ..problem.view }, ..problem.clone() };
    assert!(problem.check(&solve(&shallow)).is_err());
    for missing in 1..problem.scene.len() {
        let mut few = problem.clone();
        few.scene.remove(missing);
        assert!(problem.check(&solve(&few)).is_err(), "without {missing}");
    }
    let mut moved = problem.clone();
    moved.scene[10][0] += 0.01;
    assert!(problem.check(&solve(&moved)).is_err());
}

#[test]
fn whatever_a_scene_holds_a_pixel_ends() {
    let problem = Problem::generate(TINY, 3);
    for noise in [f32::NAN, f32::INFINITY, -f32::INFINITY, f32::MAX, 0.0, 1e-40] {
        let noisy = Problem { scene: vec![[noise; 8]; 9], ..problem.clone() };
        assert!(solve(&noisy).iter().all(|pixel| pixel[3] == 255));
    }
}

#[test]
fn item_counts_make_square_pictures_with_a_padded_last_row() {
    for items in (1..300).chain([SMALL.items, PAPER.items, Problem::LARGEST_ITEMS]) {
        let problem = Problem::generate(Size { items }, 1);
        let (width, height) = (u64::from(problem.view.width), u64::from(problem.height()));
        assert!(width * height >= items && width * (height - 1) < items && width - height <= 1, "{items}");
    }
    assert_eq!(Problem::generate(PAPER, 1).view.width, 3072);
    let problem = Problem::generate(TINY, 1);
    let pixels = solve(&problem);
    let picture = problem.picture(&pixels);
    let (covered, padding) = picture.pixels().split_at(pixels.len());
    assert_eq!(covered, pixels);
    assert!(!padding.is_empty() && padding.iter().all(|pixel| *pixel == [0, 0, 0, 255]));
}

#[test]
fn scene_has_the_published_number_of_primitives_and_depends_on_its_seed() {
    let [one, same, other] = [1, 1, 2].map(|seed| Problem::generate(TINY, seed));
    assert_eq!(one, same);
    assert_ne!(one.scene, other.scene);
    assert!(one.scene.iter().skip(1).filter(|thing| thing[3] >= 0.0).count() >= 17);
    assert!(one.scene.windows(2).all(|pair| pair[0] != pair[1]));
}

#[test]
fn opencl_source_holds_the_numbers_of_the_host() {
    let numbers = [NEAR, LEAST_FALL, AMBIENT, DARK, LEAST_WEIGHT].map(|number| format!("{number}f"));
    for number in numbers.into_iter().chain([format!("{FAR:.1}f")]) {
        assert!(OPENCL_SOURCE.contains(&number), "{number}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn packages_give_the_bytes_of_the_whole(items in 0_u64..900, seed: u64, cuts in packages::cuts()) {
        let problem = Problem::generate(Size { items }, seed);
        let whole = solve(&problem);
        problem.check(&whole).unwrap();
        let mut pixels = vec![[1; 4]; whole.len()];
        for package in packages::split(items, &cuts) {
            let part = packages::part(&mut pixels, &package, 1);
            host(Team::global(), package.clone(), &problem.scene, &problem.view, part);
        }
        prop_assert_eq!(pixels, whole);
    }
}
