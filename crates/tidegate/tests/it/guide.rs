//! The guide's Rust service: the example prints what the page shows.

use std::process::Command;

const PAGE: &str = include_str!("../../../../docs/guide/README.md");

/// The command under the heading, and what it prints.
fn rust_service() -> (&'static str, &'static str) {
    let (_, rest) = PAGE.split_once("\n## A Rust service\n").unwrap();
    let part = rest.split("\n## ").next().unwrap();
    let block = |fence: &str| {
        let (_, rest) = part.split_once(&format!("\n```{fence}\n")).unwrap();
        rest.split_once("```").unwrap().0
    };
    (block("sh"), block("text"))
}

/// The example is built together with the tests of this package: `cargo test` without `--test` builds both.
#[test]
fn rust_service_example_prints_what_the_guide_shows() {
    let (command, expected) = rust_service();
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
