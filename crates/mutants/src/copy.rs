//! The copy of the cores and the simulator that has the mutants in it: a workspace of its own under `target`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::mutant::Mutant;
use crate::rewrite::Rewritten;

/// Where things are.
pub(crate) struct Copy {
    /// The workspace that is copied.
    root: PathBuf,
    /// The copy.
    pub(crate) at: PathBuf,
    /// What cargo makes of it.
    build: PathBuf,
    /// Source files with mutants in them, by their path from the root.
    rewritten: BTreeMap<String, Rewritten>,
}

/// What a build gave.
pub(crate) enum Built {
    /// Executables by the name of their package.
    Executables(BTreeMap<String, PathBuf>),
    /// Mutants without which it may succeed.
    Blamed(BTreeSet<u32>),
}

impl Copy {
    pub(crate) fn new(root: &Path) -> Self {
        let under = root.join("target/mutants");
        Self { root: root.to_owned(), at: under.join("copy"), build: under.join("build"), rewritten: BTreeMap::new() }
    }

    /// Writes the copy with these mutants in it. Files that stay the same are not touched.
    ///
    /// # Errors
    /// If something cannot be read or written.
    pub(crate) fn write(&mut self, mutants: &[(u32, &Mutant)]) -> io::Result<()> {
        let mut by_file: BTreeMap<&str, Vec<(u32, &Mutant)>> = BTreeMap::new();
        for (number, mutant) in mutants {
            by_file.entry(&mutant.file).or_default().push((*number, mutant));
        }
        self.rewritten.clear();
        let mut kept = BTreeSet::new();
        for name in COPIED {
            for file in files(&self.root.join("crates").join(name))? {
                let path = from_root(&self.root, &file);
                let mut text = std::fs::read(&file)?;
                if path.ends_with("/Cargo.toml") {
                    text = with_switch(&String::from_utf8_lossy(&text)).into_bytes();
                } else if let Some(mutants) = by_file.get(path.as_str()) {
                    let rewritten = Rewritten::new(&String::from_utf8_lossy(&text), mutants);
                    text = rewritten.text.clone().into_bytes();
                    self.rewritten.insert(path.clone(), rewritten);
                }
                self.put(&path, &text)?;
                kept.insert(path);
            }
        }
        let manifest = std::fs::read_to_string(self.root.join("Cargo.toml"))?;
        self.put("Cargo.toml", workspace(&manifest).as_bytes())?;
        if !self.at.join("Cargo.lock").exists() {
            self.put("Cargo.lock", &std::fs::read(self.root.join("Cargo.lock"))?)?;
        }
        self.put("crates/mutant/Cargo.toml", SWITCH_MANIFEST.as_bytes())?;
        self.put("crates/mutant/src/lib.rs", SWITCH.as_bytes())?;
        for file in files(&self.at.join("crates"))? {
            let path = from_root(&self.at, &file);
            if !kept.contains(&path) && !path.starts_with("crates/mutant/") {
                std::fs::remove_file(file)?;
            }
        }
        Ok(())
    }

    /// Keys of mutants that did not compile in the last runs.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub(crate) fn refused(&self) -> io::Result<BTreeSet<String>> {
        match std::fs::read_to_string(self.build.with_file_name("refused")) {
            Ok(text) => Ok(text.lines().map(str::to_owned).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(BTreeSet::new()),
            Err(error) => Err(error),
        }
    }

