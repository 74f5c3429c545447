//! The types of a kernel's parameters, as the driver or a second compilation reports them.
//!
//! ```text
//!   driver: float4, uint        ──▶ a size, and for scalars a type
//!   driver: image2d_t, sampler_t ─▶ nothing that a launch can pass
//!   driver: a type of the source ─▶ compile the source once more, with probe kernels whose work-group size
//!                                   encodes `sizeof` the type: the driver reports work-group sizes
//! ```
//! Not checked: the targets of pointers (but for `const`), the fields of a structure, types that fail the
//! second compilation, and all parameters that the driver does not describe.

use super::handle::Kernel;
use dml_core::{Access, LaunchArg, Scalar};
use opencl3::kernel::{
    CL_KERNEL_ARG_ACCESS_NONE, CL_KERNEL_ARG_ACCESS_QUALIFIER, CL_KERNEL_ARG_ADDRESS_CONSTANT,
    CL_KERNEL_ARG_ADDRESS_GLOBAL, CL_KERNEL_ARG_ADDRESS_LOCAL, CL_KERNEL_ARG_ADDRESS_PRIVATE,
    CL_KERNEL_ARG_ADDRESS_QUALIFIER, CL_KERNEL_ARG_TYPE_CONST, CL_KERNEL_ARG_TYPE_NAME,
    CL_KERNEL_ARG_TYPE_QUALIFIER, get_kernel_arg_info,
};
use std::fmt;

/// The kind of an argument, without its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Given {
    Block,
    /// A block of which the kernel is to overwrite all that is granted.
    Overwritten,
    /// A scalar of this type of OpenCL C.
    Scalar(&'static str),
    /// A value of this many bytes.
    Bytes(usize),
    Local,
}

impl Given {
    pub(super) fn of(argument: &LaunchArg) -> Option<Self> {
        Some(match argument {
            LaunchArg::Buffer { access: Access::WriteInvalidate, .. } => Self::Overwritten,
            LaunchArg::Buffer { .. } => Self::Block,
            LaunchArg::Scalar(scalar) => Self::Scalar(type_name(*scalar)),
            LaunchArg::Bytes(bytes) => Self::Bytes(bytes.len()),
            LaunchArg::Local(_) => Self::Local,
            _ => return None,
        })
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Block => f.write_str("a buffer"),
            Self::Overwritten => f.write_str("a buffer to write"),
            Self::Scalar(name) => f.write_str(name),
            Self::Bytes(bytes) => write!(f, "a value of {bytes} bytes"),
            Self::Local => f.write_str("local memory"),
        }
    }
}

/// Returns the OpenCL C name of a scalar's type.
pub(super) fn type_name(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::I8(_) => "char",
        Scalar::U8(_) => "uchar",
        Scalar::I16(_) => "short",
        Scalar::U16(_) => "ushort",
        Scalar::I32(_) => "int",
        Scalar::U32(_) => "uint",
        Scalar::I64(_) => "long",
        Scalar::U64(_) => "ulong",
        Scalar::F16(_) => "half",
        Scalar::F32(_) => "float",
        Scalar::F64(_) => "double",
        _ => "a scalar unknown to OpenCL",
    }
}

/// The scalar types of OpenCL C with their sizes in bytes.
const SCALARS: [(&str, usize); 11] = [
    ("char", 1),
    ("uchar", 1),
    ("short", 2),
    ("ushort", 2),
    ("int", 4),
    ("uint", 4),
    ("long", 8),
    ("ulong", 8),
    ("float", 4),
    ("half", 2),
    ("double", 8),
];

/// Returns the size of a scalar or vector type of OpenCL C, in bytes.
fn type_bytes(name: &str) -> Option<usize> {
    let digits = name.len() - name.trim_end_matches(|digit: char| digit.is_ascii_digit()).len();
    let (base, lanes) = name.split_at(name.len() - digits);
    let (_, bytes) = *SCALARS.iter().find(|(scalar, _)| *scalar == base)?;
    match lanes {
        "" => Some(bytes),
        // A vector of three is as large as one of four.
        "3" => Some(bytes * 4),
        "2" | "4" | "8" | "16" => Some(bytes * lanes.parse::<usize>().ok()?),
        _ => None,
    }
}

