//! Properties of a source that launchers check before it is compiled.

/// The macro by which a source, or its options, requests the framework's own numbers of groups.
const OPT_OUT: &str = "DML_PACKAGE_GROUPS";

/// Returns whether compiling a source may read files, by a directive or an option. Only the words are
/// searched for, so a comment with one counts, too.
pub(crate) fn includes(source: &str, options: &str) -> bool {
    // A directive may be continued on the next line.
    let source = source.replace("\\\r\n", "").replace("\\\n", "");
    let directive = |line: &str| {
        line.split_once(['#', '%', '?'])
            .is_some_and(|(_, rest)| ["embed", "import"].iter().any(|word| rest.contains(word)))
    };
    let option = |option: &str| {
        ["include", "pre-include"].iter().any(|word| option.trim_start_matches('-').starts_with(word))
    };
    ["include", ".incbin"].iter().any(|word| source.contains(word))
        || source.lines().any(directive)
        || options.split_whitespace().any(option)
}

/// Returns whether a source, or its options, defines the macro that requests the framework's own numbers of
/// groups.
pub(crate) fn opts_out(source: &str, options: &str) -> bool {
    let option =
        |option: &str| option.strip_prefix("-D").is_some_and(|name| name.split('=').next() == Some(OPT_OUT));
    defines(source, OPT_OUT) || options.replace("-D ", "-D").split_whitespace().any(option)
}

/// Returns whether a source declares a `void` function of this name, as kernels are.
#[cfg(feature = "opencl")]
pub(crate) fn has_procedure(source: &str, name: &str) -> bool {
    let mut after_void = source.split("void").skip(1);
    after_void.any(|rest| {
        rest.trim_start().strip_prefix(name).is_some_and(|rest| rest.trim_start().starts_with('('))
    })
}

/// Returns whether a source defines a macro of this name.
pub(crate) fn defines(source: &str, name: &str) -> bool {
    source.lines().any(|line| {
        let defined =
            line.trim_start().strip_prefix('#').and_then(|line| line.trim_start().strip_prefix("define"));
        let rest = defined.and_then(|defined| defined.trim_start().strip_prefix(name));
        rest.is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_'))
    })
}
