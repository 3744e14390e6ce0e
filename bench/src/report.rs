//! What a measurement says: a table for people, an object for programs, plots for both.

use std::fmt::Write as _;
use std::io::Write as _;

use serde_json::{Map, Value};

use crate::plot::Plot;
use crate::{Options, Result};

/// The outcome of one command.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// The command.
    pub(crate) name: &'static str,
    /// Each with its header first.
    tables: Vec<Vec<Vec<String>>>,
    /// What a reader must know to judge the numbers.
    pub(crate) notes: Vec<String>,
    json: Map<String, Value>,
    plots: Vec<Plot>,
}

impl Report {
    pub(crate) fn new(name: &'static str, header: &[&str]) -> Self {
        let mut report = Self { name, ..Self::default() };
        report.begin_table(header);
        report
    }

    /// The rows from here on have other columns than those before.
    pub(crate) fn begin_table(&mut self, header: &[&str]) {
        self.tables.push(vec![header.iter().map(|title| (*title).to_owned()).collect()]);
    }

    pub(crate) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.tables.last_mut().expect("begun with the report").push(cells.into());
    }

    pub(crate) fn note(&mut self, text: impl Into<String>) {
        self.notes.push(text.into());
    }

    pub(crate) fn plot(&mut self, plot: Plot) {
        self.plots.push(plot);
    }

    /// Sets a number at a path of keys.
    pub(crate) fn set(&mut self, path: &[&str], value: f64) {
        let Some((last, parents)) = path.split_last() else { return };
        let mut object = &mut self.json;
        for key in parents {
            let child = object.entry(*key).or_insert_with(|| Value::Object(Map::new()));
            let Value::Object(child) = child else { return };
            object = child;
        }
        object.insert((*last).to_owned(), rounded(value).into());
    }

    /// Prints the report and writes its plots; their directory is there.
    pub(crate) fn publish(mut self, options: &Options) -> Result<()> {
        let mut written = Vec::new();
        for (place, plot) in self.plots.iter().enumerate() {
            let number = if place == 0 { String::new() } else { format!("-{}", place + 1) };
            let path = options.out.join(format!("{}{number}.svg", self.name));
            std::fs::write(&path, plot.svg()).map_err(|error| format!("{}: {error}", path.display()))?;
            written.push(path.display().to_string());
        }
        let text = if options.json {
            if !self.notes.is_empty() {
                self.json.insert("notes".into(), self.notes.into());
            }
            format!("{}\n", Value::Object(self.json))
        } else {
            let notes = self.notes.iter().map(|note| format!("note: {note}\n"));
            let plots = written.iter().map(|path| format!("plot: {path}\n"));
            self.tables() + &notes.chain(plots).collect::<String>()
        };
        match std::io::stdout().write_all(text.as_bytes()) {
            // Whoever read it has read enough.
            Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            printed => Ok(printed?),
        }
    }

    /// The tables that have rows, with an empty line between.
    fn tables(&self) -> String {
        let tables: Vec<String> =
            self.tables.iter().filter(|table| table.len() > 1).map(|table| aligned(table)).collect();
        tables.join("\n")
    }
}

/// A table as text, its columns below each other.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| lines.iter().filter_map(|line| line.get(column)).map(String::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..lines.iter().map(Vec::len).max().unwrap_or(0)).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            // The first column is text, the others are numbers.
            let _ = if column == 0 { write!(text, "{cell:<width$}") } else { write!(text, "  {cell:>width$}") };
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    text
}

/// Four significant digits say all that is known.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_under_their_path() {
        let mut report = Report::new("x", &[]);
        report.set(&["throughput", "64", "ratio"], 1.234_567);
        report.set(&["throughput", "1", "ratio"], 2.0);
        assert_eq!(
            Value::Object(report.json),
            serde_json::json!({"throughput": {"1": {"ratio": 2.0}, "64": {"ratio": 1.235}}})
        );
    }

    #[test]
    fn columns_of_a_table_stand_below_each_other() {
        let mut report = Report::new("x", &["what", "n"]);
        report.row(["longer".into(), "10".into()]);
        report.begin_table(&["empty"]);
        report.begin_table(&["other"]);
        report.row(["1".into()]);
        assert_eq!(report.tables(), "what     n\nlonger  10\n\nother\n1\n");
    }
}
