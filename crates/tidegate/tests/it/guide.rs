//! The Rust service of the guide: the example prints the output that the page shows.

use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/guide/README.md");

/// Returns the command under the heading and its output, as the page shows them.
fn read_rust_service_section() -> (&'static str, &'static str) {
    let (_, rest) = PAGE.split_once("\n## A Rust service\n").unwrap();
    let part = rest.split("\n## ").next().unwrap();
    let block = |fence: &str| {
        let (_, rest) = part.split_once(&format!("\n```{fence}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    (block("sh"), block("text"))
}

/// Runs the example binary. `cargo test` without `--test` builds it together with the tests of this package.
#[test]
fn rust_service_example_prints_the_output_in_the_guide() {
    let (command, expected) = read_rust_service_section();
    let name = command.trim().strip_prefix("cargo run --quiet -p tidegate --example ").unwrap();
    let tests = std::env::current_exe().unwrap();
    let example = tests.parent().unwrap().with_file_name("examples").join(name);
    let output = Command::new(&example).output();
    let output = output.unwrap_or_else(|error| {
        panic!("{}: {error}; `cargo build -p tidegate --examples` builds it", example.display())
    });
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(String::from_utf8_lossy(&output.stdout), expected, "{errors}");
}
