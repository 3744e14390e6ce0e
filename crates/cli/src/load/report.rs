//! What the user of `load` reads: a line per call, a line of progress, a summary.

use std::{
    fmt::Write as _,
    io::Write as _,
    time::{Duration, Instant, UNIX_EPOCH},
};

use serde::Serialize;

use crate::{
    call::{CallError, Outcome, code_name},
    connect::Target,
    failure::Failure,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    span,
    tally::{Tally, shares},
    traffic::Event,
};

/// What is shown while the run goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// Nothing.
    None,
    /// One line on the terminal that is drawn again and again.
    Progress,
    /// A line of JSON for each finished call.
    Calls,
}

/// Reports one run.
pub(super) struct Report {
    targets: Vec<(String, Tally)>,
    lines: Lines,
    output: Output,
    start: Instant,
}

/// The sums over all targets.
pub(super) struct Summary {
    pub(super) sent: u64,
    pub(super) failed: u64,
}

impl Report {
    pub(super) fn new(targets: &[Target], lines: Lines, output: Output) -> Self {
        let targets = targets.iter().map(|target| (target.to_string(), Tally::new())).collect();
        Self { targets, lines, output, start: Instant::now() }
    }

    /// Takes an event into account, and prints it if each call is to be printed.
    pub(super) fn event(&mut self, event: &Event) -> Result<(), Failure> {
        let (Event::Began { target: index, .. } | Event::Ended(Outcome { target: index, .. })) = event;
        let (target, tally) = &mut self.targets[*index];
        tally.record(event);
        match event {
            Event::Ended(outcome) if self.lines == Lines::Calls => self.output.json(&Line::new(target, outcome)),
            _ => Ok(()),
        }
    }

    /// Draws the line of progress.
    pub(super) fn progress(&self) {
        let mut line = format!("{:6.1} s", self.start.elapsed().as_secs_f64());
        let Summary { sent, failed } = self.summary();
        let under_way: u64 = self.targets.iter().map(|(_, tally)| tally.unfinished()).sum();
        let failed = styled(if failed == 0 { GOOD } else { BAD }, format_args!("{failed} failed"));
        // Writing to a string cannot fail.
        let _ = write!(line, "  {sent} sent  {failed}  {under_way} under way");
        for (_, tally) in &self.targets {
            let _ = write!(line, "  {}", styled(DIM, shares(tally.backends())));
        }
        // It is decoration: a terminal that is gone must not end the run.
        let _ = write!(anstream::stderr(), "\r{line}\x1b[K");
    }

    /// Prints the summary of each target.
    pub(super) fn finish(mut self) -> Result<Summary, Failure> {
        if self.lines == Lines::Progress {
            let _ = write!(anstream::stderr(), "\r\x1b[K");
        }
        let elapsed = self.start.elapsed();
        for (target, tally) in &self.targets {
            let text = summary(target, tally, elapsed);
            match self.lines {
                // Standard output is for programs, and the text for people.
                Lines::Calls => anstream::eprintln!("{text}"),
                Lines::None | Lines::Progress => self.output.line(text)?,
            }
        }
        Ok(self.summary())
    }

    fn summary(&self) -> Summary {
        let sum = |of: fn(&Tally) -> u64| self.targets.iter().map(|(_, tally)| of(tally)).sum();
        Summary { sent: sum(Tally::sent), failed: sum(Tally::failed) }
    }
}

/// A finished call, as programs read it.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// When it began and ended, in seconds since 1970.
    t0: f64,
    t: f64,
    ms: f64,
    target: &'a str,
    ok: bool,
    code: &'static str,
    server_id: Option<&'a str>,
    details: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn new(target: &'a str, outcome: &'a Outcome) -> Self {
        let t0 = outcome.began.duration_since(UNIX_EPOCH).unwrap_or_default();
        let (code, server_id, details) = match &outcome.result {
            Ok(server_id) => ("OK", Some(server_id.as_str()), None),
            Err(CallError { code, message }) => (code_name(*code), None, Some(message.as_str())),
        };
        let micros = |span: Duration| span.as_micros() as f64;
        Self {
            t0: micros(t0) / 1e6,
            t: micros(t0 + outcome.took) / 1e6,
            ms: micros(outcome.took) / 1e3,
            target,
            ok: outcome.result.is_ok(),
            code,
            server_id,
            details,
        }
    }
}

