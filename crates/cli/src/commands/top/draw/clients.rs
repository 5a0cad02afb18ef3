//! Who comes most, and who is denied most.

use super::super::columns::Columns;
use super::super::number::{count, rate};
use super::super::palette::Palette;
use super::super::picture::Picture;
use super::super::screen::ClientOrder;
use super::Body;

pub(super) fn body(picture: &Picture, by: ClientOrder, width: usize, palette: Palette) -> Body {
    let (ranking, counted, style) = match by {
        ClientOrder::Traffic => (&picture.clients.traffic, "REQUESTS", palette.plain()),
        ClientOrder::Denials => (&picture.clients.denials, "DENIALS", palette.denied()),
    };
    let mut columns = Columns::new(&[" CLIENT", counted, "PER SECOND", "RULE"]);
    for ranked in &ranking.clients {
        // A client whose name is not to be shown has an id all the same.
        let client = ranked.client.as_ref().unwrap_or(&ranked.id);
        let per_second = ranked.requests as f64 / ranking.seconds.max(1) as f64;
        let cells = vec![
            format!(" {client}"),
            count(ranked.requests),
            rate(per_second),
            ranked.rule.to_string(),
        ];
        columns.row(cells, style);
    }
    let (heading, lines) = columns.lines(width, palette.heading());
    Body { heading: Some(heading), lines }
}
