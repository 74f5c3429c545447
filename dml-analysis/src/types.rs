//! Types of C as far as they decide where an element is.

use crate::Language;
use std::rc::Rc;

/// Where a pointer points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Space {
    /// Buffers of the kernel.
    Global,
    /// Memory of a work-group or a work-item, which no other package sees.
    Own,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    Void,
    /// `bool`, whose values are 0 and 1.
    Bool,
    Integer {
        bytes: u64,
        is_signed: bool,
    },
    Real {
        bytes: u64,
    },
    Vector(Rc<Type>, u64),
    Pointer(Rc<Type>, Space),
    Array(Rc<Type>, u64),
    Struct(Rc<Struct>),
    /// Images, samplers and others, of unknown size.
    Opaque,
}

#[derive(Debug, PartialEq)]
pub(crate) struct Struct {
    pub(crate) name: Option<Rc<str>>,
    pub(crate) fields: Vec<(Rc<str>, Type)>,
}

pub(crate) const INT: Type = Type::Integer { bytes: 4, is_signed: true };
pub(crate) const UINT: Type = Type::Integer { bytes: 4, is_signed: false };
pub(crate) const SIZE: Type = Type::Integer { bytes: 8, is_signed: false };

impl Type {
    /// Returns the size in bytes, if it is known.
    pub(crate) fn size(&self) -> Option<u64> {
        match self {
            Self::Void | Self::Bool => Some(1),
            Self::Integer { bytes, .. } | Self::Real { bytes } => Some(*bytes),
            // A vector of three elements has the size of one of four.
            Self::Vector(of, lanes) => Some(of.size()? * if *lanes == 3 { 4 } else { *lanes }),
            Self::Pointer(..) => Some(8),
            Self::Array(of, length) => of.size()?.checked_mul(*length),
            Self::Struct(of) => of.layout().map(|(size, _)| size),
            Self::Opaque => None,
        }
    }

    fn align(&self) -> Option<u64> {
        match self {
            Self::Array(of, _) => of.align(),
            Self::Struct(of) => of.layout().map(|(_, align)| align),
            _ => self.size(),
        }
    }

    /// Returns the type by its name in a language.
    pub(crate) fn named(name: &str, language: Language) -> Option<Self> {
        let integer = |bytes, is_signed| Some(Self::Integer { bytes, is_signed });
        match name {
            "void" => return Some(Self::Void),
            "bool" | "_Bool" => return Some(Self::Bool),
            "char" | "int8_t" | "schar" => return integer(1, true),
            "uchar" | "uint8_t" => return integer(1, false),
            "short" | "int16_t" => return integer(2, true),
            "ushort" | "uint16_t" => return integer(2, false),
            "int" | "int32_t" => return integer(4, true),
            "uint" | "uint32_t" => return integer(4, false),
            "long" | "int64_t" | "ptrdiff_t" | "intptr_t" | "longlong" => return integer(8, true),
            "ulong" | "uint64_t" | "size_t" | "uintptr_t" | "ulonglong" => return integer(8, false),
            "half" => return Some(Self::Real { bytes: 2 }),
            "float" => return Some(Self::Real { bytes: 4 }),
            "double" => return Some(Self::Real { bytes: 8 }),
            "image1d_t" | "image2d_t" | "image3d_t" | "sampler_t" | "event_t" | "DmlItems" | "dim3" => {
                return Some(Self::Opaque);
            }
            _ => {}
        }
        let lanes = [16, 2, 3, 4, 8].into_iter().find(|lanes: &u64| name.ends_with(&lanes.to_string()))?;
        let of = Self::named(&name[..name.len() - lanes.to_string().len()], language)?;
        let (Self::Integer { bytes, .. } | Self::Real { bytes }) = of else { return None };
        Some(match language {
            Language::OpenCl => Self::Vector(Rc::new(of), lanes),
            // Three elements without padding.
            Language::Cuda if lanes == 3 => {
                let fields = ["x", "y", "z"].map(|name| (name.into(), of.clone())).into();
                Self::Struct(Rc::new(Struct { name: None, fields }))
            }
            // The alignment of larger vectors depends on the version of CUDA.
            Language::Cuda if lanes <= 4 && bytes * lanes <= 16 => Self::Vector(Rc::new(of), lanes),
            Language::Cuda => Self::Opaque,
        })
    }

    /// Returns the type of an element, for a pointer or an array.
    pub(crate) fn element(&self) -> Option<&Self> {
        match self {
            Self::Pointer(of, _) | Self::Array(of, _) => Some(of),
            _ => None,
        }
    }
}

