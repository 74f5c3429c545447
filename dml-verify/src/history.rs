//! Checks a recorded history: replays the machine's events on a model of bytes.
//!
//! ```text
//!   events of one buffer, in order ──▶ replay: valid-sets, last commits, grants, copies ──▶ what contradicts them
//! ```
//! The checker knows the events and the fixed facts of the platform (devices, possible bindings), and nothing
//! of `BufferState`. It keeps the state of each byte separately, so it cannot repeat a mistake in range
//! arithmetic.

use crate::arenas;
use dml_core::internal::state::Outcome;
use dml_core::{
    Access, Allocation, ArenaId, ArenaSet, BufferId, Claim, Claims, Concurrency, DeviceSet, OwnerId,
    Platform, Seq, Span,
    record::{Event, EventKind, Recording},
};
use std::collections::BTreeMap;
use std::ops::Deref;

/// Checks that a history is allowed, from the making of every buffer to the last release.
///
/// # Panics
/// When the history is not allowed; the message lists every contradiction.
pub fn assert_history(platform: &Platform, events: &[Event]) {
    let found = violations(platform, events);
    assert!(found.is_empty(), "{found:#?}");
}

/// A platform whose whole history is checked when this value is dropped. Tests make their platforms through
/// it.
///
/// Declare it first in a test: it is then dropped last, after the buffers and grants. It dereferences to a
/// [`Platform`]. A clone of that platform may outlive this value, but must grant nothing then.
#[derive(Debug)]
pub struct Audited {
    platform: Platform,
    recording: Option<Recording>,
}

impl Audited {
    /// Records every event of a platform from now on.
    #[must_use]
    pub fn new(platform: Platform) -> Self {
        let recording = Some(platform.record());
        Self { platform, recording }
    }
}

impl Deref for Audited {
    type Target = Platform;

    fn deref(&self) -> &Platform {
        &self.platform
    }
}

impl Drop for Audited {
    /// # Panics
    /// When the history contradicts itself, unless the thread is already panicking.
    fn drop(&mut self) {
        let events = self.recording.take().map_or_else(Vec::new, Recording::finish);
        if !std::thread::panicking() {
            assert_history(&self.platform, &events);
        }
    }
}

