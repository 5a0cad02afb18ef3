//! Makes Rust of the messages in `proto`, and the descriptors that reflection answers with. Needs no protoc.

use std::error::Error;
use std::path::PathBuf;

const FILES: [&str; 2] = ["envoy/service/ratelimit/v3/rls.proto", "tidegate/v1/tidegate.proto"];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    // A release has the dashboard in it; what is built for debugging reads the folder.
    if std::env::var_os("PROFILE").is_some_and(|profile| profile == "release") {
        println!("cargo::rerun-if-changed=dashboard");
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    let mut compiler = protox::Compiler::new(["proto"])?;
    compiler.include_imports(true).include_source_info(true);
    compiler.open_files(FILES)?;
    let descriptors = compiler.file_descriptor_set();
    compiler.include_source_info(false);
    std::fs::write(out.join("descriptors.bin"), compiler.encode_file_descriptor_set())?;
    // The door answers calls itself; clients are for tests and benchmarks.
    let build = tonic_prost_build::configure().build_server(false);
    build.include_file("messages.rs").compile_fds(descriptors)?;
    Ok(())
}
