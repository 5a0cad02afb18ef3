//! The report of a replay as tables.

use std::fmt;

use crate::replay::report::{
    ChangedByRule, LogInfo, RankedClient, ReplayOutcome, ReplayReport, ReplayedRule,
    RuleSetDifferences, TimedCounts, shown,
};

/// Writes rows under a heading, the first columns left-aligned.
fn table(
    f: &mut fmt::Formatter<'_>,
    left: usize,
    heading: &[&str],
    rows: impl Iterator<Item = Vec<String>>,
) -> fmt::Result {
    let heading = heading.iter().map(|cell| (*cell).to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(heading).chain(rows).collect();
    let widths: Vec<usize> = (0..rows[0].len())
        .map(|index| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or_default())
        .collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(index, (cell, width))| {
            if index < left { format!("{cell:width$}") } else { format!("{cell:>width$}") }
        });
        writeln!(f, "{}", cells.collect::<Vec<_>>().join("  ").trim_end())?;
    }
    Ok(())
}

fn clients(
    f: &mut fmt::Formatter<'_>,
    title: &str,
    counted: &str,
    ranked: &[RankedClient],
) -> fmt::Result {
    if ranked.is_empty() {
        return Ok(());
    }
    writeln!(f, "\n{title}")?;
    let rows = ranked.iter().map(|client| {
        let RankedClient { rule, shown: name, denied, offered, first, last, .. } = client;
        let counts = format!("{denied} of {offered}");
        vec![rule.clone(), name.clone(), counts, shown(*first), shown(*last)]
    });
    table(f, 2, &["RULE", "CLIENT", counted, "FIRST", "LAST"], rows)
}

/// Writes the head, the tables and the notes.
impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LogInfo { requests, from, to, lines, .. } = &self.log;
        writeln!(f, "{}", self.title)?;
        writeln!(f, "  log      {requests} requests on {lines} lines")?;
        writeln!(f, "  time     {} to {}", shown(*from), shown(*to))?;
        if let Some(against) = &self.against {
            writeln!(f, "  against  {}", against.rules)?;
        }
        writeln!(f)?;
        let blocked = self.outcome.by_rule.iter().any(|rule| rule.blocked > 0);
        let mut heading = vec!["", "OFFERED", "ADMITTED", "DENIED", "DECIDED", "CLIENTS DENIED"];
        heading.extend(blocked.then_some("BLOCKED"));
        let counts = |name: String, counts: &TimedCounts| {
            let TimedCounts { offered, admitted, denied, .. } = counts;
            let counts = [offered, admitted, denied].map(u64::to_string);
            std::iter::once(name).chain(counts).collect::<Vec<_>>()
        };
        let of_all = |outcome: &ReplayOutcome| {
            let mut row = counts(format!("all rules of {}", outcome.rules), &outcome.counts);
            row.resize(heading.len(), String::new());
            row
        };
        let of_rule = |rule: &ReplayedRule| {
            let mut row = counts(rule.name(), &rule.counts);
            row.push(rule.decided.to_string());
            let clients = |all: usize| format!("{} of {all}", rule.clients_denied);
            row.push(rule.clients.map_or_else(String::new, clients));
            row.extend(blocked.then(|| rule.blocked.to_string()));
            row
        };
        let old = self.against.iter().map(of_all);
        let rows = std::iter::once(of_all(&self.outcome)).chain(old);
        table(f, 1, &heading, rows.chain(self.outcome.by_rule.iter().map(of_rule)))?;
        match &self.differences {
            None => clients(f, "Clients denied most", "DENIED", &self.outcome.denied_most)?,
            Some(differences) => write!(f, "{differences}")?,
        }
        if !self.notes.is_empty() {
            writeln!(f)?;
        }
        self.notes.iter().try_for_each(|note| writeln!(f, "{note}"))
    }
}

impl fmt::Display for RuleSetDifferences {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (newly, how) in [(&self.newly_denied, "denied"), (&self.newly_admitted, "admitted")] {
            writeln!(f, "\nNewly {how}: {}", newly.requests)?;
            if newly.requests == 0 {
                continue;
            }
            let rows = newly.by_rule.iter().map(|ChangedByRule { rule, requests, clients }| {
                vec![rule.clone(), requests.to_string(), clients.to_string()]
            });
            let decided = if how == "denied" { "BY RULE" } else { "NO LONGER BY RULE" };
            table(f, 1, &[decided, "REQUESTS", "CLIENTS"], rows)?;
            clients(f, &format!("Clients newly {how} most"), "REQUESTS", &newly.clients)?;
        }
        Ok(())
    }
}
