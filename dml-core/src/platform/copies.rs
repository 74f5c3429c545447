//! The copies that the events of a recording describe.

use crate::base::id::{ArenaId, BufferId, LinkId, OwnerId};
use crate::base::range::Span;
use crate::platform::record::Event;
use crate::state::EventKind;
use std::collections::HashMap;
use std::time::Duration;

/// A copy between two arenas, or a fill with zeros, as the events of a
/// [`Recording`](super::record::Recording) describe it.
///
/// # Shape and units
/// Times are on the [clock of the platform](crate::Platform::elapsed).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecordedCopy {
    /// The buffer that the bytes belong to.
    pub buffer: BufferId,
    /// The source; `None` for a fill.
    pub from: Option<ArenaId>,
    /// The destination.
    pub to: ArenaId,
    /// The span of the copy.
    pub span: Span,
    /// The link that carried them; `None` for a fill.
    pub link: Option<LinkId>,
    /// The time at which the copy started.
    pub begun: Duration,
    /// The time at which core noticed the end, or gave the plan up; `None` if the copy had not ended.
    pub ended: Option<Duration>,
    /// Whether the bytes arrived.
    pub has_arrived: bool,
}

/// Returns the copies among some events, in the order of their starts. Copies within one storage move nothing
/// and are omitted.
pub fn copies<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<RecordedCopy> {
    type Key = (BufferId, OwnerId, Option<ArenaId>, ArenaId, Span);
    // The indices in `copies` of unfinished copies, the earliest last.
    let mut open: HashMap<Key, Vec<usize>> = HashMap::new();
    let mut copies: Vec<RecordedCopy> = Vec::new();
    for Event { at, buffer, kind } in events {
        match *kind {
            EventKind::CopyStarted { owner, from, to, span, link } if from.is_none() == link.is_none() => {
                open.entry((*buffer, owner, from, to, span)).or_default().insert(0, copies.len());
                let (buffer, begun) = (*buffer, *at);
                copies.push(RecordedCopy {
                    buffer,
                    from,
                    to,
                    span,
                    link,
                    begun,
                    ended: None,
                    has_arrived: false,
                });
            }
            EventKind::CopyDone { owner, from, to, span } => {
                if let Some(place) = open.get_mut(&(*buffer, owner, from, to, span)).and_then(Vec::pop) {
                    (copies[place].ended, copies[place].has_arrived) = (Some(*at), true);
                }
            }
            EventKind::GivenUp { owner } => {
                let ended = open.extract_if(|copy, _| (copy.0, copy.1) == (*buffer, owner));
                ended.flat_map(|(_, places)| places).for_each(|place| copies[place].ended = Some(*at));
            }
            _ => {}
        }
    }
    copies
}
