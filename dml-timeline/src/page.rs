//! The page that shows a trace: a single HTML file, which fetches nothing.
//!
//! The trace is embedded as JSON without any `<`, and the script inserts every name as text. So no name in a
//! trace can become markup.

use super::{Finding, Summary, Trace};
use serde::Serialize;
use std::io::{self, Write};

const PAGE: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/style.css");
const CHART: &str = include_str!("page/chart.js");
const SCRIPT: &str = include_str!("page/page.js");

/// The input of the page's script.
#[derive(Serialize)]
struct Shown<'a> {
    trace: &'a Trace,
    summary: Summary,
    findings: Vec<Finding>,
    end_ns: u64,
}

impl Trace {
    /// Writes a self-contained page that shows the trace in a browser: it needs no other file and no network.
    ///
    /// # Errors
    /// Errors of the writer.
    pub fn write_page(&self, writer: impl Write) -> io::Result<()> {
        let shown =
            Shown { trace: self, summary: self.summary(), findings: self.findings(), end_ns: self.end_ns() };
        let data = serde_json::to_string(&shown)?.replace('<', "\\u003c");
        let title = escaped(&format!("{} - dml timeline", self.label));
        let mut writer = io::BufWriter::new(writer);
        let mut rest = PAGE;
        for (mark, text) in [
            ("{{title}}", title.as_str()),
            ("{{style}}", STYLE),
            ("{{data}}", &data),
            ("{{chart}}", CHART),
            ("{{script}}", SCRIPT),
        ] {
            // The template has each placeholder once, in this order.
            let (before, after) = rest.split_once(mark).unwrap_or((rest, ""));
            writer.write_all(before.as_bytes())?;
            writer.write_all(text.as_bytes())?;
            rest = after;
        }
        writer.write_all(rest.as_bytes())?;
        writer.flush()
    }
}

/// Escapes text for HTML.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}
