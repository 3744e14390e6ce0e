//! `mainstay sim fleet`: thousands of clients and their control planes in virtual time.

use std::{fmt, path::PathBuf, time::Duration};

use clap::{Args, ValueEnum};
use mainstay_control_plane::Limits;
use mainstay_fleet::{Model, Percentiles, Plan, Report, Rules, SCENARIOS, Scenario, run as play, svg};
use serde_json::{Value, json};

use crate::{
    failure::Failure,
    output::{BAD, GOOD, Output, TITLE, styled},
    progress,
    signals::Signals,
    span,
};

/// Play what happens to thousands of clients when their control planes go away
///
/// Every client is the code that decides in a channel, every control plane that of "mainstay serve"; network, processors and links are
/// a model. Scenarios: F1 a replica hands its clients over to another; F2 the primary crashes and returns; F3 everything sent to
/// it is lost; F4 it dies in the middle of an update; F5 all start while it is down; F5L the same without any fallback, with last-good
/// files; F6 three replicas are restarted one after another; F7 all start at a slow control plane; F8 a bad configuration is pushed;
/// F9 one of three regions loses its primary; F10 one client in ten goes by other rules. The same seed is the same run.
///
/// Exit codes: 0 everything held, 1 something did not, 2 it could not be run.
#[derive(Args, Debug)]
#[group(skip)]
pub(crate) struct Flags {
    /// Which scenarios; all by default
    #[arg(value_name = "SCENARIO", value_parser = parse)]
    scenarios: Vec<Scenario>,

    /// How many clients there are
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    clients: u32,

    /// How long outages last, where the scenario leaves that open
    #[arg(long, value_name = "T", default_value = "30s", value_parser = span::parse)]
    outage: Duration,

    /// Where randomness starts
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,

    /// The settings by which clients come back and fall back
    #[arg(long, value_enum, value_name = "RULES", default_value_t = RuleSet::Mainstay)]
    rules: RuleSet,

    /// Control planes are so many times as slow as a small replica
    #[arg(long, value_name = "TIMES", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    slow: u32,

    /// Control planes let so many streams in at once, and then 2,000 in a second
    #[arg(long, value_name = "N", default_value_t = Limits::default().stream_burst)]
    burst: u32,

    /// Tell what this client does, too, counted from 0
    #[arg(long, value_name = "N")]
    follow: Option<u32>,

