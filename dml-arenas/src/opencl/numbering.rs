//! Numbers the work-groups of a kernel within the whole run, of which a launch may be a part.
//!
//! Otherwise, a kernel that queries its group, the number of groups or the launch size would see each part as
//! a separate run. `prelude.cl` documents how the size of the run reaches the kernel.

use crate::compiled::{defines, includes, opts_out};
use std::borrow::Cow;

/// The text that is prepended to the source.
const PRELUDE: &str = include_str!("prelude.cl");
/// The functions whose results depend on the work-group size.
const OF_GROUPS: [&str; 2] = ["get_group_id", "get_num_groups"];
/// The other functions whose results depend on the launch.
const OF_LAUNCH: [&str; 4] = ["get_global_size", "get_global_offset", "get_work_dim", "get_global_linear_id"];

/// How the work-items and groups of a kernel are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Within each launch, as OpenCL defines it. The kernel does not query its group or launch, or opted out.
    Launch,
    /// Within each launch, although the kernel may query its group or launch. The text is the reason.
    Unaware(&'static str),
    /// Within the whole run. A kernel that may query its group needs a work-group size.
    Run { needs_local: bool },
}

/// Returns the text to compile for packages in place of a source, and the numbering of its work-groups.
pub(super) fn of_run<'a>(source: &'a str, options: &str) -> (Cow<'a, str>, Numbering) {
    if !asks(source, options) || opts_out(source, options) {
        return (source.into(), Numbering::Launch);
    }
    if names().chain(["get_global_id"]).any(|name| defines(source, name)) {
        let why = "its source defines a macro with the name of a group or launch query, such as get_group_id";
        return (source.into(), Numbering::Unaware(why));
    }
    let needs_local = includes(source, options)
        || source.contains("##")
        || OF_GROUPS.iter().any(|name| source.contains(name) || options.contains(name));
    (format!("{PRELUDE}{source}").into(), Numbering::Run { needs_local })
}

/// Returns the numbering of the work-groups of a source that is compiled unchanged.
pub(super) fn of_launch(source: &str, options: &str) -> Numbering {
    let is_named = names().any(|name| source.contains(name) || options.contains(name));
    match is_named && !opts_out(source, options) {
        true => Numbering::Unaware(
            "it was not built by `package_kernel`, which numbers groups within the whole run",
        ),
        false => Numbering::Launch,
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    OF_GROUPS.into_iter().chain(OF_LAUNCH)
}

/// Returns whether a source may query its group or its launch, also by included files or pasted names.
fn asks(source: &str, options: &str) -> bool {
    let is_named = names().any(|name| source.contains(name) || options.contains(name));
    is_named || source.contains("##") || includes(source, options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_asks_for_its_groups_is_told_those_of_the_run() {
        for (asks, options, needs_local) in [
            ("size_t g = get_group_id(0);", "", true),
            ("get_num_groups (1)", "-O2", true),
            ("for (;; i += get_global_size(0))", "", false),
            ("get_global_linear_id()", "", false),
            ("#include \"groups.h\"", "", true),
            ("PASTE(get_, group##_id)(0)", "", true),
            ("o[i] = GROUP;", "-DGROUP=get_group_id(0)", true),
            ("get_group_id(0) // needs no DML_PACKAGE_GROUPS", "-DX=DML_PACKAGE_GROUPS", true),
        ] {
            let (text, numbering) = of_run(asks, options);
            assert_eq!(numbering, Numbering::Run { needs_local }, "{asks}");
            assert!(
                text.starts_with("// What DML") && text.ends_with(&format!("\n#line 1\n{asks}")),
                "{text}"
            );
        }
        let plain = "get_global_id(0) + get_local_id(0) * get_local_size(0)";
        assert_eq!(of_run(plain, ""), (plain.into(), Numbering::Launch));
    }

    #[test]
    fn a_source_that_opts_out_stays_as_it_is() {
        let asks = "size_t g = get_group_id(0);";
        for options in ["-DDML_PACKAGE_GROUPS", "-D DML_PACKAGE_GROUPS=1 -O2"] {
            assert_eq!(of_run(asks, options), (asks.into(), Numbering::Launch));
            assert_eq!(of_launch(asks, options), Numbering::Launch);
        }
        let defined = format!("  # define DML_PACKAGE_GROUPS\n{asks}");
        assert_eq!(of_run(&defined, "").1, Numbering::Launch);
        assert!(matches!(of_launch(asks, "-DDML_PACKAGE_GROUPS_2"), Numbering::Unaware(_)));
    }

    /// In its own definition, a macro's name refers to OpenCL's function.
    #[test]
    fn a_source_that_defines_these_functions_is_refused() {
        for name in ["get_group_id", "get_global_size", "get_global_id"] {
            let wraps = format!("#define {name}(d) ((uint){name}(d))\n{name}(0) + get_num_groups(0)");
            assert!(matches!(of_run(&wraps, "").1, Numbering::Unaware(_)), "{wraps}");
        }
        let like = "#define get_group_id_of(d) d\nget_num_groups(0)";
        assert!(matches!(of_run(like, "").1, Numbering::Run { .. }));
    }
}
