//! A picture on a screen of any size.

mod clients;
mod fleet;
mod overview;
#[cfg(test)]
mod tests;

use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Widget};

use super::columns::cut;
use super::number::lasting;
use super::palette::Palette;
use super::picture::{Picture, RuleOrder};
use super::screen::{ClientOrder, Page, Screen};

/// How many rules and clients a frame in text has.
const MOST: usize = 50;

/// The lines of a page. The heading stays where it is when they are scrolled.
#[derive(Default)]
struct Body {
    heading: Option<Line<'static>>,
    lines: Vec<Line<'static>>,
}

/// Draws what a screen shows of a picture; how far it can be scrolled.
pub(crate) fn draw(
    picture: &Picture,
    screen: &Screen,
    palette: Palette,
    area: Rect,
    buffer: &mut Buffer,
) -> usize {
    let [mut top, mut middle] = split(area, 1);
    title(picture, screen, palette, top, buffer);
    if let Some(reason) = &picture.away {
        [top, middle] = split(middle, 1);
        let text = format!(" away, trying again: {reason}");
        line(&text, palette.alarm(), top, buffer);
    }
    let [middle, bottom] = split(middle, middle.height.saturating_sub(1));
    keys(screen, palette, bottom, buffer);
    let width = usize::from(area.width);
    let (body, middle) = match screen.page {
        Page::Overview => {
            let [head, rest] = split(middle, overview::HEIGHT.min(middle.height));
            overview::head(picture, palette, head, buffer);
            (overview::rules(picture, screen.rules, width, palette), rest)
        }
        Page::Clients => (clients::body(picture, screen.clients, width, palette), middle),
        Page::Fleet => (fleet::body(picture, width, palette), middle),
    };
    let most = scrolled(&body, screen.scroll, middle, buffer);
    if screen.shows_help {
        help(palette, area, buffer);
    }
    most
}

/// All pages one below another, as text: for who has no terminal to look at.
pub(crate) fn text(picture: &Picture, width: u16) -> String {
    let palette = Palette::new(false);
    let wide = usize::from(width);
    let area = Rect::new(0, 0, width, 1 + overview::HEIGHT);
    let mut buffer = Buffer::empty(area);
    let [top, head] = split(area, 1);
    standing(picture, palette, top, &mut buffer);
    overview::head(picture, palette, head, &mut buffer);
    let mut text = String::new();
    for row in buffer.content.chunks(wide.max(1)) {
        let row: String = row.iter().map(Cell::symbol).collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    let bodies = [
        overview::rules(picture, RuleOrder::AsWritten, wide, palette),
        clients::body(picture, ClientOrder::Traffic, wide, palette),
        clients::body(picture, ClientOrder::Denials, wide, palette),
        fleet::body(picture, wide, palette),
    ];
    for Body { heading, lines } in bodies {
        text.push('\n');
        // Whoever wants more of them asks the server.
        let most = if heading.is_some() { MOST } else { usize::MAX };
        for line in heading.iter().chain(lines.iter().take(most)) {
            text.push_str(line.to_string().trim_end());
            text.push('\n');
        }
    }
    text
}

/// The upper lines of an area, and the rest.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    let upper = Rect { height, ..area };
    [upper, Rect { y: area.y + height, height: area.height - height, ..area }]
}

fn line(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    Span::styled(cut(text, usize::from(area.width)), style).render(area, buffer);
}

/// `tidegate node-1, 0.1.0, up 3m12s, rules 3, memory`.
fn standing(picture: &Picture, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let live = &picture.live;
    let text = match picture.is_known {
        false => format!("tidegate at {}", picture.address),
        true => {
            let up = lasting(live.at.saturating_sub(live.started));
            let ready = if live.ready { "" } else { ", not ready" };
            format!(
                "{}{ready}, up {up}, rules {}, {}, {}",
                live.node, live.rules_version, live.store, live.release
            )
        }
    };
    line(&text, palette.heading(), area, buffer);
}

fn title(picture: &Picture, screen: &Screen, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let mut tabs = Vec::new();
    for (place, page) in Page::ALL.into_iter().enumerate() {
        let style = if page == screen.page { palette.chosen() } else { palette.plain() };
        tabs.push(Span::styled(format!(" {} {} ", place + 1, page.name()), style));
    }
    let tabs = Line::from(tabs);
    let wide = u16::try_from(tabs.width()).unwrap_or(u16::MAX).min(area.width);
    let left = Rect { width: area.width - wide, ..area };
    let room = Rect { x: area.x + 1.min(left.width), width: left.width.saturating_sub(2), ..left };
    standing(picture, palette, room, buffer);
    tabs.render(Rect { x: area.x + left.width, width: wide, ..area }, buffer);
}

fn keys(screen: &Screen, palette: Palette, area: Rect, buffer: &mut Buffer) {
    if screen.is_paused {
        line(" paused: p goes on", palette.alarm(), area, buffer);
        return;
    }
    let sort = match (screen.page, screen.clients) {
        (Page::Overview, _) => format!("s: {}", screen.rules.name()),
        (Page::Clients, ClientOrder::Traffic) => "s: traffic".to_owned(),
        (Page::Clients, ClientOrder::Denials) => "s: denials".to_owned(),
        (Page::Fleet, _) => String::new(),
    };
    let text = format!(" q quit  tab page  jk scroll  p pause  ? help  {sort}");
    line(&text, palette.quiet(), area, buffer);
}

fn scrolled(body: &Body, scroll: usize, area: Rect, buffer: &mut Buffer) -> usize {
    let mut area = area;
    if let Some(heading) = &body.heading {
        let [top, rest] = split(area, 1);
        heading.render(top, buffer);
        area = rest;
    }
    let most = body.lines.len().saturating_sub(usize::from(area.height));
    let shown = body.lines.iter().skip(scroll.min(most));
    for (line, row) in shown.zip(area.rows()) {
        line.render(row, buffer);
    }
    most
}

const HELP: [&str; 10] = [
    "q, Esc, Ctrl-C     quit",
    "tab, left, right   another page; 1 2 3 choose one",
    "j k, up, down      scroll; g G to either end",
    "s                  sort by something else",
    "p, space           pause, and go on",
    "?                  this; any key closes it",
    "",
    "Rates of rules are over the last 10 seconds.",
    "failed open: admitted without the store.",
    "up: the breaker is closed, the server is asked.",
];

fn help(palette: Palette, area: Rect, buffer: &mut Buffer) {
    let (width, height) = (54.min(area.width), 12.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let place = Rect { x, y, width, height };
    Clear.render(place, buffer);
    let block = Block::bordered().title(" keys ").style(palette.plain());
    let inner = block.inner(place);
    block.render(place, buffer);
    for (text, row) in HELP.iter().zip(inner.rows()) {
        line(text, palette.plain(), row, buffer);
    }
}
