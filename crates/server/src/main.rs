//! `tidegate`: rate limits as a service.

fn main() -> std::process::ExitCode {
    tidegate_server::main()
}
