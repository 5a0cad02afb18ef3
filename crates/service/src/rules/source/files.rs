//! Rules in files: watched, and looked at now and then for file systems that tell nothing.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tidegate_rules::RuleSet;
use tokio::sync::Notify;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::config_error::ConfigError;
use crate::config_error::read_file;
use crate::envoy::{self, Files};
use crate::reload::ReloadSignal;
use crate::rules::RulesDocument;
use crate::rules::manager::RulesManager;

/// How long a file must stay as it is before it is read: who writes it may not be done.
const SETTLED: Duration = Duration::from_millis(100);

/// Offers a file of rules and a directory of envoyproxy/ratelimit files whenever they change.
pub(super) async fn follow(
    manager: Arc<RulesManager>,
    file: Option<PathBuf>,
    folder: Option<PathBuf>,
    pace: Duration,
    mut reloads: ReloadSignal,
) {
    let changed = Arc::new(Notify::new());
    // What is watched is the directory: a file that is replaced, or a link that is turned to another
    // directory as Kubernetes does, is news there.
    let parent = |path: &PathBuf| match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    };
    let watched =
        file.iter().map(parent).chain(folder.iter().flat_map(|at| [at.clone(), parent(at)]));
    let _watcher = watch(watched.collect(), Arc::clone(&changed));
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
        is_reload = tokio::select! {
            () = reloads.next() => true,
            _ = timeout(pace, changed.notified()) => false,
        };
    }
}

fn read_rules(path: &Path) -> Result<String, ConfigError> {
    read_file(path, RuleSet::MAX_DOCUMENT)
}

/// Tells of changes in directories, as long as it is kept. A directory that can't be watched is only
/// looked at.
fn watch(folders: Vec<PathBuf>, changed: Arc<Notify>) -> Option<RecommendedWatcher> {
    let told = move |event: notify::Result<notify::Event>| {
        // Reading the file is an event too.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            changed.notify_one();
        }
    };
    let mut watcher = match notify::recommended_watcher(told) {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "changes of rules are not told by the system, looking for them");
            return None;
        }
    };
    for folder in folders {
        if let Err(error) = watcher.watch(&folder, RecursiveMode::NonRecursive) {
            let folder = folder.display();
            tracing::warn!(%folder, %error, "changes here are not told by the system, looking for them");
        }
    }
    Some(watcher)
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
