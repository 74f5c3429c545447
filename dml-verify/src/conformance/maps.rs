//! Changes of map state: who is let in sees the bytes, and what it writes is there afterwards.

use super::Subject;
use super::desk::{Known, assert_same, overwrite, pattern, seen};
use super::misuse::expect_core_bug;
use dml_core::state::MapState;
use dml_core::{BlockRef, DeviceId, DeviceSet, HostSpan, MapReport, Span};

/// A block and the map state that its arena has reported last.
struct Mapped<'a> {
    subject: &'a Subject,
    known: Known<'a>,
    state: MapState,
    host: Option<HostSpan>,
}

impl<'a> Mapped<'a> {
    fn new(subject: &'a Subject, len: usize) -> Self {
        let known = Known::new(subject, len, len as u64);
        Self { subject, known, state: MapState::initial(subject.desc()), host: None }
    }

    /// Asks for access as core would: where the state serves the device already, for nothing.
    fn serve(&mut self, device: DeviceId, writes: bool) {
        let (arena, desc) = (self.subject.arena(), self.subject.desc());
        if self.state.serves(desc, desc.concurrency, device, writes) {
            return;
        }
        let target = self.state.serving(desc, desc.concurrency, device, writes);
        let block = &self.known.block;
        let report =
            if device == desc.native { arena.unmap(block, target) } else { arena.map(block, device, target) };
        let MapReport { state, host } = report.expect("the map state changes");
        let asked = format!("{target:?} was asked for, {state:?} reported");
        assert!(state.is_well_formed(desc), "a state that {} cannot have: {asked}", desc.name);
        assert!(state.serves(desc, desc.concurrency, device, writes), "no use to device {device}: {asked}");
        (self.state, self.host) = (state, host);
    }

    /// What the host sees of it.
    fn span(&self) -> &HostSpan {
        let span = self.host.as_ref().expect("a mapping for the host shows it the bytes");
        assert_eq!(span.len(), self.known.block.len(), "the host sees the whole block");
        span
    }

    fn check_through_host(&self) {
        assert_same(&seen(self.span()), &self.known.model, "what a mapping shows");
    }
}

/// A mapping shows the host what the device has, the device has what the host wrote through it, and that as often as it is
/// asked for. An arena that is always in reach, or never, has no map states to change.
///
/// # Panics
/// Where it is otherwise.
pub fn mappings_show_the_bytes_and_keep_the_changes(subject: &Subject) {
    let (desc, host) = (subject.desc(), subject.host());
    if desc.is_always_bimapped() || desc.remotes.is_empty() {
        let block = subject.alloc(100);
        let state = MapState::Mapped(DeviceSet::of(host));
        let map = || subject.arena().map(&block, host, state).map(drop);
        expect_core_bug(subject, "a map of what has no map states", map);
        let unmap = || subject.arena().unmap(&block, MapState::Unmapped).map(drop);
        expect_core_bug(subject, "an unmap of what has no map states", unmap);
        Known::new(subject, 100, 1).check();
        return;
    }
    if !desc.remotes.contains(host) {
        // Nobody here can look through such a mapping.
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
                    overwrite(&mapped.span().slice(Span::new(start as u64, end as u64)), &bytes);
                    mapped.known.model[start..end].copy_from_slice(&bytes);
                }
                mapped.check_through_host();
            }
            mapped.serve(desc.native, true);
            mapped.known.check();
            // What the device writes meanwhile has to be seen by the next mapping.
            let (start, end) = (len / 4, len / 4 * 3);
            mapped.known.put(start, &pattern(round + 77, end - start));
            mapped.known.fill(len / 2, len / 2 + len.min(1) * (len - len / 2), round as u8 + 0x21);
        }
        mapped.known.check();
    }
    // The map state of one block is its own.
    let (mut one, other) = (Mapped::new(subject, 5001), Mapped::new(subject, 5001));
    one.serve(host, true);
    other.known.check();
    one.check_through_host();
    one.serve(desc.native, true);
    one.known.check();
}

/// A map state that cannot come next is a bug of core, and a panic that names the arena.
///
/// # Panics
/// Where the arena does it, or reports it as an error.
pub fn map_states_out_of_turn_are_bugs_of_core(subject: &Subject) {
    let (desc, host, arena) = (subject.desc(), subject.host(), subject.arena());
    if desc.is_always_bimapped() || !desc.remotes.contains(host) {
        return;
    }
    let stranger = DeviceId(60);
    let map = |block: &BlockRef, device, state| arena.map(block, device, state).map(drop);
    let mut mapped = Mapped::new(subject, 4097);
    let target = MapState::initial(desc).serving(desc, desc.concurrency, host, true);
    expect_core_bug(subject, "a map for a device that is no remote", || {
        map(&mapped.known.block, stranger, target)
    });
    expect_core_bug(subject, "an unmap of what is not mapped", || {
        arena.unmap(&mapped.known.block, MapState::Unmapped).map(drop)
    });
    mapped.serve(host, true);
    expect_core_bug(subject, "a second map", || map(&mapped.known.block, host, mapped.state));
    if !mapped.state.gives(desc, desc.native) {
        let sheet = super::desk::Sheet::scrap(10);
        let (span, block) = (sheet.span(), mapped.known.block.clone());
        expect_core_bug(subject, "a copy into what is mapped", || {
            arena.copy_in(&block, 0, &span)?.wait().map(drop)
        });
        expect_core_bug(subject, "a copy out of what is mapped", || {
            arena.copy_out(&block, 0, &span)?.wait().map(drop)
        });
        expect_core_bug(subject, "a fill of what is mapped", || {
            arena.fill(&block, Span::new(0, 10), 1)?.wait().map(drop)
        });
    }
    mapped.check_through_host();
    mapped.serve(desc.native, true);
    mapped.known.check();
}
