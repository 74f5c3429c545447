//! The part of an array that items touch: `whole`, `rows(1)`, `4 rows + 2`.
//!
//! ```text
//!   part = "whole" | [COUNT] AXIS [ "(" BEFORE [ "," AFTER ] ")" ] [ ("+" | "-") OFFSET ]
//! ```
//! Item `i` touches `COUNT` rows from `COUNT * i + OFFSET` on, and `BEFORE` and `AFTER` more on each side, as
//! far as the array has them.

use crate::derive::Derived;
use crate::expression::{Values, evaluate};
use crate::plan::ArrayPlan;
use dml_analysis::Language;
use dml_core::DeviceKind;
use dml_scheduler::Footprint;
use std::ops::Range;
use std::sync::Arc;

/// The part of an array that items touch.
#[derive(Clone, Debug)]
pub(crate) enum Part {
    Whole,
    Along(Along),
    /// To be derived.
    Undeclared,
    /// By the analysis of the kernel.
    Derived(Arc<Derived>),
}

/// A part along an axis of the array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Along {
    /// The position of the axis in the shape.
    pub(crate) axis: usize,
    /// What an item touches, besides its margins.
    pub(crate) count: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) offset: u64,
}

/// The names of the axes of an array with one, two and three of them.
pub(crate) const AXES: [&[&str]; 3] = [&["elements"], &["rows", "columns"], &["planes", "rows", "columns"]];

/// Reads the part of an array with so many axes.
pub(crate) fn parse(text: &str, axes: usize, values: &Values) -> Result<Part, String> {
    let names = AXES[axes - 1];
    let expected = || {
        let examples = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        format!("expected `whole` or {examples}, such as \"{}(1)\", found \"{text}\"", names[0])
    };
    if text.trim() == "whole" {
        return Ok(Part::Whole);
    }
    let is_part = |character: char| character.is_ascii_alphanumeric() || character == '_';
    let mut words = text.match_indices(is_part).map(|(at, _)| at);
    let found = words.find_map(|at| {
        let starts = !text[..at].ends_with(is_part);
        let length = text[at..].find(|character| !is_part(character)).unwrap_or(text.len() - at);
        let axis = names.iter().position(|name| *name == &text[at..at + length])?;
        starts.then_some((axis, &text[..at], &text[at + length..]))
    });
    let (axis, count, rest) = found.ok_or_else(expected)?;
    let number = |text: &str, least| evaluate(text, values)?.count(least);
    let count = if count.trim().is_empty() { 1 } else { number(count, 1)? };
    let rest = rest.trim();
    let (before, after, rest) = match rest.strip_prefix('(') {
        Some(rest) => {
            let (inner, rest) =
                rest.rsplit_once(')').ok_or_else(|| format!("a `)` is missing in \"{text}\""))?;
            let (before, after) = inner.split_once(',').unwrap_or((inner, inner));
            (number(before, 0)?, number(after, 0)?, rest.trim())
        }
        None => (0, 0, rest),
    };
    let offset = match rest.strip_prefix('+') {
        Some(offset) => number(offset, 0)?,
        None if rest.is_empty() => 0,
        None => return Err(expected()),
    };
    Ok(Part::Along(Along { axis, count, before, after, offset }))
}

impl Part {
    pub(crate) fn has_margins(&self) -> bool {
        matches!(self, Self::Along(along) if along.before > 0 || along.after > 0)
    }

    /// Returns the footprint in an array of elements of so many bytes, for the variants of such devices.
    pub(crate) fn footprint(
        &self,
        shape: &[u64],
        element_bytes: u64,
        devices: &[(DeviceKind, Language)],
    ) -> Footprint {
        let along = match self {
            Self::Whole | Self::Undeclared => return Footprint::Whole,
            Self::Along(along) => along,
            Self::Derived(derived) => return derived.footprint(devices),
        };
        let bytes = shape[along.axis + 1..].iter().product::<u64>() * element_bytes;
        let layer_bytes = shape[along.axis] * bytes;
        match *along {
            Along { count: 1, before, after, offset: 0, axis } if before == after => match axis {
                0 if before == 0 => Footprint::one_to_one(bytes),
                0 => Footprint::neighbourhood(bytes, before),
                _ => Footprint::layers(bytes, layer_bytes, before),
            },
            _ => {
                let (along, length) = (along.clone(), shape[along.axis]);
                let layers = shape[..along.axis].iter().product::<u64>();
                Footprint::of_ranges(move |items| {
                    let part = along.part(&items, length);
                    let of_layer = |layer: u64| {
                        let first = layer * layer_bytes;
                        first + part.start * bytes..first + part.end * bytes
                    };
                    (0..layers).map(of_layer).collect()
                })
            }
        }
    }
}

