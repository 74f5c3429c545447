//! Numbers the work-groups of a kernel within the whole run, of which a launch may be a part.
//!
//! A kernel that asks for its group, for the number of groups or for the size of the launch would otherwise see each part
//! as a run of its own. `prelude.cl` says how the size of the run reaches the kernel.

use std::borrow::Cow;

/// What is put before the source.
const PRELUDE: &str = include_str!("prelude.cl");
/// The macro by which a source, or its options, ask for the numbers of OpenCL itself.
const OPT_OUT: &str = "DML_PACKAGE_GROUPS";
/// The functions whose answers depend on the size of the groups.
const OF_GROUPS: [&str; 2] = ["get_group_id", "get_num_groups"];
/// The others whose answers depend on the launch.
const OF_LAUNCH: [&str; 4] = ["get_global_size", "get_global_offset", "get_work_dim", "get_global_linear_id"];

/// How the work-items and groups of a kernel are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Numbering {
    /// Within each launch, as OpenCL says. The kernel does not ask, or asked for that.
    Launch,
    /// Within each launch, though the kernel's source asks for its groups.
    Unaware,
    /// Within the whole run. The size of a group must be given if the kernel asks for its group.
    Run { needs_local: bool },
}

/// Returns what is compiled for packages in place of a source, and how its work-groups are numbered.
pub(super) fn of_run<'a>(source: &'a str, options: &str) -> (Cow<'a, str>, Numbering) {
    let needs_local = OF_GROUPS.iter().any(|name| source.contains(name));
    // What is included may ask for anything.
    let asks = needs_local
        || OF_LAUNCH.iter().any(|name| source.contains(name))
        || crate::programs::includes(source, options);
    match asks && !opts_out(source, options) {
        true => (format!("{PRELUDE}{source}").into(), Numbering::Run { needs_local }),
        false => (source.into(), Numbering::Launch),
    }
}

/// Returns how the work-groups of a source are numbered that is compiled as it is.
pub(super) fn of_launch(source: &str, options: &str) -> Numbering {
    let mut asked = OF_GROUPS.iter().chain(&OF_LAUNCH);
    match asked.any(|name| source.contains(name)) && !opts_out(source, options) {
        true => Numbering::Unaware,
        false => Numbering::Launch,
    }
}

fn opts_out(source: &str, options: &str) -> bool {
    source.contains(OPT_OUT) || options.contains(OPT_OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_asks_for_its_groups_is_told_those_of_the_run() {
        for (asks, needs_local) in [
            ("size_t g = get_group_id(0);", true),
            ("get_num_groups (1)", true),
            ("for (;; i += get_global_size(0))", false),
            ("get_global_linear_id()", false),
            ("#include \"groups.h\"", false),
        ] {
            let (text, numbering) = of_run(asks, "");
            assert_eq!(numbering, Numbering::Run { needs_local }, "{asks}");
            assert!(
                text.starts_with("// What DML") && text.ends_with(&format!("\n#line 1\n{asks}")),
                "{text}"
            );
            assert_eq!(of_run(asks, "-DDML_PACKAGE_GROUPS"), (asks.into(), Numbering::Launch));
            let is_aware = asks.contains("include");
            assert_eq!(of_launch(asks, "") == Numbering::Launch, is_aware);
            assert_eq!(of_launch(asks, "-D DML_PACKAGE_GROUPS=1"), Numbering::Launch);
        }
        let plain = "get_global_id(0) + get_local_id(0) * get_local_size(0)";
        assert_eq!(of_run(plain, ""), (plain.into(), Numbering::Launch));
    }
}
