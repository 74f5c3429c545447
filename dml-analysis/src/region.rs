//! Which bytes a package touches, from the forms of its accesses.
//!
//! ```text
//!   package ──▶ interval of each number ──conditions──▶ narrower intervals
//!   form of an offset, intervals ──▶ bytes: an interval, or one for each layer
//! ```
//! 1. The bytes contain all that the package can touch. They are *exact* if it touches every one of them.
//! 2. Numbers are independent of each other, except for the conditions. A condition over several numbers
//!    bounds the forms that it is a part of.

use crate::bound::{Access, Bound, Bounds, FAR, Form, Number, NumberId, Test, WILD};
use crate::poly::{Kind, Symbol};
use std::cell::RefCell;
use std::ops::Range;

/// What a package touches of a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Touched {
    /// Ascending, disjoint.
    pub(crate) ranges: Vec<Range<u64>>,
    /// Whether every byte of the ranges is touched.
    pub(crate) is_exact: bool,
}

/// The most layers. More are one interval.
const LAYERS: u64 = 1 << 16;
/// Bytes between elements that are read with them. A copy of so few takes less than one more copy.
const GAP_BYTES: u64 = 256;
/// How often conditions are applied at most.
const ROUNDS: usize = 4;
/// How many conditions bound an offset at once: one for each axis.
const BOUNDS: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interval {
    least: i128,
    most: i128,
    /// Whether a package has every number between.
    is_exact: bool,
}

impl Interval {
    fn times(self, factor: i128) -> (i128, i128) {
        let ends = [self.least, self.most].map(|end| end.saturating_mul(factor).clamp(-FAR, FAR));
        (ends[0].min(ends[1]), ends[0].max(ends[1]))
    }
}

/// The intervals of a package's numbers.
#[derive(Clone)]
struct Package<'a> {
    bound: &'a Bound,
    intervals: Vec<Interval>,
    /// The intervals of terms and products that are known.
    cache: RefCell<Vec<Option<Interval>>>,
    /// Forms of several numbers that are at least 0, and whether that is a fact.
    bounds: Vec<(&'a Form, bool)>,
    is_fact: bool,
    has_changed: bool,
}

impl Touched {
    /// All of a buffer of `len` bytes.
    pub(crate) fn whole(len: u64) -> Self {
        Self { ranges: std::iter::once(0..len).collect(), is_exact: false }
    }
}

impl Bound {
    /// Returns what the work-items `part` touch of a buffer of `len` bytes.
    pub(crate) fn touched(&self, argument: usize, part: &Range<u64>, len: u64) -> Touched {
        let mut all = Touched { ranges: Vec::new(), is_exact: true };
        if part.is_empty() {
            return all;
        }
        let base = Package::of(self, part);
        let is_own = |access: &&Access| access.argument == argument;
        let is_written = self.accesses.iter().filter(is_own).any(|access| access.writes);
        let gap = if is_written { 0 } else { GAP_BYTES };
        for access in self.accesses.iter().filter(|access| access.argument == argument) {
            let Some(package) = base.under(&access.tests) else { continue };
            let (ranges, is_exact) = package.ranges(access, len, gap.into());
            all.is_exact &=
                is_exact && base.is_done(access) && base.are_independent(&package, &access.offset);
            all.ranges.extend(ranges);
        }
        all.ranges.retain(|range| !range.is_empty());
        all.ranges.sort_unstable_by_key(|range| range.start);
        let mut merged: Vec<Range<u64>> = Vec::new();
        for range in all.ranges {
            match merged.last_mut().filter(|last| range.start <= last.end + gap) {
                Some(last) => last.end = last.end.max(range.end),
                None => merged.push(range),
            }
        }
        Touched { ranges: merged, is_exact: all.is_exact }
    }
}

