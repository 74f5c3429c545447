//! One call of a function, with its arguments by position.

use super::{ComputeError, Part, Team};
use bytemuck::Pod;
use dml_core::{Scalar, WrongScalar};
use std::borrow::Cow;
use std::ops::Range;

/// One call of a kernel that is a function: the items to compute, and the arguments.
///
/// An argument has the position at which the kernel declares it, whatever its kind. Local memory has a
/// position too, but no value.
///
/// # Examples
/// The kernel is `Kernel::new("scale", 64).scalar(2.5_f32).read_write(&data)`:
/// ```
/// use dml_arenas::launch::{Call, ComputeError};
///
/// fn scale(call: &mut Call<'_>) -> Result<(), ComputeError> {
///     let factor: f32 = call.scalar(0)?;
///     call.part(1)?.slice_mut::<f32>()?.iter_mut().for_each(|value| *value *= factor);
///     Ok(())
/// }
/// ```
#[derive(Debug)]
pub struct Call<'a> {
    items: Range<u64>,
    /// `None` for the team of the process.
    team: Option<&'a Team>,
    given: Vec<Given<'a>>,
}

/// One argument of a call.
#[derive(Debug)]
pub(crate) enum Given<'a> {
    Part(Part<'a>),
    Scalar(Scalar),
    Bytes(Cow<'a, [u8]>),
    Local,
}

impl Given<'_> {
    fn describe(&self) -> Cow<'static, str> {
        match self {
            Self::Part(_) => "a buffer".into(),
            Self::Scalar(scalar) => format!("a scalar ({})", scalar.type_name()).into(),
            Self::Bytes(bytes) => format!("a value of {} bytes", bytes.len()).into(),
            Self::Local => "local memory".into(),
        }
    }
}

impl<'a> Call<'a> {
    pub(crate) fn new(items: Range<u64>, team: Option<&'a Team>, given: Vec<Given<'a>>) -> Self {
        Self { items, team, given }
    }

    /// Returns the items to compute, by their numbers in the whole run.
    #[must_use]
    pub fn items(&self) -> Range<u64> {
        self.items.clone()
    }

