//! Rules in files: read again when they change.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidegate_rules::RuleSet;
use tokio::task::spawn_blocking;

use crate::config_error::{ConfigError, read_file};
use crate::envoy::{self, Files};
use crate::reload::{FileWatcher, ReloadSignal, WakeReason};
use crate::rules::RulesDocument;
use crate::rules::manager::RulesManager;

/// Time for which a file must stay unchanged before it is used: its writer may not be done.
const SETTLED: Duration = Duration::from_millis(100);

/// Offers a file of rules and a directory of envoyproxy/ratelimit files whenever they change.
pub(crate) async fn follow(
    manager: Arc<RulesManager>,
    file: Option<PathBuf>,
    folder: Option<PathBuf>,
    interval: Duration,
    reloads: ReloadSignal,
) {
    let watched = file.iter().chain(&folder).map(PathBuf::as_path);
    let mut watcher = FileWatcher::new(watched, interval, reloads);
    let found = manager.found().await;
    let text = found.own.document().map(|document| document.text.to_string());
    let files = found.envoy.map(|files| Files::clone(&files));
    let mut own = Seen { path: file, read: read_rules, last: text };
    let mut limits = Seen { path: folder, read: envoy::read, last: files };
    let mut is_reload = false;
    loop {
        let before = manager.version().number;
        if let Some(text) = own.news(&manager).await {
            let document = RulesDocument::new(&own.name(), &text);
            // What is wrong with it was told, and is told until it changes.
            let _ = manager.take(document).await;
        }
        if let Some(files) = limits.news(&manager).await {
            let _ = manager.take_envoy(files).await;
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

/// Something on disk, and what it was when last seen.
struct Seen<T> {
    path: Option<PathBuf>,
    read: fn(&Path) -> Result<T, ConfigError>,
    last: Option<T>,
}

impl<T: Clone + PartialEq + Send + 'static> Seen<T> {
    fn name(&self) -> String {
        self.path.as_deref().unwrap_or(Path::new("")).display().to_string()
    }

    /// What is there, if it is something else than last time and stays so for a moment.
    async fn news(&mut self, manager: &RulesManager) -> Option<T> {
        let path = self.path.clone()?;
        let mut found = self.found(&path, manager).await?;
        if self.last.as_ref() == Some(&found) {
            manager.unchanged();
            return None;
        }
        loop {
            settle().await;
            let again = self.found(&path, manager).await?;
            if again == found {
                self.last = Some(again.clone());
                return Some(again);
            }
            found = again;
        }
    }

    async fn found(&self, path: &Path, manager: &RulesManager) -> Option<T> {
        let (read, path) = (self.read, path.to_owned());
        match spawn_blocking(move || read(&path)).await {
            Ok(Ok(found)) => Some(found),
            Ok(Err(error)) => {
                manager.away(&error);
                None
            }
            Err(_) => None,
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a file has no other way to say that it is written")]
async fn settle() {
    tokio::time::sleep(SETTLED).await;
}
