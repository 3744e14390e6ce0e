//! The page of the documentation: figures, and every survivor with the reason.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::judge::Verdict;
use crate::mutant::Operator;
use crate::table::{Row, Table};

/// Why mutants survive. A line without indentation names a mutant by its key, or all of a file (`FILE *`); the indented
/// lines below it say why. If they begin with `equivalent:`, nothing could notice it.
#[derive(Debug, Default)]
pub(crate) struct Reasons(BTreeMap<String, String>);

/// How many of how many.
#[derive(Clone, Copy, Default)]
struct Share {
    of: usize,
    noticed: usize,
}

/// Shares of the unit tests, the simulator, and both.
#[derive(Clone, Copy, Default)]
struct Shares {
    unit: Share,
    sim: Share,
    both: Share,
}

impl Reasons {
    pub(crate) fn read(text: &str) -> Self {
        let mut reasons = BTreeMap::new();
        let mut key = None;
        for line in text.lines().filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
            match (line.starts_with(' '), &key) {
                (false, _) => key = Some(line.to_owned()),
                (true, Some(key)) => {
                    let reason: &mut String = reasons.entry(String::clone(key)).or_default();
                    if !reason.is_empty() {
                        reason.push(' ');
                    }
                    reason.push_str(line.trim());
                }
                (true, None) => {}
            }
        }
        Self(reasons)
    }

    fn of(&self, row: &Row) -> Option<&str> {
        let of_file = || self.0.get(&format!("{} *", row.file));
        self.0.get(&row.key()).or_else(of_file).map(String::as_str)
    }

    /// Whether nothing could notice the mutant, and nothing did.
    pub(crate) fn is_equivalent(&self, row: &Row) -> bool {
        !row.is_noticed() && self.0.get(&row.key()).is_some_and(|reason| reason.starts_with("equivalent:"))
    }

    /// Reasons for mutants that are in no table, or were noticed by all.
    pub(crate) fn unused(&self, tables: &[Table]) -> Vec<&str> {
        let rows = || tables.iter().flat_map(|table| &table.rows);
        let is_used = |key: &&str| {
            let of_file = key.strip_suffix(" *");
            match of_file {
                Some(file) => rows().any(|row| row.file == file && !row.sim.is_noticed()),
                None => rows().any(|row| row.key() == *key && !(row.unit.is_noticed() && row.sim.is_noticed())),
            }
        };
        self.0.keys().map(String::as_str).filter(|key| !is_used(key)).collect()
    }
}

/// The page for these tables.
pub(crate) fn page(tables: &[Table], reasons: &Reasons) -> String {
    let mut text = HEAD.to_owned();
    tables.iter().for_each(|table| add(&mut text, table, reasons));
    text
}

/// Adds the part of the page that is about one table.
fn add(text: &mut String, table: &Table, reasons: &Reasons) {
    let _ = writeln!(text, "\n## {}\n", table.title());
    for (name, value) in &table.about {
        let _ = writeln!(text, "- {name}: {value}");
    }
    text.push_str("\n| | mutants | unit tests | simulator alone | together |\n|---|---|---|---|---|\n");
    let all: Vec<&Row> = table.rows.iter().collect();
    let different: Vec<&Row> = all.iter().copied().filter(|row| !reasons.is_equivalent(row)).collect();
    row(text, "**all**", &all);
    row(text, "without the equivalent ones", &different);
    for (name, prefix) in ROOMS {
        row(text, name, &of(&all, |row| row.file.starts_with(prefix)));
    }
    text.push_str("\n| operator | what becomes of the text | mutants | unit tests | simulator alone | together |\n");
    text.push_str("|---|---|---|---|---|---|\n");
    for operator in Operator::ALL {
        let name = format!("{operator} | {}", operator.meaning().replace("||", "\\|\\|"));
        row(text, &name, &of(&all, |row| row.operator() == Some(operator)));
    }
    let all_known = all.iter().all(|row| row.unit.is_known() && row.sim.is_known());
    let list = |text: &mut String, title: &str, about: &str, rows: Vec<&Row>| {
        let _ = writeln!(text, "\n### {title}\n\n{about}\n");
        if rows.is_empty() {
            text.push_str(if all_known { "None.\n" } else { "None known: not all mutants were judged by both.\n" });
        }
        for row in rows {
            let reason = reasons.of(row).unwrap_or("not looked into yet");
            let reached = if row.sim == Verdict::Unreached { " (the simulator does not come by)" } else { "" };
            let _ = writeln!(text, "- `{}:{}` {}{reached}\n  {reason}", row.file, row.line, row.what);
        }
    };
    let survives = |verdict: &Verdict| verdict.is_known() && !verdict.is_noticed();
    list(
        text,
        "Survivors of both",
        "Noticed neither by the unit tests nor by the simulator.",
        of(&all, |row| survives(&row.unit) && survives(&row.sim)),
    );
    list(
        text,
        "Survivors of the simulator",
        "The unit tests notice them, or were not asked.",
        of(&all, |row| survives(&row.sim) && !survives(&row.unit)),
    );
    list(
        text,
        "Survivors of the unit tests",
        "The simulator notices them, or was not asked.",
        of(&all, |row| survives(&row.unit) && !survives(&row.sim)),
    );
}

