//! What of the public API users have and would lose, and whether the changelog tells them.

use std::collections::BTreeSet;

/// How a line of the changelog begins that tells of a break.
pub const WORD: &str = "- Breaking: ";

/// The items of one written API that are not in another: gone, or of another form. Attributes in front are no part of the form.
pub fn lost(before: &str, after: &str) -> Vec<String> {
    let items = |page: &str| -> BTreeSet<String> { page.lines().map(|line| bare(line).to_owned()).collect() };
    let (before, after) = (items(before), items(after));
    before.difference(&after).cloned().collect()
}

/// What the changelog does not say: a break since the release `version` has to be told above its section.
pub fn untold(lost: &[String], changelog: &str, version: &str) -> Option<String> {
    let heading = format!("## [{version}]");
    let since = changelog.split_once(&heading).map_or(changelog, |(since, _)| since);
    if lost.is_empty() || since.lines().any(|line| line.starts_with(WORD)) {
        return None;
    }
    Some(format!(
        "users of {version} lose this, and no line of CHANGELOG.md begins with {WORD:?}:\n{}",
        lost.join("\n")
    ))
}

fn bare(line: &str) -> &str {
    let mut line = line;
    while let Some((_, rest)) = line.strip_prefix("#[").and_then(|rest| rest.split_once("] ")) {
        line = rest;
    }
    line
}
