//! Knowledge as text: one line for each thing that is known, so that a person can read it, and a diff shows what changed.
//!
//! ```text
//! dml knowledge 2
//! page 23 mandelbrot
//! device cpu rate 1.2e7 1.3e7 peak 1.4e7 1.3e7 setup 1e-5 2e-5
//! device cuda:0 rate 4.1e6 peak 4.2e6 setup 2e-4 latency 8.8e-3 kernel 4.1e6
//! set cpu opencl:0 seconds 1.1e-7 1.0e-7
//! runs 5
//! ```
//! A page names the size class and the kernel, the rest of its line, and what follows is about it. A `set` gives seconds per item.

use super::{Book, Knowledge, MOST_PAGES, Notes, Page, Samples, Topic};
use dml_core::sync::{Arc, Mutex};
use std::fmt;
use thiserror::Error;

const HEADING: &str = "dml knowledge 2";

/// Why a text is not knowledge.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line} of the knowledge of earlier runs: {what}: {text:?}")]
pub struct KnowledgeError {
    /// The number of the line, from 1.
    pub line: usize,
    /// What is wrong with it.
    pub what: &'static str,
    /// The line, or its beginning.
    pub text: String,
}

impl fmt::Display for Knowledge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The text is written without the lock, because a formatter is foreign code.
        let book = self.0.lock().clone();
        writeln!(f, "{HEADING}")?;
        for (topic, page) in &book.0 {
            writeln!(f, "page {} {}", topic.class, escaped(&topic.kernel))?;
            for (device, notes) in &page.devices {
                let Notes { rate, peak, setup, latency, kernel, is_only_tried, is_warm: _, has_failed: _ } =
                    notes;
                let tried = if *is_only_tried { " tried" } else { "" };
                write!(f, "device {}{tried} rate{rate} peak{peak} setup{setup}", escaped(device))?;
                if latency.len() > 0 {
                    write!(f, " latency{latency}")?;
                }
                if kernel.len() > 0 {
                    write!(f, " kernel{kernel}")?;
                }
                writeln!(f)?;
            }
            for (set, samples) in &page.sets {
                let names: Vec<_> = set.iter().map(|name| escaped(name)).collect();
                writeln!(f, "set {} seconds{samples}", names.join(" "))?;
            }
            if page.runs > 0 {
                writeln!(f, "runs {}", page.runs)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for Samples {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|sample| write!(f, " {sample:e}"))
    }
}

/// A name in which blanks and ends of lines are replaced, so that it is one word.
fn escaped(name: &str) -> String {
    let escape = |c: char| match c {
        '%' => "%25".to_owned(),
        c if c.is_whitespace() || c.is_control() => {
            c.to_string().bytes().map(|byte| format!("%{byte:02x}")).collect()
        }
        c => c.to_string(),
    };
    if name.is_empty() { "%".to_owned() } else { name.chars().map(escape).collect() }
}

/// The name that [`escaped`] made a word of; `None` if it made none such.
fn unescaped(word: &str) -> Option<String> {
    if word == "%" {
        return Some(String::new());
    }
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).ok()
}

impl Knowledge {
    /// Reads what [`Display`](fmt::Display) wrote.
    ///
    /// # Errors
    /// [`KnowledgeError`] names the first line that is wrong. Nothing of the text is used then.
    pub fn parse(text: &str) -> Result<Self, KnowledgeError> {
        let mut lines = text.lines().enumerate();
        let error = |line: usize, what, text: &str| KnowledgeError {
            line: line + 1,
            what,
            text: text.chars().take(60).collect(),
        };
        match lines.next() {
            Some((_, HEADING)) => {}
            first => {
                return Err(error(0, "not the heading of this version", first.map_or("", |(_, text)| text)));
            }
        }
        let mut book = Book::default();
        let mut topic = None;
        for (number, line) in lines {
            let told = |what| error(number, what, line);
            let words: Vec<&str> = line.split(' ').collect();
            if let ["page", class, kernel] = words[..] {
                let class = class.parse().ok().filter(|&class| class < u64::BITS);
                let class = class.ok_or_else(|| told("not a size class"))?;
                let kernel = unescaped(kernel).ok_or_else(|| told("not a name"))?;
                let new = topic.insert(Topic { kernel, class });
                book.0.entry(new.clone()).or_default();
                if book.0.len() > MOST_PAGES {
                    return Err(told("too many pages"));
                }
                continue;
            }
            let page = topic.as_ref().and_then(|topic| book.0.get_mut(topic));
            add(page.ok_or_else(|| told("not a page"))?, &words).map_err(told)?;
        }
        Ok(Self(Arc::new(Mutex::new(book))))
    }
}

/// Adds a line to a page.
///
/// # Errors
/// What is wrong with it.
fn add(page: &mut Page, words: &[&str]) -> Result<(), &'static str> {
    let (kind, rest) = words.split_first().ok_or("empty")?;
    match *kind {
        "device" => {
            let at_the_end = |rest, word: &str, told| match <[&str]>::contains(rest, &word) {
                true => around(rest, word).ok_or(told),
                false => Ok((rest, Samples::default())),
            };
            let (rest, kernel) = at_the_end(rest, "kernel", "a kernel's rate that is not positive numbers")?;
            let (rest, latency) = at_the_end(rest, "latency", "a latency that is not positive numbers")?;
            let (front, setup) = around(rest, "setup").ok_or("no setup, or not positive numbers")?;
            let (front, peak) = around(front, "peak").ok_or("no peak, or not positive numbers")?;
            let (front, rate) = around(front, "rate").ok_or("no rate, or not positive numbers")?;
            let (name, is_only_tried) = match front {
                [name] => (name, false),
                [name, "tried"] => (name, true),
                _ => return Err("not one name"),
            };
            let notes = Notes {
                rate,
                peak,
                setup,
                latency,
                kernel,
                is_only_tried,
                is_warm: false,
                has_failed: false,
            };
            page.devices.insert(unescaped(name).ok_or("not a name")?, notes);
        }
        "set" => {
            let (names, seconds) = around(rest, "seconds").ok_or("no seconds, or not positive numbers")?;
            let names: Option<Vec<String>> = names.iter().map(|name| unescaped(name)).collect();
            let mut names = names.ok_or("not a name")?;
            names.sort_unstable();
            names.dedup();
            if names.is_empty() {
                return Err("no device");
            }
            page.sets.insert(names, seconds);
        }
        "runs" => {
            let [runs] = rest else { return Err("not one number") };
            page.runs = runs.parse().map_err(|_| "not a number of runs")?;
        }
        _ => return Err("neither page, device, set nor runs"),
    }
    Ok(())
}

/// What is in front of the last such word, and the numbers behind it.
fn around<'a, 'b>(words: &'a [&'b str], word: &str) -> Option<(&'a [&'b str], Samples)> {
    let place = words.iter().rposition(|other| *other == word)?;
    Some((&words[..place], samples(&words[place + 1..])?))
}

/// Positive numbers; `None` if one is none.
fn samples(words: &[&str]) -> Option<Samples> {
    let mut samples = Samples::default();
    for word in words {
        let sample: f64 = word.parse().ok()?;
        if !(sample.is_finite() && sample > 0.0) {
            return None;
        }
        samples.add(sample);
    }
    Some(samples)
}
