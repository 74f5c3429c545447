//! The kernel of a co-execution: its buffers, and how each device runs it.

use crate::guard::{guarded, quietly};
use crate::package::Package;
use dml_core::{Access, DeviceId, Fence, Grants, RawBuffer, Region};
use std::error::Error;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// Why a kernel could not be launched, or failed.
pub type KernelError = Box<dyn Error + Send + Sync>;

/// A launch failed before it wrote anything: the package's arguments stay as they were.
///
/// A variant returns this in place of its error, if it was given storage for writing and knows that no work began.
/// Without it, bytes that were handed out for writing count as poisoned.
#[derive(Debug)]
pub struct NotStarted(KernelError);

impl NotStarted {
    /// Wraps the error that kept the kernel from starting.
    pub fn new(cause: impl Into<KernelError>) -> Self {
        Self(cause.into())
    }
}

impl fmt::Display for NotStarted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Error for NotStarted {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// Which bytes of a buffer a package touches.
#[derive(Clone)]
#[non_exhaustive]
pub enum Footprint {
    /// All bytes, for every package. Not for buffers that are written, because packages run side by side.
    Whole,
    /// A fixed number of bytes per item, item 0 at byte 0; the last item may reach past the buffer's end.
    PerItem {
        /// The number of bytes per item.
        bytes: u64,
    },
    /// The bytes that a function names for a range of items. A function that panics, or names bytes outside the buffer,
    /// fails its package.
    Of(Arc<dyn Fn(Range<u64>) -> Range<u64> + Send + Sync>),
}

impl Footprint {
    /// Returns the bytes that the items touch, within a buffer of `len` bytes.
    #[must_use]
    pub fn bytes(&self, items: Range<u64>, len: u64) -> Range<u64> {
        match self {
            Self::Whole => 0..len,
            Self::PerItem { bytes } => {
                items.start.saturating_mul(*bytes).min(len)..items.end.saturating_mul(*bytes).min(len)
            }
            Self::Of(map) => map(items),
        }
    }
}

impl fmt::Debug for Footprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => f.write_str("Whole"),
            Self::PerItem { bytes } => write!(f, "PerItem({bytes} bytes)"),
            Self::Of(_) => f.write_str("Of(function)"),
        }
    }
}

/// One buffer of a kernel, with its access and footprint.
#[derive(Clone, Debug)]
pub struct Argument {
    buffer: RawBuffer,
    access: Access,
    footprint: Footprint,
}

impl Argument {
    /// Makes an argument that every package reads completely.
    #[must_use]
    pub fn whole(region: &impl Region) -> Self {
        Self { buffer: region.buffer().clone(), access: Access::ReadOnly, footprint: Footprint::Whole }
    }

    /// Makes an argument of which a package uses the part that its footprint names.
    #[must_use]
    pub fn part(region: &impl Region, access: Access, footprint: Footprint) -> Self {
        Self { buffer: region.buffer().clone(), access, footprint }
    }

    /// The buffer of the argument.
    #[must_use]
    pub fn buffer(&self) -> &RawBuffer {
        &self.buffer
    }

    /// The access of the kernel to the buffer.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }

    /// The footprint: which bytes a package touches.
    #[must_use]
    pub fn footprint(&self) -> &Footprint {
        &self.footprint
    }

    /// Returns the bytes that the items touch.
    #[must_use]
    pub fn bytes(&self, items: Range<u64>) -> Range<u64> {
        self.footprint.bytes(items, self.buffer.len())
    }

    /// Returns the bytes as [`bytes`](Self::bytes) does, and turns a panic of the footprint into an error.
    pub(crate) fn checked_bytes(&self, package: &Package) -> Result<Range<u64>, KernelError> {
        guarded(|| self.bytes(package.range()))
            .map_err(|message| format!("the footprint panicked: {message}").into())
    }

    fn is_readable(&self, package: &Package) -> bool {
        // The acquire refuses a footprint that panics or reaches past the buffer.
        let bytes = self.checked_bytes(package).ok();
        bytes.and_then(|bytes| self.buffer.is_readable(bytes).ok()).unwrap_or(true)
    }
}