impl<'a> Package<'a> {
    fn of(bound: &'a Bound, part: &Range<u64>) -> Self {
        let interval = |number: &Number| match number {
            Number::Symbol(Symbol::Turn(_)) => Interval { least: 0, most: FAR, is_exact: true },
            Number::Symbol(Symbol::Unsigned(_)) => Interval { least: 0, most: FAR, is_exact: false },
            _ => Interval { least: -FAR, most: FAR, is_exact: false },
        };
        let mut intervals: Vec<_> = bound.numbers.iter().map(interval).collect();
        for axis in 0..3 {
            let group = bound.sizes.group[axis];
            let part = if axis == bound.sizes.axis { part.clone() } else { 0..bound.sizes.sizes[axis] };
            // Groups are whole.
            let (first, last) = (part.start / group, part.end.saturating_sub(1) / group);
            let all =
                |least: u64, most: u64| Interval { least: least.into(), most: most.into(), is_exact: true };
            let [item, of_group, local] = Bound::ids(axis);
            intervals[item] = all(first * group, last * group + group - 1);
            intervals[of_group] = all(first, last);
            intervals[local] = all(0, group - 1);
        }
        let cache = RefCell::new(vec![None; intervals.len()]);
        let mut package =
            Self { bound, intervals, cache, bounds: Vec::new(), is_fact: false, has_changed: false };
        package.narrow_by(&[]);
        package
    }

