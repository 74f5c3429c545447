use super::*;
use clap::CommandFactory;

#[test]
fn the_command_line_is_consistent() {
    Arguments::command().debug_assert();
}

#[test]
fn the_help_of_bench_names_every_workload() {
    let mut command = Arguments::command();
    let bench = command.find_subcommand_mut("bench").expect("it is there");
    let help = bench.render_long_help().to_string();
    for name in Workload::ALL
        .map(Workload::name)
        .iter()
        .chain(&["all", "offload", "never-loses", "chain"])
        .chain(&Steps::ALL.map(Steps::name))
    {
        assert!(help.contains(name), "{name} is not in {help}");
    }
}

/// Each option of the workers reaches discovery.
#[test]
fn the_options_of_workers_are_those_of_discovery() {
    let options = |arguments: &[&str]| {
        let arguments = ["dml", "bench", "saxpy"].iter().chain(arguments);
        let Command::Bench(command) = Arguments::parse_from(arguments).command else { unreachable!() };
        format!("{:?}", command.options.machine.workers.discover_options())
    };
    let plain = DiscoverOptions::default;
    assert_eq!(options(&[]), format!("{:?}", plain()));
    assert_eq!(options(&["--offload", "3"]), format!("{:?}", plain().offload(3)));
    assert_eq!(
        options(&["--pin", "offload:1=0,2-3"]),
        format!("{:?}", plain().offload(Workers::default().pin("offload:1", [0, 2, 3])))
    );
    let limited = plain().offload(Workers::default().time_limit(Some(Duration::from_secs(7))));
    assert_eq!(options(&["--time-limit", "7"]), format!("{limited:?}"));
}

#[test]
fn values_for_devices_parse() {
    assert_eq!("opencl:0=2".parse(), Ok(PerDevice { device: "opencl:0".to_owned(), value: 2u32 }));
    assert!("cpu".parse::<PerDevice<u32>>().is_err());
    assert!("cpu=-1".parse::<PerDevice<u32>>().is_err());
    assert!("=1".parse::<PerDevice<u32>>().is_err());
}

#[test]
fn lists_of_cores_parse() {
    assert_eq!(
        "offload:0=0,2-4".parse(),
        Ok(PerDevice { device: "offload:0".to_owned(), value: Cores(vec![0, 2, 3, 4]) })
    );
    for wrong in ["", "1,", "3-1", "a", "-1", "0-4294967295", "0-4000,0-4000"] {
        assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
    }
    // Their number is limited, not their values.
    for (text, count) in [("0-4095", 4096), ("9000-9001", 2), ("1-4000,4090-4091", 4002), ("7,7-9,8", 3)] {
        assert_eq!(text.parse::<Cores>().map(|cores| cores.count()), Ok(count), "{text}");
    }
    for many in ["0-4096", "0-4000,5000-5096", "0-4294967295"] {
        assert!(many.parse::<Cores>().is_err(), "{many}");
    }
}

#[test]
fn numbers_of_bytes_parse() {
    let of = ["1", "4096", "3K", "512M", "8G"].map(|text| bytes(text).ok());
    assert_eq!(of, [1, 4096, 3 << 10, 512 << 20, 8 << 30].map(Some));
    let too_many = format!("{}G", u64::MAX >> 29);
    for wrong in ["", "G", "0", "0G", "-1", "1.5G", "1T", "8g", "1 G", "\u{e9}", &too_many] {
        assert!(bytes(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn sizes_parse() {
    assert_eq!("0".parse(), Ok(SizeSpec::Number(0)));
    assert_eq!("paper".parse(), Ok(SizeSpec::Paper));
    assert!("1e6".parse::<SizeSpec>().is_err());
    assert!("99999999999999999999".parse::<SizeSpec>().is_err());
}
