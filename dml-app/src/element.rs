//! The types of elements.

use crate::expression::Number;
use crate::schema::{ElementType, Operation};
use bytemuck::Pod;
use dml_core::Scalar;
use std::fmt;

impl ElementType {
    /// Returns the type's name in OpenCL C.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Char => "char",
            Self::Uchar => "uchar",
            Self::Short => "short",
            Self::Ushort => "ushort",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Long => "long",
            Self::Ulong => "ulong",
            Self::Float => "float",
            Self::Double => "double",
        }
    }

    /// Returns the size of an element, in bytes.
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Char | Self::Uchar => 1,
            Self::Short | Self::Ushort => 2,
            Self::Int | Self::Uint | Self::Float => 4,
            Self::Long | Self::Ulong | Self::Double => 8,
        }
    }

    /// Returns the type's name in NumPy.
    pub(crate) const fn numpy(self) -> &'static str {
        match self {
            Self::Char => "int8",
            Self::Uchar => "uint8",
            Self::Short => "int16",
            Self::Ushort => "uint16",
            Self::Int => "int32",
            Self::Uint => "uint32",
            Self::Long => "int64",
            Self::Ulong => "uint64",
            Self::Float => "float32",
            Self::Double => "float64",
        }
    }

    /// Returns the scalar of a number.
    pub(crate) fn scalar(self, number: Number) -> Result<Scalar, String> {
        with_type!(self, T => T::from_number(number).map(Scalar::from))
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Evaluates an expression with `$T` as the Rust type of an element type.
macro_rules! with_type {
    ($element:expr, $T:ident => $value:expr) => {{
        use $crate::schema::ElementType;
        match $element {
            ElementType::Char => {
                type $T = i8;
                $value
            }
            ElementType::Uchar => {
                type $T = u8;
                $value
            }
            ElementType::Short => {
                type $T = i16;
                $value
            }
            ElementType::Ushort => {
                type $T = u16;
                $value
            }
            ElementType::Int => {
                type $T = i32;
                $value
            }
            ElementType::Uint => {
                type $T = u32;
                $value
            }
            ElementType::Long => {
                type $T = i64;
                $value
            }
            ElementType::Ulong => {
                type $T = u64;
                $value
            }
            ElementType::Float => {
                type $T = f32;
                $value
            }
            ElementType::Double => {
                type $T = f64;
                $value
            }
        }
    }};
}
pub(crate) use with_type;

/// An element of an array.
pub(crate) trait Element: Pod + fmt::Debug + Send + Sync + Into<Scalar> {
    const TYPE: ElementType;

    /// Converts a number, which must be in the type's range.
    fn from_number(number: Number) -> Result<Self, String>;

    /// Returns the number from `low` up to `high` that 64 random bits stand for.
    fn random(bits: u64, low: Number, high: Number) -> Self;

    /// Returns the intensity from 0 to 255 as an element: from 0 to 1 if it is real.
    fn from_intensity(intensity: u8) -> Self;

    fn intensity(self) -> u8;

    fn real(self) -> f64;

    fn identity(operation: Operation) -> Self;

    fn combine(operation: Operation, one: Self, other: Self) -> Self;
}

macro_rules! integers {
    ($($T:ty: $name:ident),*) => {
        $(impl Element for $T {
            const TYPE: ElementType = ElementType::$name;

            fn from_number(number: Number) -> Result<Self, String> {
                let integer = match number {
                    Number::Integer(number) => <$T>::try_from(number).ok(),
                    Number::Real(_) => None,
                };
                let name = Self::TYPE.name();
                let range = format!("{} to {}", <$T>::MIN, <$T>::MAX);
                integer.ok_or_else(|| format!("{number} is no integer of the type {name}: {range}"))
            }

            fn random(bits: u64, low: Number, high: Number) -> Self {
                let (Number::Integer(low), Number::Integer(high)) = (low, high) else { return 0 };
                // The high half of a product spreads the bits over the range.
                let range = (i128::from(high) - i128::from(low)).max(1) as u128;
                (i128::from(low) + ((u128::from(bits) * range) >> 64) as i128) as Self
            }

            fn from_intensity(intensity: u8) -> Self {
                intensity as Self
            }

            fn intensity(self) -> u8 {
                self.clamp(0, <$T>::try_from(255_u8).unwrap_or(<$T>::MAX)) as u8
            }

            fn real(self) -> f64 {
                self as f64
            }

            fn identity(operation: Operation) -> Self {
                match operation {
                    Operation::Sum => 0,
                    Operation::Product => 1,
                    Operation::Min => <$T>::MAX,
                    Operation::Max => <$T>::MIN,
                }
            }

            fn combine(operation: Operation, one: Self, other: Self) -> Self {
                match operation {
                    Operation::Sum => one.wrapping_add(other),
                    Operation::Product => one.wrapping_mul(other),
                    Operation::Min => one.min(other),
                    Operation::Max => one.max(other),
                }
            }
        })*
    };
}

integers!(i8: Char, u8: Uchar, i16: Short, u16: Ushort, i32: Int, u32: Uint, i64: Long, u64: Ulong);

macro_rules! reals {
    ($($T:ty: $name:ident),*) => {
        $(impl Element for $T {
            const TYPE: ElementType = ElementType::$name;

            fn from_number(number: Number) -> Result<Self, String> {
                Ok(number.real() as Self)
            }

            fn random(bits: u64, low: Number, high: Number) -> Self {
                // As many bits as the type has.
                let unit = (bits >> (64 - <$T>::MANTISSA_DIGITS)) as f64 / 2_f64.powi(<$T>::MANTISSA_DIGITS as i32);
                (low.real() + (high.real() - low.real()) * unit) as Self
            }

            fn from_intensity(intensity: u8) -> Self {
                Self::from(intensity) / 255.0
            }

            fn intensity(self) -> u8 {
                (self.clamp(0.0, 1.0) * 255.0).round() as u8
            }

            fn real(self) -> f64 {
                f64::from(self)
            }

            fn identity(operation: Operation) -> Self {
                match operation {
                    Operation::Sum => 0.0,
                    Operation::Product => 1.0,
                    Operation::Min => Self::INFINITY,
                    Operation::Max => Self::NEG_INFINITY,
                }
            }

            fn combine(operation: Operation, one: Self, other: Self) -> Self {
                match operation {
                    Operation::Sum => one + other,
                    Operation::Product => one * other,
                    // No number is the result of one.
                    _ if one.is_nan() || other.is_nan() => Self::NAN,
                    Operation::Min => one.min(other),
                    Operation::Max => one.max(other),
                }
            }
        })*
    };
}

reals!(f32: Float, f64: Double);
