//! What is known of the mutants of a sample: a text file with a line for each.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judge::Verdict;
use crate::mutant::{Mutant, Operator};

/// A measured sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    /// How it was measured: names and values, in order.
    pub(crate) about: Vec<(String, String)>,
    pub(crate) rows: Vec<Row>,
}

/// What is known of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) operator: String,
    /// The function and the change.
    pub(crate) what: String,
    pub(crate) unit: Verdict,
    pub(crate) sim: Verdict,
}

impl Table {
    /// Reads a file that [`Table::text`] made. Lines that are none of its own are left out.
    pub(crate) fn read(text: &str) -> Self {
        let mut table = Self::default();
        for line in text.lines() {
            if let Some(about) = line.strip_prefix("# ")
                && let Some((name, value)) = about.split_once(": ")
            {
                table.about.push((name.to_owned(), value.to_owned()));
            } else if let [place, operator, what, unit, sim] = line.split('\t').collect::<Vec<_>>()[..]
                && let Some((file, line)) = place.rsplit_once(':')
                && let Ok(line) = line.parse()
            {
                let (file, operator, what) = (file.to_owned(), operator.to_owned(), what.to_owned());
                table.rows.push(Row { file, line, operator, what, unit: unit.into(), sim: sim.into() });
            }
        }
        table
    }

    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.about {
            let _ = writeln!(text, "# {name}: {value}");
        }
        text.push_str("place\toperator\tmutant\tunit tests\tsimulator\n");
        for Row { file, line, operator, what, unit, sim } in &self.rows {
            let _ = writeln!(text, "{file}:{line}\t{operator}\t{what}\t{unit}\t{sim}");
        }
        text
    }

    /// What the page calls it.
    pub(crate) fn title(&self) -> &str {
        self.about.iter().find(|(name, _)| name == TITLE).map_or("A sample", |(_, title)| title)
    }

    pub(crate) fn by_key(&self) -> BTreeMap<String, &Row> {
        self.rows.iter().map(|row| (row.key(), row)).collect()
    }
}

/// The line that says what the sample is.
pub(crate) const TITLE: &str = "what it is";

impl Row {
    pub(crate) fn new(mutant: &Mutant) -> Self {
        let key = mutant.key();
        Self {
            file: mutant.file.clone(),
            line: mutant.line,
            operator: mutant.operator.name().to_owned(),
            what: key[mutant.file.len() + 1..].to_owned(),
            unit: Verdict::Unknown,
            sim: Verdict::Unknown,
        }
    }

    /// The key of its mutant.
    pub(crate) fn key(&self) -> String {
        format!("{} {}", self.file, self.what)
    }

    pub(crate) fn is_noticed(&self) -> bool {
        self.unit.is_noticed() || self.sim.is_noticed()
    }

    pub(crate) fn operator(&self) -> Option<Operator> {
        Operator::ALL.into_iter().find(|operator| operator.name() == self.operator)
    }
}