    /// Applies conditions and all facts until nothing changes. Returns whether they can hold.
    ///
    /// A fact holds where its loop is followed and ends. It bounds the numbers of the loop alone, and nothing
    /// where it cannot hold.
    fn narrow_by(&mut self, tests: &'a [Test]) -> bool {
        let first = self.clone();
        let mut facts: Vec<&'a Test> = self.bound.facts.iter().collect();
        'facts: loop {
            for _ in 0..ROUNDS {
                self.has_changed = false;
                if !tests.iter().all(|test| self.narrow(test)) {
                    return false;
                }
                for at in 0..facts.len() {
                    let (before, changed) = (self.intervals.clone(), self.has_changed);
                    self.is_fact = true;
                    let can_hold = self.narrow(facts[at]);
                    self.is_fact = false;
                    if !can_hold {
                        facts.remove(at);
                        self.clone_from(&first);
                        continue 'facts;
                    }
                    for (id, own) in before.iter().enumerate() {
                        if !self.is_of_loop(id) {
                            self.intervals[id] = *own;
                        }
                    }
                    self.cache.get_mut().fill(None);
                    self.has_changed = changed || self.intervals != before;
                }
                if !self.has_changed {
                    break;
                }
            }
            return true;
        }
    }

    /// Returns whether a number is one of a loop's turns, or one with an unknown value.
    fn is_of_loop(&self, id: NumberId) -> bool {
        matches!(self.bound.numbers[id], Number::Symbol(Symbol::Some(_) | Symbol::Turn(_)))
    }

    /// Returns the package under these conditions; none if they never hold.
    fn under(&self, tests: &'a [Test]) -> Option<Self> {
        let mut own = self.clone();
        own.narrow_by(tests).then_some(own)
    }

    /// Returns whether an access is done for all numbers that its conditions leave: where each condition
    /// bounds one number exactly, the others hold for all that is left.
    fn is_done(&self, access: &'a Access) -> bool {
        let mut exact = self.clone();
        exact.bounds.clear();
        for _ in 0..ROUNDS {
            exact.has_changed = false;
            access.tests.iter().for_each(|test| exact.narrow_exactly(test));
            if !exact.has_changed {
                break;
            }
        }
        access.tests.iter().all(|test| exact.is_certain(test))
    }

    /// Applies a condition as far as it bounds a number of which all values occur.
    fn narrow_exactly(&mut self, test: &'a Test) {
        match test {
            Test::Unknown => {}
            Test::All(of) => of.iter().for_each(|of| self.narrow_exactly(of)),
            Test::Any(of) => {
                let mut possible = of.iter().filter(|of| self.is_possible(of));
                if let (Some(one), None) = (possible.next(), possible.next()) {
                    self.narrow_exactly(one);
                }
            }
            Test::AtLeastZero(forms) => {
                for form in self.forms(forms) {
                    if let [(id, _)] = form.parts[..]
                        && self.number(id).is_exact
                    {
                        self.narrow_form(form);
                    }
                }
            }
        }
    }

    /// Returns whether conditions on the number of an item leave those of its group and in its group alone,
    /// which an offset depends on, or the other way round.
    fn are_independent(&self, under: &Self, offset: &Form) -> bool {
        (0..3).all(|axis| {
            let [item, group, local] = Bound::ids(axis);
            let is_used = |id: NumberId| offset.factor(id) != 0;
            let is_bounded = |id: NumberId| self.number(id) != under.number(id);
            let are_both = is_bounded(item) && (is_bounded(group) || is_bounded(local));
            !((is_used(group) || is_used(local)) && is_bounded(item)
                || is_used(item) && (is_bounded(group) || is_bounded(local))
                || are_both)
        })
    }

    fn number(&self, id: NumberId) -> Interval {
        let known = self.intervals[id];
        if let Some(cached) = self.cache.borrow()[id] {
            return cached;
        }
        let (least, most) = match &self.bound.numbers[id] {
            Number::Symbol(_) => return known,
            Number::Product(ids) => ids.iter().fold((1_i128, 1_i128), |(least, most), id| {
                let own = self.number(*id);
                let (one, other) = (own.times(least), own.times(most));
                (one.0.min(other.0), one.1.max(other.1))
            }),
            Number::Term { kind, one, other, wraps } => {
                term(*kind, self.plain(one), self.plain(other), *wraps)
            }
        };
        let (least, most) = (known.least.max(least), known.most.min(most));
        let interval = Interval { least, most, is_exact: false };
        self.cache.borrow_mut()[id] = Some(interval);
        interval
    }

    /// Returns the forms of a condition.
    fn forms(&self, bounds: &'a Bounds) -> &'a [Form] {
        let is_count = |form: &Form| {
            let (least, most) = self.plain(form);
            least >= 0 && most < WILD
        };
        if bounds.counts.iter().all(is_count) { &bounds.split } else { &bounds.form }
    }

    /// Returns whether a form may be a number that its type cannot hold, so that it is another one.
    fn is_wild(&self, form: &Form, limit: i128) -> bool {
        let (mut least, mut most) = (form.constant, form.constant);
        for (id, factor) in &form.parts {
            let (low, high) = self.number(*id).times(*factor);
            // A number without bounds is that of a turn.
            if low > -FAR && high < FAR {
                (least, most) = (least + low, most + high);
            }
        }
        least < -limit || most > limit
    }

    /// Returns the least and the greatest value of a form, of its numbers alone.
    fn plain(&self, form: &Form) -> (i128, i128) {
        form.parts.iter().fold((form.constant, form.constant), |(least, most), (id, factor)| {
            let (low, high) = self.number(*id).times(*factor);
            (least.saturating_add(low).clamp(-FAR, FAR), most.saturating_add(high).clamp(-FAR, FAR))
        })
    }

    /// Returns the least and the greatest value of a form, with so many conditions at once.
    fn interval(&self, form: &Form, depth: usize) -> (i128, i128) {
        let (mut least, mut most) = self.plain(form);
        if depth == 0 || form.parts.len() < 2 {
            return (least, most);
        }
        for (bound, is_fact) in &self.bounds {
            for (id, factor) in &bound.parts {
                if *is_fact && !self.is_of_loop(*id) {
                    continue;
                }
                let own = form.factor(*id);
                if own == 0 || own % factor != 0 {
                    continue;
                }
                // A bound is at least 0, so that a positive multiple less is at most the form.
                let times = own / factor;
                let rest = form.less(bound, times);
                if rest.parts.len() > form.parts.len() {
                    continue;
                }
                let (low, high) = self.interval(&rest, depth - 1);
                if times > 0 {
                    least = least.max(low);
                } else {
                    most = most.min(high);
                }
            }
        }
        (least, most)
    }

    /// Applies a condition. Returns whether it can hold.
    fn narrow(&mut self, test: &'a Test) -> bool {
        match test {
            Test::Unknown => true,
            Test::All(of) => of.iter().all(|of| self.narrow(of)),
            Test::AtLeastZero(forms) => self.forms(forms).iter().all(|form| self.narrow_form(form)),
            Test::Any(of) => {
                let possible: Vec<_> = of.iter().filter(|of| self.is_possible(of)).collect();
                match &possible[..] {
                    [] => false,
                    [one] => self.narrow(one),
                    several => {
                        // What holds in any case.
                        let (before, bounds, changed) =
                            (self.intervals.clone(), self.bounds.len(), self.has_changed);
                        let mut joined: Option<Vec<Interval>> = None;
                        for one in several {
                            self.cache.get_mut().fill(None);
                            if self.narrow(one) {
                                let own = std::mem::replace(&mut self.intervals, before.clone());
                                joined = Some(match joined {
                                    None => own,
                                    Some(known) => known.into_iter().zip(own).map(hull).collect(),
                                });
                            } else {
                                self.intervals.clone_from(&before);
                            }
                            self.bounds.truncate(bounds);
                        }
                        let Some(joined) = joined else { return false };
                        self.has_changed = changed || joined != before;
                        self.intervals = joined;
                        self.cache.get_mut().fill(None);
                        true
                    }
                }
            }
        }
    }

    fn narrow_form(&mut self, form: &'a Form) -> bool {
        if self.is_wild(form, WILD) {
            return true;
        }
        if self.interval(form, 1).1 < 0 {
            return false;
        }
        let all = self.plain(form).1;
        for (id, factor) in &form.parts {
            let mut own = self.number(*id);
            let (least, last) = (own.least, own.most);
            // The greatest value of the rest of the form.
            let most = match own.times(*factor).1 {
                high if high < FAR && all < FAR => all - high,
                _ => {
                    let others = form.parts.iter().filter(|(other, _)| other != id);
                    others.fold(form.constant, |most, (other, factor)| {
                        most.saturating_add(self.number(*other).times(*factor).1).min(FAR)
                    })
                }
            };
            if most >= FAR {
                continue;
            }
            // Of several numbers, not all have all that the bounds permit.
            let is_exact = own.is_exact && form.parts.len() == 1;
            if *factor > 0 {
                own.least = own.least.max(-most.div_euclid(*factor));
            } else {
                own.most = own.most.min(most.div_euclid(-*factor));
            }
            if (own.least, own.most) != (least, last) {
                if own.least > own.most {
                    return false;
                }
                self.intervals[*id] = Interval { is_exact, ..own };
                self.forget();
            }
        }
        let is_known = |(known, is_fact): &(&Form, bool)| {
            (std::ptr::eq(*known, form) || **known == *form) && *is_fact <= self.is_fact
        };
        if form.parts.len() > 1 && !self.bounds.iter().any(is_known) {
            self.bounds.push((form, self.is_fact));
        }
        true
    }

    /// Notes that an interval has changed.
    fn forget(&mut self) {
        self.has_changed = true;
        self.cache.get_mut().fill(None);
    }

    fn is_possible(&self, test: &'a Test) -> bool {
        match test {
            Test::Unknown => true,
            Test::All(of) => of.iter().all(|of| self.is_possible(of)),
            Test::Any(of) => of.iter().any(|of| self.is_possible(of)),
            Test::AtLeastZero(forms) => {
                self.forms(forms).iter().all(|form| self.interval(form, 1).1 >= 0 || self.is_wild(form, WILD))
            }
        }
    }

    fn is_certain(&self, test: &'a Test) -> bool {
        match test {
            Test::Unknown => false,
            Test::All(of) => of.iter().all(|of| self.is_certain(of)),
            Test::Any(of) => of.iter().any(|of| self.is_certain(of)),
            Test::AtLeastZero(forms) => {
                self.forms(forms).iter().all(|form| self.plain(form).0 >= 0 && !self.is_wild(form, WILD))
            }
        }
    }

    /// Returns the bytes of an access, for all values of the numbers, and whether all are touched.
    fn ranges(&self, access: &Access, len: u64, gap: i128) -> (Vec<Range<u64>>, bool) {
        let (form, bytes) = (&access.offset, access.bytes);
        if self.is_wild(form, WILD.saturating_mul(bytes.into())) {
            let whole = 0..len;
            return (vec![whole], false);
        }
        let mut parts = form.parts.clone();
        parts.sort_by_key(|(_, factor)| factor.abs());
        // Numbers whose steps leave no gaps form an interval, and further ones layers of it.
        let (mut inner, mut outer) = (Form::default(), Form { constant: form.constant, parts: Vec::new() });
        let (mut is_exact, mut extent) = (true, i128::from(bytes));
        for (id, factor) in parts {
            let interval = self.number(id);
            let is_one = interval.least == interval.most;
            is_exact &= interval.is_exact || is_one;
            if outer.parts.is_empty() && (factor.abs() <= extent + gap || is_one) {
                inner.add(id, factor);
                is_exact &= factor.abs() <= extent || is_one;
                let (least, most) = self.interval(&inner, BOUNDS);
                is_exact &= (least, most) == self.plain(&inner);
                extent = (most - least).saturating_add(bytes.into()).min(FAR);
            } else {
                outer.add(id, factor);
            }
        }
        let len = i128::from(len);
        let clamped = |least: i128, end: i128| least.clamp(0, len) as u64..end.clamp(0, len) as u64;
        let is_inside = |least: i128, end: i128| least >= 0 && end <= len;
        let one = || {
            let (least, most) = self.interval(form, BOUNDS);
            let end = most.saturating_add(bytes.into());
            // What is beyond the buffer is not touched.
            (vec![clamped(least, end)], is_inside(least, end))
        };
        if outer.parts.is_empty() {
            let (ranges, is_inside) = one();
            return (ranges, is_exact && is_inside);
        }
        let limits = self.interval(&outer, BOUNDS);
        is_exact &= limits == self.plain(&outer);
        let Some(starts) = self.starts(&outer) else { return (one().0, false) };
        let (least, most) = self.interval(&inner, BOUNDS);
        let mut ranges = Vec::new();
        for start in starts.into_iter().filter(|start| (limits.0..=limits.1).contains(start)) {
            let (least, end) = (start + least, (start + most).saturating_add(bytes.into()));
            is_exact &= is_inside(least, end);
            ranges.push(clamped(least, end));
        }
        (ranges, is_exact)
    }

    /// Returns all values of a form, unless they are too many.
    fn starts(&self, form: &Form) -> Option<Vec<i128>> {
        let mut starts = vec![form.constant];
        let mut rest = form.parts.clone();
        while let Some((id, factor)) = rest.pop() {
            let own = self.number(id);
            let (mut first, mut last) = own.times(factor);
            // Numbers of equal steps are one.
            rest.retain(|(other, by)| {
                let is_equal = by.abs() == factor.abs();
                if is_equal {
                    let (low, high) = self.number(*other).times(*by);
                    (first, last) = (first.saturating_add(low), last.saturating_add(high));
                }
                !is_equal
            });
            let count = last.saturating_sub(first) / factor.abs();
            if count.saturating_add(1).saturating_mul(starts.len() as i128) > i128::from(LAYERS) {
                return None;
            }
            let steps = (0..=count).map(|step| first + step * factor.abs());
            starts = steps.flat_map(|step| starts.iter().map(move |start| start + step)).collect();
        }
        Some(starts)
    }
}

