//! `mainstay top`: the xDS clients of running processes, live.

use std::{
    collections::BTreeMap,
    io::IsTerminal as _,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    failure::Failure,
    fleet::{self, Row, age, or_dash},
    output::{self, DIM, Output, styled},
    signals::Signals,
    source::Source,
    span,
};

mod keys;
mod screen;

use keys::Terminal;
use screen::Screen;

/// Watch the xDS clients of running processes: calls, errors, ages
///
/// Asks every process again and again, over CSDS and channelz. Calls per second come from what channelz counts between two looks.
/// On a terminal the table is drawn anew in its place, as far as it fits, and keys do something: `q` ends it, `s` sorts by the next
/// column, `/` takes a text that rows must have, the arrows (or `j` and `k`) choose a row, Enter shows everything about it and Esc
/// goes back.
///
/// With --once it looks twice, prints the table and ends. With --json each look is a line: rows (as in `mainstay status`, and
/// calls_per_second, failed_per_second) and unreachable (address, error).
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// Admin ports: HOST:PORT of gRPC processes, envoy:HOST:PORT of Envoys
    #[arg(value_name = "ADDR", required = true)]
    addresses: Vec<Source>,

    /// Look once (twice, for rates), print, and end
    #[arg(long)]
    once: bool,

    /// Print each look as a line of JSON
    #[arg(long)]
    json: bool,

    /// What comes first
    #[arg(long, value_name = "COLUMN", default_value = "errors")]
    sort: Sort,

    /// Only rows with this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Time between two looks
    #[arg(long, value_name = "T", default_value = "1s", value_parser = span::parse)]
    interval: Duration,

    /// How long to wait for each process
    #[arg(long, value_name = "T", default_value = "5s", value_parser = span::parse)]
    timeout: Duration,
}

/// The order of rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sort {
    /// Those in trouble, then the rest
    Errors,
    /// Those with the most calls
    Calls,
    /// Those whose last resource came most recently
    Age,
    /// By address and target
    Address,
}

/// What is seen in one look.
#[derive(Clone, Debug, Default, Serialize)]
struct Look {
    rows: Vec<Rated>,
    unreachable: Vec<Unreachable>,
}

#[derive(Clone, Debug, Serialize)]
struct Rated {
    #[serde(flatten)]
    row: Row,
    calls_per_second: Option<f64>,
    failed_per_second: Option<f64>,
}

#[derive(Clone, Debug, Serialize)]
struct Unreachable {
    address: String,
    error: String,
}

/// What is counted of each client, and when.
type Counts = BTreeMap<(String, Option<String>), (i64, i64)>;

/// Looks again and again.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Flags { addresses, once, json, sort, filter, interval, timeout } = flags;
    let mut answers = answers(addresses, interval, timeout);
    if std::io::stdout().is_terminal() && !once && !json {
        return live(answers, Screen::new(sort, filter), signals).await;
    }
    let mut before = None;
    loop {
        let answer = tokio::select! {
            answer = answers.recv() => answer,
            () = signals.next() => return Ok(()),
        };
        let Some((answers, at)) = answer else { return Ok(()) };
        let (look, counts) = Look::new(answers, at, before.as_ref());
        let look = look.arranged(sort, &filter);
        let is_last = once && before.is_some();
        before = Some((counts, at));
        if !once || is_last {
            if json { output.json(&look)? } else { output.line(&look)? }
        }
        if is_last {
            return match look.unreachable.len() {
                0 => Ok(()),
                1 => Err(Failure::failed("1 process could not be asked")),
                count => Err(Failure::failed(format!("{count} processes could not be asked"))),
            };
        }
    }
}

/// Draws, and does what keys say, until one of them ends it.
async fn live(
    mut answers: mpsc::Receiver<(Answers, Instant)>,
    mut screen: Screen,
    mut signals: Signals,
) -> Result<(), Failure> {
    let (mut terminal, mut keys) = (Terminal::begin(), keys::pressed());
    let (mut look, mut before) = (Look::default(), None);
    loop {
        terminal.draw(&screen.draw(&look, Terminal::size()));
        tokio::select! {
            Some((answers, at)) = answers.recv() => {
                let (mut now, counts) = Look::new(answers, at, before.as_ref());
                now.rows.extend(now.unreachable.drain(..).map(Rated::silent));
                (look, before) = (now, Some((counts, at)));
            }
            Some(key) = keys.recv() => {
                if !screen.press(key, &look) {
                    return Ok(());
                }
            }
            () = signals.next() => return Ok(()),
        }
    }
}

/// What all processes answer, and when, again and again for as long as somebody reads it.
fn answers(addresses: Vec<Source>, interval: Duration, timeout: Duration) -> mpsc::Receiver<(Answers, Instant)> {
    let (sender, receiver) = mpsc::channel(1);
    tokio::spawn(async move {
        loop {
            let answers = fleet::ask(&addresses, timeout).await;
            if sender.send((answers, Instant::now())).await.is_err() {
                return;
            }
            tokio::time::sleep(interval).await;
        }
    });
    receiver
}

