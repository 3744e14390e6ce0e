//! Runs what judges mutants: the unit tests, or the simulator.

use std::collections::BTreeSet;
use std::fmt;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Programs that fail if something is wrong.
pub(crate) struct Judge {
    programs: Vec<Program>,
    /// Where they run: nothing that one mutant leaves behind is found by the next.
    directory: PathBuf,
    /// So long they may say nothing.
    patience: Duration,
    /// Mutants that they come by at all.
    reached: BTreeSet<u32>,
}

/// A program with its arguments. It writes a line for each thing that it has looked at.
pub(crate) struct Program {
    /// The package that it is of.
    pub(crate) package: String,
    pub(crate) path: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// What a judge says about a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Noticed, and by what.
    Noticed(String),
    /// It never came to an end, which somebody would notice.
    Stuck,
    Survived,
    /// Nothing came by the place.
    Unreached,
    /// Nobody asked.
    Unknown,
}

impl Judge {
    /// A judge that has seen the sources without a mutant, and found nothing.
    ///
    /// # Errors
    /// If it finds something, or does not run.
    pub(crate) fn new(programs: Vec<Program>, directory: &Path) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let trace = directory.join("trace");
        let _ = std::fs::remove_file(&trace);
        let mut this = Self { programs, directory: directory.to_owned(), patience: FIRST, reached: BTreeSet::new() };
        let mut slowest = Duration::ZERO;
        for program in &this.programs {
            let environment = ("MUTANT_TRACE", trace.to_string_lossy().into_owned());
            let (verdict, slow) = this.run(program, environment)?;
            if verdict != Verdict::Survived {
                return Err(io::Error::other(format!("without a mutant: {verdict}: {}", program.path.display())));
            }
            slowest = slowest.max(slow);
        }
        let traced = std::fs::read_to_string(&trace).unwrap_or_default();
        this.reached = traced.lines().filter_map(|line| line.parse().ok()).collect();
        this.patience = LEAST + 8 * slowest;
        Ok(this)
    }

    pub(crate) fn reaches(&self, number: u32) -> bool {
        self.reached.contains(&number)
    }

    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// Judges one mutant, first by programs of the package that it is in: most are noticed there.
    ///
    /// # Errors
    /// If a program does not run.
    pub(crate) fn judge(&self, number: u32, package: &str) -> io::Result<Verdict> {
        if !self.reaches(number) {
            return Ok(Verdict::Unreached);
        }
        let (own, others): (Vec<_>, Vec<_>) = self.programs.iter().partition(|program| program.package == package);
        for program in own.into_iter().chain(others) {
            let (verdict, _) = self.run(program, ("MUTANT", number.to_string()))?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// Runs a program until it finds something, ends or does not go on; and the longest time between two lines.
    fn run(&self, program: &Program, (name, value): (&str, String)) -> io::Result<(Verdict, Duration)> {
        // A mutant may ask for memory without end.
        let mut child = Command::new("sh")
            .args(["-c", &format!("ulimit -v {MEMORY_KIB}; exec \"$0\" \"$@\" 2>&1")])
            .arg(&program.path)
            .args(&program.arguments)
            .current_dir(&self.directory)
            .env(name, value)
            .env("RUST_BACKTRACE", "0")
            // The same cases for each: one that is at odds without a mutant must not be held against one of them.
            .env("PROPTEST_RNG_SEED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let output = BufReader::new(child.stdout.take().expect("piped"));
        let (lines, heard) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in output.split(b'\n').map_while(Result::ok) {
                if lines.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let (mut slowest, mut last, mut said) = (Duration::ZERO, Instant::now(), None);
        let verdict = loop {
            match heard.recv_timeout(self.patience) {
                Ok(line) => {
                    slowest = slowest.max(last.elapsed());
                    last = Instant::now();
                    if let Some(found) = finding(&line) {
                        break Some(Verdict::Noticed(found));
                    }
                    said = panic_place(&line).or(said);
                }
                Err(RecvTimeoutError::Timeout) => break Some(Verdict::Stuck),
                Err(RecvTimeoutError::Disconnected) => break None,
            }
        };
        if verdict.is_some() {
            let _ = child.kill(); // It may have ended by itself.
        }
        let status = child.wait()?;
        drop(heard);
        reader.join().expect("a reader does not panic");
        let ended = || match (status.success(), said) {
            (true, _) => Verdict::Survived,
            (false, Some(panic)) => Verdict::Noticed(panic),
            (false, None) => Verdict::Noticed(status.to_string()),
        };
        Ok((verdict.unwrap_or_else(ended), slowest))
    }
}

/// A line of libtest or of the simulator that says what was found.
fn finding(line: &str) -> Option<String> {
    if let Some(found) = line.strip_prefix("NOTICED ") {
        return Some(found.to_owned());
    }
    let test = line.strip_prefix("test ")?;
    test.split_once(" ... ").filter(|(_, result)| result.ends_with("FAILED")).map(|(name, _)| name.to_owned())
}

/// `thread 'main' panicked at crates/…/file.rs:1:2:`
fn panic_place(line: &str) -> Option<String> {
    let (_, place) = line.split_once(" panicked at ")?;
    let place = place.trim_end_matches(':');
    let file = place.split(':').next().unwrap_or(place);
    Some(format!("panic in {}", file.rsplit('/').next().unwrap_or(file)))
}

impl Verdict {
    pub(crate) fn is_noticed(&self) -> bool {
        matches!(self, Self::Noticed(_) | Self::Stuck)
    }

    pub(crate) fn is_known(&self) -> bool {
        *self != Self::Unknown
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Noticed(by) => write!(f, "noticed: {by}"),
            Self::Stuck => f.write_str("noticed: no end"),
            Self::Survived => f.write_str("survived"),
            Self::Unreached => f.write_str("not reached"),
            Self::Unknown => f.write_str("-"),
        }
    }
}

impl From<&str> for Verdict {
    fn from(text: &str) -> Self {
        match (text, text.strip_prefix("noticed: ")) {
            (_, Some("no end")) => Self::Stuck,
            (_, Some(by)) => Self::Noticed(by.to_owned()),
            ("survived", _) => Self::Survived,
            ("not reached", _) => Self::Unreached,
            _ => Self::Unknown,
        }
    }
}

const FIRST: Duration = Duration::from_secs(300);
const LEAST: Duration = Duration::from_secs(8);
const MEMORY_KIB: u64 = 3 << 20;