/// Returns an interval that contains both.
fn hull((one, other): (Interval, Interval)) -> Interval {
    let is_exact = one == other && one.is_exact;
    Interval { least: one.least.min(other.least), most: one.most.max(other.most), is_exact }
}

/// Returns the least and the greatest value of a term. Unsigned operands have so many bits.
fn term(kind: Kind, one: (i128, i128), other: (i128, i128), wraps: u64) -> (i128, i128) {
    let end = if wraps == 0 { FAR } else { 1 << wraps.min(64) };
    let is_other = |of: (i128, i128)| wraps > 0 && (of.0 < 0 || of.1 >= end && of.1 < FAR);
    if is_other(one) || is_other(other) {
        // An operand is another number in its type, and may be any.
        let most = end - 1;
        return match kind {
            Kind::Remainder if other.0 > 0 => (0, (other.1 - 1).min(most)),
            Kind::Quotient if other.0 > 0 => (0, most / other.0),
            _ => (one.0.min(other.0).min(0), most.max(one.1).max(other.1)),
        };
    }
    match kind {
        Kind::Min => (one.0.min(other.0), one.1.min(other.1)),
        Kind::Max => (one.0.max(other.0), one.1.max(other.1)),
        Kind::Either => (one.0.min(other.0), one.1.max(other.1)),
        Kind::Quotient if other.0 < 1 => {
            let most = one.0.abs().max(one.1.abs());
            (-most, most)
        }
        Kind::Quotient => {
            let ends = [one.0 / other.0, one.0 / other.1, one.1 / other.0, one.1 / other.1];
            ends.iter().fold((FAR, -FAR), |(least, most), end| (least.min(*end), most.max(*end)))
        }
        Kind::Remainder => {
            let last = other.0.abs().max(other.1.abs()) - 1;
            if other.0 == other.1 && other.0 > 0 && one.0 >= 0 && one.0 / other.0 == one.1 / other.0 {
                return (one.0 % other.0, one.1 % other.0);
            }
            (if one.0 >= 0 { 0 } else { (-last).max(one.0) }, if one.1 <= 0 { 0 } else { last.min(one.1) })
        }
    }
}
