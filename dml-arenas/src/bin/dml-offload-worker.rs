//! The worker for programs that are not their own: it has no functions but those of the libraries it is told to load.

fn main() {
    #[cfg(target_os = "linux")]
    dml_arenas::offload::serve(dml_arenas::offload::Registry::new());
    #[cfg(not(target_os = "linux"))]
    {
        eprintln!("dml-offload-worker needs Linux");
        std::process::exit(2);
    }
}
