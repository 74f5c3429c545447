//! `--native`: times the same kernel written by hand against the device's framework, in the same run as DML.

use crate::failure::Failure;
use crate::figures;
use dml::arenas::native::{BaselineArg, BaselineError, BaselineSpec, HandWritten};
use dml::arenas::opencl;
use dml_workloads::prepare::{Language, Plain, PlainArgument, Prepared};

/// A hand-written program and its times.
pub(crate) struct Native {
    program: Box<dyn HandWritten>,
    seconds: Vec<f64>,
}

/// Creates a program of a framework.
type Make = fn(BaselineSpec<'_>) -> Result<Box<dyn HandWritten>, BaselineError>;

/// The kind of host memory that DML and the hand-written program both use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostMemory {
    Ordinary,
    PageLocked,
}

fn boxed<P: HandWritten + 'static>(
    made: Result<P, BaselineError>,
) -> Result<Box<dyn HandWritten>, BaselineError> {
    Ok(Box::new(made?))
}

/// Returns a device's index in its framework, the language of its kernels, and the constructor of its
/// programs. Returns `None` for a device without a framework.
fn framework(device: &str, memory: HostMemory) -> Option<(usize, Language, Make)> {
    let (kind, number) = device.split_once(':')?;
    let (language, make): (_, Make) = match (kind, memory) {
        ("opencl", _) => (Language::OpenClC, |spec| boxed(opencl::native::Baseline::new(spec))),
        #[cfg(feature = "cuda")]
        ("cuda", HostMemory::Ordinary) => {
            (Language::CudaC, |spec| boxed(dml::arenas::cuda::native::Baseline::new(spec)))
        }
        #[cfg(feature = "cuda")]
        ("cuda", HostMemory::PageLocked) => {
            (Language::CudaC, |spec| boxed(dml::arenas::cuda::native::Baseline::suited(spec)))
        }
        _ => return None,
    };
    Some((number.parse().ok()?, language, make))
}

impl Native {
    /// Creates the program for a device, limited to this many of its units. Returns `None` for a device
    /// without a hand-written form, and if there are no items.
    pub(crate) fn of(
        device: &str,
        limit: Option<u32>,
        memory: HostMemory,
        prepared: &dyn Prepared,
    ) -> Result<Option<Self>, Failure> {
        let Some((number, language, make)) = framework(device, memory) else { return Ok(None) };
        let Some(plain) = prepared.plain(language).filter(|_| prepared.items() > 0) else { return Ok(None) };
        let program = make(spec(number, limit, &plain)).map_err(Failure::work)?;
        Ok(Some(Self { program, seconds: Vec::new() }))
    }

    pub(crate) fn run(&mut self, counts: bool) -> Result<(), Failure> {
        let duration = self.program.run().map_err(Failure::work)?;
        if counts {
            self.seconds.push(duration.as_secs_f64());
        }
        Ok(())
    }

    /// Checks the result, and returns the median time in seconds.
    pub(crate) fn summary(&self, prepared: &dyn Prepared) -> Result<f64, Failure> {
        let wrong =
            |error| Failure::Work(format!("the result of the hand-written program is wrong: {error}"));
        let outputs: Vec<&[u8]> =
            (0..prepared.outputs().len()).map(|index| self.program.output(index)).collect();
        prepared.verify_plain(&outputs).map_err(wrong)?;
        Ok(figures::median(self.seconds.iter().copied()))
    }
}

fn spec(device: usize, limit: Option<u32>, plain: &Plain) -> BaselineSpec<'static> {
    BaselineSpec {
        device,
        limit,
        source: plain.source,
        kernel: plain.kernel,
        options: "",
        args: plain.arguments.iter().map(argument).collect(),
        items: plain.items.map(|items| items as usize),
        local: plain.local_size.map(|items| items as usize),
    }
}

fn argument(argument: &PlainArgument) -> BaselineArg {
    match argument {
        PlainArgument::Input(bytes) => BaselineArg::Input(bytes.clone()),
        PlainArgument::Output(len) => BaselineArg::Output(*len as usize),
        PlainArgument::U32(value) => BaselineArg::U32(*value),
        PlainArgument::U64(value) => BaselineArg::U64(*value),
        PlainArgument::F32(value) => BaselineArg::F32(*value),
        other => unreachable!("{other:?} has no counterpart in a hand-written program"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_framework_has_its_language_and_others_have_no_program() {
        let of = |device: &str| {
            let found = framework(device, HostMemory::Ordinary);
            found.map(|(number, language, _)| (number, language))
        };
        assert_eq!(of("opencl:2"), Some((2, Language::OpenClC)));
        assert_eq!(of("cuda:1"), cfg!(feature = "cuda").then_some((1, Language::CudaC)));
        assert_eq!([of("cpu"), of("offload:0"), of("cuda:x")], [None, None, None]);
    }

    /// The error of a missing device names it and the cause, with each kind of memory.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_gpu_that_is_not_there_is_named() {
        use dml::prelude::*;
        use dml_workloads::prepare::{Input, Workload};

        let options = DiscoverOptions::default().only(["cpu"]);
        let platform = Platform::builder().discover_with(&options).unwrap().build().unwrap();
        let host = [platform.host().expect("there is a processor")];
        for workload in Workload::ALL {
            let prepared = workload.prepare(&platform, &host, &Input::Tiny).unwrap();
            for memory in [HostMemory::Ordinary, HostMemory::PageLocked] {
                let refused = Native::of("cuda:99", None, memory, &*prepared).map(|made| made.is_some());
                let Err(Failure::Work(told)) = refused else { panic!("{workload}: {refused:?}") };
                assert!(told.starts_with("cuda:99 cannot be used: "), "{workload}: {told}");
            }
        }
    }
}