/// Of each process what it tells, or why it does not.
type Answers = Vec<Result<Vec<Row>, (String, Failure)>>;

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Errors => Self::Calls,
            Self::Calls => Self::Age,
            Self::Age => Self::Address,
            Self::Address => Self::Errors,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Errors => "errors",
            Self::Calls => "calls",
            Self::Age => "age",
            Self::Address => "address",
        }
    }
}

impl Look {
    fn new(answers: Answers, at: Instant, before: Option<&(Counts, Instant)>) -> (Self, Counts) {
        let (mut look, mut counts) = (Self::default(), Counts::new());
        for answer in answers {
            match answer {
                Ok(rows) => look.rows.extend(rows.into_iter().map(|row| {
                    let key = (row.address.clone(), row.target.clone());
                    let now = row.calls.map(|calls| (calls.started, calls.failed));
                    let rates = before.zip(now);
                    let rates = rates.and_then(|((before, then), now)| rate(*before.get(&key)?, now, at - *then));
                    counts.extend(now.map(|now| (key, now)));
                    Rated {
                        row,
                        calls_per_second: rates.map(|rates| rates.0),
                        failed_per_second: rates.map(|rates| rates.1),
                    }
                })),
                Err((address, failure)) => {
                    look.unreachable.push(Unreachable { address, error: failure.what().to_owned() })
                }
            }
        }
        (look, counts)
    }

    /// The rows with this text, in this order.
    fn arranged(&self, sort: Sort, filter: &str) -> Self {
        let mut look = self.clone();
        look.rows.retain(|rated| filter.is_empty() || format!("{:?}", rated.row).contains(filter));
        look.rows.sort_by(|a, b| {
            let by_name = a.key().cmp(&b.key());
            match sort {
                Sort::Errors => b.is_troubled().cmp(&a.is_troubled()).then(by_name),
                Sort::Calls => {
                    let rate = |rated: &Rated| rated.calls_per_second.unwrap_or(-1.0);
                    rate(b).total_cmp(&rate(a)).then(by_name)
                }
                Sort::Age => a.row.age_ms.unwrap_or(u64::MAX).cmp(&b.row.age_ms.unwrap_or(u64::MAX)).then(by_name),
                Sort::Address => by_name,
            }
        });
        look
    }
}

/// Calls and failures per second between two looks; none after a restart, when the counters begin anew.
fn rate(before: (i64, i64), now: (i64, i64), span: Duration) -> Option<(f64, f64)> {
    let per_second = |before: i64, now: i64| {
        let more = now.checked_sub(before).filter(|more| *more >= 0)?;
        Some((more as f64 / span.as_secs_f64() * 10.0).round() / 10.0)
    };
    Some((per_second(before.0, now.0)?, per_second(before.1, now.1)?))
}

impl Rated {
    /// A process that does not answer, among those that do.
    fn silent(process: Unreachable) -> Self {
        let row = Row {
            address: process.address,
            target: None,
            node: None,
            user_agent: None,
            channel: Some("no answer"),
            servers: None,
            in_charge: None,
            fallback: None,
            age_ms: None,
            resources: BTreeMap::new(),
            last_error: Some(process.error),
            calls: None,
        };
        Self { row, calls_per_second: None, failed_per_second: None }
    }

    /// Which client it is.
    fn key(&self) -> (String, Option<String>) {
        (self.row.address.clone(), self.row.target.clone())
    }

    fn is_troubled(&self) -> bool {
        self.row.is_troubled()
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let lines: Vec<_> = self.rows.iter().map(line_of).collect();
        let table = (!lines.is_empty()).then(|| fleet::table(&HEAD, &lines, output::width()));
        let silent = self.unreachable.iter().map(|silent| styled(DIM, &silent.error));
        f.write_str(&table.into_iter().chain(silent).collect::<Vec<_>>().join("\n"))
    }
}

/// The cells of a row, and whether something is wrong with it.
fn line_of(Rated { row, calls_per_second, failed_per_second }: &Rated) -> (bool, Vec<String>) {
    let cells = vec![
        row.address.clone(),
        or_dash(row.target.as_ref()),
        or_dash(row.channel),
        or_dash(*calls_per_second),
        or_dash(*failed_per_second),
        or_dash(row.calls.map(|calls| calls.in_flight)),
        or_dash(row.age_ms.map(age)),
        row.counts(),
        or_dash(row.last_error.as_ref()),
    ];
    (row.is_troubled(), cells)
}

const HEAD: [&str; 9] =
    ["ADDRESS", "TARGET", "CHANNEL", "CALLS/S", "FAILED/S", "IN FLIGHT", "AGE", "RESOURCES", "LAST ERROR"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_of_what_came_between_two_looks() {
        let second = Duration::from_secs(2);
        assert_eq!(rate((10, 1), (30, 2), second), Some((10.0, 0.5)));
        assert_eq!(rate((10, 1), (3, 0), second), None, "the process was started anew");
    }
}
