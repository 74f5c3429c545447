//! The independent reference: recursive, and generic over the number type.
//!
//! In single precision it must give the bits of the kernels, so it executes the same operations on each
//! number. Their structure differs: vectors with methods, a list of all hits before the nearest is taken, and
//! a function that calls itself for each reflection.

use super::{AMBIENT, DARK, FAR, LEAST_FALL, LEAST_WEIGHT, NEAR, Thing, View};
use std::ops::{Add, Mul, Neg, Sub};

/// A number type with a reciprocal root.
pub(super) trait Real:
    Copy + PartialOrd + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Neg<Output = Self>
{
    fn of(value: f32) -> Self;
    /// Returns the reciprocal square root.
    fn inverse_root(self) -> Self;
    fn floor(self) -> i64;
    /// Returns the nearest of 256 steps between zero and one.
    fn byte(self) -> u8;
}

impl Real for f32 {
    fn of(value: f32) -> Self {
        value
    }

    fn inverse_root(self) -> Self {
        super::inverse_root(self)
    }

    fn floor(self) -> i64 {
        Self::floor(self) as i64
    }

    fn byte(self) -> u8 {
        (self.clamp(0.0, 1.0) * 255.0 + 0.5).floor() as u8
    }
}

#[derive(Clone, Copy)]
struct Vector<R>(R, R, R);

impl<R: Real> Vector<R> {
    fn times(self, by: R) -> Self {
        Self(self.0 * by, self.1 * by, self.2 * by)
    }

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0, self.1 + other.1, self.2 + other.2)
    }

    fn minus(self, other: Self) -> Self {
        Self(self.0 - other.0, self.1 - other.1, self.2 - other.2)
    }

    fn each(self, other: Self) -> Self {
        Self(self.0 * other.0, self.1 * other.1, self.2 * other.2)
    }

    fn dot(self, other: Self) -> R {
        let Self(x, y, z) = self.each(other);
        x + y + z
    }

    fn all(value: R) -> Self {
        Self(value, value, value)
    }

    /// Returns the vector scaled to length 1.
    fn unit(self) -> Self {
        self.times(self.dot(self).inverse_root())
    }
}

struct Sphere<R> {
    centre: Vector<R>,
    radius: R,
}

/// An object that a ray can hit, with its appearance.
struct Body<R> {
    /// `None` for the ground, whose height is then that of the centre.
    radius: Option<R>,
    centre: Vector<R>,
    colour: Vector<R>,
    mirror: R,
}

struct Lamp<R> {
    place: Vector<R>,
    colour: Vector<R>,
}

pub(super) struct Scene<R> {
    eye: Vector<R>,
    tilt: R,
    sky: Vector<R>,
    lamps: Vec<Lamp<R>>,
    bodies: Vec<Body<R>>,
}

/// A ray, with its weight in its pixel.
struct Ray<R> {
    from: Vector<R>,
    way: Vector<R>,
    weight: R,
    mirrors_left: u32,
}

impl<R: Real> Scene<R> {
    pub(super) fn of(things: &[Thing]) -> Self {
        let vector = |thing: &Thing, first: usize| {
            Vector(R::of(thing[first]), R::of(thing[first + 1]), R::of(thing[first + 2]))
        };
        let (lamps, bodies): (Vec<&Thing>, _) = things[1..].iter().partition(|thing| thing[3] < 0.0);
        let lamp = |thing: &&Thing| Lamp { place: vector(thing, 0), colour: vector(thing, 4) };
        let body = |thing: &&Thing| Body {
            radius: (thing[3] > 0.0).then_some(R::of(thing[3])),
            centre: vector(thing, 0),
            colour: vector(thing, 4),
            mirror: R::of(thing[7]),
        };
        Self {
            eye: vector(&things[0], 0),
            tilt: R::of(things[0][3]),
            sky: vector(&things[0], 4),
            lamps: lamps.iter().map(lamp).collect(),
            bodies: bodies.iter().map(body).collect(),
        }
    }

    /// Returns the expected colour of a pixel.
    pub(super) fn pixel(&self, view: &View, item: u64) -> [u8; 4] {
        let (row, column) = (item / u64::from(view.width), item % u64::from(view.width));
        let [middle_x, middle_y] = view.middle.map(R::of);
        let x = (R::of(column as f32) - middle_x) * R::of(view.step);
        let y = (middle_y - R::of(row as f32)) * R::of(view.step) - self.tilt;
        let way = Vector(x, y, R::of(1.0)).unit();
        let ray = Ray { from: self.eye, way, weight: R::of(1.0), mirrors_left: view.depth };
        let Vector(red, green, blue) = self.follow(&ray, Vector::all(R::of(0.0)));
        [red.byte(), green.byte(), blue.byte(), u8::MAX]
    }

