//! `tidegate top`: a server as it works, in a terminal.

mod columns;
mod draw;
mod feed;
mod number;
mod palette;
mod picture;
mod screen;
mod stage;

use std::io::IsTerminal;

use clap::Args;
use crossterm::event::{Event, EventStream};
use futures_util::StreamExt;
use tidegate_limiter::Clock;
use tidegate_net::client::HttpClient;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

use self::feed::Feed;
use self::palette::Palette;
use self::picture::Picture;
use self::screen::{Screen, Wish};
use self::stage::Stage;
use crate::commands::{Ending, Failure, Output, waiting};
use crate::config;

/// Shows a server as it works: what it admits and denies, how fast, by which rules, for whom.
///
/// Asks the admin listener once a second, and goes on trying when the server is away. Keys: q quits, tab turns
/// the page (overview, clients, fleet), j and k scroll, s sorts, p pauses, ? has the rest. Without a terminal
/// to draw on it prints one plain frame, as with --once. NO_COLOR takes the colours away.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Top {
    /// The admin listener to ask; TIDEGATE_TOKEN is sent if it is set
    #[arg(long, value_name = "URL", value_parser = crate::config::http_client, default_value = "http://127.0.0.1:9090")]
    server: HttpClient,

    /// Prints one plain frame with everything in it, and ends
    #[arg(long)]
    once: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate top
  tidegate top --server http://10.0.0.5:9090
  tidegate top --once | grep -A20 DENIALS     who is denied most";

/// How wide a frame is that is printed.
const WIDTH: u16 = 100;

impl Top {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let feed = Feed::of(self.server, config::token()?);
        if self.once || !std::io::stdout().is_terminal() {
            let picture = waiting(once(&feed))?;
            if let Some(reason) = picture.away {
                return Err(
                    Failure::failed(reason).hint("--server http://HOST:PORT asks another one")
                );
            }
            output.text(&draw::text(&picture, WIDTH));
        } else {
            waiting(watch(&feed))?.map_err(Failure::failed)?;
        }
        Ok(Ending::Fine)
    }
}

async fn once(feed: &Feed) -> Picture {
    let mut picture = Picture::of(feed.address());
    feed.everything().await.into_iter().for_each(|news| picture.hear(news));
    picture
}

/// Draws whatever changes, until somebody has seen enough.
async fn watch(feed: &Feed) -> std::io::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    let palette = Palette::new(config::wants_colours());
    let (tell, mut news) = mpsc::channel(8);
    let mut stage = Stage::enter()?;
    let mut events = EventStream::new();
    feed.follow(&Clock::system(), &tell);
    let (mut screen, mut picture) = (Screen::default(), Picture::of(feed.address()));
    // What is looked at while time stands still.
    let mut frozen: Option<Picture> = None;
    loop {
        let mut most = 0;
        stage.terminal().draw(|frame| {
            let shown = frozen.as_ref().unwrap_or(&picture);
            most = draw::draw(shown, &screen, palette, frame.area(), frame.buffer_mut());
        })?;
        screen.scroll = screen.scroll.min(most);
        tokio::select! {
            heard = news.recv() => heard.into_iter().for_each(|heard| picture.hear(heard)),
            event = events.next() => match event {
                Some(Ok(Event::Key(key))) => match screen.press(key) {
                    Wish::Leave => return Ok(()),
                    Wish::Pause => frozen = screen.is_paused.then(|| picture.clone()),
                    Wish::Nothing => {}
                },
                // Another size, or that somebody looked away: it is drawn anew.
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
