//! The nodes, where counters are, and what is open.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use tidegate_api::{ListenerReport, MemoryReport, RedisReport, StoreReport};
use tidegate_core::TerminalSafe;

use super::Body;
use crate::commands::top::columns::{Columns, cut};
use crate::commands::top::feed::Fleet;
use crate::commands::top::number::{bytes, count, lasting, micros};
use crate::commands::top::palette::Palette;
use crate::commands::top::picture::Picture;

pub(crate) fn body(picture: &Picture, width: usize, palette: Palette) -> Body {
    let fleet = &picture.fleet;
    let mut page = Paper { lines: Vec::new(), width, palette };
    if let Some(reason) = picture.fleet_away.as_ref().filter(|_| picture.away.is_none()) {
        page.text(&format!(" not known now: {reason}"), palette.alarm());
    }
    nodes(fleet, picture.live.at, &mut page);
    store(&fleet.store, &mut page);
    listeners(fleet, &mut page);
    upstreams(fleet, &mut page);
    let process = fleet.process;
    page.text(
        &format!(
            " process: {} in memory, {:.1} s of processor time, {} threads, {} files open",
            bytes(process.resident_bytes.unwrap_or_default()),
            process.cpu_seconds.unwrap_or_default(),
            process.threads.unwrap_or_default(),
            process.open_files.unwrap_or_default()
        ),
        palette.plain(),
    );
    Body { heading: None, lines: page.lines }
}

/// What was written so far.
struct Paper {
    lines: Vec<Line<'static>>,
    width: usize,
    palette: Palette,
}

impl Paper {
    fn text(&mut self, text: &str, style: Style) {
        self.lines.push(Line::from(Span::styled(cut(text, self.width), style)));
    }

    /// A table, and an empty line after it.
    fn table(&mut self, columns: &Columns) {
        let (heading, rows) = columns.lines(self.width, self.palette.heading());
        self.lines.push(heading);
        self.lines.extend(rows);
        self.lines.push(Line::default());
    }

    fn style(&self, is_fine: bool) -> Style {
        if is_fine { self.palette.plain() } else { self.palette.alarm() }
    }
}

fn nodes(fleet: &Fleet, now: u64, page: &mut Paper) {
    let mut columns = Columns::new(&[" NODE", "RULES", "STANDS", "SEEN", "PROBLEM"]);
    for node in &fleet.nodes {
        let seen = match node.seen {
            0 => "-".to_owned(),
            seen => format!("{} ago", lasting(now.saturating_sub(seen))),
        };
        let problem = node.problem.as_ref().map(ToString::to_string).unwrap_or_default();
        let is_fine = !node.behind && problem.is_empty();
        let stands = if node.behind { "behind" } else { "latest" };
        let cells = vec![
            format!(" {}", node.node),
            node.version.to_string(),
            stands.to_owned(),
            seen,
            problem,
        ];
        columns.row(cells, page.style(is_fine));
    }
    page.table(&columns);
    if let Some(reason) = &fleet.unknown {
        page.lines.pop();
        page.text(&format!(" other nodes are not listed: {reason}"), page.palette.quiet());
        page.lines.push(Line::default());
    }
}

fn store(store: &StoreReport<TerminalSafe>, page: &mut Paper) {
    match store {
        StoreReport::Memory(store) => memory(store, page),
        StoreReport::Redis(store) => redis(store, page),
        StoreReport::Unknown => {}
    }
}

fn memory(store: &MemoryReport, page: &mut Paper) {
    let overflow = match store.overflowed {
        0 => String::new(),
        times => format!(", {} shared a bucket for want of room", count(times)),
    };
    let (keys, most, size) = (count(store.keys), count(store.max_keys), bytes(store.bytes));
    page.text(
        &format!(" store: memory, {keys} of {most} keys, {size}{overflow}"),
        page.palette.plain(),
    );
    page.lines.push(Line::default());
}

fn redis(store: &RedisReport<TerminalSafe>, page: &mut Paper) {
    let RedisReport { fleet, late, lost, failovers, leased_clients, leased_tokens, .. } = store;
    let nodes = match fleet {
        1 => "1 node".to_owned(),
        nodes => format!("{nodes} nodes"),
    };
    let (late, lost) = (count(*late), count(*lost));
    let leased = match leased_clients {
        0 => String::new(),
        clients => format!(", {} tokens held for {}", count(*leased_tokens), count(*clients)),
    };
    page.text(
        &format!(" store: redis, {nodes}, {late} late, {lost} lost, {failovers} failovers{leased}"),
        page.palette.plain(),
    );
    let mut columns = Columns::new(&[
        " SERVER", "BREAKER", "P50", "P99", "TIMEOUTS", "FAILED", "OPENED", "MEMORY", "KEYS",
        "EVICTED",
    ]);
    let known = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), count);
    for server in &store.servers {
        let breaker = if server.up { "closed" } else { "OPEN" };
        let cells = vec![
            format!(" {}", server.server),
            breaker.to_owned(),
            micros(server.calls.p50_micros),
            micros(server.calls.p99_micros),
            count(server.timeouts),
            count(server.failures),
            count(server.opened),
            server.memory.map_or_else(|| "-".to_owned(), bytes),
            known(server.keys),
            known(server.evicted),
        ];
        columns.row(cells, page.style(server.up));
    }
    page.table(&columns);
}

fn listeners(fleet: &Fleet, page: &mut Paper) {
    if fleet.listeners.is_empty() {
        return;
    }
    let mut columns = Columns::new(&[" LISTENER", "OPEN", "ACCEPTED", "MOST"]);
    for listener in &fleet.listeners {
        let ListenerReport { listener, open, accepted, most } = listener;
        let cells = vec![format!(" {listener}"), count(*open), count(*accepted), count(*most)];
        columns.row(cells, page.style(open < most));
    }
    page.table(&columns);
}

fn upstreams(fleet: &Fleet, page: &mut Paper) {
    if fleet.upstreams.is_empty() {
        return;
    }
    let mut columns = Columns::new(&[" UPSTREAM", "IN FLIGHT", "MOST", "ANSWERED", "NOT", "UP"]);
    for upstream in &fleet.upstreams {
        let up = upstream.servers.iter().filter(|server| server.up).count();
        let answered =
            upstream.outcomes.get(&TerminalSafe::from("answered")).copied().unwrap_or_default();
        let all: u64 = upstream.outcomes.values().sum();
        let cells = vec![
            format!(" {}", upstream.upstream),
            count(upstream.in_flight),
            upstream.most.map_or_else(|| "-".to_owned(), count),
            count(answered),
            count(all.saturating_sub(answered)),
            format!("{up} of {}", upstream.servers.len()),
        ];
        columns.row(cells, page.style(up == upstream.servers.len()));
    }
    page.table(&columns);
    let down = fleet.upstreams.iter().flat_map(|upstream| &upstream.servers);
    let down: Vec<String> =
        down.filter(|server| !server.up).map(|server| server.server.to_string()).collect();
    if !down.is_empty() {
        page.lines.pop();
        page.text(&format!(" down: {}", down.join(", ")), page.palette.alarm());
        page.lines.push(Line::default());
    }
}
