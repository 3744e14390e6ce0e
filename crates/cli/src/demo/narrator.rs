//! What the audience of the demo reads: text for people, lines of JSON for programs.

use std::{collections::BTreeMap, io::Write as _, time::Duration};

use serde::Serialize;

use super::{
    account::Account,
    said::Heard,
    script::{Act, Scene, Sight},
};
use crate::{
    failure::Failure,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    tally::shown,
};

/// How the demo is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Telling {
    /// Lines of text; with `live`, also a line on the terminal that shows the traffic as it is now.
    Text { live: bool },
    /// A line of JSON for each scene, and one for the whole.
    Json,
}

/// How a scene ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Settled {
    /// The traffic stayed where it was, as it should.
    Stayed,
    /// It got where it belongs after this time.
    After(Duration),
    /// It did not.
    Never,
}

/// Tells what is done and what is seen.
pub(super) struct Narrator {
    output: Output,
    telling: Telling,
}

impl Narrator {
    pub(super) fn new(output: Output, telling: Telling) -> Self {
        Self { output, telling }
    }

    /// Tells something that is neither a scene nor an act.
    pub(super) fn remark(&mut self, text: &str) -> Result<(), Failure> {
        match self.telling {
            Telling::Text { .. } => self.line(styled(DIM, text)),
            Telling::Json => Ok(()),
        }
    }

    /// A scene begins.
    pub(super) fn scene(&mut self, number: usize, scene: &Scene) -> Result<(), Failure> {
        match self.telling {
            Telling::Text { .. } => {
                self.line(format!("\n{}", styled(TITLE, format_args!("{number}. {}", scene.title))))
            }
            Telling::Json => Ok(()),
        }
    }

    /// Something is done.
    pub(super) fn act(&mut self, act: Act) -> Result<(), Failure> {
        match self.telling {
            Telling::Text { .. } => self.line(format!("   done: {act}")),
            Telling::Json => Ok(()),
        }
    }

    /// The xDS client says something.
    pub(super) fn said(&mut self, text: &str) -> Result<(), Failure> {
        match self.telling {
            Telling::Text { .. } => self.line(format!("   xDS:  {text}")),
            Telling::Json => Ok(()),
        }
    }

    /// The traffic as it is now.
    pub(super) fn live(&self, rates: &BTreeMap<String, u64>, account: &Account) {
        if self.telling == (Telling::Text { live: true }) {
            let failed = account.tally().failed();
            let text = format!("   now:  {}, {failed} failed", rates_text(rates));
            // It is decoration: a terminal that is gone must not end the demo.
            let _ = write!(anstream::stderr(), "\r{}\x1b[K", styled(DIM, text));
        }
    }

    /// What was seen in a scene.
    pub(super) fn seen(&mut self, seen: &Seen<'_>) -> Result<(), Failure> {
        let Seen { number, scene, account, heard, rates, settled } = seen;
        match self.telling {
            Telling::Text { .. } => {
                let (sent, failed) = (account.tally().sent(), failed_text(account));
                self.line(format!("   seen: {}; {sent} RPCs, {failed}", rates_text(rates)))?;
                if let Settled::After(time) = settled {
                    self.line(format!("         in place after {:.2} s", time.as_secs_f64()))?;
                }
                match (settled, scene.sight) {
                    (Settled::Never, sight) => {
                        let sight = sight.map_or_else(String::new, |sight| format!(", and that {sight}"));
                        let text = format!("expected traffic at {} and nowhere else{sight}", scene.expect.join(", "));
                        self.line(styled(BAD, format_args!("         {text}")))
                    }
                    (_, Some(sight)) => self.line(format!("         {sight}")),
                    (_, None) => Ok(()),
                }
            }
            Telling::Json => self.output.json(&SceneLine {
                scene: *number,
                title: scene.title,
                acts: scene.acts.iter().map(Act::to_string).collect(),
                events: heard.lines(),
                expected: scene.expect,
                expected_sight: scene.sight.as_ref().map(Sight::to_string),
                settled: *settled != Settled::Never,
                settled_ms: match settled {
                    Settled::After(time) => Some(time.as_micros() as f64 / 1e3),
                    Settled::Stayed | Settled::Never => None,
                },
                counts: Counts::new(account),
            }),
        }
    }

    /// The numbers of the whole demo.
    pub(super) fn end(&mut self, account: &Account) -> Result<(), Failure> {
        match self.telling {
            Telling::Text { .. } => {
                let title = styled(TITLE, "The end");
                self.line(format!("\n{title}: {} RPCs sent, {}", account.tally().sent(), failed_text(account)))?;
                for (name, count) in account.tally().backends() {
                    self.line(format!("   {:<8} {count:>6}", shown(name)))?;
                }
                for (code, errors) in account.tally().errors() {
                    self.line(format!("   {code} {} times, last: {}", errors.count, errors.message))?;
                }
                Ok(())
            }
            Telling::Json => self.output.json(&EndLine { end: true, counts: Counts::new(account) }),
        }
    }

    fn line(&mut self, text: impl std::fmt::Display) -> Result<(), Failure> {
        if self.telling == (Telling::Text { live: true }) {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
        self.output.line(text)
    }
}

/// What there is to tell at the end of a scene.
#[derive(Debug)]
pub(super) struct Seen<'a> {
    pub(super) number: usize,
    pub(super) scene: &'a Scene,
    pub(super) account: &'a Account,
    pub(super) heard: &'a Heard,
    pub(super) rates: &'a BTreeMap<String, u64>,
    pub(super) settled: Settled,
}

/// A scene, as programs read it.
#[derive(Debug, Serialize)]
struct SceneLine<'a> {
    scene: usize,
    title: &'a str,
    acts: Vec<String>,
    /// What the xDS client said.
    events: &'a [String],
    expected: &'a [&'a str],
    expected_sight: Option<String>,
    settled: bool,
    settled_ms: Option<f64>,
    #[serde(flatten)]
    counts: Counts<'a>,
}

/// The whole demo, as programs read it.
#[derive(Debug, Serialize)]
struct EndLine<'a> {
    end: bool,
    #[serde(flatten)]
    counts: Counts<'a>,
}

#[derive(Debug, Serialize)]
struct Counts<'a> {
    sent: u64,
    failed: u64,
    excused: u64,
    backends: &'a BTreeMap<String, u64>,
}

impl<'a> Counts<'a> {
    fn new(account: &'a Account) -> Self {
        let tally = account.tally();
        Self { sent: tally.sent(), failed: tally.failed(), excused: account.excused(), backends: tally.backends() }
    }
}

fn rates_text(rates: &BTreeMap<String, u64>) -> String {
    if rates.is_empty() {
        return "no traffic".to_owned();
    }
    rates.iter().map(|(name, rate)| format!("{} {rate}/s", shown(name))).collect::<Vec<_>>().join(", ")
}

fn failed_text(account: &Account) -> String {
    let failed = account.tally().failed();
    let text = match (failed, account.excused()) {
        (0, _) | (_, 0) => format!("{failed} failed"),
        (_, excused) if excused == failed => format!("{failed} failed (under way when their backend was killed)"),
        (_, excused) => format!("{failed} failed ({excused} of them under way when their backend was killed)"),
    };
    styled(if account.unexcused() == 0 { GOOD } else { BAD }, text)
}
