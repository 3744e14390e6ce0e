//! The book in `docs`: which pages there are, what they link to, and those that are written from the code.

use std::collections::BTreeSet;
use std::path::Path;

use crate::Source;

mod differences;
mod reference;

pub use differences::differences;
pub use reference::{bootstrap, events, metrics};

/// The table of contents.
pub const SUMMARY: &str = "docs/SUMMARY.md";

/// Where the code on the pages is compiled.
pub const COMPILED: &str = "examples/src/book.rs";

/// The first line of a page that a test writes, after its title.
fn written_from(sources: &str) -> String {
    format!("Written by a test from {sources}: `UPDATE=1 cargo test -p mainstay-checks --test book` writes it anew.\n")
}

/// Pages below `docs` that the table of contents lacks, and entries of it without a page.
pub fn strays(sources: &[Source]) -> Vec<String> {
    let pages = sources.iter().map(|source| source.path.as_str());
    let pages: BTreeSet<&str> =
        pages.filter(|path| path.starts_with("docs/") && path.ends_with(".md") && *path != SUMMARY).collect();
    let summary = sources.iter().find(|source| source.path == SUMMARY).map_or("", |source| source.text.as_str());
    let listed: BTreeSet<String> = links(summary).into_iter().map(|(_, link)| format!("docs/{link}")).collect();
    let missing =
        pages.iter().filter(|page| !listed.contains(**page)).map(|page| format!("{page} is not in {SUMMARY}"));
    let gone = listed.iter().filter(|page| !pages.contains(page.as_str()));
    missing.chain(gone.map(|page| format!("{SUMMARY} names {page}, which is not there"))).collect()
}

/// Links of prose to files and headings that are not there. `exists` says whether a path from the root of the repository is a file or a
/// directory. Pages of the book must not lead out of it, as it is read without the repository, too.
pub fn dead_links(sources: &[Source], exists: impl Fn(&str) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for source in sources.iter().filter(|source| source.path.ends_with(".md")) {
        for (line, link) in links(&source.text) {
            let mut fault = |what: &str| dead.push(format!("{}:{line}: {link}: {what}", source.path));
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let path = if file.is_empty() { source.path.clone() } else { joined(&source.path, file) };
            if source.path.starts_with("docs/") && !path.starts_with("docs/") {
                fault("leads out of the book");
            } else if !exists(&path) {
                fault("is not there");
            } else if !heading.is_empty() {
                let target =
                    sources.iter().find(|source| source.path == path).map_or("", |source| source.text.as_str());
                if !headings(target).contains(heading) {
                    fault("there is no such heading");
                }
            }
        }
    }
    dead
}

/// Blocks of Go in the book that are not, word for word, in a file of Go that is built.
pub fn foreign_go(sources: &[Source]) -> Vec<String> {
    let go: Vec<&str> =
        sources.iter().filter(|source| source.path.ends_with(".go")).map(|source| source.text.as_str()).collect();
    let mut foreign = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("docs/")) {
        for (line, block) in blocks(&source.text, "go") {
            // Functions that are not neighbours there are separated by an empty line here.
            let lost = block.split("\n\n").find(|part| !go.iter().any(|text| text.contains(part.trim_end())));
            if let Some(lost) = lost {
                foreign.push(format!("{}:{line}: {}", source.path, lost.lines().next().unwrap_or("")));
            }
        }
    }
    foreign
}

/// Blocks of the book whose language says neither that they are run nor that they are not: `console` is run by `.ci/follow`, `rust`
/// is compiled, and a block `sh` says in its first line why it is not run.
pub fn unclear_blocks(sources: &[Source]) -> Vec<String> {
    let mut unclear = Vec::new();
    for source in sources.iter().filter(|source| source.path.starts_with("docs/")) {
        for (line, language, block) in all_blocks(&source.text) {
            let name = language.split(',').next().unwrap_or("");
            let fault = match name {
                "sh" if block.starts_with("# needs ") => continue,
                "sh" => "must begin with \"# needs …\", or be of \"console\"",
                "bash" | "shell" => "is neither \"console\" nor \"sh\"",
                "" => "has no language",
                "rust" if language != "rust,no_run" && source.path != "docs/five-minutes.md" => "is not compiled",
                _ => continue,
            };
            unclear.push(format!("{}:{line}: a block {fault}", source.path));
        }
    }
    unclear
}

/// Pages with code in Rust that the examples do not compile as their documentation.
pub fn uncompiled(sources: &[Source]) -> Vec<String> {
    let compiled = sources.iter().find(|source| source.path == COMPILED).map_or("", |source| source.text.as_str());
    let rust = |source: &&Source| source.path.starts_with("docs/") && source.text.contains("\n```rust,no_run");
    let pages = sources.iter().filter(rust).filter(|page| !compiled.contains(&format!("../../{}\"", page.path)));
    pages.map(|page| format!("{} is not in {COMPILED}", page.path)).collect()
}

/// The links of a page, each with its line, as written; those in code are none.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            code = !code;
        }
        if code {
            continue;
        }
        let line = without_code(line);
        for (at, _) in line.match_indices(" src=\"") {
            found.extend(line[at + 6..].split_once('"').map(|(link, _)| (number + 1, link.to_owned())));
        }
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            // A name in brackets may be followed by something in parentheses that is no link.
            if let Some((link, _)) = rest.split_once(')').filter(|(link, _)| !link.contains(' ')) {
                found.push((number + 1, link.to_owned()));
            }
        }
    }
    found
}

/// A line with what stands between backticks replaced by nothing.
fn without_code(line: &str) -> String {
    line.split('`').enumerate().map(|(i, part)| if i % 2 == 0 { part } else { "" }).collect()
}

/// The headings of a page, as links name them.
fn headings(text: &str) -> BTreeSet<String> {
    let titles = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    titles.map(anchor).collect()
}

fn anchor(title: &str) -> String {
    let kept = title.to_lowercase();
    let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

fn blocks<'a>(text: &'a str, language: &str) -> Vec<(usize, &'a str)> {
    all_blocks(text).into_iter().filter(|(_, of, _)| *of == language).map(|(line, _, block)| (line, block)).collect()
}

/// The blocks of code of a page: line, language and text.
fn all_blocks(text: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    let mut open: Option<(usize, &str, usize)> = None;
    let mut at = 0;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        if let Some(language) = line.trim_end().strip_prefix("```") {
            match open.take() {
                None => open = Some((number + 1, language, at + line.len())),
                Some((begin, language, from)) => found.push((begin, language, &text[from..at])),
            }
        }
        at += line.len();
    }
    found
}

/// `link` as seen from the directory of `page`, without `.` and `..`.
fn joined(page: &str, link: &str) -> String {
    let directory = Path::new(page).parent().and_then(Path::to_str).unwrap_or("");
    let mut parts: Vec<&str> = directory.split('/').filter(|part| !part.is_empty()).collect();
    for part in link.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}
