//! What a request was given that is served by this process.

use tidegate::{Held, Turn};

use crate::store::AnyStore;

/// A turn, and after it slots in flight. Dropped, it gives back what can be given back: before the request
/// is served everything, and then the slots.
#[derive(Debug)]
pub(crate) struct Admitted {
    turn: Option<Turn<AnyStore>>,
    held: Held<AnyStore>,
}

impl Admitted {
    pub(super) fn new(turn: Turn<AnyStore>) -> Self {
        Self { turn: Some(turn), held: Held::default() }
    }

    /// Whether there is a turn to wait for.
    pub(crate) fn waits(&self) -> bool {
        self.turn.as_ref().is_some_and(|turn| !turn.is_now())
    }

    /// Returns when its turn has come.
    pub(crate) async fn wait(&self) {
        if let Some(turn) = &self.turn {
            turn.come().await;
        }
    }

    /// The request is being served from now on: what it was charged stays charged.
    pub(crate) fn serve(&mut self) {
        if let Some(turn) = self.turn.take() {
            self.held = turn.take();
        }
    }
}
