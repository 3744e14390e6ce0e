//! Logic mutants of the cores, all in one build: how many do the unit tests notice, and how many the simulator alone?
//!
//! `find` looks for places of the sources where a small logic error could be; `rewrite` writes each of a sample behind a
//! switch; `copy` builds the result once, without those that do not compile; `judge` runs the tests and the simulator
//! with each switched on; `table` keeps what was seen, and `page` makes the page of the documentation from it.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::{Parser, ValueEnum};

mod copy;
mod find;
mod judge;
mod mutant;
mod page;
mod rewrite;
mod sample;
mod table;

#[cfg(test)]
mod tests;

use copy::{Built, Copy};
use judge::{Judge, Program};
use mutant::Mutant;
use page::Reasons;
use table::{Row, TITLE, Table};

/// Measures how many logic mutants of the cores the unit tests and the simulator notice.
#[derive(Parser)]
#[command(about)]
struct Flags {
    /// How many mutants.
    #[arg(long, default_value_t = 200)]
    sample: usize,
    /// Which ones.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only mutants of files whose path has this in it, or one of these.
    #[arg(long, value_name = "FILE")]
    only: Vec<String>,
    /// Only mutants that survived what is run now, by the table, without those that are held to be equivalent.
    #[arg(long)]
    survivors: bool,
    /// Say which mutants there are and run nothing.
    #[arg(long)]
    list: bool,
    /// Write the page from the table and run nothing.
    #[arg(long)]
    page: bool,
    /// What to run; of the other the table keeps what it has.
    #[arg(long, value_enum)]
    judge: Option<Which>,
    /// How many seeds the simulator has.
    #[arg(long, default_value_t = 1_000)]
    seeds: u64,
    /// A seed that the simulator leaves out: something does not hold in its world even without a mutant.
    #[arg(long, value_name = "SEED")]
    without: Vec<u64>,
    /// How many states of each small world the simulator visits.
    #[arg(long, default_value_t = 5_000)]
    states: usize,
    /// How many processes at once.
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Where the table is.
    #[arg(long, default_value = TABLES[0])]
    table: PathBuf,
    /// What the sample is, for the page.
    #[arg(long, value_name = "TEXT")]
    title: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Which {
    Unit,
    Sim,
}

fn main() -> ExitCode {
    match run(&Flags::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstay-mutants: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> io::Result<()> {
    let root = root()?;
    let reasons = Reasons::read(&std::fs::read_to_string(root.join(REASONS))?);
    let table = Table::read(&std::fs::read_to_string(root.join(&flags.table)).unwrap_or_default());
    if flags.page {
        return write_page(&root, &table, &reasons);
    }
    let all = sources(&root)?;
    let order = sample::order(&all, flags.seed);
    let mut chosen: Vec<u32> = order.into_iter().filter(|number| flags.wants(&all[*number as usize])).collect();
    if flags.list {
        chosen.truncate(flags.sample);
        chosen.sort_unstable();
        for mutant in chosen.iter().map(|number| &all[*number as usize]) {
            println!("{}:{} {} {}", mutant.file, mutant.line, mutant.operator, &mutant.key()[mutant.file.len() + 1..]);
        }
        println!("{} of {}", chosen.len(), all.len());
        return Ok(());
    }
    let known = table.by_key();
    if flags.survivors {
        let survived = |number: &u32| {
            known.get(&all[*number as usize].key()).filter(|row| !reasons.is_equivalent(row)).is_some_and(|row| {
                (flags.runs(Which::Unit) && row.unit.is_known() && !row.unit.is_noticed())
                    || (flags.runs(Which::Sim) && row.sim.is_known() && !row.sim.is_noticed())
            })
        };
        chosen.retain(survived);
    }

    let mut copy = Copy::new(&root);
    let (unit, sim) = build(&mut copy, flags, &all, &mut chosen)?;
    println!("{} mutants of {} in the copy", chosen.len(), all.len());
    // Outside of the sources: proptest would write there what it found, and have the next mutant judged by it.
    let work = std::env::temp_dir().join(format!("mainstay-mutants-{}", std::process::id()));
    let unit = unit.map(|programs| Judge::new(programs, &work)).transpose()?;
    let sim = sim.map(|programs| Judge::new(programs, &work)).transpose()?;
    for (name, judge) in [("unit tests", &unit), ("simulator", &sim)] {
        if let Some(judge) = judge {
            let reached = chosen.iter().filter(|number| judge.reaches(**number)).count();
            println!("the {name} come by {reached}; without a word for {:?} they are stuck", judge.patience());
        }
    }

    chosen.sort_unstable();
    let old = |number: u32| {
        let row = Row::new(&all[number as usize]);
        known.get(&row.key()).map_or(row.clone(), |old| Row { unit: old.unit.clone(), sim: old.sim.clone(), ..row })
    };
    let rows: Vec<Mutex<Row>> = chosen.iter().map(|number| Mutex::new(old(*number))).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let work = || -> io::Result<()> {
            while let Some(number) = chosen.get(next.fetch_add(1, Ordering::Relaxed)) {
                let row = &rows[chosen.partition_point(|other| other < number)];
                let mut new = row.lock().expect("no worker panics").clone();
                for (judge, verdict) in [(&unit, &mut new.unit), (&sim, &mut new.sim)] {
                    if let Some(judge) = judge {
                        *verdict = judge.judge(*number, all[*number as usize].package())?;
                    }
                }
                println!("{}:{} {}\n    unit tests {}; simulator {}", new.file, new.line, new.what, new.unit, new.sim);
                *row.lock().expect("no worker panics") = new;
            }
            Ok(())
        };
        let workers: Vec<_> = (0..flags.jobs.max(1)).map(|_| scope.spawn(work)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
    })?;
    let mut rows: Vec<Row> = rows.into_iter().map(|row| row.into_inner().expect("no worker panics")).collect();
    if flags.survivors {
        let again: BTreeSet<String> = rows.iter().map(Row::key).collect();
        rows.extend(table.rows.iter().filter(|row| !again.contains(&row.key())).cloned());
        rows.sort_by(|a, b| (&a.file, a.line, &a.what).cmp(&(&b.file, b.line, &b.what)));
    }
    let table = Table { about: flags.about(&root, all.len(), &table), rows };
    let path = root.join(&flags.table);
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent)?;
    }
    std::fs::write(&path, table.text())?;
    std::fs::remove_dir_all(work)?;
    write_page(&root, &table, &reasons)
}

