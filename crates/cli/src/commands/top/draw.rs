//! Draws the interface on a terminal of any size.

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

use super::columns::truncate;
use super::number::duration;
use super::palette::Palette;
use super::ui_state::{ClientOrder, Page, UiState};
use super::view_model::{RuleOrder, ViewModel};

/// Most rows of each table in a printed frame.
const MAX_TEXT_ROWS: usize = 50;

/// The lines of a page. The heading does not scroll.
#[derive(Default)]
struct PageBody {
    heading: Option<Line<'static>>,
    lines: Vec<Line<'static>>,
}

/// Draws the current page. Returns the largest scroll position.
pub(crate) fn draw(
    view: &ViewModel,
    state: &UiState,
    palette: Palette,
    area: Rect,
    buffer: &mut Buffer,
) -> usize {
    let [mut top, mut middle] = split(area, 1);
    title(view, state, palette, top, buffer);
    if let Some(reason) = &view.unreachable {
        [top, middle] = split(middle, 1);
        let text = format!(" unreachable, retrying: {reason}");
        line(&text, palette.alarm(), top, buffer);
    }
    let [middle, bottom] = split(middle, middle.height.saturating_sub(1));
    keys(state, palette, bottom, buffer);
    let width = usize::from(area.width);
    let (body, middle) = match state.page {
        Page::Overview => {
            let [head, rest] = split(middle, overview::HEIGHT.min(middle.height));
            overview::head(view, palette, head, buffer);
            (overview::rules(view, state.rules, width, palette), rest)
        }
        Page::Clients => (clients::body(view, state.clients, width, palette), middle),
        Page::Fleet => (fleet::body(view, width, palette), middle),
    };
    let max_scroll = draw_scrolled(&body, state.scroll, middle, buffer);
    if state.shows_help {
        help(palette, area, buffer);
    }
    max_scroll
}

/// Returns all pages one below another, as plain text.
pub(crate) fn text(view: &ViewModel, width: u16) -> String {
    let palette = Palette::new(false);
    let wide = usize::from(width);
    let area = Rect::new(0, 0, width, 1 + overview::HEIGHT);
    let mut buffer = Buffer::empty(area);
    let [top, head] = split(area, 1);
    server_line(view, palette, top, &mut buffer);
    overview::head(view, palette, head, &mut buffer);
    let mut text = String::new();
    for row in buffer.content.chunks(wide.max(1)) {
        let row: String = row.iter().map(Cell::symbol).collect();
        text.push_str(row.trim_end());
        text.push('\n');
    }
    let bodies = [
        overview::rules(view, RuleOrder::AsWritten, wide, palette),
        clients::body(view, ClientOrder::Traffic, wide, palette),
        clients::body(view, ClientOrder::Denials, wide, palette),
        fleet::body(view, wide, palette),
    ];
    for PageBody { heading, lines } in bodies {
        text.push('\n');
        // Scripts read longer lists from the admin API.
        let max_rows = if heading.is_some() { MAX_TEXT_ROWS } else { usize::MAX };
        for line in heading.iter().chain(lines.iter().take(max_rows)) {
            text.push_str(line.to_string().trim_end());
            text.push('\n');
        }
    }
    text
}

/// Splits an area into its upper `height` lines and the rest.
fn split(area: Rect, height: u16) -> [Rect; 2] {
    let height = height.min(area.height);
    let upper = Rect { height, ..area };
    [upper, Rect { y: area.y + height, height: area.height - height, ..area }]
}

/// Draws one line of text, truncated to the area.
fn line(text: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    Span::styled(truncate(text, usize::from(area.width)), style).render(area, buffer);
}

/// Draws the state of the server: `edge-1, up 3m12s, rules 3, memory, 0.1.0`.
fn server_line(view: &ViewModel, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let live = &view.live;
    let text = match view.has_data {
        false => format!("tidegate at {}", view.address),
        true => {
            let up = duration(live.at.saturating_sub(live.started));
            let ready = if live.ready { "" } else { ", not ready" };
            format!(
                "{}{ready}, up {up}, rules {}, {}, {}",
                live.node, live.rules_version, live.store, live.release
            )
        }
    };
    line(&text, palette.heading(), area, buffer);
}

/// Draws the state of the server and the names of the pages.
fn title(view: &ViewModel, state: &UiState, palette: Palette, area: Rect, buffer: &mut Buffer) {
    let mut tabs = Vec::new();
    for (index, page) in Page::ALL.into_iter().enumerate() {
        let style = if page == state.page { palette.selected() } else { palette.plain() };
        tabs.push(Span::styled(format!(" {} {} ", index + 1, page.name()), style));
    }
    let tabs = Line::from(tabs);
    let wide = u16::try_from(tabs.width()).unwrap_or(u16::MAX).min(area.width);
    let left = Rect { width: area.width - wide, ..area };
    let room = Rect { x: area.x + 1.min(left.width), width: left.width.saturating_sub(2), ..left };
    server_line(view, palette, room, buffer);
    tabs.render(Rect { x: area.x + left.width, width: wide, ..area }, buffer);
}

/// Draws the most important keys, or that the view is paused.
fn keys(state: &UiState, palette: Palette, area: Rect, buffer: &mut Buffer) {
    if state.is_paused {
        line(" paused: p resumes", palette.alarm(), area, buffer);
        return;
    }
    let sort = match (state.page, state.clients) {
        (Page::Overview, _) => format!("s: {}", state.rules.name()),
        (Page::Clients, ClientOrder::Traffic) => "s: traffic".to_owned(),
        (Page::Clients, ClientOrder::Denials) => "s: denials".to_owned(),
        (Page::Fleet, _) => String::new(),
    };
    let text = format!(" q quit  tab page  jk scroll  p pause  ? help  {sort}");
    line(&text, palette.dimmed(), area, buffer);
}

/// Draws the visible lines of a page. Returns the largest scroll position.
fn draw_scrolled(body: &PageBody, scroll: usize, area: Rect, buffer: &mut Buffer) -> usize {
    let mut area = area;
    if let Some(heading) = &body.heading {
        let [top, rest] = split(area, 1);
        heading.render(top, buffer);
        area = rest;
    }
    let max_scroll = body.lines.len().saturating_sub(usize::from(area.height));
    let shown = body.lines.iter().skip(scroll.min(max_scroll));
    for (line, row) in shown.zip(area.rows()) {
        line.render(row, buffer);
    }
    max_scroll
}

const HELP: [&str; 10] = [
    "q, Esc, Ctrl-C     quit",
    "tab, left, right   next or previous page; 1 2 3",
    "j k, up, down      scroll; g top, G bottom",
    "s                  change the sort order",
    "p, space           pause or resume",
    "?                  help; any key closes it",
    "",
    "Rates of rules are over the last 10 seconds.",
    "failed open: admitted without the store.",
    "OPEN breaker: the server receives no checks.",
];

/// Draws the list of keys over the page.
fn help(palette: Palette, area: Rect, buffer: &mut Buffer) {
    let (width, height) = (54.min(area.width), 12.min(area.height));
    let (x, y) = (area.x + (area.width - width) / 2, area.y + (area.height - height) / 2);
    let popup = Rect { x, y, width, height };
    Clear.render(popup, buffer);
    let block = Block::bordered().title(" keys ").style(palette.plain());
    let inner = block.inner(popup);
    block.render(popup, buffer);
    for (text, row) in HELP.iter().zip(inner.rows()) {
        line(text, palette.plain(), row, buffer);
    }
}
