//! Runs packages on copies of the buffers, and compares their results.

use super::values::{Copied, Outside, WAYS, noise};
use super::{CheckError, Departure, Wrong};
use crate::base::guard::guarded;
use crate::base::package::{Package, UnitId};
use crate::kernel::{Argument, Footprint, FootprintError, Kernel, KernelError};
use dml_core::{Access, DeviceId, Launcher, Platform, RawBuffer};
use std::ops::Range;

/// Contents before and after a run, one entry per copy.
pub(super) struct Run {
    pub(super) before: Vec<Vec<u8>>,
    pub(super) after: Vec<Vec<u8>>,
}

/// A package that ran on the latest contents, with its ranges and the contents that it left.
pub(super) struct Seen {
    package: Package,
    ranges: Vec<Vec<Range<u64>>>,
    after: Vec<Vec<u8>>,
}

pub(super) struct Check<'a> {
    pub(super) platform: &'a Platform,
    pub(super) kernel: &'a Kernel,
    pub(super) launcher: &'a dyn Launcher,
    pub(super) device: DeviceId,
    pub(super) host: DeviceId,
    pub(super) copies: Vec<Copied>,
    /// The kernel's buffers, with the copies in their place.
    pub(super) arguments: Vec<Argument>,
}

impl Check<'_> {
    /// Returns the arguments whose moved values equal the latest ones, although a package leaves a part of
    /// the buffer out.
    pub(super) fn unseen_reads(&self, packages: &[Range<u64>]) -> Result<Vec<usize>, CheckError> {
        let mut unseen = Vec::new();
        for Copied { copy, latest, moved, .. } in &self.copies {
            if moved.as_ref().is_none_or(|moved| moved.iter().any(|moved| moved != latest)) {
                continue;
            }
            for items in packages {
                if !gaps(self.covered(copy, &self.ranges(items)?, |_| true), copy.len()).is_empty() {
                    unseen.push(self.kernel.position(self.named(copy, Access::reads)));
                    break;
                }
            }
        }
        Ok(unseen)
    }

    /// Checks that the first work-group and the remaining items together write all that a package of all
    /// items writes.
    pub(super) fn parts_cover(&self, packages: &[Range<u64>]) -> Result<(), CheckError> {
        let Some(all) = packages.last() else { return Ok(()) };
        let cut = self.kernel.grain();
        if cut >= all.end {
            return Ok(());
        }
        let [parts, rest, whole] = [0..cut, cut..all.end, all.clone()].map(|items| self.ranges(&items));
        let (parts, rest, whole) = (parts?, rest?, whole?);
        for (index, argument) in self.arguments.iter().enumerate().filter(|(_, one)| one.access().writes()) {
            let covered = parts[index].iter().chain(&rest[index]).cloned().collect();
            let mut missing = gaps(covered, argument.buffer().len()).into_iter();
            if let Some(byte) = missing.find_map(|gap| crate::kernel::shared(&[gap], &whole[index])) {
                return Err(self.wrong(index, all.clone(), None, byte.start, Departure::InNoPart));
            }
        }
        Ok(())
    }

    fn ranges(&self, items: &Range<u64>) -> Result<Vec<Vec<Range<u64>>>, FootprintError> {
        Ok(self.kernel.ranges(items.clone())?.into_iter().map(|(_, ranges)| ranges).collect())
    }

    /// Checks a package with several sets of values outside its footprints. Returns the contents left by the
    /// latest values.
    pub(super) fn package(&self, package: &Package) -> Result<Seen, CheckError> {
        let ranges = self.ranges(&package.range())?;
        let run = |outside| self.run(package, &self.arguments, &ranges, outside);
        let (first, again) = (run(Outside::Latest)?, run(Outside::Latest)?);
        for way in 0..WAYS {
            let other = run(Outside::Moved(way))?;
            for (index, Copied { copy, .. }) in self.copies.iter().enumerate() {
                let written = self.covered(copy, &ranges, Access::writes);
                let writer = self.named(copy, Access::writes);
                for one in [&first, &other] {
                    let outside = differences(&one.before[index], &one.after[index]);
                    if let Some(byte) = outside.into_iter().find(|byte| !is_in(&written, *byte)) {
                        let items = self.writes_outside(package.range(), index, byte);
                        return Err(self.wrong(writer, items, None, byte, Departure::WritesOutside));
                    }
                }
                let wrong =
                    |argument, item, byte, how| self.wrong(argument, package.range(), item, byte, how);
                if let Some(&byte) = differences(&first.after[index], &again.after[index]).first() {
                    return Err(wrong(writer, None, byte, Departure::Differs));
                }
                let changed = differences(&first.after[index], &other.after[index]);
                if let Some(byte) = changed.into_iter().find(|byte| is_in(&written, *byte)) {
                    let at = byte as usize;
                    let item = self.item_of(copy, package.range(), byte);
                    if [&first, &other].iter().all(|run| run.before[index][at] == run.after[index][at]) {
                        return Err(wrong(writer, item, byte, Departure::LeavesOut));
                    }
                    let found = self.first_read(package, &ranges, &first, way)?;
                    let (argument, byte) = found.unwrap_or((writer, byte));
                    return Err(wrong(argument, item, byte, Departure::ReadsOutside));
                }
            }
        }
        Ok(Seen { package: package.clone(), ranges, after: first.after })
    }

    /// Compares the results of a package with those of shorter packages of the same items.
    pub(super) fn compare(&self, shorter: &[Seen], longer: &Seen) -> Result<(), CheckError> {
        let all = longer.package.range();
        let within = |seen: &&Seen| all.start <= seen.package.start() && seen.package.end() <= all.end;
        for part in shorter.iter().filter(within) {
            if let Some((index, byte)) = self.disagreement(part, &part.after, &longer.after) {
                let copy = &self.copies[index].copy;
                let item = self.item_of(copy, part.package.range(), byte);
                let writer = (self.named(copy, Access::writes), byte, Departure::DependsOnCut);
                let (argument, byte, how) = self.lacking(part, longer)?.unwrap_or(writer);
                return Err(self.wrong(argument, part.package.range(), item, byte, how));
            }
        }
        Ok(())
    }

    /// Returns the first byte of a package's results that differs between two runs, with the index of its
    /// copy.
    ///
    /// Reductions are left out, because their partials depend on the number of items.
    fn disagreement(&self, part: &Seen, one: &[Vec<u8>], other: &[Vec<u8>]) -> Option<(usize, u64)> {
        self.copies.iter().enumerate().find_map(|(index, Copied { copy, .. })| {
            let mut results = Vec::new();
            for (index, (argument, ranges)) in self.arguments.iter().zip(&part.ranges).enumerate() {
                let is_reduced = self.kernel.arguments()[index].is_reduced();
                if argument.buffer() == copy && argument.access().writes() && !is_reduced {
                    results.extend(ranges.iter().cloned());
                }
            }
            let (differing, results) = (differences(&one[index], &other[index]), joined(results));
            differing.into_iter().find(|byte| is_in(&results, *byte)).map(|byte| (index, byte))
        })
    }

    /// Returns the argument whose footprint is too small for a package, if there is one.
    ///
    /// It extends one footprint at a time to the longer package's bytes: below, above, or both. The footprint
    /// is too small if the package then has the longer one's results.
    fn lacking(&self, part: &Seen, longer: &Seen) -> Result<Option<(usize, u64, Departure)>, CheckError> {
        for (index, argument) in
            self.arguments.iter().enumerate().filter(|(_, argument)| argument.access().reads())
        {
            let (own, all) = (&part.ranges[index], &longer.ranges[index]);
            let (Some(first), Some(last)) = (own.first(), own.last()) else { continue };
            let (start, end) = (all[0].start.min(first.start), all[all.len() - 1].end.max(last.end));
            for (more, byte) in [
                (start..last.end, first.start.saturating_sub(1)),
                (first.start..end, last.end),
                (start..end, last.end),
            ] {
                let mut arguments = self.arguments.clone();
                arguments[index] = argument.with_footprint(Footprint::of({
                    let more = more.clone();
                    move |_| more.clone()
                }));
                let mut ranges = part.ranges.clone();
                ranges[index] = vec![more];
                // A kernel may rely on the size of its view, and fail with a larger one.
                let Ok(run) = self.run(&part.package, &arguments, &ranges, Outside::Latest) else { continue };
                if self.disagreement(part, &run.after, &longer.after).is_none() {
                    let unit = self.copy_of(argument).unit;
                    return Ok(Some((index, byte / unit * unit, Departure::Lacks)));
                }
            }
        }
        Ok(None)
    }

    /// Returns the first byte outside the footprints that affects the results of a package, with its
    /// argument.
    fn first_read(
        &self,
        package: &Package,
        ranges: &[Vec<Range<u64>>],
        first: &Run,
        way: usize,
    ) -> Result<Option<(usize, u64)>, CheckError> {
        for (copy, Copied { copy: buffer, unit, .. }) in self.copies.iter().enumerate() {
            let has_effect = |element: u64| -> Result<bool, CheckError> {
                let outside = Outside::Below { way, copy, byte: element * unit };
                let run = self.run(package, &self.arguments, ranges, outside)?;
                Ok(self.copies.iter().enumerate().any(|(index, Copied { copy, .. })| {
                    let written = self.covered(copy, ranges, Access::writes);
                    let changed = differences(&first.after[index], &run.after[index]);
                    // An unchanged byte is no result.
                    let is_result = |byte: u64| {
                        let at = byte as usize;
                        is_in(&written, byte)
                            && (first.before[index][at] != first.after[index][at]
                                || run.before[index][at] != run.after[index][at])
                    };
                    changed.into_iter().any(is_result)
                }))
            };
            let (mut low, mut high) = (0, buffer.len().div_ceil(*unit));
            if !has_effect(high)? {
                continue;
            }
            // Moving the elements below `low` has no effect; moving those below `high` has one.
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if has_effect(middle)? { high = middle } else { low = middle }
            }
            return Ok(Some((self.named(buffer, Access::reads), low * unit)));
        }
        Ok(None)
    }

    /// Returns the items of the shortest package, found by bisection, that writes a byte outside its
    /// footprints.
    fn writes_outside(&self, items: Range<u64>, copy: usize, byte: u64) -> Range<u64> {
        let grain = self.kernel.grain();
        let is_so = |items: &Range<u64>| {
            let Ok(ranges) = self.ranges(items) else { return false };
            let package = Package::new(items.clone(), UnitId(0), 0);
            [Outside::Latest, Outside::Moved(0)].into_iter().any(|outside| {
                let run = self.run(&package, &self.arguments, &ranges, outside);
                run.is_ok_and(|run| run.before[copy][byte as usize] != run.after[copy][byte as usize])
                    && !is_in(&self.covered(&self.copies[copy].copy, &ranges, Access::writes), byte)
            })
        };
        let mut found = items;
        while found.end - found.start > grain {
            let middle = found.start + (found.end - found.start).div_ceil(grain) / 2 * grain;
            let halves = [found.start..middle, middle..found.end];
            match halves.into_iter().find(|half| !half.is_empty() && is_so(half)) {
                Some(half) => found = half,
                None => break,
            }
        }
        found
    }

    /// Returns the first item of a package whose results include a byte.
    fn item_of(&self, copy: &RawBuffer, items: Range<u64>, byte: u64) -> Option<u64> {
        items.into_iter().find(|item| {
            let ranges = self.ranges(&(*item..item + 1));
            ranges.is_ok_and(|ranges| is_in(&self.covered(copy, &ranges, Access::writes), byte))
        })
    }

    /// Returns the error for an argument, by its index among the buffers.
    fn wrong(
        &self,
        argument: usize,
        items: Range<u64>,
        item: Option<u64>,
        byte: u64,
        how: Departure,
    ) -> CheckError {
        CheckError::Wrong(Box::new(Wrong {
            kernel: self.kernel.name().to_owned(),
            device: self.platform.device_desc(self.device).name.to_string(),
            argument: self.kernel.position(argument),
            buffer: self.kernel.arguments()[argument].buffer().name(),
            items,
            item,
            byte,
            how,
        }))
    }

    fn copy_of(&self, argument: &Argument) -> &Copied {
        let found = self.copies.iter().find(|copied| &copied.copy == argument.buffer());
        found.expect("each argument has a copy")
    }

    /// Returns the index of an argument that uses a copy, if possible one with the access.
    fn named(&self, copy: &RawBuffer, access: impl Fn(Access) -> bool) -> usize {
        let of = |argument: &Argument| argument.buffer() == copy;
        let fitting = self.arguments.iter().position(|argument| of(argument) && access(argument.access()));
        fitting.or_else(|| self.arguments.iter().position(of)).unwrap_or_default()
    }

    /// Returns the merged ranges of a copy that arguments with the access cover.
    fn covered(
        &self,
        copy: &RawBuffer,
        ranges: &[Vec<Range<u64>>],
        access: impl Fn(Access) -> bool,
    ) -> Vec<Range<u64>> {
        let of = self.arguments.iter().zip(ranges);
        let of = of.filter(|(argument, _)| argument.buffer() == copy && access(argument.access()));
        joined(of.flat_map(|(_, ranges)| ranges.iter().cloned()).collect())
    }

    /// Runs a package on the copies.
    fn run(
        &self,
        package: &Package,
        arguments: &[Argument],
        ranges: &[Vec<Range<u64>>],
        outside: Outside,
    ) -> Result<Run, CheckError> {
        let contents = (0..self.copies.len()).map(|index| self.contents(index, ranges, outside)).collect();
        self.run_from(package, arguments, ranges, contents)
    }

    /// Returns the contents of all copies, whatever a package reads.
    pub(super) fn moved(&self, outside: Outside) -> Vec<Vec<u8>> {
        (0..self.copies.len()).map(|index| self.contents(index, &[], outside)).collect()
    }

    /// Returns the range from the first to the last element of a copy with an effect on the results of a
    /// package. Its first run had the latest contents, and those of `moved` other values in all of the copy.
    pub(super) fn read(
        &self,
        copy: usize,
        first: &Run,
        moved: &[Run],
        run: &dyn Fn(Outside) -> Result<Run, CheckError>,
    ) -> Result<Option<Range<u64>>, CheckError> {
        let Copied { copy: buffer, unit, .. } = &self.copies[copy];
        let count = buffer.len().div_ceil(*unit);
        let mut hull: Option<Range<u64>> = None;
        let differs = |run: &Run| {
            (0..self.copies.len()).any(|index| {
                // A byte that neither run changes is no result.
                let is_result = |byte: &u64| {
                    let at = *byte as usize;
                    first.before[index][at] != first.after[index][at]
                        || run.before[index][at] != run.after[index][at]
                };
                differences(&first.after[index], &run.after[index]).iter().any(is_result)
            })
        };
        for (way, moved) in moved.iter().enumerate() {
            let has_effect = |outside: Outside| run(outside).map(|run| differs(&run));
            let below = |element: u64| Outside::Below { way, copy, byte: element * unit };
            let above = |element: u64| Outside::From { way, copy, byte: element * unit };
            if !differs(moved) {
                continue;
            }
            // Moving the elements below `low` has no effect; moving those below `high` has one.
            let (mut low, mut high) = (0, count);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if has_effect(below(middle))? { high = middle } else { low = middle }
            }
            let start = low;
            // Moving the elements from `low` on has an effect; moving those from `high` on has none.
            (low, high) = (start, count);
            while high - low > 1 {
                let middle = low + (high - low) / 2;
                if has_effect(above(middle))? { low = middle } else { high = middle }
            }
            let own = start * unit..((low + 1) * unit).min(buffer.len());
            hull = Some(hull.map_or(own.clone(), |hull| hull.start.min(own.start)..hull.end.max(own.end)));
        }
        Ok(hull)
    }

    /// Runs a package on the copies with these contents.
    pub(super) fn run_from(
        &self,
        package: &Package,
        arguments: &[Argument],
        ranges: &[Vec<Range<u64>>],
        all_contents: Vec<Vec<u8>>,
    ) -> Result<Run, CheckError> {
        let mut acquire = self.platform.acquire(self.device);
        for (argument, ranges) in arguments.iter().zip(ranges) {
            // Read access also brings in the contents of ranges that the kernel overwrites.
            let access = if argument.access().writes() { Access::ReadWrite } else { Access::ReadOnly };
            for bytes in ranges {
                acquire = acquire.access_range(argument.buffer(), bytes.clone(), access);
            }
        }
        let mut before = Vec::with_capacity(self.copies.len());
        for (Copied { copy, .. }, contents) in self.copies.iter().zip(all_contents) {
            let mut grants = self.platform.acquire(self.host).write(copy).wait()?;
            grants.write_bytes(copy, &contents)?;
            grants.release()?;
            before.push(contents);
            // Bytes outside the footprints are granted too, so that they can be inspected on the kernel's
            // device.
            for bytes in gaps(self.covered(copy, ranges, |_| true), copy.len()) {
                acquire = acquire.access_range(copy, bytes, Access::ReadWrite);
            }
        }
        let failed = |cause| CheckError::Launch {
            kernel: self.kernel.name().to_owned(),
            items: package.range(),
            cause,
        };
        let items = package.range();
        let mut grants = acquire.wait()?;
        let launched = guarded(|| -> Result<(), KernelError> {
            let arguments = self.kernel.launch_args(package, arguments)?;
            self.launcher.launch(&self.kernel.launch(&items, &arguments), &mut grants)?.wait()?;
            Ok(())
        });
        launched
            .unwrap_or_else(|message| Err(format!("the kernel panicked: {message}").into()))
            .map_err(failed)?;
        let after = self.copies.iter().map(|Copied { copy, .. }| grants.read_bytes(copy));
        let after = after.collect::<Result<_, _>>()?;
        grants.release()?;
        Ok(Run { before, after })
    }

    /// Returns the contents of a copy before a run.
    fn contents(&self, index: usize, ranges: &[Vec<Range<u64>>], outside: Outside) -> Vec<u8> {
        let Copied { copy, latest, moved, .. } = &self.copies[index];
        let differing = outside.moved(index, latest.len()).map_or(0..0, |(_, bytes)| bytes);
        let differing = differing.start as u64..differing.end as u64;
        let bits = |byte: u64| {
            let noise = noise(index as u64 + 1, byte);
            // Where contents must differ, every bit does.
            if differing.contains(&byte) { !noise } else { noise }
        };
        let mut contents: Vec<u8> = match moved {
            None => (0..latest.len() as u64).map(bits).collect(),
            Some(moved) => {
                let mut contents = latest.clone();
                if let Some((way, bytes)) = outside.moved(index, latest.len()) {
                    contents[bytes.clone()].copy_from_slice(&moved[way][bytes]);
                }
                contents
            }
        };
        for bytes in self.covered(copy, ranges, |access| access == Access::WriteInvalidate) {
            contents[bytes.start as usize..bytes.end as usize]
                .iter_mut()
                .zip(bytes)
                .for_each(|(to, byte)| *to = bits(byte));
        }
        for bytes in self.covered(copy, ranges, Access::reads) {
            let bytes = bytes.start as usize..bytes.end as usize;
            contents[bytes.clone()].copy_from_slice(&latest[bytes]);
        }
        contents
    }
}

