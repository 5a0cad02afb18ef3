//! Who comes most, and who is denied most.

use super::Body;
use crate::commands::top::columns::Columns;
use crate::commands::top::number::{count, rate};
use crate::commands::top::palette::Palette;
use crate::commands::top::picture::Picture;
use crate::commands::top::screen::ClientOrder;

pub(crate) fn body(picture: &Picture, by: ClientOrder, width: usize, palette: Palette) -> Body {
    let (ranking, counted, style) = match by {
        ClientOrder::Traffic => (&picture.clients.traffic, "REQUESTS", palette.plain()),
        ClientOrder::Denials => (&picture.clients.denials, "DENIALS", palette.denied()),
    };
    let mut columns = Columns::new(&[" CLIENT", counted, "PER SECOND", "RULE"]);
    for ranked in &ranking.clients {
        // A client whose name is not to be shown has an id all the same.
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
    Body { heading: Some(heading), lines }
}
