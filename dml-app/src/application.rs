//! An application, as its file describes it.

use crate::derive;
use crate::error::ApplicationError;
use crate::fault::Fault;
use crate::launch;
use crate::part::Part;
use crate::plan::{ArgumentPlan, KernelPlan, Plan};
use crate::prepared::{Outcome, Prepared};
use dml_arenas::files;
use dml_core::{Access, DeviceId, Platform};
use indexmap::IndexMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Most bytes of an application file.
const MOST_BYTES: u64 = 16 << 20;

/// A checked application.
///
/// Sources and input files are relative to the application file, output files to the current folder.
///
/// # Examples
/// ```no_run
/// # fn example(platform: &dml_core::Platform) -> Result<(), dml_app::ApplicationError> {
/// use dml_app::{Application, Changes};
///
/// let changes = Changes::new().parameter("n", "1024");
/// let application = Application::from_file_with("examples/apps/stencil2d/stencil2d.toml", &changes)?;
/// // SAFETY: the kernels stay within the parts that the file declares.
/// let outcome = unsafe { application.run(platform) }?;
/// println!("{:?}", outcome.duration);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Application {
    path: PathBuf,
    plan: Arc<Plan>,
}

/// Values that replace those of an application file.
///
/// ```
/// use dml_app::Changes;
///
/// let changes = Changes::new().parameter("n", "2 * 512").input("from", "first.npy").output("from", "last.npy");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Changes {
    pub(crate) parameters: IndexMap<String, String>,
    pub(crate) inputs: IndexMap<String, PathBuf>,
    pub(crate) outputs: IndexMap<String, PathBuf>,
}

impl Changes {
    /// Starts with no changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Changes a parameter to a number, or to an expression of numbers.
    pub fn parameter(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.parameters.insert(name.into(), value.into());
        self
    }

    /// Takes the first contents of an array from this file.
    pub fn input(mut self, array: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.inputs.insert(array.into(), path.into());
        self
    }

    /// Writes the last contents of an array to this file.
    pub fn output(mut self, array: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        self.outputs.insert(array.into(), path.into());
        self
    }
}

/// A part of an array that a package of a kernel needs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ArrayPart {
    /// The kernel.
    pub kernel: String,
    /// The array.
    pub array: String,
    /// How the kernel accesses the part.
    pub access: Access,
    /// The part as a file would declare it; `None` for one that a file cannot declare.
    pub part: Option<String>,
    /// Why it is that part.
    pub basis: Basis,
}

/// Why a part is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Basis {
    /// It is derived from the kernel's source.
    Proven,
    /// The file declares it, and the source proves that the kernel touches nothing else.
    DeclaredAndProven,
    /// The file declares it. [`Prepared::check_parts`](crate::Prepared::check_parts) observes the kernel.
    Declared,
}

