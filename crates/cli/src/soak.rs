//! `mainstay soak`: steady traffic while everything around it dies and returns, and what that costs.

mod chaos;
mod hostile;
mod listeners;
mod meter;
mod outages;
mod rotation;
mod villain;

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
use chaos::Chaos;
use hostile::Siege;
use listeners::Replacement;
use meter::{Growth, Meter};
use rotation::Rotation;

/// Send RPCs for a long time while control planes and backends die and return at random
///
/// Starts three control planes, six backends and a client in this process, on ports of 127.0.0.1. Once the client has a
/// configuration, RPCs are sent at a steady rate while control planes are killed, silenced, cut off, restarted and
/// pointed at other backends at random, and backends roll: each in turn stops gracefully and returns. No RPC may fail,
/// and neither memory nor open files may grow. It ends by itself, prints a report, and SIGINT or SIGTERM end it early.
///
/// With --hostile the control plane is well, and eight good backends stand beside two hostile ones, which flood, half
/// close, reset, drip, lie about their load, say GOAWAY in a loop, say nothing, or speak no HTTP/2. One caller in a
/// thousand panics in its stream, readers stall, and runtimes end under their channels. No innocent call to a good
/// backend may fail, all others must end in time, and neither memory, tasks, open files nor the use of the processor may
/// grow.
///
/// The exit code is 3 if an RPC failed, and 1 if something grew or was left over.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// How long to send, such as 30s or 10m
    #[arg(long, value_name = "T", default_value = "1m", value_parser = span::parse)]
    duration: Duration,

    /// RPCs per second [default: 500; 1000 with --script outages]
    #[arg(long, value_name = "N", value_parser = crate::load::parse_rate)]
    qps: Option<f64>,

    /// What happens, and when: the same seed makes the same plan
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    seed: u64,

    /// A known course of things instead of a random one: outages, certificates or listeners
    ///
    /// outages: --duration says how long servers stay away; an update is withheld for 10 s at most. The last server dies in the middle of an update; two servers die during a switch back; endpoints roll while an
    /// update is withheld; a primary returns with nothing; a primary is frozen, or everything sent to it gets lost, in
    /// the middle of an update. No RPC may fail or take more than 200 ms, and the fallback must serve within 11 s.
    ///
    /// certificates: a client and two servers that the control plane configures, with mTLS from files; every second all
    /// certificates are replaced, in place, by rename or by link, and RPCs go to the other server, which makes a new
    /// connection. No RPC may fail, and no new connection may have an old certificate.
    ///
    /// listeners: a client and a server that the control plane configures; five times a second the Listener is replaced, which
    /// drains all connections. No RPC may fail, and neither memory, tasks nor open files may grow.
    #[arg(long, value_name = "NAME", conflicts_with = "seed", hide_possible_values = true)]
    script: Option<Script>,

    /// Hostile backends and callers with bugs, instead of control planes that die
    #[arg(long, conflicts_with = "script")]
    hostile: bool,
}

/// A known course of things.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Script {
    Outages,
    Certificates,
    Listeners,
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
    Hostile { seed: u64 },
    Outages,
    Certificates,
    Listeners,
}

impl Flags {
    pub(crate) fn resolve(self) -> Settings {
        let Self { duration, qps, seed, script, hostile } = self;
        let (usual, plan) = match script {
            Some(Script::Outages) => (1000.0, Plan::Outages),
            Some(Script::Certificates) => (500.0, Plan::Certificates),
            Some(Script::Listeners) => (500.0, Plan::Listeners),
            None if hostile => (500.0, Plan::Hostile { seed }),
            None => (500.0, Plan::Random { seed }),
        };
        Settings { duration, qps: qps.unwrap_or(usual), plan }
    }
}

/// What is soaked, and what is done to it.
trait Stage {
    /// The client whose RPCs must not fail.
    fn client(&mut self) -> Result<Box<dyn Caller>, Failure>;

    /// How long to leave everything as it is.
    fn pause(&mut self) -> Duration;

    /// An RPC of that client has begun.
    fn begun(&mut self) {}

    /// Does something.
    async fn act(&mut self) -> Result<Act, Failure>;

    /// Makes everything well, and looks whether it is. Lines for the report.
    async fn heal(&mut self) -> Result<Vec<String>, Failure>;

    /// Ends everything.
    async fn end(self);
}

/// Something that was done.
struct Act {
    /// In a word, to be counted.
    kind: &'static str,
    what: String,
}

