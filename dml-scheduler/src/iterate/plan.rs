//! The launches of a step.

use super::strips::{Parts, Touched, cut};
use super::{IterateError, Strip};
use crate::kernel::{FootprintError, Kernel};
use dml_core::{DeviceId, ItemShape, LaunchArg, Launcher};
use std::ops::Range;
use std::sync::Arc;

/// The kernels of a run, each with the buffers of an odd and of an even step.
#[derive(Default)]
pub(super) struct Kernels {
    pub(super) steps: [Vec<Kernel>; 2],
    /// Kernels that are launched after every so many steps.
    pub(super) checks: Vec<(u64, [Kernel; 2])>,
}

/// The launches of odd and of even steps.
pub(super) struct Plan {
    /// The strip of each device, by kernel.
    pub(super) cuts: Vec<Vec<Range<u64>>>,
    /// The launches of an odd and of an even step, in the order of their submission.
    pub(super) parts: [Vec<Part>; 2],
    /// The launches of each kernel that is not launched in every step.
    pub(super) checks: Vec<[Vec<Part>; 2]>,
}

/// A launch of some items.
pub(super) struct Part {
    /// The position of the device.
    pub(super) unit: usize,
    pub(super) launcher: Arc<dyn Launcher>,
    /// The name of the kernel.
    pub(super) kernel: Arc<str>,
    pub(super) items: Range<u64>,
    pub(super) total: u64,
    pub(super) shape: ItemShape,
    pub(super) arguments: Vec<LaunchArg>,
    /// Whether another device waits for it.
    pub(super) is_border: bool,
}

impl Plan {
    /// Plans kernels over devices in these ratios.
    pub(super) fn new(kernels: &Kernels, devices: &[DeviceId], shares: &[f64]) -> Result<Self, IterateError> {
        let Kernels { steps, checks } = kernels;
        let cut = |kernel: &Kernel| cut(kernel.total(), kernel.grain(), shares);
        let cuts: Vec<_> = steps[0].iter().map(cut).collect();
        // What each device touches in any step.
        let mut touched = vec![Touched::default(); devices.len()];
        for kernels in steps {
            for (kernel, cut) in kernels.iter().zip(&cuts) {
                for (touched, strip) in touched.iter_mut().zip(cut).filter(|(_, strip)| !strip.is_empty()) {
                    touched.add(kernel, strip)?;
                }
            }
        }
        let step = |kernels: &Vec<Kernel>| {
            let mut parts = Vec::new();
            for (kernel, cut) in kernels.iter().zip(&cuts) {
                add_parts(&mut parts, kernel, (devices, cut), &touched)?;
            }
            Ok::<_, IterateError>(parts)
        };
        let parts = [step(&steps[0])?, step(&steps[1])?];
        let check = |kernel: &Kernel| {
            let (mut parts, nothing) = (Vec::new(), vec![Touched::default(); devices.len()]);
            add_parts(&mut parts, kernel, (devices, &cut(kernel)), &nothing)?;
            Ok::<_, IterateError>(parts)
        };
        let checks: Result<_, IterateError> =
            checks.iter().map(|(_, [odd, even])| Ok([check(odd)?, check(even)?])).collect();
        Ok(Self { cuts, parts, checks: checks? })
    }

    /// Returns the strips, by kernel and device.
    pub(super) fn strips(&self, kernels: &[Kernel], devices: &[DeviceId]) -> Vec<Strip> {
        let of_kernel = |(kernel, cut): (&Kernel, &Vec<Range<u64>>)| {
            let strip = |(device, items): (&DeviceId, &Range<u64>)| Strip {
                kernel: kernel.name().to_owned(),
                device: *device,
                items: items.clone(),
            };
            devices.iter().zip(cut).map(strip).collect::<Vec<_>>()
        };
        kernels.iter().zip(&self.cuts).flat_map(of_kernel).collect()
    }
}

/// Adds the launches of a kernel: the borders of all devices, then the interiors.
fn add_parts(
    parts: &mut Vec<Part>,
    kernel: &Kernel,
    (devices, cut): (&[DeviceId], &[Range<u64>]),
    touched: &[Touched],
) -> Result<(), IterateError> {
    let name: Arc<str> = kernel.name().into();
    let mut interiors = Vec::new();
    for (unit, strip) in cut.iter().enumerate().filter(|(_, strip)| !strip.is_empty()) {
        let launcher = kernel.launcher_for(devices[unit]).expect("it was checked").clone();
        let part = |items: Range<u64>, is_border| {
            let (shape, total) = (kernel.shape(), kernel.total());
            let arguments = kernel.arguments_of(items.clone(), unit)?;
            let (launcher, kernel) = (launcher.clone(), name.clone());
            Ok::<_, FootprintError>(Part {
                unit,
                launcher,
                kernel,
                items,
                total,
                shape,
                arguments,
                is_border,
            })
        };
        let others = touched.iter().enumerate().filter(|(other, _)| *other != unit);
        let others: Vec<_> = others.map(|(_, touched)| touched).collect();
        let Parts { borders, interior } = Parts::new(kernel, strip, &others)?;
        for border in borders {
            parts.push(part(border, true)?);
        }
        if !interior.is_empty() {
            interiors.push(part(interior, false)?);
        }
    }
    parts.append(&mut interiors);
    Ok(())
}