/// How one kind of device runs a kernel.
///
/// # What a variant owes
/// - **K-1** It writes only bytes that it was granted for writing, and all of those that it was granted for
///   overwriting. Views on the host hold it to the first; what it does through a block is its own affair. The kernels of the
///   project's workloads refuse items that they have no bytes for. (`requests` `slices_are_of_granted_aligned_whole_elements`;
///   `sizes` `items_beyond_those_prepared_are_refused_before_their_launch`)
/// - **K-2** It returns a fence that ends when the work does, or an error. A panic is an error: the package goes to another unit.
///   (`hostile` `a_variant_that_panics_hands_its_work_to_the_others`)
/// - **K-3** [`NotStarted`] says that nothing was written. (`hostile` `a_launch_that_did_not_start_spoils_nothing`)
/// - **K-4** It may use core, with the package's buffers in its hands. (`hostile` `a_variant_may_use_core`)
/// - **K-5** It leaves the package's own grants in `grants`. Otherwise the package fails, what stands there is rolled back, and the
///   package's grants end where the variant has put them. (`hostile` `a_variant_that_exchanges_its_grants_fails`)
pub trait Variant: Send + Sync {
    /// Computes the package's items. `grants` holds the kernel's arguments in their order, each for the bytes of its
    /// footprint. A host kernel computes in this call and returns a fence that is done. A device kernel is started
    /// here, and its fence waits for it.
    ///
    /// # Errors
    /// The error that keeps the kernel from running. The package then goes to another unit. Bytes that were handed out
    /// for writing count as poisoned, unless the error is [`NotStarted`].
    fn launch(&self, package: &Package, grants: &mut Grants) -> Result<Fence, KernelError>;
}

impl<F> Variant for F
where
    F: Fn(&Package, &mut Grants) -> Result<Fence, KernelError> + Send + Sync,
{
    fn launch(&self, package: &Package, grants: &mut Grants) -> Result<Fence, KernelError> {
        self(package, grants)
    }
}

/// A data-parallel kernel over items `0..n`: its arguments and a variant for each device that can run it.
#[derive(Clone)]
pub struct Kernel {
    name: String,
    local_size: u64,
    arguments: Vec<Argument>,
    variants: Vec<(DeviceId, Arc<dyn Variant>)>,
}

impl Kernel {
    /// Makes a kernel without arguments or variants. All packages but the last are multiples of `local_size` items.
    #[must_use]
    pub fn new(name: impl Into<String>, local_size: u64) -> Self {
        Self { name: name.into(), local_size, arguments: Vec::new(), variants: Vec::new() }
    }

    /// Adds an argument.
    #[must_use]
    pub fn argument(mut self, argument: Argument) -> Self {
        self.arguments.push(argument);
        self
    }

    /// Sets how a device runs the kernel; the last call for a device counts.
    #[must_use]
    pub fn variant(mut self, device: DeviceId, variant: impl Variant + 'static) -> Self {
        let variant: Arc<dyn Variant> = Arc::new(variant);
        match self.variants.iter_mut().find(|(other, _)| *other == device) {
            Some((_, known)) => quietly(std::mem::replace(known, variant)),
            None => self.variants.push((device, variant)),
        }
        self
    }

    /// The kernel's name, for reports.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The local work size in items.
    #[must_use]
    pub fn local_size(&self) -> u64 {
        self.local_size
    }

    /// The arguments, in their order.
    #[must_use]
    pub fn arguments(&self) -> &[Argument] {
        &self.arguments
    }

    /// The devices that can run the kernel.
    pub fn devices(&self) -> impl Iterator<Item = DeviceId> + '_ {
        self.variants.iter().map(|(device, _)| *device)
    }

    /// The arguments that the kernel writes.
    pub(crate) fn written(&self) -> impl Iterator<Item = &Argument> + '_ {
        self.arguments.iter().filter(|argument| argument.access().writes())
    }

    /// Returns whether all results of a computed package can be read, in any arena.
    pub(crate) fn has_results(&self, package: &Package) -> bool {
        self.written().all(|argument| argument.is_readable(package))
    }

    /// Returns whether all inputs of a package can be read, in any arena.
    pub(crate) fn has_inputs(&self, package: &Package) -> bool {
        let mut read = self.arguments.iter().filter(|argument| argument.access().reads());
        read.all(|argument| argument.is_readable(package))
    }

    pub(crate) fn variant_for(&self, device: DeviceId) -> Option<&Arc<dyn Variant>> {
        self.variants.iter().find(|(other, _)| *other == device).map(|(_, variant)| variant)
    }
}

/// Variants and footprints are dropped one after the other: two that panic in one unwinding would end the process.
impl Drop for Kernel {
    fn drop(&mut self) {
        std::mem::take(&mut self.variants).into_iter().for_each(quietly);
        std::mem::take(&mut self.arguments).into_iter().for_each(quietly);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel")
            .field("name", &self.name)
            .field("local_size", &self.local_size)
            .field("arguments", &self.arguments)
            .field("devices", &self.devices().collect::<Vec<_>>())
            .finish()
    }
}