/// Returns whether a type is one of OpenCL's objects that no launch can pass: an image, a sampler, a queue.
fn is_object(name: &str) -> bool {
    let image = name.strip_prefix("image").is_some_and(|rest| rest.starts_with(['1', '2', '3']));
    let others = ["sampler_t", "event_t", "clk_event_t", "queue_t", "reserve_id_t", "ndrange_t"];
    image && name.ends_with("_t") || others.contains(&name) || name.starts_with("pipe ")
}

/// What the compiler reports of a type that the source defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sized {
    bytes: usize,
    /// The scalar type that it is an alias of, if any.
    scalar: Option<&'static str>,
}

impl Sized {
    /// The value for a sampler, whose size is not used.
    const SAMPLER: Self = Self { bytes: 0, scalar: Some("sampler_t") };
}

/// The known facts of one parameter of a kernel; empty where the driver does not report them.
#[derive(Clone, Debug, Default)]
pub(super) struct Parameter {
    address: Option<u32>,
    type_name: Option<String>,
    /// Whether it has an access qualifier, as only images and pipes do, under any name.
    has_access: bool,
    /// Whether it points to what the kernel cannot change.
    is_const: bool,
    sized: Option<Sized>,
}

impl Parameter {
    pub(super) fn of(kernel: &Kernel, index: u32) -> Self {
        let info = |what| get_kernel_arg_info(kernel.raw(), index, what).ok();
        let access = info(CL_KERNEL_ARG_ACCESS_QUALIFIER).map(u32::from);
        Self {
            address: info(CL_KERNEL_ARG_ADDRESS_QUALIFIER).map(u32::from),
            type_name: info(CL_KERNEL_ARG_TYPE_NAME)
                .map(|name| String::from(name).trim_end_matches('\0').to_owned())
                .filter(|name| !name.is_empty()),
            is_const: info(CL_KERNEL_ARG_TYPE_QUALIFIER)
                .map(u64::from)
                .is_some_and(|what| what & u64::from(CL_KERNEL_ARG_TYPE_CONST) != 0),
            has_access: access.is_some_and(|access| access != CL_KERNEL_ARG_ACCESS_NONE),
            sized: None,
        }
    }

    /// Returns the type's name if it needs a probe: a value of a type that is not built into OpenCL C.
    fn own_type(&self) -> Option<&str> {
        let name =
            self.type_name.as_deref().filter(|_| self.address == Some(CL_KERNEL_ARG_ADDRESS_PRIVATE))?;
        let is_name = name.chars().all(|char| char.is_ascii_alphanumeric() || "_ ".contains(char));
        (is_name && type_bytes(name).is_none() && !is_object(name) && !self.has_access).then_some(name)
    }

