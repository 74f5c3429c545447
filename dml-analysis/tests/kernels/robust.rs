//! Whatever the text, the reader ends without a panic.

use dml_analysis::{Language, Launch, Source};
use std::fs;
use std::path::Path;

/// Numbers from a seed, for edits of a text.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        // A linear congruential generator, of which the high bits are used.
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % limit.max(1)
    }
}

const WORDS: [&str; 24] = [
    "(",
    ")",
    "{",
    "}",
    "[",
    "]",
    ";",
    ",",
    "*",
    "&",
    "/",
    "%",
    "<<",
    "- 1",
    "for (;;)",
    "return",
    "if (x)",
    "while (1)",
    "0",
    "9223372036854775807",
    "#define x",
    "\n",
    "break;",
    "float4",
];

fn analyse(text: &str, language: Language) {
    let source = Source::new(text, language, &["HAS_DOUBLES".to_owned()]);
    for kernel in source.kernels() {
        let Ok(analysis) = source.kernel(kernel) else { continue };
        for value in [0, 1, 64, -5, i128::from(i64::MAX)] {
            let integers = vec![vec![value]; analysis.parameters().len()];
            let launch = Launch { sizes: [64, 32, 1], group: [16, 4, 1], axis: 1, integers };
            let launched = analysis.launch(&launch);
            for parameter in 0..analysis.parameters().len() {
                for items in [0..4, 4..32, 31..32, 0..0, 40..u64::from(u32::MAX)] {
                    if let Ok(part) = launched.part(parameter, items, 1 << 20) {
                        assert!(
                            part.bytes.iter().all(|range| range.start < range.end && range.end <= 1 << 20)
                        );
                        assert!(part.bytes.windows(2).all(|pair| pair[0].end < pair[1].start));
                    }
                }
            }
        }
    }
}

#[test]
fn random_edits_never_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let folders = [
        "dml-workloads/src/kernels",
        "examples/apps/stencil2d",
        "examples/apps/matmul",
        "examples/apps/kmeans",
    ];
    let mut draws = Draws(2026);
    for folder in folders {
        let mut paths: Vec<_> =
            fs::read_dir(root.join(folder)).expect(folder).map(|entry| entry.expect(folder).path()).collect();
        paths.sort();
        for path in paths {
            let language = match path.extension().and_then(|ending| ending.to_str()) {
                Some("cl") => Language::OpenCl,
                Some("cu") => Language::Cuda,
                _ => continue,
            };
            let text = fs::read_to_string(&path).expect("a source");
            analyse(&text, language);
            for _ in 0..60 {
                let mut edited = text.clone();
                for _ in 0..1 + draws.below(3) {
                    let mut at = draws.below(edited.len());
                    while !edited.is_char_boundary(at) {
                        at -= 1;
                    }
                    match draws.below(3) {
                        0 => edited.insert_str(at, WORDS[draws.below(WORDS.len())]),
                        1 => edited.truncate(at.max(20)),
                        _ => {
                            let mut end = (at + draws.below(12)).min(edited.len());
                            while !edited.is_char_boundary(end) {
                                end += 1;
                            }
                            edited.replace_range(at..end, WORDS[draws.below(WORDS.len())]);
                        }
                    }
                }
                analyse(&edited, language);
            }
        }
    }
}

#[test]
fn deep_and_long_texts_are_refused_in_time() {
    for text in [
        format!("kernel void f(global int *a) {{ a[{}0{}] = 1; }}", "(".repeat(100_000), ")".repeat(100_000)),
        format!(
            "kernel void f(global int *a) {{ {}a[0] = 1;{} }}",
            "for (;;) {".repeat(100),
            "}".repeat(100)
        ),
        format!("kernel void f(global int *a) {{ {} }}", "a[get_global_id(0)] += a[0];".repeat(20_000)),
        format!("kernel void f(global int *a, int n) {{ {} }}", "if (a[0]) n++; ".repeat(2_000)),
        format!(
            "kernel void f(global int *a, int n) {{ int x = n; {} a[x] = 1; }}",
            "x = x * x + n; ".repeat(100)
        ),
        format!("kernel void f(global int *a, int n) {{ {} a[n] = 1; }}", "if (a[0]) n += 1; ".repeat(60)),
        format!(
            "kernel void f(global int *a, int n) {{ {} a[n] = 1; }}",
            "n += n > 3 ? n + 1 : n - 1; ".repeat(60)
        ),
        format!("kernel void f(global int *a) {{ a[0] = 1{}; }}", " + a[0]".repeat(50_000)),
        format!("kernel void f(global int *a, int n) {{ {} a[n] = 1; }}", "n = n / 2 + n % 3; ".repeat(60)),
        "void g(int n) { g(n); g(n); } kernel void f(global int *a) { g(1); }".to_owned(),
        "kernel void f(global int *a) { ".to_owned() + &"{".repeat(1000),
        "/* ".to_owned(),
        "#if 1\n#if".to_owned(),
    ] {
        analyse(&text, Language::OpenCl);
    }
}