    /// Write what each control plane saw, by tenths of a second, into this file; with one scenario
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw it into this file; with one scenario
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Print one object of JSON for each scenario
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum RuleSet {
    /// Ours
    Mainstay,
    /// Those of C-core and grpc-go: at once after an answered stream, pauses of up to two minutes
    Peers,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    plans: Vec<Plan>,
    csv: Option<PathBuf>,
    svg: Option<PathBuf>,
    json: bool,
}

impl Flags {
    pub(crate) fn resolve(self) -> Settings {
        let Self { scenarios, clients, outage, seed, rules, slow, burst, follow, csv, svg, json } = self;
        let rules = match rules {
            RuleSet::Mainstay => Rules::Mainstay,
            RuleSet::Peers => Rules::Peers,
        };
        let limits = Limits { stream_burst: burst, ..Limits::default() };
        let model = Model::default().slowed(slow);
        let plan = |scenario| Plan {
            scenario,
            clients,
            outage,
            seed,
            rules,
            limits: limits.clone(),
            model: model.clone(),
            follow,
        };
        let scenarios = if scenarios.is_empty() { SCENARIOS.to_vec() } else { scenarios };
        Settings { plans: scenarios.into_iter().map(plan).collect(), csv, svg, json }
    }
}

/// Plays, tells, and fails if something did not hold.
pub(crate) async fn run(settings: Settings, mut signals: Signals, output: &mut Output) -> Result<(), Failure> {
    let Settings { plans, csv, svg: picture, json } = &settings;
    if plans.len() > 1 && (csv.is_some() || picture.is_some()) {
        return Err(
            Failure::usage("--csv and --svg are for one scenario").tip("name it: mainstay sim fleet F1 --svg f1.svg")
        );
    }
    if let Some(plan) = plans.iter().find(|plan| plan.follow.is_some_and(|client| client >= plan.clients)) {
        return Err(Failure::usage(format!("--follow: there are clients 0 to {}", plan.clients - 1)));
    }
    let mut broken = Vec::new();
    for (at, plan) in plans.iter().enumerate() {
        let playing = {
            let plan = plan.clone();
            tokio::task::spawn_blocking(move || play(&plan))
        };
        let what = format!("playing {} with {} clients", plan.scenario.name, plan.clients);
        let report = tokio::select! {
            report = progress::shown(what, playing) => {
                report.map_err(|error| Failure::failed(format!("the simulation broke: {error}")))?
            }
            // What it plays is left alone: the process ends.
            () = signals.next() => return Ok(()),
        };
        for (file, text) in [(csv, report.csv()), (picture, svg(&report))] {
            let Some(file) = file else { continue };
            std::fs::write(file, text)
                .map_err(|error| Failure::usage(format!("cannot write {}: {error}", file.display())))?;
        }
        if *json {
            output.json(&as_json(plan, &report))?;
        } else {
            if at > 0 {
                output.line("")?;
            }
            tell(plan, &report, output)?;
        }
        if !report.violations.is_empty() {
            broken.push(report.scenario);
        }
    }
    match broken.as_slice() {
        [] => Ok(()),
        broken => Err(Failure::failed(format!("something that must hold does not, in {}", broken.join(", ")))
            .tip("--follow N tells what one client did")),
    }
}

fn tell(plan: &Plan, report: &Report, output: &mut Output) -> Result<(), Failure> {
    let Report { events, configured, back, updated, failed, absences, nacks, fallbacks, .. } = report;
    let title = format!("{}: {}", plan.scenario.name, plan.scenario.title);
    output.line(format_args!("{}, {} clients, simulated", styled(TITLE, title), report.clients))?;
    output.line(format_args!("  events         {events}"))?;
    for (name, spans) in [("configured", configured), ("back", back), ("updated", updated)] {
        if spans.count > 0 {
            output.line(format_args!("  {name:<14} {}", Spans(spans)))?;
        }
    }
    for (index, plane) in report.planes.iter().enumerate() {
        output.line(format_args!(
            "  control plane {index}: met by {}, at most {} connections in 0.1 s from the outage on",
            plane.met_by,
            report.peak_opens(index)
        ))?;
    }
    output.line(format_args!(
        "  clients with failed RPCs {failed}, told of an absence {absences}, rejected {nacks}, fallbacks {fallbacks}"
    ))?;
    for line in &report.transcript {
        output.line(format_args!("  {line}"))?;
    }
    for violation in &report.violations {
        output.line(format_args!("  {} {violation}", styled(BAD, "does not hold:")))?;
    }
    if report.violations.is_empty() {
        output.line(format_args!("  {}", styled(GOOD, "everything held")))?;
    }
    Ok(())
}

fn as_json(plan: &Plan, report: &Report) -> Value {
    let spans = |of: &Percentiles| {
        let millis = |span: Duration| (span.as_secs_f64() * 1e6).round() / 1e3;
        json!({ "clients": of.count, "p50_ms": millis(of.p50), "p99_ms": millis(of.p99), "max_ms": millis(of.max) })
    };
    let planes = report.planes.iter().enumerate().map(|(index, plane)| {
        let sum = |of: fn(&mainstay_fleet::Seen) -> u64| plane.moments.0.iter().map(of).sum::<u64>();
        json!({
            "met_by": plane.met_by,
            "peak_opens_per_100ms": report.peak_opens(index),
            "opens": sum(|seen| u64::from(seen.opens)),
            "refusals": sum(|seen| u64::from(seen.refusals)),
            "answers": sum(|seen| u64::from(seen.answers)),
            "bytes": sum(|seen| seen.bytes),
            "longest_queue_us": plane.moments.0.iter().map(|seen| seen.queue).max().unwrap_or(0),
        })
    });
    json!({
        "scenario": plan.scenario.name,
        "title": plan.scenario.title,
        "simulated": true,
        "clients": report.clients,
        "seed": plan.seed,
        "events": report.events,
        "configured": spans(&report.configured),
        "back": spans(&report.back),
        "updated": spans(&report.updated),
        "failed": report.failed,
        "absences": report.absences,
        "nacks": report.nacks,
        "fallbacks": report.fallbacks,
        "control_planes": planes.collect::<Vec<_>>(),
        "violations": report.violations,
        "transcript": report.transcript,
    })
}

struct Spans<'a>(&'a Percentiles);

impl fmt::Display for Spans<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Percentiles { count, p50, p99, max } = self.0;
        let seconds = |span: &Duration| span.as_secs_f64();
        write!(
            f,
            "{count} clients, half within {:.3} s, 99 % within {:.3} s, all within {:.3} s",
            seconds(p50),
            seconds(p99),
            seconds(max)
        )
    }
}

fn parse(name: &str) -> Result<Scenario, String> {
    let names = || SCENARIOS.map(|scenario| scenario.name).join(", ");
    Scenario::find(name).ok_or_else(|| format!("there are {}", names()))
}
