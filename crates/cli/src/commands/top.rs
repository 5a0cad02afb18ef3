//! `tidegate top`: live traffic of a server, in a terminal.

mod columns;
mod draw;
mod number;
mod palette;
mod poller;
mod terminal_guard;
mod ui_state;
mod view_model;

use std::io::IsTerminal;

use clap::Args;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use tidegate_limiter::Clock;
use tidegate_net::client::HttpClient;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::palette::Palette;
use self::poller::AdminPoller;
use self::terminal_guard::TerminalGuard;
use self::ui_state::{KeyAction, UiState};
use self::view_model::ViewModel;
use crate::commands::{CommandError, CommandOutput, ExitStatus, block_on};
use crate::config;

/// Shows the live traffic of a server: decisions, latency, rules and top clients.
///
/// Polls the admin listener once a second, and retries while the server is unreachable. Keys: q quits, tab shows the
/// next page (overview, clients, fleet), j and k scroll, s sorts, p pauses, ? lists all keys. If stdout is not a
/// terminal, it prints one plain frame, as with --once. NO_COLOR turns colours off.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct TopCommand {
    /// URL of the admin listener. TIDEGATE_TOKEN is sent as its token if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090")]
    server: HttpClient,

    /// Prints one plain frame with all pages, then exits
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --server http://10.0.0.5:9090
  tidegate top --once | grep -A20 DENIALS     clients with the most denials";

/// Width of a printed frame in cells.
const TEXT_WIDTH: u16 = 100;

impl TopCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        let poller = AdminPoller::new(self.server, config::token()?);
        if self.once || !std::io::stdout().is_terminal() {
            let view = block_on(fetch_once(&poller))?;
            if let Some(reason) = view.unreachable {
                return Err(CommandError::failed(reason)
                    .hint("--server http://HOST:PORT selects another server"));
            }
            output.text(&draw::text(&view, TEXT_WIDTH));
        } else {
            block_on(watch(&poller))?.map_err(CommandError::failed)?;
        }
        Ok(ExitStatus::Success)
    }
}

/// Fetches every report once.
async fn fetch_once(poller: &AdminPoller) -> ViewModel {
    let mut view = ViewModel::new(poller.address());
    poller.fetch_all().await.into_iter().for_each(|update| view.apply(update));
    view
}

/// Draws every update until the operator quits or a signal arrives.
async fn watch(poller: &AdminPoller) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let palette = Palette::new(config::wants_colours());
    let (sender, mut updates) = mpsc::channel(8);
    let mut terminal = TerminalGuard::enter()?;
    let mut events = EventStream::new();
    poller.start(&Clock::system(), &sender);
    let (mut state, mut view) = (UiState::default(), ViewModel::new(poller.address()));
    // Drawn instead of `view` while paused; `view` still receives updates.
    let mut frozen: Option<ViewModel> = None;
    loop {
        let mut max_scroll = 0;
        terminal.terminal().draw(|frame| {
            let shown = frozen.as_ref().unwrap_or(&view);
            max_scroll = draw::draw(shown, &state, palette, frame.area(), frame.buffer_mut());
        })?;
        state.scroll = state.scroll.min(max_scroll);
        tokio::select! {
            update = updates.recv() => update.into_iter().for_each(|update| view.apply(update)),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => match state.on_key(key) {
                    KeyAction::Quit => return Ok(()),
                    KeyAction::TogglePause => frozen = state.is_paused.then(|| view.clone()),
                    KeyAction::Redraw => {}
                },
                // A resize or a change of focus needs a new frame.
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            },
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
            _ = hangup.recv() => return Ok(()),
        }
    }
}
