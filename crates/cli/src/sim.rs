//! `mainstay sim`: the failure rules, tried in simulated worlds; and outages of one's own setup, rehearsed.

mod fleet;

use std::{
    io::{self, IsTerminal, Write},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Args, Subcommand, ValueEnum};
use mainstay_sim::{Stats, deps, policies, replay_line, servers, shrink, swarm};

use crate::{
    failure::Failure,
    output::{BAD, GOOD, Output, TITLE, styled},
    rehearse,
    signals::Signals,
};

/// Try the failure rules in simulated worlds, or rehearse outages of your own setup
///
/// Each seed is a world in virtual time: control planes, networks, DNS and backends around the code that decides in a
/// channel, or in a part of one, or in servers (--of). Things go wrong at random; after each event it is checked what
/// must hold. A failure is printed as a transcript, with what shows it again.
///
/// With --bootstrap and --resources the world is yours: every server of the bootstrap serves the files of the directory,
/// as "mainstay serve" would, and each outage of one server and of all is played, from the start of a client and while it runs. Calls
/// are made for each route that can be reached. Which of them would be lost, for how long, and what would help? Backends and DNS are
/// taken to work, and last-good files to be there from an earlier run. Nothing is connected to.
///
/// "mainstay sim fleet" plays what thousands of clients do when their control planes go away.
///
/// Exit codes: 0 everything held, or no call is lost in any outage but those of --allow; 1 something did not hold, or calls are lost;
/// 2 it could not be run.
#[derive(Args, Debug)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Flags {
    #[command(subcommand)]
    of_many: Option<OfMany>,

    /// How many worlds to run
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..))]
    seeds: u64,

    /// What a seed is
    #[arg(long, value_enum, value_name = "KIND", default_value_t = Kind::Channels)]
    of: Kind,

    /// The first seed
    #[arg(long, alias = "from", value_name = "SEED", default_value_t = 0)]
    first: u64,

    /// Show one world: NAME: CHOICES, as a failure prints it
    #[arg(long, value_name = "LINE", conflicts_with_all = ["bootstrap", "resources"])]
    replay: Option<String>,

    #[command(flatten)]
    rehearsal: rehearse::Flags,
}

/// What is simulated of many at once.
#[derive(Debug, Subcommand)]
pub(crate) enum OfMany {
    Fleet(Box<fleet::Flags>),
}

/// What is tried with a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A world around a channel
    Channels,
    /// A world around an xDS client and its watchers
    Clients,
    /// One of these, with servers that speak delta, or one of them, or only say so
    Mixed,
    /// A history of the dependency manager, beside a naive reference
    Histories,
    /// A life of the load balancing policies, beside a naive reference
    Lives,
    /// A world around xDS-enabled servers, their sockets, connections and RPCs
    Servers,
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) enum Settings {
    Seeds { of: Kind, first: u64, count: u64 },
    Replay(String),
    Rehearse(Box<rehearse::Settings>),
    Fleet(fleet::Settings),
}

impl Flags {
    pub(crate) fn resolve(self) -> Settings {
        let Self { of_many, seeds, of, first, replay, rehearsal } = self;
        if let Some(OfMany::Fleet(fleet)) = of_many {
            return Settings::Fleet(fleet.resolve());
        }
        match (replay, rehearsal.resolve()) {
            (Some(line), _) => Settings::Replay(line),
            (None, Some(rehearsal)) => Settings::Rehearse(Box::new(rehearsal)),
            (None, None) => Settings::Seeds { of, first, count: seeds },
        }
    }
}

/// Runs until it is done, or until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    match settings {
        Settings::Replay(line) => show(&line, &mut output),
        Settings::Rehearse(rehearsal) => rehearse::run(&rehearsal, signals, &mut output).await,
        Settings::Fleet(fleet) => fleet::run(fleet, signals, &mut output).await,
        Settings::Seeds { of, first, count } => {
            let hunt = Arc::new(Hunt::default());
            let begun = Instant::now();
            let hunting = {
                let hunt = hunt.clone();
                tokio::task::spawn_blocking(move || hunt.run(of, first, count))
            };
            let found = tokio::select! {
                found = hunting => found.map_err(|error| Failure::failed(format!("the simulation broke: {error}")))?,
                () = signals.next() => {
                    hunt.stop.store(true, Ordering::Relaxed);
                    return Ok(());
                }
            };
            report(of, &found, begun.elapsed(), &mut output)
        }
    }
}

// --- Seeds ---

/// Threads at work on seeds.
#[derive(Default)]
struct Hunt {
    done: AtomicU64,
    stop: AtomicBool,
}

/// What a hunt came to.
#[derive(Default)]
struct Found {
    worlds: u64,
    stats: Stats,
    /// A failure of the lowest seed that has one.
    failure: Option<(u64, String)>,
    /// A seed that was not the same world twice.
    unsteady: Option<u64>,
}

impl Hunt {
    fn run(&self, of: Kind, first: u64, count: u64) -> Found {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let next = AtomicU64::new(0);
        let bar = Bar::new(count);
        std::thread::scope(|scope| {
            let work = || {
                let mut found = Found::default();
                while !self.stop.load(Ordering::Relaxed) {
                    let offset = next.fetch_add(1, Ordering::Relaxed);
                    if offset >= count {
                        break;
                    }
                    self.run_one(of, first.wrapping_add(offset), &mut found);
                    bar.show(self.done.fetch_add(1, Ordering::Relaxed) + 1);
                }
                found
            };
            let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let found = workers.into_iter().filter_map(|worker| worker.join().ok());
            let found = found.fold(Found::default(), Found::with);
            bar.clear();
            found
        })
    }

