//! Which modules of a crate use each other, read from the paths in their sources.
//!
//! Siblings are compared at every level of the module tree: a module stands for itself and all below it. A child that
//! uses what its parent defines is no cycle: together they are one room.

use std::collections::{BTreeMap, BTreeSet};

use crate::Source;

type Path = Vec<String>;

/// Modules that use each other in a circle.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Knot {
    /// The module that they are children of, from the crate on.
    pub parent: String,
    /// Their names.
    pub modules: Vec<String>,
}

/// The knots of the crate whose sources lie in `directory` (`crates/xds/src/`). Tests may know everything.
pub fn knots(sources: &[Source], name: &str, directory: &str) -> Vec<Knot> {
    let files: BTreeMap<Path, &str> = sources
        .iter()
        .filter_map(|source| Some((module(source.path.strip_prefix(directory)?)?, source.text.as_str())))
        .collect();
    let mut uses: BTreeMap<Path, BTreeMap<String, BTreeSet<String>>> = BTreeMap::new();
    for (from, text) in &files {
        for to in used(from, text, &files) {
            let shared = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
            if let (Some(user), Some(used)) = (from.get(shared), to.get(shared)) {
                uses.entry(from[..shared].to_vec()).or_default().entry(user.clone()).or_default().insert(used.clone());
            }
        }
    }
    let mut knots = Vec::new();
    for (parent, uses) in uses {
        let parent = [&[name.to_owned()], &parent[..]].concat().join("::");
        knots.extend(circles(&uses).into_iter().map(|modules| Knot { parent: parent.clone(), modules }));
    }
    knots
}

/// The module that a file is, unless it holds tests or generated code.
fn module(path: &str) -> Option<Path> {
    let mut parts: Path = path.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        parts.pop();
    }
    let is_apart = |part: &String| matches!(part.as_str(), "tests" | "testbed" | "generated");
    (!parts.iter().any(is_apart)).then_some(parts)
}

/// The modules that the code of a file names.
fn used(from: &Path, text: &str, files: &BTreeMap<Path, &str>) -> BTreeSet<Path> {
    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
    let code: String =
        text.lines().map(|line| line.split("//").next().unwrap_or_default()).collect::<Vec<_>>().join("\n");
    let mut paths = Vec::new();
    for item in code.split(';') {
        if let Some((_, tree)) = item.rsplit_once("use ") {
            flatten(&[], tree, &mut paths);
        }
    }
    for start in ["crate::", "super::"] {
        for (at, _) in code.match_indices(start) {
            let end = code[at..].find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':')).unwrap_or_default();
            paths.push(code[at..at + end].split("::").map(str::to_owned).collect());
        }
    }
    paths.into_iter().filter_map(|path| resolve(from, &path, files)).collect()
}

/// Writes out `a::{b, c::{d, e}}` as the paths in it.
fn flatten(prefix: &[String], tree: &str, paths: &mut Vec<Path>) {
    let tree = tree.trim();
    let (head, group) = match tree.split_once('{') {
        Some((head, group)) => (head.trim_end_matches("::"), group.strip_suffix('}')),
        None => (tree.split(" as ").next().unwrap_or_default(), None),
    };
    let parts = head.split("::").map(str::trim).filter(|part| !part.is_empty()).map(str::to_owned);
    let path: Path = prefix.iter().cloned().chain(parts).collect();
    let Some(group) = group else { return paths.push(path) };
    let (mut depth, mut begin) = (0, 0);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                flatten(&path, &group[begin..at], paths);
                begin = at + 1;
            }
            _ => {}
        }
    }
    flatten(&path, &group[begin..], paths);
}

/// The module that a path leads into.
fn resolve(from: &Path, path: &[String], files: &BTreeMap<Path, &str>) -> Option<Path> {
    let supers = path.iter().take_while(|part| *part == "super").count();
    let mut to: Path = match path.first()?.as_str() {
        "crate" => path[1..].to_vec(),
        "super" => [&from[..from.len().checked_sub(supers)?], &path[supers..]].concat(),
        _ => [&from[..], path].concat(),
    };
    let is_local = path.first().is_some_and(|first| first == "crate" || first == "super");
    while !files.contains_key(&to) {
        to.pop()?;
    }
    // A path that begins with another name is one of ours only if it leads to a child.
    (is_local || to.len() > from.len()).then_some(to)
}

/// The groups of two and more that reach each other.
fn circles(uses: &BTreeMap<String, BTreeSet<String>>) -> Vec<Vec<String>> {
    let reach = |from: &String| {
        let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
        while let Some(next) = open.pop() {
            for used in uses.get(next).into_iter().flatten() {
                if seen.insert(used) {
                    open.push(used);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> = uses.keys().map(|module| (module, reach(module))).collect();
    let mut circles: BTreeSet<Vec<String>> = BTreeSet::new();
    for (module, others) in &reached {
        let is_mutual = |other: &&&String| reached.get(**other).is_some_and(|back| back.contains(module));
        let circle: Vec<String> = others.iter().filter(is_mutual).map(|other| (*other).clone()).collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<(String, String)> {
        let sources: Vec<Source> =
            files.iter().map(|(path, text)| Source { path: format!("src/{path}"), text: (*text).to_owned() }).collect();
        knots(&sources, "x", "src/").into_iter().map(|knot| (knot.parent, knot.modules.join(" "))).collect()
    }

    #[test]
    fn modules_that_use_each_other_are_a_knot() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c; mod d;"),
            ("a.rs", "use crate::b::{One, two::Two};\nuse std::fmt;"),
            ("b.rs", "use std::{io,\n crate_not::X};\nfn f() { super::c::g() }"),
            ("b/two.rs", ""),
            ("c.rs", "use super::{a::A as B, d::D};"),
            ("d.rs", "// crate::a is only talked about"),
        ];
        assert_eq!(found(&files), [("x".to_owned(), "a b c".to_owned())]);
    }

    #[test]
    fn siblings_are_compared_at_every_level_and_parents_are_not() {
        let files = [
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod b; mod c;\nuse b::B;\npub struct A;"),
            ("a/b.rs", "use super::{A, c::C};"),
            ("a/c.rs", "use crate::a::b::B;"),
        ];
        assert_eq!(found(&files), [("x::a".to_owned(), "b c".to_owned())]);
    }

    #[test]
    fn tests_may_use_everything() {
        let files = [
            ("a.rs", "#[cfg(test)]\nmod tests {\n use crate::b::B; }"),
            ("a/tests.rs", "use crate::b::B;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(found(&files), []);
    }
}
