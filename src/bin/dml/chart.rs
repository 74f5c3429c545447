//! Bar charts: self-contained SVGs with a light and a dark colour scheme, such as that of
//! `dml reproduce coexec`:
//!
//! ```text
//!   regular                       ┆ fastest device alone
//!     gaussian   ████████████████████████████████  │ the most possible     1.90 of 1.98
//!     saxpy      █████████████████████ ┆  │                                1.02 of 1.35
//! ```

use std::fmt::Write;

const WIDTH: f64 = 760.0;
/// Left end of the bars, and right end of the longest possible bar.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 640.0;
const TOP: f64 = 64.0;
const LINE: f64 = 24.0;
const BAR: f64 = 14.0;

/// A bar chart.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'static str,
    /// What the figures are of.
    pub(crate) about: String,
    /// The lines from top to bottom.
    pub(crate) lines: Vec<Line<'a>>,
    /// Where a line across all bars is drawn.
    pub(crate) reference: Option<f64>,
}

/// A line of a chart.
pub(crate) enum Line<'a> {
    Heading(&'a str),
    Bar {
        label: String,
        value: f64,
        /// The value at a mark.
        mark: Option<f64>,
        is_published: bool,
        /// The figures beside the bar.
        figures: String,
    },
}

impl Chart<'_> {
    /// Draws the chart.
    pub(crate) fn svg(&self) -> String {
        let greatest = self.lines.iter().map(Line::greatest).fold(1.0, f64::max);
        let step = step(greatest);
        let end = (greatest / step).ceil() * step;
        let x = |value: f64| LEFT + value / end * (RIGHT - LEFT);
        let bottom = TOP + self.lines.len() as f64 * LINE;
        let mut svg = String::new();
        self.head(&mut svg, bottom + 36.0);
        axis(&mut svg, [step, end], bottom, x);
        if let Some(reference) = self.reference {
            let _ = writeln!(svg, r#"<path class="alone" d="M{:.1} {TOP}V{bottom}"/>"#, x(reference));
        }
        for (index, line) in self.lines.iter().enumerate() {
            draw(&mut svg, line, TOP + index as f64 * LINE, x);
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn head(&self, svg: &mut String, height: f64) {
        let (title, about) = (self.title, escaped(&self.about));
        let _ = write!(
            svg,
            r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">
<style>
{STYLE}
</style>
<rect class="ground" width="{WIDTH}" height="{height}"/>
<text class="title" x="16" y="26">{title}</text>
<text class="quiet" x="16" y="46">{about}</text>
"#
        );
    }
}

impl Line<'_> {
    fn greatest(&self) -> f64 {
        match self {
            Self::Heading(_) => 0.0,
            Self::Bar { value, mark, .. } => value.max(mark.unwrap_or(0.0)),
        }
    }
}

/// Returns the distance of two marks of the axis: a round number, for at most eight intervals.
fn step(greatest: f64) -> f64 {
    let rough = greatest / 8.0;
    let ten = 10.0_f64.powf(rough.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0].into_iter().map(|part| part * ten).find(|step| *step >= rough).unwrap_or(rough)
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

/// Draws the marks with their grid lines.
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
        Line::Bar { label, value, mark, is_published, figures } => {
            let class = if *is_published { "published" } else { "bar" };
            let (label, top, width) = (escaped(label), y + (LINE - BAR) / 2.0, x(*value) - LEFT);
            let _ = writeln!(svg, r#"<text x="28" y="{base:.1}">{label}</text>"#);
            let _ = writeln!(
                svg,
                r#"<rect class="{class}" x="{LEFT}" y="{top:.1}" width="{width:.1}" height="{BAR}"/>"#
            );
            if let Some(mark) = mark {
                let (at, top, bottom) = (x(*mark), y + 2.0, y + LINE - 2.0);
                let _ = writeln!(svg, r#"<path class="most" d="M{at:.1} {top:.1}V{bottom:.1}"/>"#);
            }
            let (at, figures) = (RIGHT + 12.0, escaped(figures));
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