    fn run_one(&self, of: Kind, seed: u64, found: &mut Found) {
        found.worlds += 1;
        let outcome = of.run(seed);
        if seed.is_multiple_of(TWICE) && of.run(seed) != outcome {
            found.unsteady.get_or_insert(seed);
        }
        match outcome {
            Ok(stats) => found.stats += stats,
            Err(text) => {
                self.stop.store(true, Ordering::Relaxed);
                found.failure.get_or_insert((seed, text));
            }
        }
    }
}

impl Kind {
    /// Tries one seed: what it has seen, or what did not hold, as short as can be.
    fn run(self, seed: u64) -> Result<Stats, String> {
        let short = |scenario, failure: Box<mainstay_sim::Failure>| shrink(&Arc::new(scenario), *failure).to_string();
        match self {
            Self::Channels => swarm::run_seed(seed).map_err(|failure| short(swarm::scenario(seed), failure)),
            Self::Clients => {
                swarm::clients::run_seed(seed).map_err(|failure| short(swarm::clients::scenario(seed), failure))
            }
            Self::Mixed => swarm::mixed::run_seed(seed).map_err(|failure| short(swarm::mixed::scenario(seed), failure)),
            Self::Histories => match deps::run(seed) {
                Ok(seen) => Ok(Stats { events: seen.events, configs: seen.published, ..Stats::default() }),
                Err(violation) => Err(violation.to_string()),
            },
            Self::Lives => match policies::run(seed) {
                Ok(happened) => Ok(Stats { events: happened.len() as u64, ..Stats::default() }),
                Err(failure) => Err(failure.to_string()),
            },
            Self::Servers => match servers::run(seed, None) {
                Ok(servers::History { events, generations, routes, handled, .. }) => {
                    Ok(Stats { events, configs: generations + routes, rpcs: handled, ..Stats::default() })
                }
                Err(violation) => Err(violation.to_string()),
            },
        }
    }

    /// How a failure of a seed is seen again.
    fn tip(self, seed: u64) -> String {
        match self {
            Self::Channels | Self::Clients | Self::Mixed | Self::Lives => {
                "show it again with --replay and the line above".to_owned()
            }
            // They are not made short: the seed is all that they need.
            Self::Histories => format!("show it again with --of histories --first {seed} --seeds 1"),
            Self::Servers => format!("show it again with --of servers --first {seed} --seeds 1"),
        }
    }
}

impl Found {
    fn with(mut self, other: Self) -> Self {
        self.worlds += other.worlds;
        self.stats += other.stats;
        self.failure = [self.failure, other.failure].into_iter().flatten().min_by_key(|(seed, _)| *seed);
        self.unsteady = self.unsteady.or(other.unsteady);
        self
    }
}

/// How often a seed is run twice, to see that it is the same world.
const TWICE: u64 = 64;

fn report(of: Kind, found: &Found, took: Duration, output: &mut Output) -> Result<(), Failure> {
    let Stats { events, faults, virtual_time, rpcs, rpcs_sent, configs, fallbacks } = found.stats;
    let days = virtual_time.as_secs_f64() / 86_400.0;
    let took = took.as_secs_f64();
    output.line(format_args!("{} in {took:.1} s", styled(TITLE, format_args!("{} worlds", found.worlds))))?;
    output.line(format_args!("  events          {events} ({:.0} per second)", events as f64 / took.max(0.001)))?;
    output.line(format_args!("  virtual time    {days:.1} days"))?;
    output.line(format_args!("  faults          {faults}"))?;
    output.line(format_args!("  fallbacks       {fallbacks}"))?;
    output.line(format_args!("  configurations  {configs}"))?;
    output.line(format_args!("  RPCs            {rpcs}, of which {rpcs_sent} could be sent"))?;
    if let Some((seed, text)) = &found.failure {
        output.line(format_args!("  violations      {}\n\n{text}", styled(BAD, "1")))?;
        return Err(Failure::failed(format!("something that must hold does not, in the world of seed {seed}"))
            .tip(of.tip(*seed)));
    }
    if let Some(seed) = found.unsteady {
        return Err(Failure::failed(format!("seed {seed} was not the same world twice")));
    }
    output.line(format_args!("  violations      {}", styled(GOOD, "0")))
}

/// A progress bar on standard error, if somebody looks at it.
struct Bar {
    total: u64,
    shown: bool,
}

impl Bar {
    fn new(total: u64) -> Self {
        Self { total, shown: io::stderr().is_terminal() }
    }

    fn show(&self, done: u64) {
        let step = (self.total / WIDTH).max(1);
        if self.shown && done.is_multiple_of(step) {
            let filled = usize::try_from(done * WIDTH / self.total.max(1)).unwrap_or_default();
            let width = WIDTH as usize;
            let _ = write!(
                io::stderr(),
                "\r{:━<filled$}{:·<rest$} {done}/{}",
                "",
                "",
                self.total,
                rest = width - filled.min(width)
            );
        }
    }

    fn clear(&self) {
        if self.shown {
            let _ = write!(io::stderr(), "\r\x1b[K");
        }
    }
}

/// How long the bar is.
const WIDTH: u64 = 50;

// --- One world ---

fn show(line: &str, output: &mut Output) -> Result<(), Failure> {
    match replay_line(line) {
        Ok((stats, transcript)) => {
            transcript.iter().try_for_each(|line| output.line(line))?;
            output.line(format_args!("{}: {} events", styled(GOOD, "everything held"), stats.events))
        }
        Err(error) => match error.downcast::<mainstay_sim::Failure>() {
            Ok(failure) => {
                output.line(&failure)?;
                Err(Failure::failed("something that must hold does not"))
            }
            Err(error) => Err(Failure::usage(format!("--replay: {error}"))),
        },
    }
}