pub(super) fn differences(one: &[u8], other: &[u8]) -> Vec<u64> {
    const BLOCK: usize = 4096;
    let blocks =
        one.chunks(BLOCK).zip(other.chunks(BLOCK)).enumerate().filter(|(_, (one, other))| one != other);
    let bytes = blocks.flat_map(|(block, (one, other))| {
        let bytes = (block * BLOCK..).zip(one.iter().zip(other));
        bytes.filter(|(_, (one, other))| one != other).map(|(byte, _)| byte as u64)
    });
    bytes.collect()
}

/// Sorts ranges, and merges those that overlap or touch.
pub(super) fn joined(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.retain(|range| !range.is_empty());
    ranges.sort_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let is_joined = next.start <= last.end;
        if is_joined {
            last.end = last.end.max(next.end);
        }
        is_joined
    });
    ranges
}

/// Returns whether a byte is in one of some merged ranges.
fn is_in(ranges: &[Range<u64>], byte: u64) -> bool {
    let behind = ranges.partition_point(|range| range.start <= byte);
    behind > 0 && byte < ranges[behind - 1].end
}

/// Returns the parts of a buffer that some ranges leave out.
fn gaps(ranges: Vec<Range<u64>>, len: u64) -> Vec<Range<u64>> {
    let mut gaps = Vec::new();
    let mut next = 0;
    for range in joined(ranges) {
        if range.start > next {
            gaps.push(next..range.start);
        }
        next = range.end;
    }
    if next < len {
        gaps.push(next..len);
    }
    gaps
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "lists of ranges are what is tested")]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_ranges_leave() {
        assert_eq!(gaps(vec![5..7, 1..3, 2..4, 9..9], 10), [0..1, 4..5, 7..10]);
        assert_eq!(gaps(vec![0..10], 10), [0..0; 0]);
        assert_eq!(gaps(Vec::new(), 3), [0..3]);
        let some = joined(vec![5..7, 1..3, 2..4, 9..9, 7..8]);
        assert_eq!(some, [1..4, 5..8]);
        assert!((0..10).all(|byte| is_in(&some, byte) == ((1..4).contains(&byte) || (5..8).contains(&byte))));
    }
}
