//! The transfers and waits in the events of a recording.

use super::{TraceTransfer, TraceWait, ns};
use dml_core::record::{RecordedCopy, copies};
use dml_core::{
    ArenaId, BufferId, KernelId, Platform, Ticket,
    record::{Event, EventKind},
};
use std::collections::BTreeMap;
use std::time::Duration;

/// Reads events in recorded order. Omits transfers and waits that began before `begun`, a time on the
/// platform's clock.
pub(super) fn read(
    platform: &Platform,
    begun: Duration,
    events: &[Event],
) -> (Vec<TraceTransfer>, Vec<TraceWait>) {
    let of_run = || events.iter().filter(|event| event.at >= begun);
    let since_begun = |at: Duration| ns(at.saturating_sub(begun));
    // A transfer still in flight ends with the recording.
    let last = of_run().map(|event| event.at).max().unwrap_or(begun);
    let transfer = |copy: RecordedCopy| {
        let mechanism = copy.link.map_or("fill", |link| platform.cross_arena(link).name());
        TraceTransfer {
            from: copy.from.map(|arena| usize::from(arena.0)),
            to: usize::from(copy.to.0),
            mechanism: mechanism.to_owned(),
            buffer: copy.buffer.0,
            first_byte: copy.span.start(),
            bytes: copy.span.len(),
            begin_ns: since_begun(copy.begun),
            end_ns: since_begun(copy.ended.unwrap_or(last).max(copy.begun)),
            arrived: copy.has_arrived,
        }
    };
    let mut transfers: Vec<_> = copies(of_run()).into_iter().map(transfer).collect();
    transfers.sort_by_key(|transfer| transfer.begin_ns);
    let mut queues = Queues::default();
    of_run().for_each(|event| queues.step(event.buffer, &event.kind, since_begun(event.at)));
    queues.waits.sort_by_key(|wait| wait.begin_ns);
    (transfers, queues.waits)
}

/// Returns the arena or link that an event names and the platform lacks. A link must also join the named
/// arenas.
pub(super) fn unknown(platform: &Platform, kind: &EventKind) -> Option<String> {
    let arenas = platform.arenas().len();
    let missing = |arena: &ArenaId| usize::from(arena.0) >= arenas;
    match *kind {
        EventKind::CopyStarted { from, to, link, .. } => {
            if let Some(arena) = from.into_iter().chain([to]).find(missing) {
                return Some(format!("arena {arena}"));
            }
            let link = link.filter(|link| {
                let found = platform.links().get(usize::from(link.0));
                found.is_none_or(|found| (Some(found.from), found.to) != (from, to))
            })?;
            let from = from.map_or_else(|| "nowhere".to_owned(), |from| from.to_string());
            Some(format!("link {link} from {from} to {to}"))
        }
        EventKind::CopyDone { from, to, .. } => {
            from.into_iter().chain([to]).find(missing).map(|arena| format!("arena {arena}"))
        }
        EventKind::Granted { arena, .. } => Some(arena).filter(missing).map(|arena| format!("arena {arena}")),
        _ => None,
    }
}

#[derive(Default)]
struct Queues {
    /// The queued requests, each with its kernel and the time at which it was queued.
    waiting: BTreeMap<(BufferId, Ticket), (KernelId, u64)>,
    waits: Vec<TraceWait>,
}

impl Queues {
    fn step(&mut self, buffer: BufferId, kind: &EventKind, at: u64) {
        match *kind {
            EventKind::Queued { ticket, kernel } => {
                self.waiting.insert((buffer, ticket), (kernel, at));
            }
            EventKind::Cancelled { ticket } => {
                if let Some((_, since)) = self.waiting.remove(&(buffer, ticket)) {
                    self.waited(None, buffer, since, at);
                }
            }
            EventKind::Granted { kernel, arena, .. } => {
                // Requests of one kernel in the queue of one buffer are granted in queue order.
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
}
