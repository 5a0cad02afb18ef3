//! Reloads of files and sources: on a change of a file, at intervals, and when an operator requests it by SIGHUP.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// Pause between a change and the reading of the files, so that a group of changes causes one read.
const CHANGE_PAUSE: Duration = Duration::from_millis(50);

/// Wakes every task that reads something when a reload is requested.
///
/// Each clone returns once for all requests since its last return, including those before its task started.
#[derive(Clone, Debug)]
pub struct ReloadSignal(watch::Receiver<()>);

impl ReloadSignal {
    /// Returns a signal and its sender.
    pub fn new() -> (watch::Sender<()>, Self) {
        let (sender, receiver) = watch::channel(());
        (sender, Self(receiver))
    }

    /// Waits for the next request. Cancel safe.
    pub async fn next(&mut self) {
        if self.0.changed().await.is_err() {
            // Without a sender there is no other request.
            std::future::pending::<()>().await;
        }
    }
}

/// Wakes a task when files may have changed.
///
/// The system reports changes of their directories. File systems that report none are covered by the interval.
#[derive(Debug)]
pub struct FileWatcher {
    changed: Arc<Notify>,
    interval: Duration,
    reloads: ReloadSignal,
    /// Reports changes until it is dropped.
    _watcher: Option<RecommendedWatcher>,
}

/// The reason why a task was woken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WakeReason {
    /// A file may have changed, or the interval is over.
    Change,
    /// An operator requested a reload.
    Reload,
}

impl FileWatcher {
    /// Watches files, and the contents of directories.
    pub fn new<'a>(
        paths: impl IntoIterator<Item = &'a Path>,
        interval: Duration,
        reloads: ReloadSignal,
    ) -> Self {
        let changed = Arc::new(Notify::new());
        let mut directories = BTreeSet::new();
        for path in paths {
            // Replacing a file changes its parent directory. So does Kubernetes, which replaces a symbolic link.
            directories.insert(parent(path));
            if path.is_dir() {
                directories.insert(path.to_owned());
            }
        }
        let watcher = watch_directories(&directories, Arc::clone(&changed));
        Self { changed, interval, reloads, _watcher: watcher }
    }

    /// Waits until the files should be read again. Cancel safe.
    pub async fn wait(&mut self) -> WakeReason {
        tokio::select! {
            () = self.reloads.next() => WakeReason::Reload,
            () = wait_for_change(&self.changed, self.interval) => WakeReason::Change,
        }
    }
}

/// Waits for a change, or for the end of an interval.
#[allow(clippy::disallowed_methods, reason = "files change in real time")]
async fn wait_for_change(changed: &Notify, interval: Duration) {
    if timeout(interval, changed.notified()).await.is_ok() {
        // A directory may have files that change all the time; the pause bounds the number of reads.
        tokio::time::sleep(CHANGE_PAUSE).await;
    }
}

fn parent(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Notifies `changed` of every change in the directories. A directory that can't be watched is logged; its files are read
/// at intervals.
fn watch_directories(
    directories: &BTreeSet<PathBuf>,
    changed: Arc<Notify>,
) -> Option<RecommendedWatcher> {
    let on_event = move |event: notify::Result<notify::Event>| {
        // A read of a file is an event too, and must not cause another read.
        if !event.is_ok_and(|event| matches!(event.kind, EventKind::Access(_))) {
            changed.notify_one();
        }
    };
    let mut watcher = match notify::recommended_watcher(on_event) {
        Ok(watcher) => watcher,
        Err(error) => {
            tracing::warn!(%error, "cannot watch files for changes, reading them at intervals");
            return None;
        }
    };
    for directory in directories {
        if let Err(error) = watcher.watch(directory, RecursiveMode::NonRecursive) {
            let directory = directory.display();
            tracing::warn!(%directory, %error, "cannot watch directory for changes, reading its files at intervals");
        }
    }
    Some(watcher)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    #[tokio::test]
    async fn wakes_when_a_file_is_replaced() {
        let folder = TempDir::new().unwrap();
        let path = folder.path().join("keys");
        std::fs::write(&path, "old").unwrap();
        let (_sender, reloads) = ReloadSignal::new();
        let mut watcher = FileWatcher::new([path.as_path()], Duration::MAX, reloads);
        let other = folder.path().join("other");
        std::fs::write(&other, "new").unwrap();
        std::fs::rename(&other, &path).unwrap();
        assert_eq!(watcher.wait().await, WakeReason::Change);
    }

    #[tokio::test(start_paused = true)]
    async fn wakes_at_intervals_and_on_requests() {
        let (sender, reloads) = ReloadSignal::new();
        let missing = Path::new("/nonexistent/keys");
        let mut watcher = FileWatcher::new([missing], Duration::from_secs(5), reloads);
        assert_eq!(watcher.wait().await, WakeReason::Change);
        sender.send(()).unwrap();
        assert_eq!(watcher.wait().await, WakeReason::Reload);
    }
}
