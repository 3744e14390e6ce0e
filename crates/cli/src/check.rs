//! `mainstay check`: what is wrong with resources and bootstraps, before clients find out.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use mainstay_check::{
    BootstrapFile, Finding, Id, Implementation, Input, Level, against, check, github, json, page, sarif,
};
use mainstay_mirror::config::MirrorConfig;

use crate::{
    failure::Failure,
    output::{BAD, DIM, GOOD, Output, TITLE, styled},
    progress,
    signals::Signals,
};

pub(crate) mod source;

use source::Source;

/// Find what is wrong with resources and bootstraps before clients do
///
/// Reads a directory or a file as `mainstay serve` does, or what a running gRPC process holds, and tells what clients would
/// reject, in the words of their NACK, which names lead nowhere, which routes can never match, which endpoints get no RPCs
/// and more. Each finding has an id with a page: `mainstay check --explain MS201`.
///
/// An error means that clients reject something or that RPCs fail, a warning that something does not do what it seems to,
/// and a note is worth knowing. A finding that is all right is allowed with --allow, or in the file with a comment before what
/// it is about:
///
///   # mainstay: allow MS302 because the second host is for the old name
///
/// A file that is called mirror.yaml is checked as what `mainstay serve --mirror-config` takes.
///
/// Exit codes: 0 no errors, 1 errors found, 2 it could not be checked.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    /// What to check: a directory or a file of resources, a bootstrap, a saved CSDS dump, or csds:HOST:PORT, the admin port of
    /// a running gRPC process in any language
    #[arg(value_name = "DIR|FILE|csds:ADDR", required_unless_present = "explain")]
    source: Option<Source>,

    /// The bootstrap of the clients: its certificate providers, authorities and templates count, and it is checked, too
    #[arg(long, value_name = "FILE")]
    bootstrap: Option<PathBuf>,

    /// Tell only what is new since this state, and what the change does to running clients and servers
    #[arg(long, value_name = "DIR|FILE|csds:ADDR")]
    against: Option<Source>,

    /// Tell what these implementations reject as well, as measured with them: go, cpp (C-core and Python, Ruby and others on
    /// it), java, envoy (but for Listeners)
    #[arg(long = "for", value_name = "NAME", value_delimiter = ',', value_parser = implementation)]
    implementations: Vec<Implementation>,

    /// How findings are written
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Text)]
    format: Format,

    /// One JSON object for each finding and line; the same as --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Do not tell findings with these ids
    #[arg(long, value_name = "ID", value_delimiter = ',', value_parser = id)]
    allow: Vec<Id>,

    /// Say what a check looks for, what it means and what to do
    #[arg(long, value_name = "ID", value_parser = id, conflicts_with_all = ["source", "bootstrap", "against", "implementations", "json", "allow"])]
    explain: Option<Id>,
}

/// How findings are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One JSON object for each finding and line
    Json,
    /// SARIF 2.1.0, which code hosts and editors show
    Sarif,
    /// Annotations for GitHub Actions
    Github,
}

fn id(text: &str) -> Result<Id, String> {
    Id::from_name(text).ok_or_else(|| {
        let first = Id::ALL.first().map_or("", |id| id.name());
        let last = Id::ALL.last().map_or("", |id| id.name());
        format!("there is no such check: ids go from {first} to {last}, and docs/checks lists them")
    })
}

/// One whose verdicts are known: nothing is said of others.
fn implementation(text: &str) -> Result<Implementation, String> {
    let known: Vec<_> = Implementation::ALL.into_iter().filter(|one| one.version().is_some()).collect();
    let names: Vec<_> = known.iter().map(|one| one.name()).collect();
    let found = known.iter().find(|one| one.name() == text).copied();
    found.ok_or_else(|| format!("its verdicts have not been measured; those of {} have", names.join(", ")))
}

/// What the flags mean.
#[derive(Debug)]
pub(crate) enum Settings {
    Explain(Id),
    Check(Box<Task>),
}

#[derive(Debug)]
pub(crate) struct Task {
    source: Source,
    bootstrap: Option<BootstrapFile>,
    against: Option<Source>,
    implementations: BTreeSet<Implementation>,
    format: Format,
    allowed: BTreeSet<Id>,
}

impl Flags {
    pub(crate) fn resolve(self) -> Result<Settings, Failure> {
        if let Some(id) = self.explain {
            return Ok(Settings::Explain(id));
        }
        let source = self.source.ok_or_else(|| Failure::usage("what is to be checked?"))?;
        let bootstrap = self.bootstrap.as_deref().map(source::bootstrap).transpose()?;
        let format = if self.json { Format::Json } else { self.format };
        let allowed = self.allow.into_iter().collect();
        let implementations = self.implementations.into_iter().collect();
        let task = Task { source, bootstrap, against: self.against, implementations, format, allowed };
        Ok(Settings::Check(Box::new(task)))
    }
}

