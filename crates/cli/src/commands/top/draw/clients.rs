//! The page of clients: most requests, or most denials.

use super::PageBody;
use crate::commands::top::columns::ColumnTable;
use crate::commands::top::number::{count, rate};
use crate::commands::top::palette::Palette;
use crate::commands::top::ui_state::ClientOrder;
use crate::commands::top::view_model::ViewModel;

/// Returns the ranking in this order.
pub(crate) fn body(view: &ViewModel, by: ClientOrder, width: usize, palette: Palette) -> PageBody {
    let (ranking, counted, style) = match by {
        ClientOrder::Traffic => (&view.clients.traffic, "REQUESTS", palette.plain()),
        ClientOrder::Denials => (&view.clients.denials, "DENIALS", palette.denied()),
    };
    let mut columns = ColumnTable::new(&[" CLIENT", counted, "PER SECOND", "RULE"]);
    for ranked in &ranking.clients {
        // A client with a hidden name is shown by its id.
        let client =
            ranked.client.as_ref().map_or_else(|| ranked.id.to_string(), ToString::to_string);
        let per_second = ranked.count() as f64 / ranking.seconds.max(1) as f64;
        let cells = vec![
            format!(" {client}"),
            count(ranked.count()),
            rate(per_second),
            ranked.rule.to_string(),
        ];
        columns.row(cells, style);
    }
    let (heading, lines) = columns.lines(width, palette.heading());
    PageBody { heading: Some(heading), lines }
}
