//! `dml knowledge`: lists or forgets the knowledge of earlier runs, which is kept in the user's cache folder.

use crate::cli::KnowledgeOptions;
use crate::failure::{self, Failure};
use crate::json;
use dml::scheduler::Knowledge;
use serde::Serialize;

/// Loads this machine's knowledge. Notes an unusable file on standard error; the next save replaces it.
pub(crate) fn of_this_machine() -> Knowledge {
    let knowledge = Knowledge::of_this_machine();
    if let Some(error) = knowledge.ignored() {
        eprintln!("dml: the knowledge of earlier runs is ignored: {error}");
    }
    knowledge
}

/// Saves the knowledge. A failure is only noted, because the results are valid without it.
pub(crate) fn save(knowledge: &Knowledge) {
    if let Err(error) = knowledge.save() {
        eprintln!("dml: the knowledge of these runs is not saved: {error}");
    }
}

/// The output of `dml knowledge --json`.
#[derive(Debug, Serialize)]
struct Known {
    file: Option<String>,
    kernels: Vec<KnownKernel>,
}

#[derive(Debug, Serialize)]
struct KnownKernel {
    name: String,
    devices: Vec<String>,
}

/// Lists the knowledge, after forgetting the requested part of it.
pub(crate) fn run(options: &KnowledgeOptions) -> Result<(), Failure> {
    let knowledge = of_this_machine();
    let known: Vec<String> = knowledge.kernels().into_iter().map(|(name, _)| name).collect();
    if let Some(unknown) = options.forget.iter().find(|kernel| !known.contains(kernel)) {
        return Err(Failure::Usage(format!("no knowledge of a kernel {unknown:?}: nothing was forgotten")));
    }
    options.forget.iter().for_each(|kernel| _ = knowledge.forget(kernel));
    if options.forget_all {
        knowledge.clear();
    }
    if options.forget_all || !options.forget.is_empty() {
        knowledge.save().map_err(Failure::work)?;
    }
    let kernels = knowledge.kernels().into_iter().map(|(name, devices)| KnownKernel { name, devices });
    let file = knowledge.file().map(|file| file.display().to_string());
    let known = Known { file, kernels: kernels.collect() };
    if options.json { json::print(&known) } else { failure::print(&text(&known)) }
}

fn text(known: &Known) -> String {
    let file = known.file.as_deref().unwrap_or("nowhere: there is no cache folder");
    let mut lines = vec![format!("kept in     {file}")];
    for KnownKernel { name, devices } in &known.kernels {
        lines.push(format!("kernel      {}: {}", name.escape_debug(), devices.join(", ")));
    }
    if known.kernels.is_empty() {
        lines.push("kernel      none".to_owned());
    }
    lines.push(String::new());
    lines.join("\n")
}