    /// Adds the colour that a ray sees to the colour of its pixel so far.
    fn follow(&self, ray: &Ray<R>, so_far: Vector<R>) -> Vector<R> {
        let Some((distance, body)) = self.met(ray.from, ray.way, R::of(FAR)) else {
            return so_far.plus(self.sky_towards(ray.way).times(ray.weight));
        };
        let point = ray.from.plus(ray.way.times(distance));
        let normal = match body.radius {
            Some(_) => point.minus(body.centre).unit(),
            None => Vector(R::of(0.0), R::of(1.0), R::of(0.0)),
        };
        let is_dark = body.radius.is_none() && (point.0.floor() + point.2.floor()).rem_euclid(2) == 1;
        let shade = R::of(if is_dark { DARK } else { 1.0 });
        let outside = point.plus(normal.times(R::of(NEAR)));
        let seen: Vec<_> =
            self.lamps.iter().filter_map(|lamp| self.seen(lamp, point, outside, normal)).collect();
        let light = seen.iter().fold(Vector::all(R::of(AMBIENT)), |light, (lamp, facing, _)| {
            light.plus(lamp.colour.times(*facing))
        });
        let gleam = seen.iter().fold(R::of(0.0), |gleam, (lamp, facing, to_lamp)| {
            let mirrored = normal.times(R::of(2.0) * *facing).minus(*to_lamp);
            let shine = -mirrored.dot(ray.way);
            let shine = if shine > R::of(0.0) { shine } else { R::of(0.0) };
            gleam + (0..5).fold(shine, |shine, _| shine * shine) * lamp.colour.0
        });
        let own = ray.weight * (R::of(1.0) - body.mirror);
        let now = so_far
            .plus(body.colour.times(shade).each(light).times(own))
            .plus(Vector::all(ray.weight * gleam));
        let weight = ray.weight * body.mirror;
        if ray.mirrors_left == 0 || weight < R::of(LEAST_WEIGHT) {
            return now;
        }
        let way = ray.way.minus(normal.times(R::of(2.0) * ray.way.dot(normal))).unit();
        self.follow(&Ray { from: outside, way, weight, mirrors_left: ray.mirrors_left - 1 }, now)
    }

    fn sky_towards(&self, way: Vector<R>) -> Vector<R> {
        let one = R::of(1.0);
        let haze = if way.1 > R::of(0.0) { one - way.1 } else { one };
        self.sky.plus(Vector::all(one).minus(self.sky).times(haze * haze))
    }

    /// Returns how directly a point faces a lamp, and the direction to it, unless an object blocks the light.
    fn seen<'a>(
        &self,
        lamp: &'a Lamp<R>,
        point: Vector<R>,
        outside: Vector<R>,
        normal: Vector<R>,
    ) -> Option<(&'a Lamp<R>, R, Vector<R>)> {
        let to_lamp = lamp.place.minus(point);
        let square = to_lamp.dot(to_lamp);
        let (distance, to_lamp) = (square * square.inverse_root(), to_lamp.unit());
        let facing = normal.dot(to_lamp);
        (facing > R::of(0.0) && self.met(outside, to_lamp, distance).is_none())
            .then_some((lamp, facing, to_lamp))
    }

    /// Returns the first body in a direction: the nearest of all hits that are neither too near nor too far.
    fn met(&self, from: Vector<R>, way: Vector<R>, limit: R) -> Option<(R, &Body<R>)> {
        let places = self.bodies.iter().flat_map(|body| {
            let places = match body.radius {
                Some(radius) => crossed(&Sphere { centre: body.centre, radius }, from, way),
                None => [fallen(body.centre.1, from, way), None],
            };
            places.into_iter().flatten().map(move |distance| (distance, body))
        });
        let mut places: Vec<_> =
            places.filter(|(distance, _)| *distance > R::of(NEAR) && *distance < limit).collect();
        // The sort is stable, so the first of equal ones stays first.
        places.sort_by(|(one, _), (other, _)| one.partial_cmp(other).expect("the limits exclude NaN"));
        places.into_iter().next()
    }
}

/// Returns the distances at which a ray enters a sphere and leaves it.
fn crossed<R: Real>(sphere: &Sphere<R>, from: Vector<R>, way: Vector<R>) -> [Option<R>; 2] {
    let away = from.minus(sphere.centre);
    let along = away.dot(way);
    let square = along * along - (away.dot(away) - sphere.radius * sphere.radius);
    if square > R::of(0.0) {
        let root = square * square.inverse_root();
        [Some(-along - root), Some(root - along)]
    } else {
        [None; 2]
    }
}

/// Returns the distance at which a ray reaches a height from above.
fn fallen<R: Real>(height: R, from: Vector<R>, way: Vector<R>) -> Option<R> {
    let fall = -way.1;
    let root = fall.inverse_root();
    (fall > R::of(LEAST_FALL)).then(|| (from.1 - height) * root * root)
}