    /// Returns what the kernel takes, if `given` does not fit. Parameters that the driver does not describe
    /// are left to the driver's own checks.
    pub(super) fn mismatch(&self, given: Given) -> Option<String> {
        let address = self.address?;
        let type_name = self.type_name.as_deref().unwrap_or("a type");
        if self.has_access || is_object(type_name) || self.sized == Some(Sized::SAMPLER) {
            return Some(format!(
                "{type_name} (an image, a sampler or another object), which no launch can pass"
            ));
        }
        let is_memory = matches!(address, CL_KERNEL_ARG_ADDRESS_GLOBAL | CL_KERNEL_ARG_ADDRESS_CONSTANT);
        let sized = self.sized.or_else(|| {
            let scalar = SCALARS.iter().map(|(scalar, _)| *scalar).find(|scalar| *scalar == type_name);
            Some(Sized { bytes: type_bytes(type_name)?, scalar })
        });
        let fits = match (given, sized) {
            (Given::Block, _) => is_memory,
            (Given::Overwritten, _) => {
                is_memory && !self.is_const && address != CL_KERNEL_ARG_ADDRESS_CONSTANT
            }
            (Given::Local, _) => address == CL_KERNEL_ARG_ADDRESS_LOCAL,
            _ if address != CL_KERNEL_ARG_ADDRESS_PRIVATE => false,
            (_, None) => true,
            (Given::Scalar(given), Some(Sized { scalar: Some(scalar), .. })) => scalar == given,
            (Given::Scalar(_), Some(_)) => false,
            (Given::Bytes(given), Some(sized)) => given == sized.bytes,
        };
        (!fits).then(|| match (address, self.sized) {
            (CL_KERNEL_ARG_ADDRESS_PRIVATE, Some(Sized { scalar: Some(scalar), .. })) => {
                format!("{type_name} ({scalar})")
            }
            (CL_KERNEL_ARG_ADDRESS_PRIVATE, Some(Sized { bytes, .. })) => {
                format!("{type_name} of {bytes} bytes")
            }
            (CL_KERNEL_ARG_ADDRESS_PRIVATE, None) => type_name.to_owned(),
            (CL_KERNEL_ARG_ADDRESS_LOCAL, _) => "a pointer to local memory".to_owned(),
            _ if is_memory && given == Given::Overwritten => "a pointer to constant memory".to_owned(),
            _ => "a pointer".to_owned(),
        })
    }
}

/// Returns the probe kernels to append to a source, which report its types; `None` if no parameter needs one.
pub(super) fn probe(parameters: &[Parameter]) -> Option<String> {
    let mut text = String::from(
        "\n#ifdef cl_khr_fp16\n#pragma OPENCL EXTENSION cl_khr_fp16 : enable\n#endif\n\
         #ifdef cl_khr_fp64\n#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n#endif\n",
    );
    let without = text.len();
    for (index, parameter) in parameters.iter().enumerate() {
        let Some(name) = parameter.own_type() else { continue };
        let mut kind = String::from("1");
        for (number, (scalar, _)) in (1..).zip(SCALARS) {
            let term = format!(" + {number} * __builtin_types_compatible_p({name}, {scalar})");
            kind += &match scalar {
                "half" => format!("\n#ifdef cl_khr_fp16\n{term}\n#endif\n"),
                "double" => format!("\n#ifdef cl_khr_fp64\n{term}\n#endif\n"),
                _ => term,
            };
        }
        kind += &format!(" + {} * __builtin_types_compatible_p({name}, sampler_t)", SCALARS.len() + 1);
        let [low, high] = ['%', '/'].map(|part| format!("1 + sizeof({name}) {part} {SIDE}"));
        for (kernel, group) in [(SIZE, format!("{low}, {high}")), (KIND, format!("{kind}, 1"))] {
            // Each kernel stores another number: NVIDIA's compiler makes equal kernels aliases, which its
            // assembler refuses.
            let number = text.len();
            text += &format!(
                "__kernel __attribute__((reqd_work_group_size({group}, 1))) void {kernel}{index}(__global uint *out) \
                 {{ *out = {number}; }}\n"
            );
        }
    }
    (text.len() > without).then_some(text)
}

/// Decodes the types from the work-group sizes of the [`probe`] kernels.
pub(super) fn answer(parameters: &mut [Parameter], group_of: impl Fn(&str) -> Option<[usize; 3]>) {
    for (index, parameter) in parameters.iter_mut().enumerate() {
        if parameter.own_type().is_none() {
            continue;
        }
        let answers = group_of(&format!("{SIZE}{index}")).zip(group_of(&format!("{KIND}{index}")));
        parameter.sized = answers.and_then(|([low, high, _], [kind, ..])| {
            let bytes = low.checked_sub(1)? + high.checked_sub(1)? * SIDE;
            if kind == SCALARS.len() + 2 {
                return Some(Sized::SAMPLER);
            }
            let scalar = kind.checked_sub(2).and_then(|kind| SCALARS.get(kind)).map(|(scalar, _)| *scalar);
            Some(Sized { bytes, scalar })
        });
    }
}