impl Part {
    /// Returns the part as a file would declare it, if it can.
    pub(crate) fn name(&self, array: &ArrayPlan, items: u64) -> Option<String> {
        match self {
            Self::Whole => Some("whole".to_owned()),
            Self::Along(along) => Some(along.name(AXES[array.shape.len() - 1][along.axis])),
            Self::Undeclared => None,
            Self::Derived(derived) => derived.name(&array.shape, array.element.bytes(), items),
        }
    }
}

impl Along {
    /// Returns the part as a file declares it, by the name of the axis.
    pub(crate) fn name(&self, axis: &str) -> String {
        let count = if self.count == 1 { String::new() } else { format!("{} ", self.count) };
        let margins = match (self.before, self.after) {
            (0, 0) => String::new(),
            (before, after) if before == after => format!("({before})"),
            (before, after) => format!("({before}, {after})"),
        };
        let offset = if self.offset == 0 { String::new() } else { format!(" + {}", self.offset) };
        format!("{count}{axis}{margins}{offset}")
    }

    /// Returns what items touch of an axis.
    pub(crate) fn part(&self, items: &Range<u64>, length: u64) -> Range<u64> {
        let first = items.start.saturating_mul(self.count).saturating_add(self.offset).min(length);
        if items.is_empty() {
            return first..first;
        }
        let end = items.end.saturating_mul(self.count).saturating_add(self.offset).saturating_add(self.after);
        first.saturating_sub(self.before)..end.min(length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expression::Number;

    fn part(text: &str, axes: usize) -> Result<Part, String> {
        parse(text, axes, &[("radius".to_owned(), Number::Integer(3))].into_iter().collect())
    }

    #[test]
    #[allow(clippy::single_range_in_vec_init, reason = "a footprint is a list of ranges")]
    fn parts_are_ranges_of_bytes() {
        let ranges = |text: &str, shape: &[u64], items: Range<u64>| {
            let bytes = shape.iter().product::<u64>() * 4;
            part(text, shape.len()).unwrap().footprint(shape, 4, &[]).ranges(items, bytes).unwrap()
        };
        assert_eq!(ranges("rows", &[10, 5], 2..4), [40..80]);
        assert_eq!(ranges("rows(1)", &[10, 5], 0..4), [0..100]);
        assert_eq!(ranges("rows(0, 2)", &[10, 5], 2..4), [40..120]);
        assert_eq!(ranges("rows + 1", &[10, 5], 2..4), [60..100]);
        assert_eq!(ranges("2 rows(radius)", &[10, 5], 2..4), [20..200]);
        assert_eq!(ranges("columns", &[2, 5], 1..3), [4..12, 24..32]);
        assert_eq!(ranges("columns(1, 0)", &[2, 5], 1..3), [0..12, 20..32]);
        assert_eq!(ranges("rows", &[2, 3, 2], 1..2), [8..16, 32..40]);
        assert_eq!(ranges("elements(1)", &[8], 7..8), [24..32]);
        assert_eq!(ranges("whole", &[8], 7..8), [0..32]);
    }

    #[test]
    fn what_is_no_part_is_named() {
        for (text, axes, message) in [
            ("row", 2, "expected `whole` or `rows`, `columns`, such as \"rows(1)\", found \"row\""),
            ("rows", 1, "expected `whole` or `elements`, such as \"elements(1)\", found \"rows\""),
            ("rows(1", 2, "a `)` is missing in \"rows(1\""),
            ("rows(-1)", 2, "-1 is no integer of at least 0"),
            ("0 rows", 2, "0 is no integer of at least 1"),
            ("rows(1.5)", 2, "1.5 is no integer of at least 0"),
        ] {
            assert_eq!(part(text, axes).map(|_| ()), Err(message.to_owned()), "{text}");
        }
    }
}
