//! The rule about documents: the target of each link to a file of the repository exists.
//!
//! It checks inline links, images and reference definitions. It ignores URLs with a scheme, anchors, and code
//! in blocks and spans.

use super::Violation;

/// Checks the document at `path`. `exists` returns whether a path relative to the repository's root exists.
pub(super) fn check(path: &str, text: &str, exists: &dyn Fn(&str) -> bool) -> Vec<Violation> {
    let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
    let violation = |line, text| Violation { path: path.to_owned(), line, rule: "dead-link", text };
    let mut violations = Vec::new();
    for (line, prose) in prose_lines(text) {
        for target in targets(&prose) {
            let file = target.split(['#', '?']).next().unwrap_or_default();
            if file.is_empty() || has_scheme(file) {
                continue;
            }
            match resolve(folder, &file.replace("%20", " ")) {
                None => violations.push(violation(line, format!("`{target}` leads out of the repository"))),
                Some(resolved) if !exists(&resolved) => {
                    violations.push(violation(line, format!("`{target}` does not exist")))
                }
                Some(_) => {}
            }
        }
    }
    violations
}

/// Returns the lines outside of fenced blocks, numbered from 1, without their code spans.
pub(super) fn prose_lines(text: &str) -> Vec<(usize, String)> {
    let mut fence: Option<&str> = None;
    let mut prose = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let start = line.trim_start();
        match fence {
            Some(mark) => {
                if start.starts_with(mark) {
                    fence = None;
                }
            }
            None => {
                fence = ["```", "~~~"].into_iter().find(|mark| start.starts_with(mark));
                if fence.is_none() {
                    prose.push((index + 1, without_code_spans(line)));
                }
            }
        }
    }
    prose
}

/// Returns the line without its code spans.
fn without_code_spans(line: &str) -> String {
    let mut kept = String::new();
    let mut rest = line;
    while let Some(start) = rest.find('`') {
        let ticks = rest[start..].len() - rest[start..].trim_start_matches('`').len();
        let (before, after) = (&rest[..start], &rest[start + ticks..]);
        kept += before;
        match after.find(&rest[start..start + ticks]) {
            Some(end) => rest = &after[end + ticks..],
            None => rest = after,
        }
    }
    kept + rest
}

/// Returns the targets of the links in a line.
fn targets(line: &str) -> Vec<String> {
    let mut targets = Vec::new();
    let definition = line.trim_start().strip_prefix('[').filter(|rest| !rest.starts_with('^'));
    if let Some((_, target)) =
        definition.and_then(|rest| rest.split_once("]:")).filter(|(label, _)| !label.contains(']'))
    {
        targets.push(without_title(target));
    }
    let mut rest = line;
    while let Some((_, after)) = rest.split_once("](") {
        let mut depth = 1_usize;
        let end = after.find(|character| {
            match character {
                '(' => depth += 1,
                ')' => depth -= 1,
                _ => {}
            }
            depth == 0
        });
        targets.extend(end.map(|end| without_title(&after[..end])));
        rest = after;
    }
    targets
}

/// Returns the address of `<address> "title"`, in which the angle brackets and the title are optional.
fn without_title(target: &str) -> String {
    let target = target.trim();
    match target.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        Some((address, _)) => address.to_owned(),
        None => target.split_whitespace().next().unwrap_or_default().to_owned(),
    }
}

fn has_scheme(target: &str) -> bool {
    target.split_once(':').is_some_and(|(scheme, _)| scheme.chars().all(|c| c.is_ascii_alphanumeric()))
}

/// Returns the path from the repository's root, or `None` if it is outside. `/x` is relative to the root.
fn resolve(folder: &str, target: &str) -> Option<String> {
    let base = if target.starts_with('/') { "" } else { folder };
    let mut segments = Vec::new();
    for segment in base.split('/').chain(target.split('/')) {
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()?),
            name => segments.push(name),
        }
    }
    Some(segments.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines with dead links of a document in the folder `docs` of a small repository.
    fn dead(text: &str) -> Vec<usize> {
        let files = ["", "README.md", "docs/json.md", "docs/a (b).md", "src"];
        check("docs/guide.md", text, &|path| files.contains(&path))
            .into_iter()
            .map(|violation| violation.line)
            .collect()
    }

    #[test]
    fn links_are_followed_from_the_folder_of_the_document() {
        let good = "[a](json.md) ![b](../README.md \"title\") [c](/src/)\n[d](./json.md#devices) [e](..)\n[f]: <a (b).md>\n";
        assert!(dead(good).is_empty());
        assert_eq!(
            dead("fine\n[a](README.md) and [b](json.md)\n[c]: gone.md\n[d](gone (1).md)\n"),
            [2, 3, 4]
        );
        assert_eq!(dead("[x](json.md) [y](gone.md) [z](gone.md)"), [1, 1]);
    }

    #[test]
    fn a_link_out_of_the_repository_is_dead() {
        assert_eq!(dead("[spec](../../elsewhere/SPEC.md)\n"), [1]);
    }

    #[test]
    fn addresses_anchors_and_code_are_left_alone() {
        let text = "\
[a](https://example.org/x.md) [b](mailto:a@b.c) [c](#here)
`[d](gone.md)` and ``a ` [e](gone.md)``
```text
[f](gone.md)
```
a[i](j) is no link to check when it is `code`: `a[i](j)`
";
        assert_eq!(dead(text), [6]);
        assert!(dead("~~~\n[f](gone.md)\n~~~\n[^1]: a footnote\n").is_empty());
    }
}