impl Type {
    /// Returns the elements of a vector, or the field of a structure, that a name behind a dot means, and
    /// their type.
    pub(crate) fn part(&self, name: &str) -> Option<(Vec<u64>, Self)> {
        match self {
            Self::Vector(of, count) => {
                let lanes = lanes(name, *count)?;
                let own = match lanes.len() {
                    1 => (**of).clone(),
                    count => Self::Vector(of.clone(), count as u64),
                };
                Some((lanes, own))
            }
            Self::Struct(of) => {
                let field = of.fields.iter().position(|(known, _)| **known == *name)?;
                Some((vec![field as u64], of.fields[field].1.clone()))
            }
            _ => None,
        }
    }

    /// Returns the type of the elements of a vector of integers, and how many there are.
    pub(crate) fn integers(&self) -> Option<(&Self, u64)> {
        match self {
            Self::Vector(of, count) if matches!(**of, Self::Integer { .. }) => Some((of, *count)),
            Self::Struct(of) if of.is_vector() => {
                let (_, first) = of.fields.first()?;
                let is_same = of.fields.iter().all(|(_, of)| of == first);
                (is_same && matches!(first, Self::Integer { .. })).then_some((first, of.fields.len() as u64))
            }
            _ => None,
        }
    }
}

impl Struct {
    /// Returns whether the fields are called as the elements of a vector.
    pub(crate) fn is_vector(&self) -> bool {
        self.fields.len() <= 4
            && self.fields.iter().zip(["x", "y", "z", "w"]).all(|((name, _), lane)| &**name == lane)
    }

    /// Returns size and alignment, in bytes.
    fn layout(&self) -> Option<(u64, u64)> {
        let (mut end, mut align) = (0_u64, 1);
        for (_, of) in &self.fields {
            let own = of.align()?;
            end = end.next_multiple_of(own) + of.size()?;
            align = align.max(own);
        }
        Some((end.next_multiple_of(align), align))
    }

    /// Returns the type of a field, and where it begins, in bytes.
    pub(crate) fn field(&self, name: &str) -> Option<(u64, &Type)> {
        let mut end = 0_u64;
        for (field, of) in &self.fields {
            let start = end.next_multiple_of(of.align()?);
            if &**field == name {
                return Some((start, of));
            }
            end = start + of.size()?;
        }
        None
    }
}

/// Returns the lanes of a vector that a suffix such as `xy`, `s3` or `lo` names.
pub(crate) fn lanes(suffix: &str, of: u64) -> Option<Vec<u64>> {
    let even = |first| (first..of).step_by(2).collect();
    match suffix {
        "lo" => return Some((0..of / 2).collect()),
        "hi" => return Some((of / 2..of).collect()),
        "even" => return Some(even(0)),
        "odd" => return Some(even(1)),
        _ => {}
    }
    let numbers = suffix.strip_prefix(['s', 'S']).filter(|digits| !digits.is_empty());
    let lane = |character: char| match numbers {
        Some(_) => character.to_digit(16).map(u64::from),
        None => "xyzw".find(character).map(|lane| lane as u64),
    };
    let lanes: Option<Vec<_>> = numbers.unwrap_or(suffix).chars().map(lane).collect();
    lanes.filter(|lanes| lanes.iter().all(|lane| *lane < of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_sizes() {
        for (name, bytes) in [("float", 4), ("uchar16", 16), ("double3", 32), ("int2", 8), ("size_t", 8)] {
            let of = Type::named(name, Language::OpenCl);
            assert_eq!(of.and_then(|of| of.size()), Some(bytes), "{name}");
        }
        assert_eq!(Type::named("float5", Language::OpenCl), None);
        assert_eq!(Type::named("void4", Language::OpenCl), None);
        assert_eq!(Type::named("int16_t", Language::OpenCl).unwrap().size(), Some(2));
        assert_eq!(Type::named("float3", Language::Cuda).unwrap().size(), Some(12));
    }

    #[test]
    fn fields_are_aligned() {
        let named = |name: &str| Type::named(name, Language::OpenCl).unwrap();
        let fields = [("a", "char"), ("b", "float4"), ("c", "short")];
        let fields = fields.map(|(name, of)| (name.into(), named(of))).into();
        let of = Struct { name: None, fields };
        assert_eq!(of.field("b"), Some((16, &named("float4"))));
        assert_eq!(of.field("c"), Some((32, &named("short"))));
        assert_eq!(Type::Struct(Rc::new(of)).size(), Some(48));
    }

    #[test]
    fn lanes_have_names() {
        assert_eq!(lanes("xyz", 4), Some(vec![0, 1, 2]));
        assert_eq!(lanes("sAf", 16), Some(vec![10, 15]));
        assert_eq!(lanes("hi", 4), Some(vec![2, 3]));
        assert_eq!(lanes("w", 3), None);
        assert_eq!(lanes("s", 4), None);
    }
}
