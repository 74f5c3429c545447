//! The slowest tests, from the JUnit report that nextest writes (configured in `.config/nextest.toml`).

use std::fs;
use std::path::PathBuf;

/// Maximum number of listed tests.
const NAMED: usize = 10;

/// Returns the path of nextest's report, which does not depend on the target folder of the build.
pub(crate) fn report() -> PathBuf {
    crate::shell::repository_root().join("target/nextest/default/junit.xml")
}

/// Returns a list of the slowest tests in the report with their share of the total time, or `None` without
/// a report.
pub(crate) fn named() -> Option<String> {
    sentence(&fs::read_to_string(report()).ok()?)
}

fn sentence(report: &str) -> Option<String> {
    let mut tests: Vec<(f64, String)> = report.split("<testcase ").skip(1).filter_map(test).collect();
    tests.sort_by(|(one, _), (other, _)| other.total_cmp(one));
    let all: f64 = tests.iter().map(|(seconds, _)| seconds).sum();
    let slowest: f64 = tests.iter().take(NAMED).map(|(seconds, _)| seconds).sum();
    let names: Vec<String> =
        tests.iter().take(NAMED).map(|(seconds, name)| format!("\n  {seconds:6.1} s  {name}")).collect();
    if names.is_empty() {
        return None;
    }
    let count = names.len();
    Some(format!(
        "the {count} slowest of {} tests took {slowest:.0} s of {all:.0} s in total:{}",
        tests.len(),
        names.concat()
    ))
}

/// Parses the time in seconds and the name of a test, from the text that follows `<testcase `.
fn test(element: &str) -> Option<(f64, String)> {
    let element = &element[..element.find('>')?];
    let attribute = |name: &str| {
        let (_, rest) = element.split_once(&format!("{name}=\""))?;
        rest.split_once('"').map(|(value, _)| value)
    };
    // `classname` also ends in `name`, so the attribute is searched with a space before it.
    let element_name =
        element.strip_prefix("name=\"").and_then(|rest| rest.split_once('"')).map(|(name, _)| name);
    let name = element_name.or_else(|| attribute(" name"))?;
    Some((attribute(" time")?.parse().ok()?, format!("{} {name}", attribute("classname")?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_come_first_and_no_more_than_ten() {
        let mut report = "<testsuites time=\"99\"><testsuite name=\"dml\" time=\"98\">".to_owned();
        for (index, seconds) in
            [0.25, 3.5, 0.125, 20.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0].iter().enumerate()
        {
            report += &format!(
                "<testcase name=\"a::t{index}\" classname=\"dml::hostile\" timestamp=\"2026\" time=\"{seconds:.3}\">\n</testcase>"
            );
        }
        let said = sentence(&report).unwrap();
        assert!(said.starts_with("the 10 slowest of 12 tests took 32 s of 32 s in total:"), "{said}");
        let lines: Vec<&str> = said.lines().skip(1).collect();
        assert_eq!(lines.len(), 10);
        assert_eq!(lines[..2], ["    20.0 s  dml::hostile a::t3", "     3.5 s  dml::hostile a::t1"]);
        assert!(!said.contains("a::t2") && !said.contains("a::t0"), "{said}");
    }

    #[test]
    fn a_report_without_tests_names_none() {
        for report in
            ["", "<testsuites></testsuites>", "<testcase name=\"a\"", "<testcase name=\"a\" time=\"x\">"]
        {
            assert_eq!(sentence(report), None, "{report}");
        }
    }
}
