//! The chart of `dml reproduce coexec`: a self-contained SVG with a light and a dark colour scheme.
//!
//! ```text
//!   regular                       ┆ fastest device alone
//!     gaussian   ████████████████████████████████  │ the most possible     1.90 of 1.98
//!     saxpy      █████████████████████ ┆  │                                1.02 of 1.35
//! ```

use crate::json;
use std::fmt::Write;

const WIDTH: f64 = 760.0;
/// Left end of the bars, and right end of the longest possible bar.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 640.0;
const TOP: f64 = 64.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;

/// A line of the chart.
enum Line<'a> {
    Heading(&'a str),
    Bar { label: String, speedup: f64, most: Option<f64>, is_published: bool },
}

/// Draws the speedups, the maximum possible speedups, the means, and the published means.
pub(super) fn svg(result: &json::Coexec) -> String {
    let lines = lines(result);
    let greatest = lines.iter().map(Line::greatest).fold(1.0, f64::max);
    let step = step(greatest);
    let end = (greatest / step).ceil() * step;
    let x = |speedup: f64| LEFT + speedup / end * (RIGHT - LEFT);
    let bottom = TOP + lines.len() as f64 * LINE;
    let mut svg = String::new();
    head(&mut svg, bottom + 36.0, result);
    axis(&mut svg, [step, end], bottom, x);
    for (index, line) in lines.iter().enumerate() {
        draw(&mut svg, line, TOP + index as f64 * LINE, x);
    }
    svg.push_str("</svg>\n");
    svg
}

/// Returns the lines from top to bottom.
fn lines(result: &json::Coexec) -> Vec<Line<'_>> {
    let mut lines = Vec::new();
    for row in &result.rows {
        if !lines.iter().any(|line| matches!(line, Line::Heading(kind) if *kind == row.kind)) {
            lines.push(Line::Heading(row.kind));
        }
        let json::Bench { workload, speedup, s_max, .. } = &row.bench;
        lines.push(Line::Bar {
            label: workload.clone(),
            speedup: *speedup,
            most: Some(*s_max),
            is_published: false,
        });
    }
    lines.push(Line::Heading("geometric means"));
    let json::ByKind { regular, irregular, all } = &result.means;
    for (kind, means) in [("regular", regular), ("irregular", irregular), ("all", all)] {
        if let Some(speedup) = means.speedup {
            lines.push(Line::Bar { label: kind.to_owned(), speedup, most: means.s_max, is_published: false });
        }
    }
    lines.push(Line::Heading("published means"));
    for row in result.published.iter().filter(|row| row.over == "all") {
        // The maximum possible speedup is the published speedup over the efficiency.
        if let (Some(speedup), Some(efficiency)) = (row.speedup, row.efficiency) {
            let most = Some(speedup / efficiency);
            let processor = row.system.split(" and ").next().unwrap_or(row.system);
            lines.push(Line::Bar {
                label: format!("{processor}, {}", row.policy),
                speedup,
                most,
                is_published: true,
            });
        }
    }
    lines
}

impl Line<'_> {
    fn greatest(&self) -> f64 {
        match self {
            Self::Heading(_) => 0.0,
            Self::Bar { speedup, most, .. } => speedup.max(most.unwrap_or(0.0)),
        }
    }
}

/// Returns the distance of two marks of the axis: a round number, for at most eight intervals.
fn step(greatest: f64) -> f64 {
    let rough = greatest / 8.0;
    let ten = 10.0_f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|part| part * ten).find(|step| *step >= rough).unwrap_or(rough)
}

fn head(svg: &mut String, height: f64, result: &json::Coexec) {
    let json::Coexec { size, policy, memory, runs, .. } = result;
    let about = escaped(&format!("{size} size, policy {policy}, memory {memory}, median of {runs} runs"));
    let _ = write!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Speedups">
<style>
{STYLE}
</style>
<rect class="ground" width="{WIDTH}" height="{height}"/>
<text class="title" x="16" y="26">Speedup over the fastest device alone</text>
<text class="quiet" x="16" y="46">{about}; a mark shows the most that the devices can bring</text>
"#
    );
}

/// The style sheet, with the colour-blind safe palette of Okabe and Ito.
const STYLE: &str = "\
text { font: 13px system-ui, sans-serif; fill: #1a1a1a }
.title { font-size: 16px; font-weight: 600 }
.heading { font-weight: 600 }
.quiet { fill: #5c5c5c; font-size: 12px }
.ground { fill: #ffffff }
.bar { fill: #0072b2 }
.published { fill: #e69f00 }
.most { stroke: #1a1a1a; stroke-width: 2 }
.grid { stroke: #dddddd }
.alone { stroke: #5c5c5c; stroke-dasharray: 3 3 }
@media (prefers-color-scheme: dark) {
text { fill: #e6e6e6 }
.quiet { fill: #a8a8a8 }
.ground { fill: #161616 }
.bar { fill: #56b4e9 }
.most { stroke: #e6e6e6 }
.grid { stroke: #3a3a3a }
.alone { stroke: #a8a8a8 }
}";

/// Draws the marks with their grid lines, and a line at speedup 1.
fn axis(svg: &mut String, [step, end]: [f64; 2], bottom: f64, x: impl Fn(f64) -> f64) {
    let marks = (end / step).round() as u32;
    for mark in 0..=marks {
        let value = f64::from(mark) * step;
        let at = x(value);
        let _ = writeln!(svg, r#"<path class="grid" d="M{at:.1} {TOP}V{bottom}"/>"#);
        let (label, y) = (round(value), bottom + 18.0);
        let _ =
            writeln!(svg, r#"<text class="quiet" x="{at:.1}" y="{y}" text-anchor="middle">{label}</text>"#);
    }
    let _ = writeln!(svg, r#"<path class="alone" d="M{:.1} {TOP}V{bottom}"/>"#, x(1.0));
}

/// Formats a mark's number without trailing zeros.
fn round(value: f64) -> String {
    format!("{value:.2}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn draw(svg: &mut String, line: &Line<'_>, y: f64, x: impl Fn(f64) -> f64) {
    let base = y + LINE * 0.7;
    match line {
        Line::Heading(text) => {
            let text = escaped(text);
            let _ = writeln!(svg, r#"<text class="heading" x="16" y="{base:.1}">{text}</text>"#);
        }
        Line::Bar { label, speedup, most, is_published } => {
            let class = if *is_published { "published" } else { "bar" };
            let (label, top, width) = (escaped(label), y + (LINE - BAR) / 2.0, x(*speedup) - LEFT);
            let _ = writeln!(svg, r#"<text x="28" y="{base:.1}">{label}</text>"#);
            let _ = writeln!(
                svg,
                r#"<rect class="{class}" x="{LEFT}" y="{top:.1}" width="{width:.1}" height="{BAR}"/>"#
            );
            let mut figures = format!("{speedup:.2}");
            if let Some(most) = most {
                let (at, top, bottom) = (x(*most), y + 2.0, y + LINE - 2.0);
                let _ = writeln!(svg, r#"<path class="most" d="M{at:.1} {top:.1}V{bottom:.1}"/>"#);
                let _ = write!(figures, " of {most:.2}");
            }
            let at = RIGHT + 12.0;
            let _ = writeln!(svg, r#"<text x="{at}" y="{base:.1}">{figures}</text>"#);
        }
    }
}

/// Escapes text for XML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests;