/// The summary of one target, as people read it.
fn summary(target: &str, tally: &Tally, elapsed: Duration) -> String {
    let failed = styled(if tally.failed() == 0 { GOOD } else { BAD }, format_args!("{} failed", tally.failed()));
    let mut text = format!(
        "{}: {} RPCs in {:.1} s, {} answered, {failed}",
        styled(TITLE, target),
        tally.sent(),
        elapsed.as_secs_f64(),
        tally.answered()
    );
    // Writing to a string cannot fail.
    if tally.unfinished() > 0 {
        let _ = write!(text, ", {} abandoned", tally.unfinished());
    }
    if let [Some(p50), Some(p90), Some(p99), Some(max)] = [50.0, 90.0, 99.0, 100.0].map(|p| tally.latency(p)) {
        let [p50, p90, p99, max] = [p50, p90, p99, max].map(span::millis);
        let _ = write!(text, "\n  latency   p50 {p50}   p90 {p90}   p99 {p99}   max {max}");
        let _ = write!(text, "\n  backends  {}", shares(tally.backends()));
    }
    for (code, errors) in tally.errors() {
        let _ = write!(text, "\n  failed    {code} {} times, last: {}", errors.count, errors.message);
    }
    if tally.latest() > LATE {
        let behind = span::millis(tally.latest());
        let _ = write!(text, "\n  note      calls began up to {behind} late: this machine is too busy for the rate");
    }
    text
}

/// How far behind the schedule is worth a note.
const LATE: Duration = Duration::from_millis(100);

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use tonic::Code;

    use super::*;

    #[test]
    fn a_line_of_json_has_the_documented_fields() {
        let ok = outcome(Ok("one".to_owned()));
        assert_eq!(
            serde_json::to_string(&Line::new("xds:///a", &ok)).unwrap(),
            r#"{"t0":1700000000.25,"t":1700000000.2515,"ms":1.5,"target":"xds:///a","ok":true,"code":"OK","server_id":"one","details":null}"#
        );
        let failed = outcome(Err(CallError { code: Code::Unavailable, message: "no \"backend\"".to_owned() }));
        assert_eq!(
            serde_json::to_string(&Line::new("xds:///a", &failed)).unwrap(),
            r#"{"t0":1700000000.25,"t":1700000000.2515,"ms":1.5,"target":"xds:///a","ok":false,"code":"UNAVAILABLE","server_id":null,"details":"no \"backend\""}"#
        );
    }

    #[test]
    fn the_summary_tells_latencies_shares_and_errors() {
        let mut tally = Tally::new();
        let error = CallError { code: Code::Unavailable, message: "no backend".to_owned() };
        for result in [Ok("one".to_owned()), Ok("two".to_owned()), Ok("one".to_owned()), Err(error)] {
            tally.record(&Event::Began { target: 0, late: Duration::ZERO });
            tally.record(&Event::Ended(outcome(result)));
        }
        tally.record(&Event::Began { target: 0, late: Duration::from_millis(150) });
        let text = anstream::adapter::strip_str(&summary("xds:///a", &tally, Duration::from_secs(2))).to_string();
        assert_eq!(
            text,
            "xds:///a: 5 RPCs in 2.0 s, 3 answered, 1 failed, 1 abandoned\n  \
             latency   p50 1.50 ms   p90 1.50 ms   p99 1.50 ms   max 1.50 ms\n  \
             backends  one 67%, two 33%\n  \
             failed    UNAVAILABLE 1 times, last: no backend\n  \
             note      calls began up to 150.0 ms late: this machine is too busy for the rate"
        );
    }

    fn outcome(result: Result<String, CallError>) -> Outcome {
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_250);
        Outcome { target: 0, began, start: tokio::time::Instant::now(), took: Duration::from_micros(1500), result }
    }
}