    /// Remembers them.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn refuse(&self, keys: &BTreeSet<String>) -> io::Result<()> {
        let lines: Vec<&str> = keys.iter().map(String::as_str).collect();
        std::fs::write(self.build.with_file_name("refused"), lines.join("\n"))
    }

    /// Builds what the arguments of cargo name.
    ///
    /// # Errors
    /// If cargo does not run, or fails for another reason than a mutant.
    pub(crate) fn build(&self, arguments: &[&str]) -> io::Result<Built> {
        let output = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
            .args(arguments)
            .args(["--offline", "--message-format=json"])
            .current_dir(&self.at)
            .env("CARGO_TARGET_DIR", &self.build)
            .stderr(std::process::Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let messages: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if output.status.success() {
            let executables = messages.iter().filter_map(|message| {
                let executable = message["executable"].as_str()?;
                Some((package(message["package_id"].as_str()?), PathBuf::from(executable)))
            });
            return Ok(Built::Executables(executables.collect()));
        }
        let errors = messages.iter().map(|message| &message["message"]).filter(|message| message["level"] == "error");
        let blamed: BTreeSet<u32> = errors.clone().flat_map(|error| self.blame(error)).collect();
        if blamed.is_empty() {
            let texts = errors.filter_map(|error| error["rendered"].as_str()).collect::<String>();
            return Err(io::Error::other(format!("the copy cannot be built:\n{texts}")));
        }
        Ok(Built::Blamed(blamed))
    }

    /// The mutant to drop for an error: the innermost one around it, or else the nearest.
    fn blame(&self, error: &Value) -> Option<u32> {
        let mut primary = Vec::new();
        let mut others = Vec::new();
        places(error, &mut primary, &mut others);
        let around = |(file, place): &(String, Range<usize>)| self.rewritten.get(file)?.around(place).first().copied();
        if let Some(found) = primary.iter().find_map(around).or_else(|| others.iter().find_map(around)) {
            return Some(found);
        }
        let near = primary.iter().chain(&others).flat_map(|(file, place)| {
            let places = self.rewritten.get(file).map(|rewritten| &rewritten.places[..]).unwrap_or_default();
            places.iter().map(|(number, other)| (other.start.abs_diff(place.start), *number))
        });
        near.min().map(|(_, number)| number)
    }

    fn put(&self, path: &str, content: &[u8]) -> io::Result<()> {
        let path = self.at.join(path);
        if std::fs::read(&path).is_ok_and(|old| old == content) {
            return Ok(());
        }
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent)?;
        }
        std::fs::write(path, content)
    }
}

/// Where an error of rustc is, those that it calls primary apart from the others.
fn places(error: &Value, primary: &mut Vec<(String, Range<usize>)>, others: &mut Vec<(String, Range<usize>)>) {
    for span in error["spans"].as_array().into_iter().flatten() {
        let mut span = span;
        let is_primary = span["is_primary"] == true;
        while !span.is_null() {
            let offset = |name: &str| span[name].as_u64().and_then(|at| usize::try_from(at).ok()).unwrap_or_default();
            let place =
                (span["file_name"].as_str().unwrap_or_default().to_owned(), offset("byte_start")..offset("byte_end"));
            if is_primary { &mut *primary } else { &mut *others }.push(place);
            span = &span["expansion"]["span"];
        }
    }
    for child in error["children"].as_array().into_iter().flatten() {
        let mut of_child = Vec::new();
        places(child, &mut of_child, others);
        others.append(&mut of_child);
    }
}

/// All files under a directory, or the file itself, or none if it is not there.
pub(crate) fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        if directory.is_file() {
            found.push(directory);
            continue;
        }
        if !directory.exists() {
            continue;
        }
        for entry in std::fs::read_dir(directory)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() { left.push(entry.path()) } else { found.push(entry.path()) }
        }
    }
    found.sort();
    Ok(found)
}

/// A path from the root, with slashes.
pub(crate) fn from_root(root: &Path, file: &Path) -> String {
    let parts = file.strip_prefix(root).unwrap_or(file).components();
    parts.map(|part| part.as_os_str().to_string_lossy().into_owned()).collect::<Vec<_>>().join("/")
}

/// The manifest of the workspace for the copy: its own members, no lints, as mutants are not meant to please them, and
/// what is quick to build, as most mutants are noticed at once.
fn workspace(manifest: &str) -> String {
    let mut text = String::new();
    let mut in_lints = false;
    for line in manifest.lines() {
        if line.starts_with('[') {
            in_lints = line.starts_with("[workspace.lints");
        }
        match line {
            _ if in_lints => {}
            _ if line.starts_with("members = ") => text.push_str("members = [\"crates/*\"]\n"),
            _ if line.starts_with("exclude = ") => {}
            _ if line.starts_with("debug = \"line-tables-only\"") => text.push_str("debug = false\n"),
            _ if line.starts_with("opt-level = 3") => text.push_str("opt-level = 1\n"),
            _ => text.extend([line, "\n"]),
        }
    }
    text + "\n[workspace.lints.rust]\nwarnings = \"allow\"\n"
}

/// The manifest of a crate with the switch among its dependencies.
fn with_switch(manifest: &str) -> String {
    manifest.replacen("[dependencies]\n", "[dependencies]\nmutant = { path = \"../mutant\" }\n", 1)
}

/// The name of a package: `path+file:///somewhere/crates/xds#mainstay-xds@0.1.0`.
fn package(id: &str) -> String {
    let name = id.rsplit('#').next().unwrap_or(id);
    name.split('@').next().unwrap_or(name).to_owned()
}

/// Crates that are copied.
const COPIED: [&str; 3] = ["xds", "lb", "sim"];

const SWITCH: &str = include_str!("../switch/lib.rs");
const SWITCH_MANIFEST: &str = "[package]\nname = \"mutant\"\nversion = \"0.0.0\"\nedition = \"2024\"\n";
