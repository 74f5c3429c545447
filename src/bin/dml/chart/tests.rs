use super::*;
use crate::reproduce::coexec::{chart, tests::sample};

/// Returns the values of an attribute of all elements of a class.
fn of_class<'a>(svg: &'a str, class: &str, attribute: &str) -> Vec<&'a str> {
    let class = format!(r#"class="{class}""#);
    let elements = svg.lines().filter(|line| line.contains(&class));
    let value = |line: &'a str| line.split(&format!(r#" {attribute}=""#)).nth(1)?.split('"').next();
    elements.filter_map(value).collect()
}

fn number(text: &str) -> f64 {
    text.trim_start_matches('M').split_whitespace().next().unwrap_or("").parse().expect("a number")
}

/// The bars are proportional to the speedups, in their order. Each mark shows the maximum possible speedup.
#[test]
fn bars_and_marks_stand_for_their_figures() {
    let result = sample();
    let svg = chart(&result).svg();
    let mut speedups: Vec<f64> = result.rows.iter().map(|row| row.bench.speedup).collect();
    let means = [result.means.regular, result.means.irregular, result.means.all];
    speedups.extend(means.iter().filter_map(|means| means.speedup));
    let bars: Vec<f64> = of_class(&svg, "bar", "width").into_iter().map(number).collect();
    assert_eq!(bars.len(), 5 + 3, "{svg}");
    let unit = bars[0] / speedups[0];
    for (bar, speedup) in bars.iter().zip(&speedups) {
        assert!((bar - speedup * unit).abs() < 0.6, "{bar} for {speedup}");
    }
    let marks: Vec<f64> = of_class(&svg, "most", "d").into_iter().map(number).collect();
    assert_eq!(marks.len(), bars.len() + 4, "one for each bar, those of the papers included");
    for (mark, speedup) in marks.iter().zip(&speedups) {
        assert!((mark - LEFT - 2.0 * speedup * unit).abs() < 1.5, "{mark} for {speedup}");
    }
    assert!(marks.iter().all(|mark| *mark <= RIGHT + 0.1), "nothing beyond the end of the axis: {marks:?}");
    let alone = number(of_class(&svg, "alone", "d")[0]);
    assert!((alone - LEFT - unit).abs() < 0.6, "{alone}");
    assert!(svg.contains(">27.00 of 54.00<") && svg.contains(">1.65 of 1.79<"), "{svg}");
}

/// Lines are 24 apart, from 64 downwards. Each has its text on one baseline, its bar in the middle and its
/// mark within. The axis is below the last line.
#[test]
fn everything_stands_at_the_height_of_its_line() {
    let svg = chart(&sample()).svg();
    let at = |class: &str, attribute: &str| -> Vec<f64> {
        of_class(&svg, class, attribute).into_iter().map(number).collect()
    };
    let tops = |lines: &[u32], below: f64| -> Vec<f64> {
        lines.iter().map(|line| 64.0 + f64::from(*line) * 24.0 + below).collect()
    };
    let (headings, bars, published) = ([0, 3, 6, 8, 12], [1, 2, 4, 5, 7, 9, 10, 11], [13, 14, 15, 16]);
    let near = |found: Vec<f64>, expected: Vec<f64>| {
        assert_eq!(found.len(), expected.len(), "{svg}");
        assert!(
            found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 0.06),
            "{found:?}, not {expected:?}"
        );
    };
    near(at("heading", "y"), tops(&headings, 16.8));
    near(at("bar", "y"), tops(&bars, 5.0));
    near(at("published", "y"), tops(&published, 5.0));
    let all = [&bars[..], &published].concat();
    let ends: Vec<(f64, f64)> = of_class(&svg, "most", "d")
        .into_iter()
        .map(|way| way.split_once(' ').unwrap().1.split_once('V').unwrap())
        .map(|(top, bottom)| (number(top), number(bottom)))
        .collect();
    near(ends.iter().map(|(top, _)| *top).collect(), tops(&all, 2.0));
    near(ends.iter().map(|(_, bottom)| *bottom).collect(), tops(&all, 22.0));
    for (text, places) in [(r#"<text x="28" "#, &all), (r#"<text x="652" "#, &all)] {
        let found = svg.lines().filter(|line| line.starts_with(text));
        let y = found.map(|line| number(line.split(r#" y=""#).nth(1).unwrap().split('"').next().unwrap()));
        near(y.collect(), tops(places, 16.8));
    }
    // Seven marks from 0 to 60 and the line at speedup 1 extend from the first line to below the last.
    let marks: Vec<f64> = (0..7).map(|mark| 250.0 + 65.0 * f64::from(mark)).collect();
    near(at("grid", "d"), marks.clone());
    assert_eq!(svg.matches(" 64V472\"").count(), 8, "{svg}");
    assert_eq!(svg.matches(r#" y="490" text-anchor="middle">"#).count(), 7, "{svg}");
    assert!(svg.contains(r#"viewBox="0 0 760 508""#), "{svg}");
}

#[test]
fn the_chart_is_whole_and_needs_nothing_else() {
    let mut result = sample();
    result.policy = "<script>\"&".to_owned();
    let svg = chart(&result).svg();
    assert!(!svg.contains("<script") && svg.contains("&lt;script&gt;&quot;&amp;"), "{svg}");
    let addresses = svg.matches("http").count() + svg.matches("url(").count() + svg.matches("href").count();
    assert_eq!(addresses, 1, "the name of the format alone: {svg}");
    assert!(svg.contains("prefers-color-scheme: dark"));
    for element in ["svg", "style", "text"] {
        let opened =
            svg.matches(&format!("<{element} ")).count() + svg.matches(&format!("<{element}>")).count();
        assert_eq!(opened, svg.matches(&format!("</{element}>")).count(), "{element}");
    }
    let (open, close) = (svg.matches('<').count(), svg.matches('>').count());
    assert_eq!(open, close, "{svg}");
    // Each workload is named, below its kind.
    let place = |text: &str| svg.find(&format!(">{text}<")).unwrap_or_else(|| panic!("no {text}: {svg}"));
    let order = ["regular", "saxpy", "vecadd", "irregular", "mandelbrot", "ray", "all-to-all", "nbody"];
    assert!(order.map(place).is_sorted(), "{svg}");
}

#[test]
fn the_axis_has_a_few_round_marks() {
    for (greatest, expected) in [(1.0, 0.2), (2.0, 0.25), (2.4, 0.5), (7.9, 1.0), (54.0, 10.0)] {
        let step = step(greatest);
        assert!((step - expected).abs() < 1e-9, "{greatest}: {step}");
    }
    assert_eq!([0.25, 1.0, 0.5, 10.0, 0.0].map(round), ["0.25", "1", "0.5", "10", "0"]);
}