/// Checks, tells, and fails if there are errors.
pub(crate) async fn run(settings: Settings, mut signals: Signals, mut output: Output) -> Result<(), Failure> {
    let task = match settings {
        Settings::Explain(id) => return output.line(page(id).trim_end()),
        Settings::Check(task) => task,
    };
    let Task { source, bootstrap, against: old, implementations, format, allowed } = *task;
    if let Some(path) = source.mirror_config() {
        return mirror_config(path, &mut output);
    }
    let gathering = async {
        let mut new = source.gather(bootstrap.as_ref()).await?;
        let mut old = match &old {
            Some(old) => Some(old.gather(bootstrap.as_ref()).await?),
            None => None,
        };
        for (_, input) in new.iter_mut().chain(old.iter_mut().flatten()) {
            source::add_verdicts(input, &implementations);
        }
        Ok((new, old))
    };
    let (new, old) = tokio::select! {
        gathered = progress::shown("reading what is to be checked", gathering) => gathered?,
        () = signals.next() => return Ok(()),
    };
    let mut findings = match old {
        None => new.iter().flat_map(|(_, input)| check(input)).collect(),
        Some(old) => compare(new, old),
    };
    findings.retain(|finding| !allowed.contains(&finding.id));
    findings.sort();
    findings.dedup();
    match format {
        Format::Text => text(&findings, &mut output)?,
        Format::Json => findings.iter().try_for_each(|finding| output.exact(json(finding)))?,
        Format::Sarif => output.exact(format_args!("{:#}", sarif(&findings, env!("CARGO_PKG_VERSION"))))?,
        Format::Github => findings.iter().try_for_each(|finding| output.exact(github(finding)))?,
    }
    match findings.iter().find(|finding| finding.level() == Level::Error) {
        None => Ok(()),
        Some(first) => {
            let tip = format!("`mainstay check --explain {}` says what the first one means", first.id);
            Err(Failure::failed(summary(&findings)).tip(tip))
        }
    }
}

/// Checks the classes of a mirror (FB-14).
fn mirror_config(path: &Path, output: &mut Output) -> Result<(), Failure> {
    let text =
        fs::read_to_string(path).map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    match MirrorConfig::parse(&text) {
        Ok(_) => output.line(styled(GOOD, "nothing found")),
        Err(errors) => {
            let place = styled(TITLE, path.display());
            errors.0.iter().try_for_each(|error| output.line(format_args!("{place}: {error}")))?;
            Err(Failure::failed(match errors.0.len() {
                1 => "1 error".to_owned(),
                count => format!("{count} errors"),
            }))
        }
    }
}

/// What is wrong with what a process or a directory holds.
pub(crate) async fn of_source(source: &crate::source::Source) -> Result<Vec<Finding>, Failure> {
    use crate::source::Source as Place;
    let source = match source {
        Place::Directory(path) | Place::File(path) => Source::Path(path.clone()),
        Place::Csds(address) => Source::Csds(address.clone()),
        Place::Envoy(_) | Place::Live => {
            return Err(Failure::usage("only gRPC processes, which have CSDS, and files can be checked"));
        }
    };
    let inputs = source.gather(None).await?;
    let mut findings: Vec<Finding> = inputs.iter().flat_map(|(_, input)| check(input)).collect();
    findings.sort();
    findings.dedup();
    Ok(findings)
}

/// The clients of a process are compared one by one where both states have the same, and all together otherwise.
fn compare(new: Vec<(String, Input)>, old: Vec<(String, Input)>) -> Vec<Finding> {
    let scopes = |inputs: &[(String, Input)]| inputs.iter().map(|(scope, _)| scope.clone()).collect::<BTreeSet<_>>();
    if scopes(&new) != scopes(&old) {
        return against(&source::together(new), &source::together(old));
    }
    let old: std::collections::BTreeMap<_, _> = old.into_iter().collect();
    let compared = new.iter().filter_map(|(scope, new)| Some(against(new, old.get(scope)?)));
    compared.flatten().collect()
}

fn text(findings: &[Finding], output: &mut Output) -> Result<(), Failure> {
    for finding in findings {
        let style = match finding.level() {
            Level::Error => BAD,
            Level::Warning => WARNING,
            Level::Note => DIM,
        };
        let line = finding.line.map_or_else(String::new, |line| format!(":{line}"));
        let place = styled(TITLE, format_args!("{}{line}", finding.file));
        let what = styled(style, format_args!("{} {}", finding.level(), finding.id));
        let about = [finding.resource.as_str(), finding.path.as_str()].join(": ");
        let about = about.trim_matches([':', ' ']);
        let about = if about.is_empty() { String::new() } else { format!(": {about}") };
        output.line(format_args!("{place}: {what}{about}\n  {}", finding.message))?;
    }
    let has_errors = findings.iter().any(|finding| finding.level() == Level::Error);
    match findings {
        [] => output.line(styled(GOOD, "nothing found")),
        _ if has_errors => Ok(()), // The summary is the error.
        _ => output.line(summary(findings)),
    }
}

/// How many there are of each level.
fn summary(findings: &[Finding]) -> String {
    let levels = [Level::Error, Level::Warning, Level::Note];
    let counts = levels.map(|level| (findings.iter().filter(|finding| finding.level() == level).count(), level));
    let words = counts.into_iter().filter(|(count, _)| *count > 0).map(|(count, level)| match count {
        1 => format!("1 {level}"),
        _ => format!("{count} {level}s"),
    });
    words.collect::<Vec<_>>().join(", ")
}

const WARNING: Style = AnsiColor::Yellow.on_default().bold();
