//! Background work on threads that yield to the threads of calls.

use tokio::sync::oneshot;

use crate::config_error::ConfigError;

/// The lowest scheduling priority of Linux, as a nice value.
const LOWEST_PRIORITY: i32 = 19;

/// Runs work on a new thread of the lowest priority, and returns its result.
///
/// To parse 100,000 overrides takes a second. Calls that are decided meanwhile should not be delayed by it.
///
/// # Errors
/// No thread can be started; the work was not done.
///
/// # Panics
/// The work panics.
pub(crate) async fn spawn_low_priority<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConfigError> {
    let (sender, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tidegate-rules".into()).spawn(move || {
        // On Linux this sets the priority of the thread, not of the process. Without permission the thread keeps its
        // priority.
        #[cfg(target_os = "linux")]
        let _ =
            rustix::process::setpriority_process(Some(rustix::thread::gettid()), LOWEST_PRIORITY);
        // The receiver is dropped only when the runtime stops.
        let _ = sender.send(work());
    });
    match (thread, result.await) {
        (_, Ok(result)) => return Ok(result),
        (Ok(thread), Err(_)) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        (Err(_), Err(_)) => {}
    }
    let reason = "cannot start a thread to parse them".to_owned();
    Err(ConfigError::NotInFile { place: "rules", reason })
}
