//! `mainstay soak`: steady traffic while everything around it dies and returns, and what that costs.

mod chaos;
mod meter;
mod outages;

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, IsTerminal as _},
    time::Duration,
};

use clap::{Args, ValueEnum};
use tokio::time::Instant;

use crate::{
    call::Caller,
    failure::Failure,
    output::{BAD, GOOD, Output, TITLE, styled},
    signals::Signals,
    span::{self, millis},
    tally::{Tally, shares},
    traffic::{Schedule, Traffic},
};
use chaos::{Act, Chaos};
use meter::{Growth, Meter};

/// Send RPCs for a long time while control planes and backends die and return at random
///
/// Starts three control planes, six backends and a client in this process, on ports of 127.0.0.1. Once the client has a
/// configuration, RPCs are sent at a steady rate while control planes are killed, silenced, cut off, restarted and
/// pointed at other backends at random, and backends roll: each in turn stops gracefully and returns. No RPC may fail,
/// and neither memory nor open files may grow. It ends by itself, prints a report, and SIGINT or SIGTERM end it early.
///
/// The exit code is 3 if an RPC failed, and 1 if something grew or was left over.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// How long to send, such as 30s or 10m
    #[arg(long, value_name = "T", default_value = "1m", value_parser = span::parse)]
    duration: Duration,

    /// RPCs per second [default: 500; 1000 with a script]
    #[arg(long, value_name = "N", value_parser = crate::load::parse_rate)]
    qps: Option<f64>,

    /// What happens, and when: the same seed makes the same plan
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// Known outages instead of random ones. --duration then says how long servers stay away
    ///
    /// The last server dies in the middle of an update; two servers die during a switch back; endpoints roll while an
    /// update is withheld; a primary returns with nothing; a primary is frozen, or everything sent to it gets lost, in
    /// the middle of an update. No RPC may fail or take more than 200 ms, and the fallback must serve within 11 s.
    #[arg(long, value_name = "NAME", conflicts_with = "seed")]
    script: Option<Script>,
}

/// A script of known outages.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Script {
    Outages,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) struct Settings {
    duration: Duration,
    qps: f64,
    plan: Plan,
}

/// What happens.
#[derive(Debug)]
enum Plan {
    Random { seed: u64 },
    Outages,
}

impl Flags {
    pub(crate) fn resolve(self) -> Settings {
        let Self { duration, qps, seed, script } = self;
        match script {
            None => Settings { duration, qps: qps.unwrap_or(500.0), plan: Plan::Random { seed } },
            Some(Script::Outages) => Settings { duration, qps: qps.unwrap_or(1000.0), plan: Plan::Outages },
        }
    }
}

/// Soaks until the time is over or a signal comes.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let Settings { duration, qps, plan } = settings;
    let seed = match plan {
        Plan::Random { seed } => seed,
        Plan::Outages => {
            return tokio::select! {
                ended = outages::run(qps, duration, &mut output) => ended,
                () = signals.next() => Ok(()),
            };
        }
    };
    let files_before = meter::open_files();
    let mut chaos = Chaos::start(seed).await?;
    let client = chaos.client()?;
    first_answer(&*client).await?;
    output.line(format_args!("{qps} RPCs per second for {}, seed {seed}", humantime::format_duration(duration)))?;

    let mut soak = Soak::new();
    let begin = Instant::now();
    let mut traffic = Traffic::start(Schedule::new(qps, Some(duration)), vec![client], RPC_TIMEOUT);
    let mut next_act = begin + chaos.pause();
    let mut samples = tokio::time::interval(SAMPLE);
    let live = io::stderr().is_terminal();
    let mut stopping = false;
    loop {
        tokio::select! {
            event = traffic.next() => match event {
                Some(event) => soak.hear(&event, begin),
                None => break,
            },
            () = tokio::time::sleep_until(next_act), if !stopping => {
                let act = chaos.act().await?;
                soak.note(act, begin);
                next_act = Instant::now() + chaos.pause();
            }
            _ = samples.tick() => {
                soak.meter.sample();
                if live {
                    soak.progress(begin);
                }
            }
            () = signals.next() => {
                if stopping {
                    break;
                }
                stopping = true;
                traffic.stop();
            }
        }
    }
    if live {
        anstream::eprint!("\r\x1b[K");
    }
    let fallbacks = chaos.heal().await?;
    drop(traffic);
    chaos.end().await;
    let left = files_left(files_before).await;
    soak.report(begin.elapsed(), fallbacks, left, &mut output)
}

/// Waits until the client holds a configuration: from now on nothing may fail.
async fn first_answer(client: &dyn Caller) -> Result<(), Failure> {
    let outcome = crate::call::begin(client, 0, FIRST_TIMEOUT).await;
    match outcome.result {
        Ok(_) => Ok(()),
        Err(error) => Err(Failure::failed(format!("the first RPC failed: {}", error.message))),
    }
}