/// Soaks until the time is over or a signal comes.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let files_before = meter::open_files();
    let Settings { duration, qps, plan } = settings;
    match plan {
        Plan::Random { seed } => {
            let load = Load { duration, qps, seed };
            soak(Chaos::start(seed).await?, files_before, load, signals, output).await
        }
        Plan::Hostile { seed } => {
            let load = Load { duration, qps, seed };
            soak(Siege::start(seed).await?, files_before, load, signals, output).await
        }
        Plan::Certificates => {
            let load = Load { duration, qps, seed: 0 };
            soak(Rotation::start().await?, files_before, load, signals, output).await
        }
        Plan::Listeners => {
            let load = Load { duration, qps, seed: 0 };
            soak(Replacement::start().await?, files_before, load, signals, output).await
        }
        Plan::Outages => tokio::select! {
            ended = outages::run(qps, duration, &mut output) => ended,
            () = signals.next() => Ok(()),
        },
    }
}

/// How much is asked of a stage.
struct Load {
    duration: Duration,
    qps: f64,
    seed: u64,
}

async fn soak(
    mut stage: impl Stage,
    files_before: Option<usize>,
    load: Load,
    mut signals: Signals,
    mut output: Output,
) -> Result<(), Failure> {
    let Load { duration, qps, seed } = load;
    let client = stage.client()?;
    first_answer(&*client).await?;
    output.line(format_args!("{qps} RPCs per second for {}, seed {seed}", humantime::format_duration(duration)))?;

    let mut soak = Soak::new();
    let begin = Instant::now();
    let mut traffic = Traffic::start(Schedule::new(qps, Some(duration)), vec![client], RPC_TIMEOUT);
    let mut next_act = begin + stage.pause();
    let mut samples = tokio::time::interval(meter::SAMPLE);
    let live = io::stderr().is_terminal();
    let mut stopping = false;
    loop {
        tokio::select! {
            event = traffic.next() => match event {
                Some(event) => {
                    if let crate::traffic::Event::Began { .. } = event {
                        stage.begun();
                    }
                    soak.hear(&event, begin);
                }
                None => break,
            },
            () = tokio::time::sleep_until(next_act), if !stopping => {
                let act = stage.act().await?;
                soak.note(act, begin);
                next_act = Instant::now() + stage.pause();
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
    let lines = stage.heal().await;
    drop(traffic);
    stage.end().await;
    let left = files_left(files_before).await;
    soak.report(begin.elapsed(), lines, left, &mut output)
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

    fn report(
        self,
        took: Duration,
        lines: Result<Vec<String>, Failure>,
        left: Option<usize>,
        output: &mut Output,
    ) -> Result<(), Failure> {
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
        for line in lines.iter().flatten() {
            output.line(line)?;
        }
        let growth = self.meter.growth();
        if let Some(growth) = &growth {
            output.line(format_args!("  memory      {}", growth.memory))?;
            output.line(format_args!("  open files  {}", growth.files))?;
            output.line(format_args!("  tasks       {}", growth.tasks))?;
            output.line(format_args!("  processors  {}", growth.cpu))?;
        }
        if let Some(left) = left {
            output.line(format_args!("  left open   {left} files after the end"))?;
        }
        for line in &self.failures {
            output.line(format_args!("  {line}"))?;
        }
        judge(sent, failed, growth, left)?;
        lines.map(drop)
    }
}

fn judge(sent: u64, failed: u64, growth: Option<Growth>, left: Option<usize>) -> Result<(), Failure> {
    if failed > 0 {
        return Err(Failure::calls(format!("{failed} of {sent} RPCs failed")));
    }
    if let Some(growth) = growth.filter(|growth| !growth.is_flat()) {
        let Growth { memory, files, tasks, cpu } = growth;
        return Err(Failure::failed(format!(
            "it grows: memory {memory}, open files {files}, tasks {tasks}, processors {cpu}"
        )));
    }
    match left {
        Some(left) if left > 0 => Err(Failure::failed(format!("{left} files are open that were not before"))),
        _ => Ok(()),
    }
}

fn no_port(error: &io::Error) -> Failure {
    Failure::failed(format!("cannot listen: {error}")).tip("the soak needs free ports on 127.0.0.1")
}

const RPC_TIMEOUT: Duration = Duration::from_secs(20);
const FIRST_TIMEOUT: Duration = Duration::from_secs(10);
/// How many lines about failed RPCs are shown.
const SHOWN_LINES: usize = 40;
/// How much of what was done before is shown with them.
const RECENT: usize = 8;
/// How long the end of everything may take.
const CLOSING_TRIES: u32 = 50;
const CLOSING_PAUSE: Duration = Duration::from_millis(100);
