//! `mainstay last-good`: the files that channels and servers keep for bad times.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use clap::{Args, Subcommand};
use mainstay::last_good::{self, LastGoodFile};
use mainstay_control_plane::{Resource, Snapshot};
use serde::Serialize;

use crate::{
    failure::Failure,
    output::{self, BAD, DIM, Output, TITLE},
};

/// Look at last-good files: what channels and servers start from while every control plane is down
///
/// They are written where `last_good` of the bootstrap, or --last-good of load, get and backend, say. Nothing here
/// connects to anything. The exit code is 0, or 1 if a file cannot be used, with the reason.
#[derive(Args, Debug)]
pub(crate) struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the files of a directory: whose they are, how old, and how many resources they hold
    ///
    /// With --json each file is a line: path, key (the target, or #server), authority, node, age_s, previous (whether it
    /// is the one before the last), resources, and error in place of the rest if it cannot be used.
    Ls {
        /// The directory
        #[arg(value_name = "DIR")]
        directory: PathBuf,

        /// Print each file as a line of JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the resources of a file as YAML that `mainstay serve` and file: servers take
    ///
    /// Of a directory, those of the one target that --key names, or of the only one.
    Show {
        /// A file, or a directory
        #[arg(value_name = "PATH")]
        path: PathBuf,

        /// In a directory: the target, such as xds:///greeter, or #server
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
    /// Check every file of a directory, or one: permissions, format and checksum
    Verify {
        /// A file, or a directory
        #[arg(value_name = "PATH")]
        path: PathBuf,
    },
    /// Remove the files of a directory, or one; nothing else in the directory is touched
    Rm {
        /// A file, or a directory
        #[arg(value_name = "PATH")]
        path: PathBuf,

        /// In a directory: only the files of this target, such as xds:///greeter, or #server
        #[arg(long, value_name = "KEY")]
        key: Option<String>,
    },
}

/// One file, for who reads JSON.
#[derive(Debug, Serialize)]
struct Line<'a> {
    path: &'a Path,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    authority: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    node: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    age_s: Option<u64>,
    previous: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    resources: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Does it. There is nothing to wait for.
pub(crate) fn run(flags: Flags, mut output: Output) -> Result<(), Failure> {
    match flags.command {
        Command::Ls { directory, json } => ls(&directory, json, &mut output),
        Command::Show { path, key } => show(&path, key.as_deref(), &mut output),
        Command::Verify { path } => verify(&path, &mut output),
        Command::Rm { path, key } => remove(&path, key.as_deref(), &mut output),
    }
}

fn ls(directory: &Path, json: bool, output: &mut Output) -> Result<(), Failure> {
    let files = last_good::list(directory).map_err(failure)?;
    if files.is_empty() && !json {
        return output.line(format_args!("no last-good files in {}", directory.display()));
    }
    for path in &files {
        let read = last_good::read(path);
        if json {
            output.json(&Line::new(path, read.as_ref()))?;
            continue;
        }
        match read {
            Ok(file) => output.line(describe(&file))?,
            Err(error) => output.line(output::styled(BAD, error))?,
        }
    }
    Ok(())
}

fn show(path: &Path, key: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    let files = chosen(path, key)?;
    let mut snapshot = Snapshot::default();
    for file in &files {
        for resource in &file.resources {
            let type_url = resource.resource.resource_type.type_url();
            snapshot.insert(Resource::new(type_url, &*resource.resource.name, resource.encoded.to_vec()));
        }
    }
    for file in &files {
        output.line(format_args!("# {}", describe_plainly(file)))?;
    }
    let yaml = snapshot.to_yaml().map_err(|error| Failure::failed(error.to_string()))?;
    output.exact(yaml.trim_end())
}

/// The newest files of one key, one for each authority.
fn chosen(path: &Path, key: Option<&str>) -> Result<Vec<LastGoodFile>, Failure> {
    if !path.is_dir() {
        return Ok(vec![last_good::read(path).map_err(failure)?]);
    }
    let mut files = Vec::new();
    for path in last_good::list(path).map_err(failure)? {
        files.push(last_good::read(path).map_err(failure)?);
    }
    files.retain(|file| !file.is_previous && key.is_none_or(|key| file.key == key));
    let mut keys: Vec<_> = files.iter().map(|file| file.key.clone()).collect();
    keys.sort();
    keys.dedup();
    let nodes = files.iter().map(|file| &file.node_id).collect::<std::collections::BTreeSet<_>>().len();
    match &keys[..] {
        [] => Err(match key {
            Some(key) => Failure::failed(format!("no last-good file of {key} in {}", path.display())),
            None => Failure::failed(format!("no last-good files in {}", path.display())),
        }),
        [_] if nodes == 1 => Ok(files),
        [key] => Err(Failure::failed(format!("{} has files of {key} for {nodes} nodes", path.display()))
            .tip("name one of the files that `mainstay last-good ls` lists")),
        several => Err(Failure::failed(format!("{} has files of {}", path.display(), several.join(", ")))
            .tip("choose one with --key")),
    }
}

fn verify(path: &Path, output: &mut Output) -> Result<(), Failure> {
    let files = paths(path)?;
    let mut bad = 0;
    for path in &files {
        match last_good::read(path) {
            Ok(file) => output.line(format_args!("good  {}", describe(&file)))?,
            Err(error) => {
                bad += 1;
                output.line(format_args!("{}   {error}", output::styled(BAD, "bad")))?;
            }
        }
    }
    match (bad, files.len()) {
        (0, 0) => Err(Failure::failed(format!("no last-good files in {}", path.display()))),
        (0, _) => Ok(()),
        (bad, all) => Err(Failure::failed(format!("{bad} of {all} files cannot be used"))
            .tip("`mainstay last-good rm` removes a file; it is written again by who runs with a control plane")),
    }
}

fn remove(path: &Path, key: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    for path in paths(path)? {
        // One that cannot be read is of no key.
        if key.is_some_and(|key| last_good::read(&path).map_or(true, |file| file.key != key)) {
            continue;
        }
        let gone = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        match fs::remove_file(&path) {
            Ok(()) => output.line(format_args!("removed {}", path.display()))?,
            Err(error) if gone(&error) => {}
            Err(error) => return Err(Failure::failed(format!("{}: cannot be removed: {error}", path.display()))),
        }
    }
    Ok(())
}

fn paths(path: &Path) -> Result<Vec<PathBuf>, Failure> {
    if path.is_dir() { last_good::list(path).map_err(failure) } else { Ok(vec![path.to_owned()]) }
}

fn failure(error: last_good::LastGoodError) -> Failure {
    Failure::failed(error.to_string())
}

fn describe(file: &LastGoodFile) -> String {
    let path = output::styled(DIM, file.path.display());
    format!("{}{}  {path}", output::styled(TITLE, &file.key), facts(file))
}

fn describe_plainly(file: &LastGoodFile) -> String {
    format!("{}{}", file.key, facts(file))
}

fn facts(file: &LastGoodFile) -> String {
    let authority = file.authority.as_ref().map(|name| format!(" authority {name}")).unwrap_or_default();
    let before = if file.is_previous { ", the one before" } else { "" };
    let (age, resources) = (humantime::format_duration(age(file)), file.resources.len());
    format!("{authority} for node {:?}: {resources} resources, {age} old{before}", file.node_id)
}

/// In whole seconds; zero if the clock was set back since.
fn age(file: &LastGoodFile) -> Duration {
    let age = SystemTime::now().duration_since(file.created_at).unwrap_or(Duration::ZERO);
    Duration::from_secs(age.as_secs())
}

impl<'a> Line<'a> {
    fn new(path: &'a Path, read: Result<&'a LastGoodFile, &last_good::LastGoodError>) -> Self {
        let file = read.ok();
        Self {
            path,
            key: file.map(|file| &*file.key),
            authority: file.and_then(|file| file.authority.as_deref()),
            node: file.map(|file| &*file.node_id),
            age_s: file.map(|file| age(file).as_secs()),
            previous: file.is_some_and(|file| file.is_previous),
            resources: file.map(|file| file.resources.len()),
            error: read.err().map(|error| error.reason.clone()),
        }
    }
}
