//! `mainstay top`: the xDS clients of running processes, live.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, IsTerminal as _},
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    failure::Failure,
    fleet::{self, Row, age, or_dash},
    output::{DIM, Output, styled},
    signals::Signals,
    source::Source,
    span,
};

/// Watch the xDS clients of running processes: calls, errors, ages
///
/// Asks every process again and again, over CSDS and channelz. Calls per second come from what channelz counts between two looks.
/// On a terminal the table is drawn anew in its place; type a word and Enter to do something: `q` ends it, `s` sorts by the next column,
/// `/text` keeps the rows with that text, `/` all, and a number shows everything about that row, any other line the table again.
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
#[derive(Debug, Default, Serialize)]
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

#[derive(Debug, Serialize)]
struct Unreachable {
    address: String,
    error: String,
}

/// What is counted of each client, and when.
type Counts = BTreeMap<(String, Option<String>), (i64, i64)>;

/// Looks again and again.
pub(crate) async fn run(flags: Flags, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Flags { addresses, once, json, mut sort, mut filter, interval, timeout } = flags;
    let live = std::io::stdout().is_terminal() && !once && !json;
    let mut words = if live { typed() } else { mpsc::unbounded_channel().1 };
    let (mut before, mut detail): (Option<(Counts, Instant)>, Option<usize>) = (None, None);
    loop {
        let answers = tokio::select! {
            answers = fleet::ask(&addresses, timeout) => answers,
            () = signals.next() => return Ok(()),
        };
        let now = Instant::now();
        let (look, counts) = Look::new(answers, before.as_ref().map(|(counts, at)| (counts, now - *at)), sort, &filter);
        let is_last = once && before.is_some();
        before = Some((counts, now));
        if !once || is_last {
            if json {
                output.json(&look)?;
            } else {
                let shown = detail.and_then(|at| look.rows.get(at));
                let text = shown.map_or_else(|| look.to_string(), |rated| rated.everything());
                output.line(format!("{}{text}", if live { CLEAR } else { "" }))?;
            }
        }
        if is_last {
            return match look.unreachable.is_empty() {
                true => Ok(()),
                false => Err(Failure::failed(match look.unreachable.len() {
                    1 => "1 process could not be asked".to_owned(),
                    count => format!("{count} processes could not be asked"),
                })),
            };
        }
        tokio::select! {
            () = tokio::time::sleep(interval) => {}
            Some(word) = words.recv() => match word.trim() {
                "q" => return Ok(()),
                "s" => sort = sort.next(),
                word => match (word.strip_prefix('/'), word.parse()) {
                    (Some(text), _) => text.clone_into(&mut filter),
                    (None, Ok(at)) => detail = Some(at),
                    (None, Err(_)) => detail = None,
                },
            },
            () = signals.next() => return Ok(()),
        }
    }
}

/// The lines that are typed. The thread ends with the process, or with its input.
fn typed() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

impl Sort {
    fn next(self) -> Self {
        match self {
            Self::Errors => Self::Calls,
            Self::Calls => Self::Age,
            Self::Age => Self::Address,
            Self::Address => Self::Errors,
        }
    }
}

impl Look {
    fn new(
        answers: Vec<Result<Vec<Row>, (String, Failure)>>,
        before: Option<(&Counts, Duration)>,
        sort: Sort,
        filter: &str,
    ) -> (Self, Counts) {
        let (mut look, mut counts) = (Self::default(), Counts::new());
        for answer in answers {
            match answer {
                Ok(rows) => look.rows.extend(rows.into_iter().map(|row| {
                    let key = (row.address.clone(), row.target.clone());
                    let now = row.calls.map(|calls| (calls.started, calls.failed));
                    let rates = before.zip(now).and_then(|((before, span), now)| rate(*before.get(&key)?, now, span));
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
        look.rows.retain(|rated| filter.is_empty() || format!("{:?}", rated.row).contains(filter));
        look.rows.sort_by(|a, b| {
            let name = |rated: &Rated| (rated.row.address.clone(), rated.row.target.clone());
            let by_name = name(a).cmp(&name(b));
            match sort {
                Sort::Errors => b.row.is_troubled().cmp(&a.row.is_troubled()).then(by_name),
                Sort::Calls => {
                    let rate = |rated: &Rated| rated.calls_per_second.unwrap_or(-1.0);
                    rate(b).total_cmp(&rate(a)).then(by_name)
                }
                Sort::Age => a.row.age_ms.unwrap_or(u64::MAX).cmp(&b.row.age_ms.unwrap_or(u64::MAX)).then(by_name),
                Sort::Address => by_name,
            }
        });
        (look, counts)
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
    /// All that is known of a client.
    fn everything(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl std::fmt::Display for Look {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let line = |(at, Rated { row, calls_per_second, failed_per_second }): (usize, &Rated)| {
            let cells = vec![
                at.to_string(),
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
        };
        let lines: Vec<_> = self.rows.iter().enumerate().map(line).collect();
        let table = (!lines.is_empty()).then(|| fleet::table(&HEAD, &lines, fleet::width()));
        let silent = self.unreachable.iter().map(|silent| styled(DIM, &silent.error));
        f.write_str(&table.into_iter().chain(silent).collect::<Vec<_>>().join("\n"))
    }
}

/// To the top left, and nothing below.
const CLEAR: &str = "\x1b[H\x1b[J";

const HEAD: [&str; 10] =
    ["#", "ADDRESS", "TARGET", "CHANNEL", "CALLS/S", "FAILED/S", "IN FLIGHT", "AGE", "RESOURCES", "LAST ERROR"];

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
