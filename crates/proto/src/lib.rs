//! Messages and clients of the gRPC listener, generated from the files in `proto`.
#![allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    rustdoc::all,
    clippy::all,
    clippy::semicolon_if_nothing_returned,
    clippy::allow_attributes_without_reason,
    reason = "generated from the files in proto, which document the messages"
)]

include!("generated/messages.rs");

/// Descriptors of services and messages, for reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.bin");

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    const SOURCES: [&str; 2] =
        ["envoy/service/ratelimit/v3/rls.proto", "tidegate/v1/tidegate.proto"];

    /// Generates the messages, their clients and the descriptors of reflection. Needs no protoc.
    fn generate(folder: &Path) {
        let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/proto");
        let mut compiler = protox::Compiler::new([sources]).unwrap();
        compiler.include_imports(true).include_source_info(true);
        compiler.open_files(SOURCES).unwrap();
        let descriptors = compiler.file_descriptor_set();
        compiler.include_source_info(false);
        let encoded = compiler.encode_file_descriptor_set();
        std::fs::write(folder.join("descriptors.bin"), encoded).unwrap();
        // The listener answers calls itself; clients are for tests and benchmarks.
        let build = tonic_prost_build::configure().build_server(false).out_dir(folder);
        build.include_file("messages.rs").compile_fds(descriptors).unwrap();
    }

    fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
        let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap());
        let named = |file: std::fs::DirEntry| {
            (file.file_name().into_string().unwrap(), std::fs::read(file.path()).unwrap())
        };
        files.map(named).collect()
    }

    /// `make proto` writes them again.
    #[test]
    #[allow(clippy::disallowed_methods, reason = "make proto sets it")]
    fn generated_code_is_current() {
        let committed = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src/generated"));
        if std::env::var_os("TIDEGATE_PROTO").is_some_and(|mode| mode == "write") {
            return generate(committed);
        }
        let folder = tempfile::tempdir().unwrap();
        generate(folder.path());
        let (generated, committed) = (contents(folder.path()), contents(committed));
        let names: Vec<_> = generated.keys().collect();
        assert_eq!(names, committed.keys().collect::<Vec<_>>());
        for (name, content) in &generated {
            assert!(committed[name] == *content, "{name} differs: run make proto");
        }
    }
}