/// Name prefix of the probe kernels for the size of a type.
const SIZE: &str = "dml_size_of_";
/// Name prefix of the probe kernels for the scalar type that a type is an alias of.
const KIND: &str = "dml_kind_of_";
/// Base in which a work-group size encodes the size of a type. Up to 960 bytes need at most 31 x 31
/// work-items, and devices run 32 x 32.
const SIDE: usize = 31;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_must_fit_its_parameter() {
        let of = |address, name: &str| Parameter {
            address: Some(address),
            type_name: Some(name.to_owned()),
            ..Parameter::default()
        };
        let scalar = |name| of(CL_KERNEL_ARG_ADDRESS_PRIVATE, name);
        let pointer = of(CL_KERNEL_ARG_ADDRESS_GLOBAL, "float*");
        let u32 = Given::Scalar("uint");
        assert_eq!(scalar("uint").mismatch(u32), None);
        assert_eq!(scalar("float").mismatch(u32).unwrap(), "float");
        assert_eq!(scalar("my_type").mismatch(u32), None);
        assert_eq!(pointer.mismatch(Given::Scalar("ulong")).unwrap(), "a pointer");
        assert_eq!((pointer.mismatch(Given::Block), Parameter::default().mismatch(u32)), (None, None));
        assert_eq!(scalar("uint").mismatch(Given::Block).unwrap(), "uint");
        assert_eq!(scalar("float4").mismatch(Given::Bytes(16)), None);
        assert_eq!(scalar("float3").mismatch(Given::Bytes(12)).unwrap(), "float3");
        assert_eq!(pointer.mismatch(Given::Local).unwrap(), "a pointer");
        let constant = Parameter { is_const: true, ..pointer.clone() };
        assert_eq!((pointer.mismatch(Given::Overwritten), constant.mismatch(Given::Block)), (None, None));
        assert_eq!(constant.mismatch(Given::Overwritten).unwrap(), "a pointer to constant memory");
        let local = Parameter { address: Some(CL_KERNEL_ARG_ADDRESS_LOCAL), ..Parameter::default() };
        assert_eq!(local.mismatch(Given::Local), None);
        assert_eq!(local.mismatch(Given::Block).unwrap(), "a pointer to local memory");
    }

    #[test]
    fn objects_of_opencl_are_no_arguments() {
        for (address, name) in [
            (CL_KERNEL_ARG_ADDRESS_GLOBAL, "image2d_t"),
            (CL_KERNEL_ARG_ADDRESS_GLOBAL, "image1d_buffer_t"),
            (CL_KERNEL_ARG_ADDRESS_GLOBAL, "image2d_array_depth_t"),
            (CL_KERNEL_ARG_ADDRESS_PRIVATE, "sampler_t"),
            (CL_KERNEL_ARG_ADDRESS_PRIVATE, "queue_t"),
        ] {
            let object = Parameter {
                address: Some(address),
                type_name: Some(name.to_owned()),
                ..Parameter::default()
            };
            for given in [Given::Block, Given::Scalar("ulong"), Given::Bytes(8), Given::Local] {
                assert_eq!(
                    object.mismatch(given),
                    Some(format!("{name} (an image, a sampler or another object), which no launch can pass"))
                );
            }
        }
        let pipe = Parameter {
            address: Some(CL_KERNEL_ARG_ADDRESS_GLOBAL),
            type_name: Some("int".to_owned()),
            has_access: true,
            ..Parameter::default()
        };
        assert!(pipe.mismatch(Given::Block).is_some_and(|takes| takes.starts_with("int (an image")));
        let sampler = Parameter { has_access: false, sized: Some(Sized::SAMPLER), ..pipe };
        assert!(sampler.mismatch(Given::Block).is_some());
        assert!(!is_object("image_t_of_mine") && !is_object("imagery"));
    }

    #[test]
    fn the_types_of_opencl_have_their_sizes() {
        let sizes =
            ["char", "ushort2", "half", "float3", "uint4", "double16", "long", "uint5", "size_t", "2"];
        let expected = [1, 4, 2, 16, 16, 128, 8].map(Some).into_iter().chain([None; 3]);
        assert!(sizes.map(type_bytes).into_iter().eq(expected));
    }
}
