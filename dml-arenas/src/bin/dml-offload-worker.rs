//! The worker for programs that do not call `offload::hook`. It has only the functions of the libraries that
//! it loads.

fn main() {
    #[cfg(target_os = "linux")]
    dml_arenas::offload::serve(dml_arenas::offload::Registry::new());
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("dml-offload-worker needs Linux");
        std::process::exit(2);
    }
}