impl Application {
    /// Reads and checks an application file, its sources, and what its input files say of their contents.
    ///
    /// # Errors
    /// [`ApplicationError::Read`], or [`ApplicationError::Invalid`] with all mistakes.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self, ApplicationError> {
        Self::from_file_with(path, &Changes::new())
    }

    /// Reads an application file with changed values.
    ///
    /// # Errors
    /// As [`from_file`](Self::from_file). [`ApplicationError::Unknown`] if the application does not have what
    /// is changed, and [`ApplicationError::Value`] for a value that is no number.
    pub fn from_file_with(path: impl AsRef<Path>, changes: &Changes) -> Result<Self, ApplicationError> {
        let path = path.as_ref();
        let read = files::read(path, files::Source::FileOrPipe, MOST_BYTES);
        let bytes = read.map_err(|cause| ApplicationError::Read { path: path.to_owned(), cause })?;
        let text = String::from_utf8(bytes).map_err(|_| ApplicationError::Read {
            path: path.to_owned(),
            cause: std::io::Error::new(std::io::ErrorKind::InvalidData, "it is no text"),
        })?;
        Self::from_text(path, &text, changes)
    }

    /// Checks the text of an application file with changed values. Its files are relative to `path`.
    ///
    /// # Errors
    /// As [`from_file_with`](Self::from_file_with), without [`ApplicationError::Read`].
    pub fn from_text(
        path: impl AsRef<Path>,
        text: &str,
        changes: &Changes,
    ) -> Result<Self, ApplicationError> {
        let path = path.as_ref().to_owned();
        let plan = Plan::read(&path, text, changes)?;
        Ok(Self { path, plan: Arc::new(plan) })
    }

    /// Returns the application's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.plan.name
    }

    /// Returns the parameters in the order of the file, each with its value. Names that an input file gives a
    /// value follow.
    pub fn parameters(&self) -> impl Iterator<Item = (&str, f64)> {
        self.plan.values.iter().map(|(name, value)| (&**name, value.real()))
    }

    /// Returns the names of the arrays, in the order of the file.
    pub fn arrays(&self) -> impl Iterator<Item = &str> {
        self.plan.arrays.iter().map(|array| &*array.name)
    }

    /// Returns the names of the kernels, in the order of the file.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.plan.kernels.iter().map(|kernel| &*kernel.name)
    }

    /// Returns the parts of arrays that packages of kernels need, without reductions.
    #[must_use]
    pub fn parts(&self) -> Vec<ArrayPart> {
        let of_kernel = |kernel: &KernelPlan| {
            let doubts = derive::doubts(kernel, &self.plan.arrays);
            let part = |(index, (argument, _)): (usize, &(ArgumentPlan, Fault))| {
                let ArgumentPlan::Array { array, access, part } = argument else { return None };
                let array = &self.plan.arrays[*array];
                let basis = match part {
                    Part::Derived(_) => Basis::Proven,
                    _ if doubts.iter().any(|(doubted, _)| *doubted == index) => Basis::Declared,
                    _ => Basis::DeclaredAndProven,
                };
                let part = part.name(array, kernel.items[kernel.axis]);
                let (kernel, array) = (kernel.name.clone(), array.name.clone());
                Some(ArrayPart { kernel, array, access: *access, part, basis })
            };
            kernel.arguments.iter().enumerate().filter_map(part).collect::<Vec<_>>()
        };
        self.plan.kernels.iter().flat_map(of_kernel).collect()
    }

    /// Returns the declared parts that contradict the kernels' sources, each with its place in the file.
    ///
    /// The analysis of a source may find more than is touched, such as under a condition on data. So these
    /// are no mistakes: [`Prepared::check_parts`](crate::Prepared::check_parts) finds those.
    #[must_use]
    pub fn contradictions(&self) -> Vec<Fault> {
        let doubts = |kernel| derive::doubts(kernel, &self.plan.arrays);
        self.plan.kernels.iter().flat_map(doubts).filter_map(|(_, contradiction)| contradiction).collect()
    }

    /// Returns the names of the kernels with a declared part that their sources do not prove: one that is
    /// contradicted, or in which an index depends on data.
    #[must_use]
    pub fn unproven(&self) -> Vec<&str> {
        let divided = self.plan.kernels.iter().filter(|kernel| !kernel.is_undivided);
        let unproven = divided.filter(|kernel| !derive::doubts(kernel, &self.plan.arrays).is_empty());
        unproven.map(|kernel| &*kernel.name).collect()
    }

    /// Returns the files that the application reads: itself, its sources and its inputs.
    pub fn inputs(&self) -> impl Iterator<Item = &Path> {
        std::iter::once(&*self.path).chain(self.plan.files.iter().map(|file| &**file))
    }

    /// Checks that a device has a source of every kernel.
    ///
    /// # Errors
    /// [`ApplicationError::Device`] with the first kernel that it cannot run.
    pub fn check_device(&self, platform: &Platform, device: DeviceId) -> Result<(), ApplicationError> {
        let desc = platform.device_desc(device);
        for kernel in &self.plan.kernels {
            launch::code(platform, device, kernel.variant(desc.kind)).map_err(|reason| {
                let (device, kernel) = (desc.name.to_string(), kernel.name.clone());
                ApplicationError::Device { device, kernel, reason: reason.to_owned() }
            })?;
        }
        Ok(())
    }

    /// Returns the devices that have a source of every kernel.
    ///
    /// # Errors
    /// [`ApplicationError::NoDevice`] if there is none, with what each lacks.
    pub fn devices(&self, platform: &Platform) -> Result<Vec<DeviceId>, ApplicationError> {
        let (mut devices, mut reasons) = (Vec::new(), Vec::new());
        for device in platform.device_ids() {
            match self.check_device(platform, device) {
                Ok(()) => devices.push(device),
                Err(error) => reasons.push(error.to_string()),
            }
        }
        reasons.extend(platform.unavailable().iter().map(ToString::to_string));
        match devices.is_empty() {
            true => Err(ApplicationError::NoDevice {
                application: self.plan.name.clone(),
                reason: reasons.join("; "),
            }),
            false => Ok(devices),
        }
    }

    /// Allocates the arrays, and compiles the kernels for devices of a platform.
    ///
    /// # Safety
    /// Sources are trusted like the program itself, and so are the parts that arguments declare.
    /// 1. A kernel touches only bytes of its arguments, for any contents of its arrays.
    /// 2. It reads and changes only the declared parts, and overwrites those under `writes` completely.
    /// 3. Work-items past the last item touch nothing.
    ///
    /// # Errors
    /// [`ApplicationError`] if a device cannot run a kernel, a source cannot be compiled, arguments do not
    /// fit a function, or an array cannot be allocated.
    #[allow(unsafe_code, reason = "sources are trusted like the program itself")]
    pub unsafe fn prepare(
        &self,
        platform: &Platform,
        devices: impl IntoIterator<Item = DeviceId>,
    ) -> Result<Prepared, ApplicationError> {
        let devices: Vec<DeviceId> = devices.into_iter().collect();
        for device in &devices {
            self.check_device(platform, *device)?;
        }
        // SAFETY: as the caller guarantees.
        unsafe { Prepared::new(self.plan.clone(), platform, devices) }
    }

    /// Runs the application on every device that can, and writes its output files.
    ///
    /// # Safety
    /// As [`prepare`](Self::prepare).
    ///
    /// # Errors
    /// [`ApplicationError`].
    #[allow(unsafe_code, reason = "sources are trusted like the program itself")]
    pub unsafe fn run(&self, platform: &Platform) -> Result<Outcome, ApplicationError> {
        // SAFETY: as the caller guarantees.
        let mut prepared = unsafe { self.prepare(platform, self.devices(platform)?) }?;
        let outcome = prepared.run()?;
        prepared.write()?;
        Ok(outcome)
    }
}
