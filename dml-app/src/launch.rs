//! Launchers of a kernel's variants.

use crate::error::ApplicationError;
use crate::plan::{Code, KernelPlan, VariantPlan};
use dml_analysis::Language;
#[cfg(any(feature = "cuda", feature = "opencl"))]
use dml_arenas::launch::{CompiledKernel, CompiledLauncher};
use dml_core::{
    DeviceId, Fence, Grants, ItemShape, Launch, LaunchArg, LaunchError, Launcher, Misfit, Platform,
};
use std::sync::Arc;

/// Runs a kernel of which a work-item computes a tile of items, in groups of its own.
#[derive(Debug)]
struct Tiled {
    inner: Arc<dyn Launcher>,
    /// The work-items, and how they are grouped.
    shape: ItemShape,
    /// The items of a work-item along the axis of the items.
    tile: u64,
}

impl Launcher for Tiled {
    fn check(&self, arguments: &[LaunchArg]) -> Result<(), Misfit> {
        self.inner.check(arguments)
    }

    fn check_groups(&self, _items: &ItemShape) -> Result<(), Misfit> {
        self.inner.check_groups(&self.shape)
    }

    fn label(&self) -> Arc<str> {
        self.inner.label()
    }

    fn runs_in_order(&self) -> bool {
        self.inner.runs_in_order()
    }

    fn follows_copies(&self) -> bool {
        self.inner.follows_copies()
    }

    fn runs_within_launch(&self) -> bool {
        self.inner.runs_within_launch()
    }

    fn launch(&self, launch: &Launch<'_>, grants: &mut Grants) -> Result<Fence, LaunchError> {
        // Packages begin with whole tiles, and all but the last one end with them.
        let items = launch.items.start / self.tile..launch.items.end.div_ceil(self.tile);
        let mut tiles = *launch;
        (tiles.items, tiles.total, tiles.shape) = (&items, launch.total.div_ceil(self.tile), &self.shape);
        self.inner.launch(&tiles, grants)
    }
}

/// Returns a shape with these numbers of work-items and sizes of groups, in which items are along `axis`.
pub(crate) fn shape(items: [u64; 3], group: [u64; 3], dimensions: usize, axis: usize) -> ItemShape {
    let inner: Vec<usize> = (0..dimensions).filter(|other| *other != axis).collect();
    let shape = match inner[..] {
        [] => ItemShape::line(group[0]),
        [x] => ItemShape::rows(items[x], [group[x], group[axis]]),
        [x, y, ..] => ItemShape::planes([items[x], items[y]], [group[x], group[y], group[axis]]),
    };
    shape.along(axis).unwrap_or(shape)
}

/// Returns the language of a device that compiles sources.
pub(crate) fn language(platform: &Platform, device: DeviceId) -> Option<Language> {
    #[cfg(feature = "opencl")]
    if platform.home_as::<dml_arenas::OpenClArena>(device).is_some() {
        return Some(Language::OpenCl);
    }
    #[cfg(feature = "cuda")]
    if platform.home_as::<dml_arenas::CudaArena>(device).is_some() {
        return Some(Language::Cuda);
    }
    let _ = (platform, device);
    None
}

/// Returns the source for a device; the reason if there is none.
pub(crate) fn code<'a>(
    platform: &Platform,
    device: DeviceId,
    variant: &'a VariantPlan,
) -> Result<&'a Code, &'static str> {
    match language(platform, device) {
        Some(Language::OpenCl) => variant.opencl.as_ref().ok_or("it has no source in OpenCL C"),
        Some(Language::Cuda) => variant.cuda.as_ref().ok_or("it has no source in CUDA C"),
        None => Err("only devices of OpenCL and CUDA compile sources"),
    }
}

/// Compiles a kernel for a device that has a source.
///
/// # Safety
/// As `CompiledLauncher::new`: the source is trusted like the program itself.
pub(crate) unsafe fn launcher(
    platform: &Platform,
    device: DeviceId,
    kernel: &KernelPlan,
) -> Result<Option<Arc<dyn Launcher>>, ApplicationError> {
    let variant = kernel.variant(platform.device_desc(device).kind);
    let inner: Option<Arc<dyn Launcher>> = None;
    #[cfg(feature = "opencl")]
    let inner = match (platform.home_as(device), &variant.opencl) {
        (Some(arena), Some(code)) => {
            // SAFETY: as the caller guarantees.
            Some(unsafe { built::<dml_arenas::opencl::OpenClKernel>(arena, code, &variant.function) }?)
        }
        _ => inner,
    };
    #[cfg(feature = "cuda")]
    let inner = match (platform.home_as(device), &variant.cuda) {
        (Some(arena), Some(code)) => {
            // SAFETY: as the caller guarantees.
            Some(unsafe { built::<dml_arenas::cuda::CudaKernel>(arena, code, &variant.function) }?)
        }
        _ => inner,
    };
    let axes = |axis: usize| kernel.items[axis].div_ceil(variant.tile[axis]);
    let shape = shape([axes(0), axes(1), axes(2)], variant.group, kernel.dimensions, kernel.axis);
    let tiled =
        |inner| Arc::new(Tiled { inner, shape, tile: variant.tile[kernel.axis] }) as Arc<dyn Launcher>;
    Ok(inner.map(tiled))
}

/// # Safety
/// As `CompiledLauncher::new`.
#[cfg(any(feature = "cuda", feature = "opencl"))]
unsafe fn built<K: CompiledKernel>(
    arena: &K::Arena,
    code: &Code,
    function: &str,
) -> Result<Arc<dyn Launcher>, ApplicationError> {
    let kernel = K::build(arena, &code.text, function, &code.options).map_err(|cause| {
        let mut place = code.place.clone();
        place.message = format!("{}: {cause}", place.message);
        ApplicationError::Build { place, cause: Box::new(cause) }
    })?;
    // SAFETY: as the caller guarantees.
    Ok(Arc::new(unsafe { CompiledLauncher::new(kernel) }.labelled(function)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_keep_their_axes() {
        for axis in 0..3 {
            let shape = shape([10, 20, 30], [1, 2, 3], 3, axis);
            let mut global = [10, 20, 30];
            global[axis] = 5;
            assert_eq!((shape.global(&(4..9)), shape.local(), shape.axis()), (global, [1, 2, 3], axis));
        }
        let rows = shape([10, 20, 1], [4, 2, 1], 2, 0);
        assert_eq!((rows.global(&(0..3)), rows.local()), ([3, 20, 1], [4, 2, 1]));
    }
}