fn of<'a>(rows: &[&'a Row], which: impl Fn(&Row) -> bool) -> Vec<&'a Row> {
    rows.iter().copied().filter(|row| which(row)).collect()
}

fn row(text: &mut String, name: &str, rows: &[&Row]) {
    if rows.is_empty() {
        return;
    }
    let shares = Shares::of(rows);
    let [unit, sim, both] = [shares.unit, shares.sim, shares.both].map(Share::text);
    let _ = writeln!(text, "| {name} | {} | {unit} | {sim} | {both} |", rows.len());
}

/// The figures in two lines, for the terminal.
pub(crate) fn summary(table: &Table, reasons: &Reasons) -> String {
    let all: Vec<&Row> = table.rows.iter().collect();
    let different: Vec<&Row> = all.iter().copied().filter(|row| !reasons.is_equivalent(row)).collect();
    let line = |name: &str, rows: &[&Row]| {
        let shares = Shares::of(rows);
        let [unit, sim, both] = [shares.unit, shares.sim, shares.both].map(Share::text);
        format!("{name}: {} mutants; unit tests {unit}, simulator alone {sim}, together {both}", rows.len())
    };
    format!("{}\n{}", line("all", &all), line("without the equivalent ones", &different))
}

impl Shares {
    fn of(rows: &[&Row]) -> Self {
        let mut shares = Self::default();
        for row in rows {
            shares.unit.count(row.unit.is_known(), row.unit.is_noticed());
            shares.sim.count(row.sim.is_known(), row.sim.is_noticed());
            shares.both.count(row.unit.is_known() && row.sim.is_known(), row.is_noticed());
        }
        shares
    }
}

impl Share {
    fn count(&mut self, known: bool, noticed: bool) {
        self.of += usize::from(known);
        self.noticed += usize::from(known && noticed);
    }

    fn text(self) -> String {
        match self.of {
            0 => "-".to_owned(),
            of => format!("{} ({:.1} %)", self.noticed, 100.0 * self.noticed as f64 / of as f64),
        }
    }
}

const ROOMS: [(&str, &str); 5] = [
    ("`xds/client`", "crates/xds/src/client/"),
    ("`xds/deps`", "crates/xds/src/deps"),
    ("`xds/serve`", "crates/xds/src/serve"),
    ("`xds/resource/listener`", "crates/xds/src/resource/listener"),
    ("`lb`", "crates/lb/"),
];

const HEAD: &str = "# Would the tests notice?

Written by `mainstay-mutants`. A mutant is one small logic error in a core: `<` for `<=`, a call left out, a condition
negated. All mutants of a sample are compiled into one copy of the cores, each behind a switch; then the tests run once
with each of them on, and so does, apart from them, the simulator. What fails, panics or never ends has noticed it.

The sample is drawn by a seed from all places of the rooms below where such an error could be, from each file as many as
its share. Places are left out if they are text for people, tests, or only make room, or if the mutant does not compile.
A survivor is equivalent if nothing could notice it; the reason says why. The tables beside this
page (`mutants.tsv`, `mutants-unseen.tsv` and `mutants-servers.tsv`) have every mutant with what noticed it.
";