    /// Returns the threads among which the function may divide its items.
    #[must_use]
    pub fn team(&self) -> &'a Team {
        self.team.unwrap_or_else(|| Team::global())
    }

    /// Returns the number of arguments.
    #[must_use]
    pub fn arguments(&self) -> usize {
        self.given.len()
    }

    /// Returns the part of a buffer that the call may use.
    ///
    /// # Errors
    /// An error if the argument does not exist or is not a buffer.
    pub fn part(&mut self, argument: usize) -> Result<&mut Part<'a>, ComputeError> {
        let [part] = self.parts([argument])?;
        Ok(part)
    }

    /// Returns the parts of several buffers at once.
    ///
    /// # Errors
    /// An error if one of the arguments does not exist, is not a buffer, or is named twice.
    pub fn parts<const N: usize>(
        &mut self,
        arguments: [usize; N],
    ) -> Result<[&mut Part<'a>; N], ComputeError> {
        for (place, &argument) in arguments.iter().enumerate() {
            match self.given(argument)? {
                Given::Part(_) if arguments[..place].contains(&argument) => {
                    return Err(format!("argument {argument} is named twice").into());
                }
                Given::Part(_) => {}
                other => {
                    return Err(format!("argument {argument} is {}, not a buffer", other.describe()).into());
                }
            }
        }
        let given = self.given.get_disjoint_mut(arguments)?;
        Ok(given.map(|given| match given {
            Given::Part(part) => part,
            _ => unreachable!("checked above"),
        }))
    }

    /// Returns the parts of all buffers, in order.
    pub fn all_parts(&mut self) -> impl Iterator<Item = &mut Part<'a>> {
        self.given.iter_mut().filter_map(|given| match given {
            Given::Part(part) => Some(part),
            _ => None,
        })
    }

    /// Returns a scalar, which must be of type `T`.
    ///
    /// # Errors
    /// An error if the argument does not exist, is not a scalar, or is one of another type.
    pub fn scalar<T: TryFrom<Scalar, Error = WrongScalar>>(
        &self,
        argument: usize,
    ) -> Result<T, ComputeError> {
        match self.given(argument)? {
            Given::Scalar(scalar) => {
                T::try_from(*scalar).map_err(|wrong| format!("argument {argument}: {wrong}").into())
            }
            other => Err(format!("argument {argument} is {}, not a scalar", other.describe()).into()),
        }
    }

    /// Returns a value that was given as bytes, such as a structure.
    ///
    /// # Errors
    /// An error if the argument does not exist, is not such a value, or has another size.
    pub fn value<T: Pod>(&self, argument: usize) -> Result<T, ComputeError> {
        match self.given(argument)? {
            Given::Bytes(bytes) => bytemuck::try_pod_read_unaligned(bytes).map_err(|_| {
                let wanted = std::any::type_name::<T>();
                let (given, size) = (bytes.len(), size_of::<T>());
                format!("argument {argument} has {given} bytes, and a {wanted} has {size}").into()
            }),
            other => Err(format!("argument {argument} is {}, not a value", other.describe()).into()),
        }
    }

    fn given(&self, argument: usize) -> Result<&Given<'a>, ComputeError> {
        let count = self.given.len();
        self.given
            .get(argument)
            .ok_or_else(|| format!("there is no argument {argument}: the kernel has {count}").into())
    }

    #[cfg(all(feature = "offload", target_os = "linux"))]
    pub(crate) fn all_given(&self) -> &[Given<'a>] {
        &self.given
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(given: Vec<Given<'static>>) -> Call<'static> {
        Call::new(3..9, None, given)
    }

    #[test]
    fn arguments_have_their_positions_whatever_they_are() {
        let bytes = || Given::Bytes(Cow::Owned(vec![1, 0, 0, 0, 2, 0, 0, 0]));
        let mut call =
            call(vec![Given::Scalar(Scalar::I64(-7)), Given::Local, bytes(), Given::Scalar(Scalar::I32(-3))]);
        assert_eq!((call.items(), call.arguments()), (3..9, 4));
        assert_eq!((call.scalar::<i64>(0).unwrap(), call.scalar::<i32>(3).unwrap()), (-7, -3));
        assert_eq!(call.value::<[u32; 2]>(2).unwrap(), [1, 2]);
        let told = [
            call.scalar::<u32>(0).unwrap_err(),
            call.scalar::<u32>(1).unwrap_err(),
            call.scalar::<u32>(4).unwrap_err(),
            call.value::<u32>(2).unwrap_err(),
            call.value::<u32>(0).unwrap_err(),
            call.part(2).map(drop).unwrap_err(),
        ];
        assert_eq!(
            told.map(|error| error.to_string()),
            [
                "argument 0: the scalar is I64(-7), not u32",
                "argument 1 is local memory, not a scalar",
                "there is no argument 4: the kernel has 4",
                "argument 2 has 8 bytes, and a u32 has 4",
                "argument 0 is a scalar (i64), not a value",
                "argument 2 is a value of 8 bytes, not a buffer",
            ]
        );
    }

    #[test]
    fn no_part_is_had_twice_at_once() {
        let part = |argument| Given::Part(Part::new(argument, Vec::new()));
        let mut call = call(vec![part(0), Given::Local, part(2)]);
        assert_eq!(call.parts([2, 0]).unwrap().map(|part| part.argument()), [2, 0]);
        assert_eq!(call.all_parts().map(|part| part.argument()).collect::<Vec<_>>(), [0, 2]);
        assert_eq!(call.parts([0, 2, 0]).unwrap_err().to_string(), "argument 0 is named twice");
        assert!(call.parts([0, 1]).unwrap_err().to_string().contains("local memory"));
    }
}
