//! The page of the fleet: nodes, store, listeners and upstreams.

use ratatui::style::Style;
use ratatui::text::{Line, Span};
use tidegate_api::{ListenerReport, MemoryReport, RedisReport, StoreReport};
use tidegate_core::TerminalSafe;

use super::PageBody;
use crate::commands::top::columns::{ColumnTable, truncate};
use crate::commands::top::number::{bytes, count, duration, micros};
use crate::commands::top::palette::Palette;
use crate::commands::top::poller::SafeFleetReport;
use crate::commands::top::view_model::ViewModel;

/// Returns the page of the fleet.
pub(crate) fn body(view: &ViewModel, width: usize, palette: Palette) -> PageBody {
    let fleet = &view.fleet;
    let mut page = FleetLines { lines: Vec::new(), width, palette };
    if let Some(reason) = view.fleet_error.as_ref().filter(|_| view.unreachable.is_none()) {
        page.text(&format!(" fleet report unavailable: {reason}"), palette.alarm());
    }
    nodes(fleet, view.live.at, &mut page);
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
    PageBody { heading: None, lines: page.lines }
}

/// The lines of the page so far.
struct FleetLines {
    lines: Vec<Line<'static>>,
    width: usize,
    palette: Palette,
}

impl FleetLines {
    fn text(&mut self, text: &str, style: Style) {
        self.lines.push(Line::from(Span::styled(truncate(text, self.width), style)));
    }

    /// Adds a table and an empty line.
    fn table(&mut self, columns: &ColumnTable) {
        let (heading, rows) = columns.lines(self.width, self.palette.heading());
        self.lines.push(heading);
        self.lines.extend(rows);
        self.lines.push(Line::default());
    }

    fn style(&self, is_healthy: bool) -> Style {
        if is_healthy { self.palette.plain() } else { self.palette.alarm() }
    }
}

fn nodes(fleet: &SafeFleetReport, now: u64, page: &mut FleetLines) {
    let mut columns = ColumnTable::new(&[" NODE", "RULES", "STATE", "SEEN", "PROBLEM"]);
    for node in &fleet.nodes {
        let seen = match node.seen {
            0 => "-".to_owned(),
            seen => format!("{} ago", duration(now.saturating_sub(seen))),
        };
        let problem = node.problem.as_ref().map(ToString::to_string).unwrap_or_default();
        let is_healthy = !node.behind && problem.is_empty();
        let state = if node.behind { "behind" } else { "latest" };
        let cells = vec![
            format!(" {}", node.node),
            node.version.to_string(),
            state.to_owned(),
            seen,
            problem,
        ];
        columns.row(cells, page.style(is_healthy));
    }
    page.table(&columns);
    if let Some(reason) = &fleet.unknown {
        page.lines.pop();
        page.text(&format!(" other nodes are not listed: {reason}"), page.palette.dimmed());
        page.lines.push(Line::default());
    }
}

fn store(store: &StoreReport<TerminalSafe>, page: &mut FleetLines) {
    match store {
        StoreReport::Memory(store) => memory(store, page),
        StoreReport::Redis(store) => redis(store, page),
        StoreReport::Unknown => {}
    }
}

fn memory(store: &MemoryReport, page: &mut FleetLines) {
    let unless_none = |times: u64, what: &str| match times {
        0 => String::new(),
        times => format!(", {} {what}", count(times)),
    };
    let overflow = unless_none(store.overflowed, "checks used an overflow bucket");
    let denied = unless_none(store.growth_denied, "checks denied for lack of memory");
    let (keys, max_keys) = (count(store.keys), count(store.max_keys));
    let (size, max_size) = (bytes(store.bytes), bytes(store.max_bytes));
    page.text(
        &format!(
            " store: memory, {keys} of {max_keys} keys, {size} of {max_size}{overflow}{denied}"
        ),
        page.palette.plain(),
    );
    page.lines.push(Line::default());
}

fn redis(store: &RedisReport<TerminalSafe>, page: &mut FleetLines) {
    let RedisReport { fleet, late, lost, failovers, leased_clients, leased_tokens, .. } = store;
    let nodes = match fleet {
        1 => "1 node".to_owned(),
        nodes => format!("{nodes} nodes"),
    };
    let (late, lost) = (count(*late), count(*lost));
    let leased = match leased_clients {
        0 => String::new(),
        clients => {
            format!(", {} tokens leased for {} clients", count(*leased_tokens), count(*clients))
        }
    };
    page.text(
        &format!(" store: redis, {nodes}, {late} late, {lost} lost, {failovers} failovers{leased}"),
        page.palette.plain(),
    );
    let mut columns = ColumnTable::new(&[
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

fn listeners(fleet: &SafeFleetReport, page: &mut FleetLines) {
    if fleet.listeners.is_empty() {
        return;
    }
    let mut columns = ColumnTable::new(&[" LISTENER", "OPEN", "ACCEPTED", "MAX"]);
    for listener in &fleet.listeners {
        let ListenerReport { listener, open, accepted, most } = listener;
        let cells = vec![format!(" {listener}"), count(*open), count(*accepted), count(*most)];
        columns.row(cells, page.style(open < most));
    }
    page.table(&columns);
}

fn upstreams(fleet: &SafeFleetReport, page: &mut FleetLines) {
    if fleet.upstreams.is_empty() {
        return;
    }
    let mut columns =
        ColumnTable::new(&[" UPSTREAM", "IN FLIGHT", "MAX", "ANSWERED", "FAILED", "UP"]);
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
