//! Work that has time, beside calls that have none.

use tokio::sync::oneshot;

use crate::config_error::ConfigError;

/// How far behind everybody else the work stands for a processor: as far as it goes.
const LAST: i32 = 19;

/// Has work done on a thread of its own, which runs when no other thread of the machine wants to: reading
/// a hundred thousand overrides takes a second, and calls that come meanwhile should not notice.
///
/// # Errors
/// There is no thread to be had; the work was not done.
///
/// # Panics
/// The work does.
pub(crate) async fn spawn_low_priority<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ConfigError> {
    let (send, done) = oneshot::channel();
    let thread = std::thread::Builder::new().name("tidegate-rules".into()).spawn(move || {
        // On Linux this is about the thread alone. Who may not be asked to step back does not.
        #[cfg(target_os = "linux")]
        let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), LAST);
        // Nobody waits any more only when everything is over.
        let _ = send.send(work());
    });
    match (thread, done.await) {
        (_, Ok(done)) => return Ok(done),
        (Ok(thread), Err(_)) => {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        (Err(_), Err(_)) => {}
    }
    let reason = "no thread to read them on".to_owned();
    Err(ConfigError::Elsewhere { place: "rules", reason })
}
