//! Comments that allow a finding: `# mainstay: allow MS302 because the second one is for the old name`.
//!
//! Before everything else in a document it is for all of it; elsewhere for what begins on its own line or on the next one
//! that is no comment, with everything that is indented below.

use crate::catalog::Id;
use crate::finding::Finding;

/// Leaves out what comments allow, and tells of comments that are of no use.
pub(crate) fn apply(texts: &[(String, String)], findings: Vec<Finding>) -> Vec<Finding> {
    let mut added = Vec::new();
    let mut allowances = Vec::new();
    for (file, text) in texts.iter().filter(|(_, text)| text.contains(MARK)) {
        for comment in comments(text) {
            match comment.ids {
                Ok(ids) => allowances.extend(ids.into_iter().map(|id| Allowance {
                    file,
                    line: comment.line,
                    first: comment.first,
                    last: comment.last,
                    id,
                    is_used: false,
                })),
                Err(problem) => added.push(Finding::in_file(Id::MS106, file, Some(comment.line as u64), problem)),
            }
        }
    }
    let mut kept: Vec<_> = findings.into_iter().filter(|finding| !allowed(finding, &mut allowances)).collect();
    kept.append(&mut added);
    for allowance in allowances.iter().filter(|allowance| !allowance.is_used) {
        let message = format!("this comment allows {}, which is not found here", allowance.id);
        kept.push(Finding::in_file(Id::MS107, allowance.file, Some(allowance.line as u64), message));
    }
    kept.sort();
    kept
}

struct Allowance<'t> {
    file: &'t str,
    line: usize,
    first: usize,
    last: usize,
    id: Id,
    is_used: bool,
}

fn allowed(finding: &Finding, allowances: &mut [Allowance<'_>]) -> bool {
    let Some(line) = finding.line.and_then(|line| usize::try_from(line).ok()) else { return false };
    let mut is_allowed = false;
    for allowance in allowances {
        let is_here = allowance.first <= line && line <= allowance.last;
        if allowance.file == finding.file && allowance.id == finding.id && is_here {
            allowance.is_used = true;
            is_allowed = true;
        }
    }
    is_allowed
}

struct Comment {
    line: usize,
    /// The lines that it is for.
    first: usize,
    last: usize,
    ids: Result<Vec<Id>, String>,
}

fn comments(text: &str) -> Vec<Comment> {
    let lines: Vec<&str> = text.lines().collect();
    let mut found = Vec::new();
    let mut in_head = true;
    for (i, line) in lines.iter().enumerate() {
        let own = line.trim_start().starts_with('#');
        if line.starts_with("---") {
            in_head = true;
        } else if !own && !line.trim().is_empty() {
            in_head = false;
        }
        let Some((_, rest)) = line.split_once('#').and_then(|(_, comment)| comment.split_once(MARK)) else { continue };
        let (first, last) = if own && in_head { (i, document_end(&lines, i)) } else { block(&lines, i, own) };
        found.push(Comment { line: i + 1, first: first + 1, last: last + 1, ids: ids(rest) });
    }
    found
}

/// The last line of the document.
fn document_end(lines: &[&str], from: usize) -> usize {
    (from + 1..lines.len()).find(|i| lines[*i].starts_with("---")).unwrap_or(lines.len()).saturating_sub(1)
}

/// The lines of what begins here or next, with everything below it.
fn block(lines: &[&str], at: usize, is_own_line: bool) -> (usize, usize) {
    let is_content = |line: &str| !line.trim().is_empty() && !line.trim_start().starts_with('#');
    let first = if is_own_line { (at + 1..lines.len()).find(|i| is_content(lines[*i])).unwrap_or(at) } else { at };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let is_item = |line: &str| line.trim_start().starts_with("- ");
    let below = |line: &str| {
        // A list may stand as far left as its key.
        indent(line) > indent(lines[first])
            || (indent(line) == indent(lines[first]) && is_item(line) && !is_item(lines[first]))
    };
    let end = (first + 1..lines.len()).find(|i| is_content(lines[*i]) && !below(lines[*i])).unwrap_or(lines.len());
    (first, end.saturating_sub(1).max(first))
}

fn ids(text: &str) -> Result<Vec<Id>, String> {
    let expected = "expected `# mainstay: allow MS302 because REASON`";
    let Some((ids, reason)) = text.split_once(" because ") else {
        return Err(format!("this comment says no reason and allows nothing: {expected}"));
    };
    if reason.trim().is_empty() {
        return Err(format!("this comment says no reason and allows nothing: {expected}"));
    }
    let ids = ids.split([',', ' ']).filter(|id| !id.is_empty());
    let ids: Result<Vec<Id>, String> =
        ids.map(|id| Id::from_name(id).ok_or_else(|| format!("there is no check {id:?}: {expected}"))).collect();
    ids.and_then(|ids| if ids.is_empty() { Err(expected.to_owned()) } else { Ok(ids) })
}

const MARK: &str = "mainstay: allow";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_for_what_begins_next_with_everything_below() {
        let text = "\
resources:
  # mainstay: allow MS301 because it is kept for the old clients
  - a: 1
    b:
      c: 2
  - d: 3
e: 4 # mainstay: allow MS302, MS303 because of this";
        let comments = comments(text);
        let scopes: Vec<_> = comments.iter().map(|comment| (comment.first, comment.last)).collect();
        assert_eq!(scopes, [(3, 5), (7, 7)]);
        assert_eq!(comments[1].ids, Ok(vec![Id::MS302, Id::MS303]));
    }

    #[test]
    fn at_the_head_of_a_document_it_is_for_all_of_it() {
        let text = "# mainstay: allow MS301 because\n# mainstay: allow MS301 because x\na: 1\nb: 2\n---\nc: 3\n";
        let comments = comments(text);
        assert!(comments[0].ids.is_err(), "no reason");
        assert_eq!((comments[1].first, comments[1].last), (2, 4));
    }

    #[test]
    fn what_cannot_be_understood_allows_nothing() {
        assert!(ids(" MS999 because x").is_err());
        assert!(ids(" because x").is_err());
        assert!(ids(" MS301").is_err());
    }
}
