//! Which transfers and waits the events of a recording tell of.

use super::{TraceTransfer, TraceWait, ns};
use dml_core::{ArenaId, BufferId, Event, EventKind, KernelId, OwnerId, Platform, Span, Ticket};
use std::collections::BTreeMap;
use std::time::Duration;

/// A copy that has begun: its buffer, whose it is, and where its bytes go from and to.
type Copy = (BufferId, OwnerId, Option<ArenaId>, ArenaId, u64, u64);

/// Reads events in their order. What began before `begun`, which is on the clock of the platform, is left out.
pub(super) fn read(
    platform: &Platform,
    begun: Duration,
    events: &[Event],
) -> (Vec<TraceTransfer>, Vec<TraceWait>) {
    let mut reader = Reader {
        platform,
        open: BTreeMap::new(),
        waiting: BTreeMap::new(),
        transfers: Vec::new(),
        waits: Vec::new(),
    };
    let mut last = 0;
    for event in events {
        let Some(at) = event.at.checked_sub(begun).map(ns) else { continue };
        last = at.max(last);
        reader.step(event.buffer, &event.kind, at);
    }
    reader.finish(last)
}

struct Reader<'a> {
    platform: &'a Platform,
    /// The transfers under way, by their places in `transfers`.
    open: BTreeMap<Copy, Vec<usize>>,
    /// The requests in a queue: when they were put there, and whose they are.
    waiting: BTreeMap<(BufferId, Ticket), (KernelId, u64)>,
    transfers: Vec<TraceTransfer>,
    waits: Vec<TraceWait>,
}

impl Reader<'_> {
    fn step(&mut self, buffer: BufferId, kind: &EventKind, at: u64) {
        match *kind {
            EventKind::CopyStarted { owner, from, to, span, link } => {
                let mechanism = match (link, from) {
                    (Some(link), _) => self.platform.cross_arena(link).name().to_owned(),
                    (None, None) => "fill".to_owned(),
                    // Both ends are one storage: no byte moves.
                    (None, Some(_)) => return,
                };
                let place = self.transfers.len();
                self.open.entry(copy(buffer, owner, from, to, span)).or_default().push(place);
                self.transfers.push(TraceTransfer {
                    from: from.map(|arena| usize::from(arena.0)),
                    to: usize::from(to.0),
                    mechanism,
                    buffer: buffer.0,
                    first_byte: span.start(),
                    bytes: span.len(),
                    begin_ns: at,
                    end_ns: at,
                    arrived: false,
                });
            }
            EventKind::CopyDone { owner, from, to, span } => {
                let key = copy(buffer, owner, from, to, span);
                let Some(places) = self.open.get_mut(&key) else { return };
                let place = places.remove(0);
                if places.is_empty() {
                    self.open.remove(&key);
                }
                let transfer = &mut self.transfers[place];
                (transfer.end_ns, transfer.arrived) = (at.max(transfer.begin_ns), true);
            }
            EventKind::GivenUp { owner } => {
                let of_owner = |key: &Copy| key.0 == buffer && key.1 == owner;
                for (_, places) in self.open.extract_if(.., |key, _| of_owner(key)) {
                    for place in places {
                        let transfer = &mut self.transfers[place];
                        transfer.end_ns = at.max(transfer.begin_ns);
                    }
                }
            }
            EventKind::Queued { ticket, kernel } => {
                self.waiting.insert((buffer, ticket), (kernel, at));
            }
            EventKind::Cancelled { ticket } => {
                if let Some((_, since)) = self.waiting.remove(&(buffer, ticket)) {
                    self.waited(None, buffer, since, at);
                }
            }
            EventKind::Granted { kernel, arena, .. } => {
                // A kernel has one request of a buffer in its queue at a time, or several that are granted in their order.
                let of_buffer = self.waiting.range((buffer, Ticket(0))..=(buffer, Ticket(u64::MAX)));
                let found =
                    of_buffer.into_iter().find(|(_, (waiting, _))| *waiting == kernel).map(|(key, _)| *key);
                if let Some((_, since)) = found.and_then(|key| self.waiting.remove(&key)) {
                    self.waited(Some(usize::from(arena.0)), buffer, since, at);
                }
            }
            _ => {}
        }
    }

    fn waited(&mut self, arena: Option<usize>, buffer: BufferId, since: u64, until: u64) {
        self.waits.push(TraceWait { arena, buffer: buffer.0, begin_ns: since, end_ns: until.max(since) });
    }

    /// What is still under way ends where the recording does.
    fn finish(mut self, last: u64) -> (Vec<TraceTransfer>, Vec<TraceWait>) {
        for place in self.open.into_values().flatten() {
            let transfer = &mut self.transfers[place];
            transfer.end_ns = last.max(transfer.begin_ns);
        }
        self.transfers.sort_by_key(|transfer| transfer.begin_ns);
        self.waits.sort_by_key(|wait| wait.begin_ns);
        (self.transfers, self.waits)
    }
}

fn copy(buffer: BufferId, owner: OwnerId, from: Option<ArenaId>, to: ArenaId, span: Span) -> Copy {
    (buffer, owner, from, to, span.start(), span.end())
}