/// How many more files are open than before, once everything had time to close.
async fn files_left(before: Option<usize>) -> Option<usize> {
    let mut left = None;
    for _ in 0..CLOSING_TRIES {
        left = Some(meter::open_files()?.saturating_sub(before?));
        if left == Some(0) {
            break;
        }
        tokio::time::sleep(CLOSING_PAUSE).await;
    }
    left
}

/// What was seen.
struct Soak {
    tally: Tally,
    /// How often each thing was done.
    acts: BTreeMap<&'static str, u64>,
    /// The last few things that were done, not shown yet.
    recent: VecDeque<String>,
    /// RPCs that failed, and what was done before them.
    failures: Vec<String>,
    meter: Meter,
}

impl Soak {
    fn new() -> Self {
        Self {
            tally: Tally::new(),
            acts: BTreeMap::new(),
            recent: VecDeque::new(),
            failures: Vec::new(),
            meter: Meter::new(),
        }
    }

    fn hear(&mut self, event: &crate::traffic::Event, begin: Instant) {
        self.tally.record(event);
        if let crate::traffic::Event::Ended(outcome) = event
            && let Err(error) = &outcome.result
            && self.failures.len() < SHOWN_LINES
        {
            let at = outcome.start.saturating_duration_since(begin).as_secs_f64();
            self.failures.extend(self.recent.drain(..));
            self.failures.push(format!("{at:>8.3} s  RPC failed: {}", error.message));
        }
    }

    fn note(&mut self, act: Act, begin: Instant) {
        *self.acts.entry(act.kind).or_default() += 1;
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(format!("{:>8.3} s  {}", begin.elapsed().as_secs_f64(), act.what));
    }

    fn progress(&self, begin: Instant) {
        anstream::eprint!(
            "\r\x1b[K{:.0} s: {} RPCs sent, {} failed; {}",
            begin.elapsed().as_secs_f64(),
            self.tally.sent(),
            self.tally.failed(),
            self.meter.latest(),
        );
    }

    fn report(self, took: Duration, fallbacks: u64, left: Option<usize>, output: &mut Output) -> Result<(), Failure> {
        let tally = &self.tally;
        let (sent, failed) = (tally.sent(), tally.failed() + tally.unfinished());
        output.line(styled(TITLE, format_args!("{sent} RPCs in {:.0} s", took.as_secs_f64())))?;
        let colour = if failed == 0 { GOOD } else { BAD };
        output.line(format_args!("  answered    {}", tally.answered()))?;
        output.line(format_args!("  failed      {}", styled(colour, failed)))?;
        let latency = |percent| tally.latency(percent).map_or_else(|| "-".to_owned(), millis);
        output.line(format_args!(
            "  latency     p50 {}, p99 {}, max {}",
            latency(50.0),
            latency(99.0),
            latency(100.0)
        ))?;
        output.line(format_args!("  backends    {}", shares(tally.backends())))?;
        let acts: Vec<_> = self.acts.iter().map(|(kind, count)| format!("{kind} {count}")).collect();
        output.line(format_args!("  done to it  {}", acts.join(", ")))?;
        output.line(format_args!("  fallbacks   {fallbacks}"))?;
        let growth = self.meter.growth();
        if let Some(growth) = &growth {
            output.line(format_args!("  memory      {}", growth.memory))?;
            output.line(format_args!("  open files  {}", growth.files))?;
        }
        if let Some(left) = left {
            output.line(format_args!("  left open   {left} files after the end"))?;
        }
        for line in &self.failures {
            output.line(format_args!("  {line}"))?;
        }
        judge(sent, failed, growth, left)
    }
}

fn judge(sent: u64, failed: u64, growth: Option<Growth>, left: Option<usize>) -> Result<(), Failure> {
    if failed > 0 {
        return Err(Failure::calls(format!("{failed} of {sent} RPCs failed")));
    }
    if let Some(growth) = growth.filter(|growth| !growth.is_flat()) {
        return Err(Failure::failed(format!("it grows: memory {}, open files {}", growth.memory, growth.files)));
    }
    match left {
        Some(left) if left > 0 => Err(Failure::failed(format!("{left} files are open that were not before"))),
        _ => Ok(()),
    }
}

const RPC_TIMEOUT: Duration = Duration::from_secs(20);
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often memory and files are looked at.
const SAMPLE: Duration = Duration::from_millis(500);
/// How many lines about failed RPCs are shown.
const SHOWN_LINES: usize = 40;
/// How much of what was done before is shown with them.
const RECENT: usize = 8;
/// How long the end of everything may take.
const CLOSING_TRIES: u32 = 50;
const CLOSING_PAUSE: Duration = Duration::from_millis(100);
