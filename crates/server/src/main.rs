//! `tidegate`: rate limits as a service.

/// Every request takes a few dozen small pieces of memory and gives them back: that is what this is good at.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    tidegate_server::main()
}
