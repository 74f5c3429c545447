//! Checks of changes of map state: a device that gets access sees the bytes, and its writes persist.

use super::Subject;
use super::desk::{Known, Sheet, assert_same, pattern};
use super::misuse::expect_core_bug;
use dml_core::MapState;
use dml_core::{DeviceId, DeviceSet, OwnBlock, Span};

/// A block, and the map state that its arena reported last.
struct Mapped<'a> {
    subject: &'a Subject,
    known: Known<'a>,
    state: MapState,
}

impl<'a> Mapped<'a> {
    fn new(subject: &'a Subject, len: usize) -> Self {
        let known = Known::new(subject, len, len as u64);
        Self { subject, known, state: MapState::initial(subject.desc()) }
    }

    /// Asks for access as core would. If the map state serves the device already, the arena is not called.
    fn serve(&mut self, device: DeviceId, writes: bool) {
        let desc = self.subject.desc();
        if self.state.serves(desc, desc.concurrency, device, writes) {
            return;
        }
        let target = self.state.serving(desc, desc.concurrency, device, writes);
        let block = &self.known.block;
        let report = if device == desc.native { block.unmap(target) } else { block.map(device, target) };
        let state = report.expect("the map state changes");
        let asked = format!("{target:?} was asked for, {state:?} reported");
        assert!(state.is_well_formed(desc), "a state that {} cannot have: {asked}", desc.name);
        assert!(state.serves(desc, desc.concurrency, device, writes), "no use to device {device}: {asked}");
        if let Some(told) = self.subject.arena().map_state(block.block()) {
            assert_eq!(told, state, "what the arena says of a state that it has reported");
        }
        self.state = state;
    }

    fn check_through_host(&self) {
        let seen = self.known.block.seen().expect("a mapping for the host shows it the bytes");
        assert_eq!(seen.len() as u64, self.known.block.block().len(), "the host sees the whole block");
        assert_same(&seen, &self.known.model, "what a mapping shows");
    }
}

/// A mapping shows the host the device's bytes, and the device gets the host's writes, as often as the block
/// is mapped. An arena that the host always or never reaches has no map states to change.
///
/// # Panics
/// When the arena breaks this rule.
pub fn mappings_show_the_bytes_and_keep_the_changes(subject: &Subject) {
    let (desc, host) = (subject.desc(), subject.host());
    if desc.is_always_bimapped() || desc.remotes.is_empty() {
        let block = subject.alloc(100);
        let state = MapState::Mapped(DeviceSet::of(host));
        let map = || block.map(host, state).map(drop);
        expect_core_bug(subject, "a map of what has no map states", map);
        let unmap = || block.unmap(MapState::Unmapped).map(drop);
        expect_core_bug(subject, "an unmap of what has no map states", unmap);
        Known::new(subject, 100, 1).check();
        return;
    }
    if !desc.remotes.contains(host) {
        // The test cannot read through such a mapping.
        return;
    }
    for len in [0, 1, 4099, (3 << 20) + 5].into_iter().filter(|&len| subject.fits_twice(len as u64)) {
        let mut mapped = Mapped::new(subject, len);
        for round in 0..6 {
            let writes = round % 2 == 1;
            mapped.serve(host, writes);
            mapped.check_through_host();
            if writes {
                let parts = [(0, len.min(1)), (len / 3, len / 2), (len - len.min(3), len)];
                for (start, end) in parts {
                    let bytes = pattern(round + start as u64, end - start);
                    mapped.known.block.overwrite(start, &bytes);
                    mapped.known.model[start..end].copy_from_slice(&bytes);
                }
                mapped.check_through_host();
            }
            mapped.serve(desc.native, true);
            mapped.known.check();
            // The next mapping must show what the device writes meanwhile.
            let (start, end) = (len / 4, len / 4 * 3);
            mapped.known.put(start, &pattern(round + 77, end - start));
            mapped.known.fill(len / 2, len / 2 + len.min(1) * (len - len / 2), round as u8 + 0x21);
        }
        mapped.known.check();
    }
    // Each block has its own map state.
    let (mut one, other) = (Mapped::new(subject, 5001), Mapped::new(subject, 5001));
    one.serve(host, true);
    other.known.check();
    one.check_through_host();
    one.serve(desc.native, true);
    one.known.check();
}

/// An impossible change of map state is a bug of core: the arena panics and names itself.
///
/// # Panics
/// When the arena makes the change, or reports it as an error.
pub fn map_states_out_of_turn_are_bugs_of_core(subject: &Subject) {
    let (desc, host) = (subject.desc(), subject.host());
    if desc.is_always_bimapped() || !desc.remotes.contains(host) {
        return;
    }
    let stranger = DeviceId(60);
    let map = |block: &OwnBlock, device, state| block.map(device, state).map(drop);
    let mut mapped = Mapped::new(subject, 4097);
    let target = MapState::initial(desc).serving(desc, desc.concurrency, host, true);
    expect_core_bug(subject, "a map for a device that is no remote", || {
        map(&mapped.known.block, stranger, target)
    });
    expect_core_bug(subject, "an unmap of what is not mapped", || {
        mapped.known.block.unmap(MapState::Unmapped).map(drop)
    });
    mapped.serve(host, true);
    expect_core_bug(subject, "a second map", || map(&mapped.known.block, host, mapped.state));
    if !mapped.state.gives(desc, desc.native) {
        let (sheet, block) = (Sheet::scrap(10), &mapped.known.block);
        expect_core_bug(subject, "a copy into what is mapped", || {
            sheet.copy_into(block, 0)?.wait().map(drop)
        });
        expect_core_bug(subject, "a copy out of what is mapped", || {
            sheet.copy_out_of(block, 0)?.wait().map(drop)
        });
        expect_core_bug(subject, "a fill of what is mapped", || {
            block.fill(Span::new(0, 10), 1)?.wait().map(drop)
        });
    }
    mapped.check_through_host();
    mapped.serve(desc.native, true);
    mapped.known.check();
}
