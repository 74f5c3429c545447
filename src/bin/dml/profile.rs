//! `dml profile`: the ratios in which devices divide the kernels of an application.

use crate::cli::ProfileOptions;
use crate::failure::{self, Failure};
use crate::json::{self, Profiled, ProfiledKernel, ProfiledRound};
use crate::output::{self, Unwritten};
use crate::{knowledge, run, table};
use dml::app::Profile;
use std::time::Duration;

/// Corrects the ratios of an application, keeps them, and prints each round.
pub(crate) fn run(options: &ProfileOptions) -> Result<(), Failure> {
    let (machine, application, mut prepared) = run::prepared(&options.application, &[])?;
    if let Some(output) = &options.output {
        output::check(&[("the application", &options.application.file)], &[("--output", output)])?;
    }
    let devices = run::names(&prepared);
    if devices.len() < 2 {
        let why = "there is nothing to divide with one device: name several with --devices";
        return Err(Failure::Usage(format!("{} can run on {} only; {why}", application.name(), devices[0])));
    }
    if options.application.shares.iter().any(|share| share.value <= 0.0) {
        return Err(Failure::Usage("a profile begins with --shares above 0".to_owned()));
    }
    let knowledge = knowledge::of_this_machine();
    prepared.knowledge(&knowledge);
    let profiles = prepared.profile().map_err(run::failed)?;
    knowledge.save().map_err(Failure::work)?;
    let kernels: Vec<ProfiledKernel> = profiles.into_iter().map(profiled).collect();
    let mut unwritten = Unwritten::default();
    let picture = options.output.as_ref().and_then(|path| {
        let picture = picture(&devices, &kernels);
        let written = output::write(path, "picture", |file| file.write_all(picture.as_bytes()));
        unwritten.name(path, written)
    });
    let result = Profiled { application: application.name().to_owned(), devices, kernels, picture };
    if options.application.json {
        json::print(&result)?;
    } else {
        failure::print(&text(&result, machine.note.as_deref()))?;
    }
    unwritten.end()
}

fn profiled(profile: Profile) -> ProfiledKernel {
    let normal = |shares: &[f64]| {
        let sum: f64 = shares.iter().sum();
        shares.iter().map(|share| share / sum).collect::<Vec<f64>>()
    };
    let rounds = profile.measured.iter().map(|measured| ProfiledRound {
        ratios: normal(&measured.shares),
        seconds: measured
            .durations
            .iter()
            .map(|duration| duration.as_ref().map(Duration::as_secs_f64))
            .collect(),
    });
    ProfiledKernel {
        rounds: rounds.collect(),
        ratios: normal(&profile.shares),
        kernel: profile.kernel,
        items: profile.items,
        balanced: profile.is_balanced,
    }
}

fn text(result: &Profiled, note: Option<&str>) -> String {
    let mut lines = vec![format!("{}: ratios of the strips, and the time of each step", result.application)];
    lines.extend(note.map(str::to_owned));
    for kernel in &result.kernels {
        lines.push(String::new());
        lines.push(format!("{}, {} items", kernel.kernel, kernel.items));
        let mut rows = vec![vec!["round".to_owned()]];
        rows[0].extend(result.devices.iter().flat_map(|device| [device.clone(), String::new()]));
        for (number, round) in (1..).zip(&kernel.rounds) {
            let cells = round.ratios.iter().zip(&round.seconds).flat_map(|(ratio, seconds)| {
                [format!("{:.1} %", 100.0 * ratio), seconds.map_or("-".to_owned(), table::seconds)]
            });
            rows.push([number.to_string()].into_iter().chain(cells).collect());
        }
        lines.extend(table::lines(&rows));
        let ratios: Vec<String> =
            kernel.ratios.iter().map(|ratio| format!("{:.1} %", 100.0 * ratio)).collect();
        let ends = if kernel.balanced { "the devices end together" } else { "the best of these rounds" };
        lines.push(format!("kept        {} ({ends})", ratios.join(", ")));
    }
    if result.kernels.is_empty() {
        lines.push("no kernel has ratios to find: those that reduce or are undivided have none".to_owned());
    }
    lines.extend(result.picture.iter().map(|path| format!("picture     {path}")));
    lines.push(String::new());
    lines.join("\n")
}

/// Width and height of a panel of the picture, and of its margins.
const PANEL: [f64; 2] = [320.0, 180.0];
const MARGIN: [f64; 2] = [70.0, 50.0];
const COLOURS: [&str; 6] = ["#1f6fb2", "#d9662b", "#3c9147", "#a53f8a", "#8a6d3b", "#555555"];

/// Draws a row for each kernel: the ratio and the duration of each device by round.
fn picture(devices: &[String], kernels: &[ProfiledKernel]) -> String {
    let [width, height] = [0, 1].map(|axis| PANEL[axis] + MARGIN[axis]);
    let (all_width, all_height) = (2.0 * width + MARGIN[0], kernels.len() as f64 * height + MARGIN[1]);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {all_width} {all_height}\" font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    for (row, kernel) in kernels.iter().enumerate() {
        let top = row as f64 * height + MARGIN[1] / 2.0;
        let ratios =
            kernel.rounds.iter().map(|round| round.ratios.iter().map(|ratio| Some(100.0 * ratio)).collect());
        let times =
            kernel.rounds.iter().map(|round| round.seconds.iter().map(|s| s.map(|s| 1e3 * s)).collect());
        for (column, (title, rounds)) in
            [("percent", ratios.collect::<Vec<Vec<Option<f64>>>>()), ("ms", times.collect())]
                .into_iter()
                .enumerate()
        {
            let left = column as f64 * width + MARGIN[0];
            svg += &panel(&format!("{}, {title}", escaped(&kernel.kernel)), [left, top], &rounds, devices);
        }
    }
    svg + "</svg>\n"
}

fn panel(title: &str, [left, top]: [f64; 2], rounds: &[Vec<Option<f64>>], devices: &[String]) -> String {
    let most = rounds.iter().flatten().flatten().copied().fold(f64::MIN_POSITIVE, f64::max);
    let x = |round: usize| left + PANEL[0] * round as f64 / (rounds.len().max(2) - 1) as f64;
    let y = |value: f64| top + PANEL[1] * (1.0 - value / most);
    let [right, bottom] = [left + PANEL[0], top + PANEL[1]];
    let mut svg = format!(
        "<text x=\"{left}\" y=\"{:.1}\">{title}</text>\n<path d=\"M{left} {top}V{bottom}H{right}\" fill=\"none\" stroke=\"#888\"/>\n<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{most:.3}</text>\n<text x=\"{right}\" y=\"{:.1}\" text-anchor=\"end\">round {}</text>\n",
        top - 8.0,
        left - 6.0,
        top + 10.0,
        bottom + 16.0,
        rounds.len(),
    );
    for (device, name) in devices.iter().enumerate() {
        let colour = COLOURS[device % COLOURS.len()];
        let points = rounds.iter().enumerate().filter_map(|(round, values)| {
            let value = values.get(device).copied().flatten()?;
            Some(format!("{:.1},{:.1}", x(round), y(value)))
        });
        let points = points.collect::<Vec<_>>().join(" ");
        svg += &format!(
            "<polyline points=\"{points}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n"
        );
        let at = left + 70.0 * device as f64;
        svg += &format!(
            "<text x=\"{at:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>\n",
            bottom + 16.0,
            escaped(name)
        );
    }
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
