//! Rules in files, which are read again after every change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_rules::RuleSet;
use tokio::task::spawn_blocking;

use crate::config_error::{ConfigError, read_file};
use crate::envoy::{self, EnvoyFiles};
use crate::reload::{FileWatcher, ReloadSignal, WakeReason};
use crate::rules::RulesDocument;
use crate::rules::manager::RulesManager;

/// Time for which a changed file must stay the same before it is used: its writer may not be done.
const QUIET_TIME: Duration = Duration::from_millis(100);

/// Offers a rules file and a directory of envoyproxy/ratelimit files to the manager after every change.
pub(crate) async fn follow(
    manager: Arc<RulesManager>,
    file: Option<PathBuf>,
    folder: Option<PathBuf>,
    interval: Duration,
    reloads: ReloadSignal,
) {
    let watched = file.iter().chain(&folder).map(PathBuf::as_path);
    let mut watcher = FileWatcher::new(watched, interval, reloads);
    let active = manager.inputs().await;
    let text = active.native.document().map(|document| document.text.to_string());
    let files = active.envoy.map(|files| EnvoyFiles::clone(&files));
    let mut native = WatchedPath { path: file, read: read_rules, last: text };
    let mut envoy = WatchedPath { path: folder, read: envoy::read_folder, last: files };
    let mut is_reload = false;
    loop {
        let before = manager.version().number;
        if let Some(text) = native.read_change(&manager).await {
            let document = RulesDocument::new(&native.name(), &text);
            // The manager logs the error, and reports it until the file changes.
            let _ = manager.offer(document).await;
        }
        if let Some(files) = envoy.read_change(&manager).await {
            let _ = manager.offer_envoy(files).await;
        }
        if is_reload {
            manager.log_reload(before);
        }
        is_reload = watcher.wait().await == WakeReason::Reload;
    }
}

fn read_rules(path: &Path) -> Result<String, ConfigError> {
    read_file(path, RuleSet::MAX_DOCUMENT_BYTES)
}

/// A file or directory, with the content that was offered last.
struct WatchedPath<T> {
    path: Option<PathBuf>,
    read: fn(&Path) -> Result<T, ConfigError>,
    last: Option<T>,
}

impl<T: Clone + PartialEq + Send + 'static> WatchedPath<T> {
    fn name(&self) -> String {
        self.path.as_deref().unwrap_or(Path::new("")).display().to_string()
    }

    /// Returns the content if it has changed, once it has stayed the same for [`QUIET_TIME`].
    async fn read_change(&mut self, manager: &RulesManager) -> Option<T> {
        let path = self.path.clone()?;
        let mut found = self.read_content(&path, manager).await?;
        if self.last.as_ref() == Some(&found) {
            manager.mark_unchanged();
            return None;
        }
        loop {
            wait_quiet_time().await;
            let again = self.read_content(&path, manager).await?;
            if again == found {
                self.last = Some(again.clone());
                return Some(again);
            }
            found = again;
        }
    }

    async fn read_content(&self, path: &Path, manager: &RulesManager) -> Option<T> {
        let (read, path) = (self.read, path.to_owned());
        match spawn_blocking(move || read(&path)).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                manager.mark_unreachable(&error);
                None
            }
            Err(_) => None,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the end of a write is visible only in real time")]
async fn wait_quiet_time() {
    tokio::time::sleep(QUIET_TIME).await;
}
