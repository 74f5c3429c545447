use super::*;
use crate::cli::{Arguments, Command};
use clap::Parser;

/// Three rows in four modes, over three rounds and over one.
#[test]
fn every_mode_of_every_row_runs_once_in_each_round() {
    for framework in [Framework::OpenCl, Framework::Cuda] {
        assert_eq!([2, 0].map(|runs| steps(runs, framework)), [36, 12]);
    }
}

#[test]
fn table1_is_of_one_device() {
    let check = |devices: &[&str]| {
        let arguments = ["dml", "reproduce", "table1"].iter().chain(devices);
        let Command::Reproduce(options) = Arguments::parse_from(arguments).command else { unreachable!() };
        check_one_device(&options).map_err(|failure| failure.to_string())
    };
    assert_eq!([check(&[]), check(&["--devices", "cuda:0"])], [Ok(()), Ok(())]);
    let two = check(&["--devices", "opencl:1,cuda:0"]);
    assert!(two.is_err_and(|told| told.ends_with("not opencl:1, cuda:0")));
}

#[test]
fn the_heading_says_what_was_measured() {
    let heading =
        Heading { device: "a card".to_owned(), framework: Framework::OpenCl, size: "small", runs: 7 };
    let expected = "table1: a card; small size; median of 7 rounds, in which every mode runs once";
    assert_eq!(text(&heading, &[]).lines().next(), Some(expected));
    let expected = "Measured on a card; small size; median of 7 rounds, in which every mode runs once.";
    assert_eq!(markdown(&heading, &[]).lines().next(), Some(expected));
}

/// Exactly the operations that move bytes are transfers. No two sums of these counts are equal.
#[test]
fn all_transfers_of_the_paper_are_added_up() {
    let mut cells = Row::Bfs.published(Mode::Noopt).expect("the paper has it");
    (cells.map, cells.unmap, cells.read, cells.write, cells.copy) = (3, 5, 10, 20, Some(40));
    (cells.kernel, cells.alloc, cells.bind) = (80, Some(160), Some(320));
    assert_eq!(transfers(&cells), 78);
    cells.copy = None;
    assert_eq!(transfers(&cells), 38, "a program by hand counts none");
}