/// Returns a message for every contradiction in the events.
#[must_use]
pub fn violations(platform: &Platform, events: &[Event]) -> Vec<String> {
    let mut buffers: BTreeMap<BufferId, Replay<'_>> = BTreeMap::new();
    let mut found = Vec::new();
    for (index, Event { buffer, kind, .. }) in events.iter().enumerate() {
        if let EventKind::Created { len, data_in, zeroed } = *kind {
            buffers.insert(*buffer, Replay::new(platform, len, data_in, zeroed));
            continue;
        }
        let Some(replay) = buffers.get_mut(buffer) else {
            found.push(format!("{index}: {buffer} was never made"));
            continue;
        };
        replay.step(kind);
        found.extend(replay.found.drain(..).map(|what| format!("{index}: {buffer} {kind:?}: {what}")));
    }
    for (buffer, replay) in buffers {
        found.extend(replay.grants.keys().map(|grant| format!("{buffer}: {grant} was never released")));
        found.extend(replay.copies.iter().map(|copy| format!("{buffer}: {copy:?} never ended")));
    }
    found
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Contents {
    Undefined,
    Zeroed,
    Defined,
}

#[derive(Clone, Copy, Debug)]
struct Byte {
    valid: ArenaSet,
    /// What the byte holds, or held before a writer failed.
    contents: Contents,
    poisoned: bool,
    commit: Seq,
}

#[derive(Clone, Debug)]
struct Holding {
    arena: ArenaId,
    claims: Claims,
    /// Whether it was granted although kernels on the stream of its arena held some of its bytes.
    is_behind: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Copy {
    owner: OwnerId,
    from: Option<ArenaId>,
    to: ArenaId,
    span: Span,
}

struct Replay<'a> {
    platform: &'a Platform,
    bytes: Vec<Byte>,
    /// The arenas with storage, each with the arena that owns the storage.
    storage: BTreeMap<ArenaId, ArenaId>,
    lost: ArenaSet,
    lost_devices: DeviceSet,
    grants: BTreeMap<OwnerId, Holding>,
    /// The grants of kernels on streams, in the order of their launches.
    launched: Vec<OwnerId>,
    copies: Vec<Copy>,
    /// The finished copies of each request that is not granted yet.
    made_for: BTreeMap<OwnerId, Vec<Copy>>,
    commit: Seq,
    found: Vec<String>,
}

impl<'a> Replay<'a> {
    fn new(platform: &'a Platform, len: u64, data_in: Option<ArenaId>, zeroed: bool) -> Self {
        let contents = match (data_in, zeroed) {
            (Some(_), _) => Contents::Defined,
            (None, true) => Contents::Zeroed,
            (None, false) => Contents::Undefined,
        };
        let byte = Byte { valid: arenas(data_in), contents, poisoned: false, commit: Seq(0) };
        Self {
            platform,
            bytes: vec![byte; len as usize],
            storage: data_in.into_iter().map(|arena| (arena, arena)).collect(),
            lost: ArenaSet::EMPTY,
            lost_devices: DeviceSet::EMPTY,
            launched: Vec::new(),
            grants: BTreeMap::new(),
            copies: Vec::new(),
            made_for: BTreeMap::new(),
            commit: Seq(0),
            found: Vec::new(),
        }
    }

    fn expect(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.found.push(what());
        }
    }

    fn at(&self, span: Span) -> &[Byte] {
        &self.bytes[span.start() as usize..span.end() as usize]
    }

    fn change(&mut self, span: Span, mut change: impl FnMut(&mut Byte)) {
        self.bytes[span.start() as usize..span.end() as usize].iter_mut().for_each(&mut change);
    }

    fn everything(&self) -> Span {
        Span::new(0, self.bytes.len() as u64)
    }

    fn root(&self, arena: ArenaId) -> ArenaId {
        self.storage.get(&arena).copied().unwrap_or(arena)
    }

    fn group(&self, arena: ArenaId) -> ArenaSet {
        let root = self.root(arena);
        let members = self.storage.iter().filter(|(_, of)| **of == root).map(|(member, _)| *member);
        members.fold(ArenaSet::of(arena), ArenaSet::with)
    }

    /// Returns the concurrency of the binding of `arena` to `root`, if a link binds them.
    fn binding(&self, arena: ArenaId, root: ArenaId) -> Option<Concurrency> {
        self.platform.links().iter().find_map(|link| match link.allocation {
            Allocation::Bound(concurrency) if (link.from, link.to) == (root, arena) => Some(concurrency),
            _ => None,
        })
    }

    /// Returns the arenas that see every write to this arena's storage at once.
    fn mirrors(&self, arena: ArenaId) -> ArenaSet {
        let (group, root) = (self.group(arena), self.root(arena));
        let members = group.iter().filter(|&member| member != root);
        let bound = members.filter_map(|member| self.binding(member, root));
        let narrowest = bound.fold(self.platform.arena(root).desc().concurrency, Ord::min);
        match narrowest {
            Concurrency::BimapFull => group.minus(self.lost),
            _ => ArenaSet::of(arena),
        }
    }

    fn step(&mut self, kind: &EventKind) {
        match *kind {
            EventKind::Granted { grant, arena, ref claims, seq, .. } => {
                self.granted(grant, arena, claims, seq)
            }
            EventKind::Launched { grant } => self.launched.push(grant),
            EventKind::ResultBegun { grant, arena, span } => self.result_begun(grant, arena, span),
            EventKind::Released { grant, outcome, commit } => self.released(grant, outcome, commit),
            EventKind::Downgraded { grant, commit } => self.downgraded(grant, commit),
            EventKind::CopyStarted { owner, from, to, span, .. } => {
                self.started(Copy { owner, from, to, span })
            }
            EventKind::CopyDone { owner, from, to, span } => self.copied(Copy { owner, from, to, span }),
            EventKind::Prefetched { owner, .. } => {
                self.made_for.remove(&owner);
            }
            EventKind::GivenUp { owner } => {
                self.copies.retain(|copy| copy.owner != owner);
                self.made_for.remove(&owner);
            }
            EventKind::Allocated { arena, root } => self.allocated(arena, root),
            EventKind::Attached { arena, commit } => {
                self.allocated(arena, None);
                if commit.is_some() {
                    let claims =
                        Claims::new([Claim { span: self.everything(), access: Access::WriteInvalidate }]);
                    let held =
                        self.grants.values().any(|of| !of.claims.is_empty()) || !self.copies.is_empty();
                    self.expect(!held, || "contents are replaced under a kernel or a copy".to_owned());
                    self.commit(&Holding { arena, claims, is_behind: false });
                    let now = self.commit;
                    self.expect(commit == Some(now), || format!("the next commit is {now:?}"));
                }
            }
            EventKind::Freed { arena } => {
                let had = self.storage.remove(&arena).is_some();
                self.expect(had, || format!("{arena} had no storage"));
                // New storage of a member is usable even if the root of its old group was lost.
                if !self.lost_devices.contains(self.platform.desc(arena).native) {
                    self.lost = self.lost.without(arena);
                }
                let all = self.everything();
                self.change(all, |byte| byte.valid = byte.valid.without(arena));
                // The freed arena may have been the one that kept the group from sharing coherently.
                let left: Vec<_> = self.storage.keys().map(|&left| self.mirrors(left)).collect();
                self.change(all, |byte| {
                    let held = left.iter().filter(|mirrors| !byte.valid.intersection(**mirrors).is_empty());
                    byte.valid = held.fold(byte.valid, |valid, mirrors| valid.union(*mirrors));
                });
            }
            EventKind::Restored { span } => {
                let gone =
                    |byte: &Byte| byte.poisoned && byte.contents != Contents::Zeroed && byte.valid.is_empty();
                let lost = self.at(span).iter().any(gone);
                self.expect(!lost, || "restored what nobody holds".to_owned());
                self.change(span, |byte| byte.poisoned = false);
            }
            EventKind::DeviceLost { device } => {
                let native = |arena: &ArenaId| self.platform.desc(*arena).native == device;
                let gone: Vec<_> =
                    (0..self.platform.arenas().len() as u8).map(ArenaId).filter(native).collect();
                let owned = gone.iter().filter(|arena| self.root(**arena) == **arena);
                let groups =
                    owned.fold(arenas(gone.iter().copied()), |set, arena| set.union(self.group(*arena)));
                self.lost = self.lost.union(groups);
                self.lost_devices = self.lost_devices.with(device);
                let all = self.everything();
                self.change(all, |byte| {
                    byte.valid = byte.valid.minus(groups);
                    byte.poisoned |= byte.valid.is_empty() && byte.contents == Contents::Defined;
                });
            }
            _ => {}
        }
    }

    fn granted(&mut self, grant: OwnerId, arena: ArenaId, claims: &Claims, seq: Seq) {
        let now = self.commit;
        self.expect(seq == now, || format!("sees commit {seq:?}, the last is {now:?}"));
        let has_storage = claims.is_empty() || self.storage.contains_key(&arena);
        self.expect(has_storage, || format!("{arena} has no storage"));
        // It may be granted beside kernels on the stream of its arena; then it must be launched there, too.
        let before: Vec<OwnerId> =
            self.launched.iter().copied().filter(|id| self.is_on(*id, arena)).collect();
        let mut is_behind = false;
        for claim in claims {
            if claim.access.reads() {
                let newest = self.at(claim.span).iter().map(|byte| byte.commit).max().unwrap_or_default();
                self.expect(newest <= seq, || format!("{} was committed by {newest:?}", claim.span));
                if let Some(stale) = self.unfit(arena, claim.span, &before) {
                    self.expect(false, || format!("{stale} is not valid in {arena}"));
                }
            }
            let torn = claim.access.writes() && self.copies.iter().any(|copy| copy.span.overlaps(claim.span));
            self.expect(!torn, || format!("{} is being copied", claim.span));
            let held = |of: &Holding| of.claims.iter().any(|other| other.conflicts(claim));
            let mut rivals: Vec<_> =
                self.grants.iter().filter(|(_, of)| held(of)).map(|(id, _)| *id).collect();
            is_behind |= rivals.iter().any(|id| before.contains(id));
            rivals.retain(|id| !before.contains(id));
            self.expect(rivals.is_empty(), || format!("{rivals:?} hold {}", claim.span));
        }
        for copy in self.made_for.remove(&grant).unwrap_or_default() {
            let reads = claims.iter().filter(|claim| claim.access.reads());
            let wanted =
                reads.filter_map(|claim| claim.span.intersection(copy.span)).map(Span::len).sum::<u64>();
            self.expect(wanted == copy.span.len(), || format!("{copy:?} brought what nobody asked to read"));
        }
        let holding = Holding { arena, claims: claims.clone(), is_behind };
        let twice = self.grants.insert(grant, holding).is_some();
        self.expect(!twice, || "granted twice".to_owned());
    }

    /// Returns whether a grant is through an arena.
    fn is_on(&self, grant: OwnerId, arena: ArenaId) -> bool {
        self.grants.get(&grant).is_some_and(|holding| holding.arena == arena)
    }

    /// Returns the first byte of a span that a kernel cannot read in an arena, apart from those that the
    /// kernels `before` it write.
    fn unfit(&self, arena: ArenaId, span: Span, before: &[OwnerId]) -> Option<u64> {
        let written = |at: u64| {
            let of = before.iter().filter_map(|id| self.grants.get(id)).flat_map(|holding| &holding.claims);
            let at = Span::new(at, at + 1);
            of.into_iter().any(|claim| claim.access.writes() && claim.span.overlaps(at))
        };
        let unfit = |byte: &Byte| {
            !byte.valid.contains(arena) || byte.poisoned || byte.contents == Contents::Undefined
        };
        span.to_range().zip(self.at(span)).find(|(at, byte)| unfit(byte) && !written(*at)).map(|(at, _)| at)
    }

    /// Checks the end of a kernel that was granted behind others on its stream.
    fn ends_behind(&mut self, grant: OwnerId, holding: &Holding) {
        let place = self.launched.iter().position(|id| *id == grant);
        self.expect(place.is_some(), || {
            "granted behind kernels on a stream, and not launched there".to_owned()
        });
        let earlier = &self.launched[..place.unwrap_or_default()];
        let overtakes = earlier.iter().find(|id| {
            let other = self.grants.get(id).filter(|other| other.arena == holding.arena);
            other.is_some_and(|other| other.claims.conflict(&holding.claims))
        });
        let overtakes = overtakes.copied();
        self.expect(overtakes.is_none(), || {
            format!("ends before {overtakes:?}, which was launched before it")
        });
        for claim in holding.claims.iter().filter(|claim| claim.access.reads()) {
            let unfit = self.unfit(holding.arena, claim.span, &[]);
            self.expect(unfit.is_none(), || format!("has read byte {unfit:?}, which is not valid there"));
        }
    }

    /// Commits the writes of a grant. Returns whether the grant wrote anything.
    fn commit(&mut self, holding: &Holding) -> bool {
        let writes: Vec<Span> =
            holding.claims.iter().filter(|claim| claim.access.writes()).map(|claim| claim.span).collect();
        if writes.is_empty() {
            return false;
        }
        self.commit = Seq(self.commit.0 + 1);
        let (valid, commit) = (self.mirrors(holding.arena), self.commit);
        for span in writes {
            self.change(span, |byte| {
                *byte = Byte { valid, contents: Contents::Defined, poisoned: false, commit }
            });
        }
        true
    }

    fn result_begun(&mut self, grant: OwnerId, arena: ArenaId, span: Span) {
        let overwrites = |claim: &Claim| claim.access == Access::WriteInvalidate;
        let is_its =
            self.grants.get(&grant).is_some_and(|of| of.claims.touching(span).iter().all(overwrites));
        self.expect(is_its, || format!("{span} is no result of {grant}"));
        let group = self.group(arena);
        self.change(span, |byte| {
            byte.valid = byte.valid.minus(group);
            byte.poisoned |= byte.valid.is_empty() && byte.contents == Contents::Defined;
        });
    }

    fn released(&mut self, grant: OwnerId, outcome: Outcome, commit: Option<Seq>) {
        let Some(holding) = self.grants.remove(&grant) else {
            self.found.push("released what was not granted".to_owned());
            return;
        };
        if holding.is_behind && outcome == Outcome::Done {
            self.ends_behind(grant, &holding);
        }
        self.launched.retain(|launched| *launched != grant);
        let committed = outcome == Outcome::Done && self.commit(&holding);
        let now = self.commit;
        self.expect(commit == committed.then_some(now), || format!("the next commit is {now:?}"));
        if outcome == Outcome::Failed {
            let group = self.group(holding.arena);
            for claim in holding.claims.iter().filter(|claim| claim.access.writes()) {
                self.change(claim.span, |byte| {
                    byte.valid = byte.valid.minus(group);
                    byte.poisoned = true;
                    // Bytes that were never written, or that no arena holds, cannot be restored.
                    if byte.contents == Contents::Undefined {
                        byte.contents = Contents::Defined;
                    }
                });
            }
        }
        let clean_overwrite = outcome == Outcome::Clean
            && holding.claims.iter().any(|claim| claim.access == Access::WriteInvalidate);
        self.expect(!clean_overwrite, || "an overwriter cannot be clean".to_owned());
    }

    fn downgraded(&mut self, grant: OwnerId, commit: Seq) {
        let Some(mut holding) = self.grants.get(&grant).cloned() else {
            self.found.push("downgraded what was not granted".to_owned());
            return;
        };
        self.commit(&holding);
        let now = self.commit;
        self.expect(commit == now, || format!("the commit is {now:?}"));
        holding.claims = holding.claims.reading();
        self.grants.insert(grant, holding);
    }

    fn started(&mut self, copy: Copy) {
        let Copy { owner, from, to, span } = copy;
        let refresh = from.is_some_and(|from| self.root(from) == self.root(to));
        let group = self.group(to);
        for arena in from.into_iter().chain([to]) {
            let there = self.storage.contains_key(&arena);
            self.expect(there, || format!("{arena} has no storage"));
        }
        // On the last hop into coherent storage, a refresh may report bytes that the previous hop already
        // made valid.
        let coherent = from.is_some_and(|from| self.mirrors(from).contains(to));
        let already = !coherent && self.at(span).iter().any(|byte| byte.valid.contains(to));
        self.expect(!already, || format!("{to} is valid there already"));
        match from {
            Some(from) => {
                let stale = self.at(span).iter().any(|byte| !byte.valid.contains(from));
                self.expect(!stale, || format!("{from} is not valid there"));
            }
            None => {
                let written =
                    self.at(span).iter().any(|byte| byte.contents != Contents::Zeroed || byte.poisoned);
                self.expect(!written, || "zeros over what was written".to_owned());
            }
        }
        let twice = self
            .copies
            .iter()
            .any(|other| group.contains(other.to) && other.span.overlaps(span) && other.owner != owner);
        self.expect(!twice && !self.copies.contains(&copy), || {
            "the bytes are being filled already".to_owned()
        });
        for (id, holding) in self.grants.clone() {
            for claim in holding.claims.iter().filter(|claim| claim.span.overlaps(span)) {
                let beneath = !refresh && group.contains(holding.arena);
                self.expect(!claim.access.writes() && !beneath, || format!("{id} holds {}", claim.span));
            }
        }
        self.copies.push(copy);
    }

    fn copied(&mut self, copy: Copy) {
        let Some(index) = self.copies.iter().position(|other| *other == copy) else {
            self.found.push("this copy was not started".to_owned());
            return;
        };
        self.copies.swap_remove(index);
        self.made_for.entry(copy.owner).or_default().push(copy);
        if !self.lost.contains(copy.to) {
            let mirrors = self.mirrors(copy.to);
            self.change(copy.span, |byte| {
                // Bytes lost on their way are not valid on arrival. Bytes read before their memory was lost
                // are valid.
                let lost = byte.poisoned && byte.valid.is_empty() && byte.contents == Contents::Defined;
                if !lost {
                    byte.valid = byte.valid.union(mirrors);
                }
            });
        }
    }

    fn allocated(&mut self, arena: ArenaId, root: Option<ArenaId>) {
        let twice = self.storage.insert(arena, root.unwrap_or(arena)).is_some();
        self.expect(!twice, || format!("{arena} had storage"));
        if let Some(root) = root {
            let owns = self.storage.get(&root) == Some(&root);
            self.expect(owns, || format!("{root} has no storage of its own"));
            if self.mirrors(root).contains(arena) {
                let all = self.everything();
                self.change(all, |byte| {
                    if byte.valid.contains(root) {
                        byte.valid = byte.valid.with(arena);
                    }
                });
            }
        }
    }
}