impl Flags {
    fn wants(&self, mutant: &Mutant) -> bool {
        self.only.is_empty() || self.only.iter().any(|file| mutant.file.contains(file))
    }

    fn runs(&self, which: Which) -> bool {
        self.judge.is_none_or(|only| only == which)
    }

    fn about(&self, root: &Path, places: usize, before: &Table) -> Vec<(String, String)> {
        let git = |arguments: &[&str]| {
            let output = Command::new("git").args(arguments).current_dir(root).output();
            output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
        };
        let changed = git(&["status", "--porcelain", "crates/xds", "crates/lb", "crates/sim"]);
        let changes = if changed.is_empty() { "" } else { ", and changes" };
        let commit = format!("{}{changes}", git(&["rev-parse", "--short", "HEAD"]));
        let earlier = |name: &str| before.about.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        let commit = match earlier("commit").filter(|_| self.survivors) {
            Some(before) => format!("{before}; what survived was judged again on {commit}"),
            None => commit,
        };
        let title = self.title.clone().or_else(|| earlier(TITLE)).unwrap_or_else(|| "A sample".to_owned());
        let without: String = self.without.iter().map(|seed| format!(" --without {seed}")).collect();
        let only: String = self.only.iter().map(|file| format!(" --only {file}")).collect();
        let command = format!(
            "`cargo run -p mainstay-mutants -- --sample {} --seed {} --seeds {} --states {}{only}{without}`",
            self.sample, self.seed, self.seeds, self.states
        );
        [
            (TITLE, title),
            ("commit", commit),
            ("command", command),
            ("places where a mutant could be", places.to_string()),
            ("the unit tests", "all of `mainstay-xds` and `mainstay-lb`".to_owned()),
            (
                "the simulator",
                format!(
                    "stories, lives of the tree of policies, 1,200 histories of the dependency manager, 1,200 histories of servers, 2,000 filters of RBAC, 400 worlds of clients, {} seeds, what once went wrong, up to {} states of each small world; it stops at the first violation",
                    self.seeds, self.states
                ),
            ),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}

/// The programs of a judge, if it is wanted.
type Programs = Option<Vec<Program>>;

/// Builds the copy with so many of the chosen mutants as are wanted, without those that do not compile.
fn build(copy: &mut Copy, flags: &Flags, all: &[Mutant], chosen: &mut Vec<u32>) -> io::Result<(Programs, Programs)> {
    let mut refused = copy.refused()?;
    chosen.retain(|number| !refused.contains(&all[*number as usize].key()));
    let mut spare = chosen.split_off(chosen.len().min(flags.sample + flags.sample / 6));
    loop {
        let tried: Vec<_> = chosen.iter().map(|number| (*number, &all[*number as usize])).collect();
        copy.write(&tried)?;
        let mut programs = (None, None);
        let mut blamed = BTreeSet::new();
        if flags.runs(Which::Unit) {
            match copy.build(&["test", "--no-run", "-p", "mainstay-xds", "-p", "mainstay-lb", "--lib"])? {
                Built::Executables(found) => {
                    let arguments = || vec!["--test-threads=1".to_owned()];
                    let program = |(package, path)| Program { package, path, arguments: arguments() };
                    programs.0 = Some(found.into_iter().map(program).collect());
                }
                Built::Blamed(numbers) => blamed.extend(numbers),
            }
        }
        if blamed.is_empty() && flags.runs(Which::Sim) {
            match copy.build(&["build", "-p", "mainstay-sim", "--example", "notice"])? {
                Built::Executables(found) => {
                    let numbers = [flags.seeds, flags.states as u64].into_iter().chain(flags.without.iter().copied());
                    let arguments: Vec<String> = numbers.map(|number| number.to_string()).collect();
                    let program = |(package, path)| Program { package, path, arguments: arguments.clone() };
                    programs.1 = Some(found.into_iter().map(program).collect());
                }
                Built::Blamed(numbers) => blamed.extend(numbers),
            }
        }
        if blamed.is_empty() {
            chosen.truncate(flags.sample);
            return Ok(programs);
        }
        println!("{} mutants do not compile: without them", blamed.len());
        chosen.retain(|number| !blamed.contains(number));
        refused.extend(blamed.into_iter().map(|number| all[number as usize].key()));
        copy.refuse(&refused)?;
        // Others take their place only if too few are left: each that comes in has its crate compiled again.
        if chosen.len() < flags.sample {
            let more = spare.len().min(flags.sample - chosen.len() + 5);
            chosen.extend(spare.drain(..more));
        }
    }
}

/// All mutants of the cores. The number of one is its place in this list.
fn sources(root: &Path) -> io::Result<Vec<Mutant>> {
    let mut all = Vec::new();
    for directory in MUTATED {
        for file in copy::files(&root.join(directory))? {
            let path = copy::from_root(root, &file);
            if !path.ends_with(".rs") || is_test(&path) {
                continue;
            }
            let found = find::find(&path, &std::fs::read_to_string(&file)?);
            all.extend(found.map_err(|error| io::Error::other(format!("{path}: {error}")))?);
        }
    }
    Ok(all)
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("/testbed.rs")
}

/// Writes the page of all tables, and says the figures of one.
fn write_page(root: &Path, table: &Table, reasons: &Reasons) -> io::Result<()> {
    let texts = TABLES.iter().filter_map(|path| std::fs::read_to_string(root.join(path)).ok());
    let tables: Vec<Table> = texts.map(|text| Table::read(&text)).collect();
    std::fs::write(root.join(PAGE), page::page(&tables, reasons))?;
    for key in reasons.unused(&tables) {
        println!("a reason for nothing: {key}");
    }
    println!("{}", page::summary(table, reasons));
    Ok(())
}

/// The root of the workspace: where cargo says this crate is, and two up.
fn root() -> io::Result<PathBuf> {
    let here = std::env::var_os("CARGO_MANIFEST_DIR").map(PathBuf::from);
    let here = here.ok_or_else(|| io::Error::other("run it with cargo: `cargo run -p mainstay-mutants`"))?;
    here.join("../..").canonicalize()
}

/// What is mutated.
const MUTATED: [&str; 6] = [
    "crates/xds/src/client",
    "crates/xds/src/deps",
    "crates/xds/src/serve.rs",
    "crates/xds/src/serve",
    "crates/xds/src/resource/listener",
    "crates/lb/src",
];

/// The tables that the page is made of.
const TABLES: [&str; 3] = ["docs/mutants.tsv", "docs/mutants-unseen.tsv", "docs/mutants-servers.tsv"];

/// The page.
const PAGE: &str = "docs/mutants.md";

/// Why mutants survive.
const REASONS: &str = "crates/mutants/survivors.txt";
