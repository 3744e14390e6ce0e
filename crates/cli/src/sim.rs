//! `mainstay sim`: the failure rules, tried in simulated worlds; and outages of one's own setup, rehearsed.

use std::{
    fmt,
    io::{self, IsTerminal, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use mainstay_control_plane::{Body, LoadErrors, load_directory};
use mainstay_sim::{
    Fate, Rehearsal, Scenario, Seen, Stats, deps, policies, rehearse, replay_line, servers, shrink, swarm,
};
use mainstay_xds::{
    bootstrap::{Bootstrap, Guards},
    resource::ResourceType,
};

use crate::{
    failure::Failure,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    signals::Signals,
};

/// Try the failure rules in simulated worlds, or rehearse outages of your own setup
///
/// Each seed is a world in virtual time: control planes, networks, DNS and backends around the code that decides in a
/// channel, or in a part of one, or in servers (--of). Things go wrong at random; after each event it is checked what
/// must hold. A failure is printed as a transcript, with what shows it again.
///
/// With --bootstrap and --resources the world is yours: every server of the bootstrap serves the files of the directory,
/// as "mainstay serve" would, and each outage is played: what would clients of --target see, and for how long would
/// their RPCs fail? Backends are taken to work. Nothing is connected to.
///
/// The exit code is 1 if something did not hold, and 3 if RPCs would fail in a rehearsal of an outage before which at
/// least one server was there.
#[derive(Args, Debug)]
pub(crate) struct Flags {
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

    /// Rehearse outages with this bootstrap
    #[arg(long, value_name = "FILE", requires = "resources")]
    bootstrap: Option<PathBuf>,

    /// What its servers serve: a directory of YAML and JSON files
    #[arg(long, value_name = "DIR", requires = "bootstrap")]
    resources: Option<PathBuf>,

    /// The target of the clients; the first Listener of the directory by default
    #[arg(long, value_name = "TARGET", requires = "bootstrap")]
    target: Option<String>,
}

/// What is tried with a seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// A world around a channel
    Channels,
    /// A world around an xDS client and its watchers
    Clients,
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
    Rehearse { bootstrap: PathBuf, resources: PathBuf, target: Option<String> },
}

impl Flags {
    pub(crate) fn resolve(self) -> Settings {
        let Self { seeds, of, first, replay, bootstrap, resources, target } = self;
        match (replay, bootstrap, resources) {
            (Some(line), ..) => Settings::Replay(line),
            (None, Some(bootstrap), Some(resources)) => Settings::Rehearse { bootstrap, resources, target },
            _ => Settings::Seeds { of, first, count: seeds },
        }
    }
}

/// Runs until it is done, or until a signal.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    match settings {
        Settings::Replay(line) => show(&line, &mut output),
        Settings::Rehearse { bootstrap, resources, target } => {
            play(&bootstrap, &resources, target.as_deref(), &mut output)
        }
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
            Self::Channels | Self::Clients | Self::Lives => "show it again with --replay and the line above".to_owned(),
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

// --- Rehearsals ---

fn play(bootstrap: &Path, resources: &Path, target: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    let scenario = Arc::new(scenario(bootstrap, resources, target)?);
    let servers = match scenario.planes.len() {
        1 => "1 server".to_owned(),
        many => format!("{many} servers"),
    };
    output.line(format_args!("{}: {servers}, outages of 30 s", styled(TITLE, &scenario.target.canonical)))?;
    let rehearsals = rehearse(&scenario)
        .map_err(|violation| Failure::failed(format!("something that must hold does not: {violation}")))?;
    rehearsals.iter().try_for_each(|rehearsal| tell(rehearsal, output))?;
    let fails = |rehearsal: &&Rehearsal| !rehearsal.failing.is_zero() && !rehearsal.hopeless;
    let failing = rehearsals.iter().filter(fails).count();
    let hopeless = rehearsals.iter().filter(|rehearsal| rehearsal.hopeless).count();
    match failing {
        0 if hopeless > 0 => {
            let text =
                format!("RPCs fail in none of these outages but the {hopeless} in which no server was ever there");
            output.line(styled(GOOD, text))
        }
        0 => output.line(styled(GOOD, "RPCs fail in none of these outages")),
        _ => Err(Failure::calls(format!("RPCs fail in {failing} of {} outages", rehearsals.len()))
            .tip("give the bootstrap another server in xds_servers, or have servers answer for each other")),
    }
}

fn tell(rehearsal: &Rehearsal, output: &mut Output) -> Result<(), Failure> {
    output.line("")?;
    output.line(styled(TITLE, &rehearsal.outage))?;
    for (at, seen) in &rehearsal.timeline {
        let text = match seen {
            Seen::Outage(_) => styled(BAD, seen),
            Seen::Rpcs(Fate::Sent, _) => styled(GOOD, seen),
            Seen::Rpcs(Fate::Fail, _) => styled(BAD, seen),
            Seen::Rpcs(Fate::Wait, _) => seen.to_string(),
            Seen::Client(_) => styled(DIM, seen),
        };
        output.line(format_args!("  {:>9}  {text}", Seconds(*at)))?;
    }
    output.line(format_args!(
        "  RPCs wait for {} and fail for {}",
        Seconds(rehearsal.waiting),
        Seconds(rehearsal.failing)
    ))
}

fn scenario(bootstrap: &Path, resources: &Path, target: Option<&str>) -> Result<Scenario, Failure> {
    let text = std::fs::read_to_string(bootstrap)
        .map_err(|error| Failure::failed(format!("cannot read {}: {error}", bootstrap.display())))?;
    let parsed = Bootstrap::parse(&text, Guards::from_vars(|name| std::env::var(name).ok()))
        .map_err(|error| Failure::failed(format!("{} is not a usable bootstrap: {error}", bootstrap.display())))?;
    let snapshots = load_directory(resources).map_err(|errors| unreadable(resources, &errors))?;
    let messages: Vec<_> = (snapshots.default.resources())
        .filter_map(|resource| match resource.body {
            Body::Message(any) => {
                Some((ResourceType::from_type_url(resource.type_url.as_str())?, resource.name, any.value.into()))
            }
            Body::Error { .. } => None,
        })
        .collect();
    let target = match target {
        Some(target) => target.to_owned(),
        None => {
            let mut listeners = messages.iter().filter(|(kind, ..)| *kind == ResourceType::Listener);
            let (_, name, _) = listeners.next().ok_or_else(|| {
                Failure::failed(format!("{} has no Listener", resources.display())).tip("name one with --target")
            })?;
            format!("xds:///{name}")
        }
    };
    let scenario =
        Scenario::of_setup(&target, parsed, &messages).map_err(|error| Failure::usage(format!("--target: {error}")))?;
    let listeners = messages.iter().filter(|(kind, ..)| *kind == ResourceType::Listener);
    let names: Vec<_> = listeners.map(|(_, name, _)| name.as_str()).collect();
    let wanted = &*scenario.target.listener;
    if names.contains(&wanted) {
        return Ok(scenario);
    }
    let known: Vec<_> = names.iter().map(|name| format!("{name:?}")).collect();
    Err(Failure::usage(format!("{target} needs the Listener {wanted:?}, which is not in {}", resources.display()))
        .tip(format!("the Listeners there are {}", known.join(", "))))
}

fn unreadable(directory: &Path, errors: &LoadErrors) -> Failure {
    let reasons: Vec<_> = errors.0.iter().map(|error| format!("\n  {error}")).collect();
    Failure::failed(format!("cannot read {}:{}", directory.display(), reasons.concat()))
}

/// A span in seconds.
struct Seconds(Duration);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{:.2} s", self.0.as_secs_f64()))
    }
}
