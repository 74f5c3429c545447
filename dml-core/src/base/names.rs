//! The names of arenas and buffers in errors.

use crate::base::id::{ArenaId, BufferId};
use crate::base::range::Span;
use crate::base::sync::Arc;

/// The name of an arena in an error: its id and its display name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaName {
    /// The id of the arena.
    pub id: ArenaId,
    /// The name of the arena, such as `opencl:0`.
    pub name: Arc<str>,
}

impl std::fmt::Display for ArenaName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name)
    }
}

/// The name of a buffer in an error: its id and its label. It is one pointer wide, so that errors stay small.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct BufferName(Arc<About>);

#[derive(Debug, Eq, Default)]
struct About {
    id: BufferId,
    label: Option<Arc<str>>,
    /// Size of an element, in bytes; 0 for a buffer without an element type.
    element_bytes: u64,
}

/// A buffer without an element type equals one of bytes: a name that is made from an id alone has no type.
impl PartialEq for About {
    fn eq(&self, other: &Self) -> bool {
        let of = |about: &Self| (about.id, about.label.clone(), about.element_bytes.max(1));
        of(self) == of(other)
    }
}

impl BufferName {
    pub(crate) fn new(id: BufferId, label: Option<Arc<str>>, element_bytes: u64) -> Self {
        Self(Arc::new(About { id, label, element_bytes }))
    }

    /// Returns the id of the buffer.
    #[must_use]
    pub fn id(&self) -> BufferId {
        self.0.id
    }

    /// Returns the label, if the buffer has one.
    #[must_use]
    pub fn label(&self) -> Option<&str> {
        self.0.label.as_deref()
    }

    /// Returns the size of an element in bytes; 1 for a buffer of bytes.
    #[must_use]
    pub fn element_bytes(&self) -> u64 {
        self.0.element_bytes.max(1)
    }

    /// Returns whether the buffer has an element type, which may be a byte.
    #[must_use]
    pub fn is_typed(&self) -> bool {
        self.0.element_bytes > 0
    }

    /// Returns a range of bytes as text for messages. It includes the elements, if they are larger than one
    /// byte.
    #[must_use]
    pub fn bytes(&self, span: Span) -> String {
        format!("{self} bytes {}", self.range(span.start(), span.end()))
    }

    /// Returns the bounds of a range of bytes as text. They include those of the elements, if these are
    /// larger than one byte.
    pub(crate) fn range(&self, start: u64, end: u64) -> String {
        match self.element_bytes() {
            0 | 1 => format!("{start}..{end}"),
            size => format!("{start}..{end} (elements {}..{})", start / size, end.div_ceil(size)),
        }
    }
}

impl PartialEq<BufferId> for BufferName {
    fn eq(&self, id: &BufferId) -> bool {
        self.id() == *id
    }
}

impl PartialEq<BufferName> for BufferId {
    fn eq(&self, name: &BufferName) -> bool {
        *self == name.id()
    }
}

impl From<BufferId> for BufferName {
    /// Returns the name of a buffer of bytes without a label.
    fn from(id: BufferId) -> Self {
        Self::new(id, None, 0)
    }
}

impl std::fmt::Display for BufferName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.label() {
            Some(label) => write!(f, "{label:?} ({})", self.id()),
            None => self.id().fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_that_of_its_buffer_alone() {
        let (id, other) = (BufferId(3), BufferId(4));
        let name = BufferName::new(id, Some("forces".into()), 4);
        assert_eq!([name == id, id == name, name == other, other == name], [true, true, false, false]);
        assert_eq!(
            (name.to_string(), BufferName::from(id).to_string()),
            (format!("\"forces\" ({id})"), id.to_string())
        );
    }
}
