//! The copies that the events of a recording tell of.

use dml_core::record::{Event, EventKind};
use dml_core::{ArenaId, BufferId, LinkId, OwnerId, Span};
use std::collections::HashMap;
use std::time::Duration;

/// A copy that began, and moves bytes: from one arena to another, or a fill with zeros. Times are on the clock of the platform.
#[cfg_attr(
    not(feature = "timeline"),
    allow(dead_code, reason = "a timeline tells more of a copy than its times")
)]
#[derive(Clone, Debug)]
pub(crate) struct Copied {
    pub(crate) buffer: BufferId,
    /// `None` for a fill.
    pub(crate) from: Option<ArenaId>,
    pub(crate) to: ArenaId,
    pub(crate) span: Span,
    /// `None` for a fill.
    pub(crate) link: Option<LinkId>,
    pub(crate) begun: Duration,
    /// When somebody noticed its end, or its plan was given up; `None` if it had not ended.
    pub(crate) ended: Option<Duration>,
    /// Whether its bytes came to the destination.
    pub(crate) has_arrived: bool,
}

/// Returns the copies in the order in which they began. A copy whose both ends are one storage moves nothing, and is left out.
pub(crate) fn copies<'a>(events: impl IntoIterator<Item = &'a Event>) -> Vec<Copied> {
    type Key = (BufferId, OwnerId, Option<ArenaId>, ArenaId, Span);
    // The places in `copies` of those under way, the earliest last.
    let mut open: HashMap<Key, Vec<usize>> = HashMap::new();
    let mut copies: Vec<Copied> = Vec::new();
    for Event { at, buffer, kind } in events {
        match *kind {
            EventKind::CopyStarted { owner, from, to, span, link } if from.is_none() == link.is_none() => {
                open.entry((*buffer, owner, from, to, span)).or_default().insert(0, copies.len());
                let (buffer, begun) = (*buffer, *at);
                copies.push(Copied { buffer, from, to, span, link, begun, ended: None, has_arrived: false });
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
