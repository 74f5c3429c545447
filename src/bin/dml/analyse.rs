//! `dml analyse`: which elements of its buffers a kernel accesses.

use crate::cli::AnalyseOptions;
use crate::failure::{self, Failure};
use crate::{json, output};
use dml::analysis::{Access, Analysis, Language, Source};
use serde::Serialize;
use std::fmt::Write as _;

/// The output of `dml analyse --json`.
#[derive(Debug, Serialize)]
struct Analysed {
    kernels: Vec<OfKernel>,
}

#[derive(Debug, Serialize)]
struct OfKernel {
    name: String,
    /// Why it is not analysed, with line and column.
    refused: Option<String>,
    accesses: Vec<OfStatement>,
    /// The buffers with an index that depends on data, each with the reason.
    buffers_refused: Vec<(String, String)>,
}

#[derive(Debug, Serialize)]
struct OfStatement {
    line: usize,
    buffer: String,
    /// `reads`, `writes` or `updates`.
    access: &'static str,
    offset: String,
    bytes: u64,
}

/// Analyses the kernels of a source.
pub(crate) fn run(options: &AnalyseOptions) -> Result<(), Failure> {
    let text = output::read(&options.file, "source", "no text")?;
    let is_cuda = options.file.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("cu"));
    let language = if is_cuda { Language::Cuda } else { Language::OpenCl };
    let source = Source::new(&text, language, &options.define);
    let names = match &options.kernel {
        Some(kernel) => vec![kernel.clone()],
        None => source.kernels().into_iter().map(str::to_owned).collect(),
    };
    if let Some(skipped) = source.skipped() {
        eprintln!(
            "dml: {}:{skipped}: what follows it up to the next declaration is not read",
            options.file.display()
        );
    }
    if text.lines().any(|line| line.trim_start().starts_with("#include")) {
        eprintln!("dml: {}: included files are not read", options.file.display());
    }
    let kernels: Vec<_> = names.into_iter().map(|name| of_kernel(&source, name)).collect();
    let analysed = Analysed { kernels };
    if options.json {
        json::print(&analysed)?;
    } else {
        failure::print(&text_of(&analysed))?;
    }
    let mut kernels = analysed.kernels.iter();
    let Some(OfKernel { refused: Some(why), name, .. }) = kernels.next() else { return Ok(()) };
    if kernels.any(|kernel| kernel.refused.is_none()) {
        return Ok(());
    }
    Err(Failure::Usage(format!("kernel {name} is not analysed: {}:{why}", options.file.display())))
}

fn of_kernel(source: &Source, name: String) -> OfKernel {
    let (refused, analysis) = match source.kernel(&name) {
        Ok(analysis) => (None, Some(analysis)),
        Err(refusal) => (Some(refusal.to_string()), None),
    };
    let accesses = analysis.as_ref().map_or_else(Vec::new, accesses);
    let buffers_refused = analysis.iter().flat_map(|analysis| {
        let refused = analysis.parameters().iter().enumerate();
        refused.filter_map(|(at, of)| Some((of.name.clone(), analysis.refusal(at)?.to_string())))
    });
    let buffers_refused = buffers_refused.collect();
    OfKernel { name, refused, accesses, buffers_refused }
}

fn accesses(analysis: &Analysis) -> Vec<OfStatement> {
    let one = |access: dml::analysis::StatementAccess| OfStatement {
        line: access.line,
        buffer: analysis.parameters()[access.parameter].name.clone(),
        access: match access.access {
            Access::Reads => "reads",
            Access::Overwrites => "writes",
            _ => "updates",
        },
        offset: access.offset,
        bytes: access.bytes,
    };
    analysis.accesses().into_iter().map(one).collect()
}

fn text_of(analysed: &Analysed) -> String {
    let mut text = String::new();
    for kernel in &analysed.kernels {
        let _ = writeln!(text, "{}", kernel.name);
        if let Some(why) = &kernel.refused {
            let _ = writeln!(text, "  refused: {why}");
        }
        for OfStatement { line, buffer, access, offset, bytes } in &kernel.accesses {
            let _ = writeln!(text, "  line {line}: {access} {bytes} bytes of {buffer} from {offset}");
        }
        for (buffer, why) in &kernel.buffers_refused {
            let _ = writeln!(text, "  {buffer} refused: {why}");
        }
    }
    text
}
