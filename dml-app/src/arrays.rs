//! The arrays of an application, whatever their elements are.

use crate::data;
use crate::element::{Element, with_type};
use crate::error::ApplicationError;
use crate::plan::{ArrayPlan, Source};
use crate::schema::Operation;
use dml_core::{AcquireError, Buffer, Platform, RawBuffer};
use dml_scheduler::{Argument, Iterate};
use std::any::Any;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// A buffer of any element type.
pub(crate) trait Array: Any + fmt::Debug + Send + Sync {
    fn raw(&self) -> &RawBuffer;

    /// Writes the first contents.
    fn fill(&self, plan: &ArrayPlan) -> Result<(), ApplicationError>;

    /// Writes a file of this shape.
    fn store(&self, path: &Path, shape: &[u64]) -> Result<(), std::io::Error>;

    /// Waits until the contents are in main memory.
    fn collect(&self) -> Result<(), AcquireError>;

    /// Returns the first element.
    fn first(&self) -> Result<f64, AcquireError>;

    fn reduction(&self, operation: Operation) -> Argument;

    /// Adds the exchange with an array of the same type.
    fn swap<'a>(&self, other: &dyn Array, iterate: Iterate<'a>) -> Iterate<'a>;

    fn as_any(&self) -> &dyn Any;
}

/// Makes a buffer for an array.
pub(crate) fn allocate(platform: &Platform, plan: &ArrayPlan) -> Result<Arc<dyn Array>, ApplicationError> {
    with_type!(plan.element, T => {
        let buffer = platform.buffer::<T>(plan.elements()).label(&*plan.name).build();
        let buffer = buffer.map_err(|cause| ApplicationError::Allocate { array: plan.name.clone(), cause })?;
        Ok(Arc::new(buffer))
    })
}

impl<T: Element> Array for Buffer<T> {
    fn raw(&self) -> &RawBuffer {
        Buffer::raw(self)
    }

    fn fill(&self, plan: &ArrayPlan) -> Result<(), ApplicationError> {
        let failed = |cause| ApplicationError::Access { array: plan.name.clone(), cause: Box::new(cause) };
        let mut elements = self.write().map_err(failed)?;
        match &plan.from {
            Source::Zeros => elements.fill(T::zeroed()),
            Source::Value(value) => elements.fill(T::from_number(*value).unwrap_or(T::zeroed())),
            Source::File(path) => data::read(path, &mut elements).map_err(|cause| {
                ApplicationError::File { array: plan.name.clone(), path: path.clone(), cause }
            })?,
            Source::Random { seed, low, high } => {
                for (element, number) in elements.iter_mut().zip(0_u64..) {
                    *element = T::random(word(*seed, number), *low, *high);
                }
            }
        }
        elements.release().map_err(failed)
    }

    fn store(&self, path: &Path, shape: &[u64]) -> Result<(), std::io::Error> {
        let elements = self.read().map_err(std::io::Error::other)?;
        data::write(path, shape, &elements)
    }

    fn collect(&self) -> Result<(), AcquireError> {
        self.read().map(drop)
    }

    fn first(&self) -> Result<f64, AcquireError> {
        Ok(self.read()?[0].real())
    }

    fn reduction(&self, operation: Operation) -> Argument {
        Argument::reduction(self, T::identity(operation), move |one, other| T::combine(operation, one, other))
    }

    fn swap<'a>(&self, other: &dyn Array, iterate: Iterate<'a>) -> Iterate<'a> {
        let other = other.as_any().downcast_ref::<Self>().expect("arrays of one type change places");
        iterate.swap(self, other)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns 64 random bits for a seed and a number.
///
/// # Source
/// SplitMix64 ("Fast splittable pseudorandom number generators").
fn word(seed: u64, number: u64) -> u64 {
    let mixed = |mut word: u64| {
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    };
    mixed(mixed(seed).wrapping_add(number.wrapping_add(1).wrapping_mul(0x9E37_79B9_7F4A_7C15)))
}
