//! The rules in `docs/rules` and where they are cited.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::Source;

/// Where the rules are.
pub const DIRECTORY: &str = "docs/rules/";

/// The page that lists the rules that no test cites.
pub const UNTESTED: &str = "docs/rules/UNTESTED.md";

/// The name of a rule: `P-55`, or `C-23a` for a row of a table or a lettered part of its text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleId {
    /// The letters that say which file it is in.
    pub prefix: String,
    /// The number.
    pub number: u32,
    /// The letter of a part, if any.
    pub part: Option<char>,
}

impl std::fmt::Display for RuleId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.prefix, self.number)?;
        self.part.map_or(Ok(()), |part| write!(f, "{part}"))
    }
}

/// A rule as the digest has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The file that defines it.
    pub path: String,
    /// Its text, on one line.
    pub text: String,
}

/// A place that names a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Citation {
    /// The file.
    pub path: String,
    /// The line, from 1.
    pub line: usize,
    /// The rule.
    pub rule: RuleId,
    /// Whether it is a test that names it.
    pub by_test: bool,
}

/// The rules that the digest defines: items of lists, rows of tables and headings that begin with an id.
pub fn defined(sources: &[Source]) -> BTreeMap<RuleId, Rule> {
    let mut rules = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with(DIRECTORY) && source.path != UNTESTED) {
        for line in source.text.lines() {
            let Some(item) = ["- ", "| ", "### "].iter().find_map(|bullet| line.trim_start().strip_prefix(bullet))
            else {
                continue;
            };
            let item = item.trim_start_matches('*');
            let Some((0, end, rule)) = ids(item).next() else { continue };
            // A range ("P-7, P-8") or a cross-reference in a table is not a definition.
            let text = item[end..].trim_start_matches('*');
            if text.starts_with([' ', ':']) && !text.trim_start().starts_with(['…', ',', '.']) {
                let text = text.trim_matches([' ', ':', '|']).to_owned();
                rules.entry(rule).or_insert(Rule { path: source.path.clone(), text });
            }
        }
    }
    rules
}

/// Every mention, outside of the digest, of an id with one of the digest's prefixes; the name of a test may begin or
/// end with some, as `what_is_bad_is_rejected_p37_c30`.
pub fn citations(sources: &[Source], rules: &BTreeMap<RuleId, Rule>) -> Vec<Citation> {
    let prefixes: BTreeSet<&str> = rules.keys().map(|rule| rule.prefix.as_str()).collect();
    let mut citations = Vec::new();
    for source in sources.iter().filter(|source| !source.path.starts_with(DIRECTORY)) {
        let mut is_test_next = false;
        for (index, line) in source.text.lines().enumerate() {
            let mut cite = |rule: RuleId, by_test| {
                if prefixes.contains(rule.prefix.as_str()) {
                    citations.push(Citation { path: source.path.clone(), line: index + 1, rule, by_test });
                }
            };
            ids(line).for_each(|(_, _, rule)| cite(rule, is_test(&source.path)));
            let code = line.trim_start();
            if let Some(name) = function(code).filter(|_| is_test_next) {
                ids_of_name(name).for_each(|rule| cite(rule, true));
            }
            // Other attributes may stand between the two.
            is_test_next = code.starts_with("#[test]")
                || code.starts_with("#[tokio::test")
                || (is_test_next && code.starts_with("#["));
        }
    }
    citations
}

/// Whether the digest has the rule: itself, or the one that it is a part of.
pub fn exists(rules: &BTreeMap<RuleId, Rule>, rule: &RuleId) -> bool {
    let has_parts =
        |rule: &RuleId| rules.keys().any(|other| other.prefix == rule.prefix && other.number == rule.number);
    rules.contains_key(rule) || has_parts(rule)
}

/// The page about the rules that no test cites.
pub fn untested_page(rules: &BTreeMap<RuleId, Rule>, citations: &[Citation]) -> String {
    let tested: BTreeSet<(&str, u32)> = citations
        .iter()
        .filter(|citation| citation.by_test)
        .map(|citation| (citation.rule.prefix.as_str(), citation.rule.number))
        .collect();
    let mut open: BTreeMap<&str, Vec<(&RuleId, &Rule)>> = BTreeMap::new();
    for (id, rule) in rules.iter().filter(|(id, _)| !tested.contains(&(id.prefix.as_str(), id.number))) {
        open.entry(&rule.path).or_default().push((id, rule));
    }
    let count: usize = open.values().map(Vec::len).sum();
    let mut page = format!(
        "# Rules that no test cites\n\n{count} of {} rules. Some only define words or describe other implementations, some are not \
         built yet, and some are\nkept without being named. Made by `UPDATE=1 cargo test -p mainstay-checks`.\n",
        rules.len()
    );
    for (path, rules) in open {
        let file = path.trim_start_matches(DIRECTORY);
        let _ = write!(page, "\n## [{file}]({file})\n\n");
        for (id, rule) in rules {
            let _ = writeln!(page, "- {id}: {}", opening(&rule.text));
        }
    }
    page
}

/// The first words of a text.
fn opening(text: &str) -> String {
    const WORDS: usize = 14;
    let mut words: Vec<&str> = text.split_whitespace().take(WORDS + 1).collect();
    let is_cut = words.len() > WORDS;
    words.truncate(WORDS);
    words.join(" ") + if is_cut { " …" } else { "" }
}

fn is_test(path: &str) -> bool {
    path.contains("/tests/")
        || path.ends_with("tests.rs")
        || path.starts_with("crates/sim/")
        || path.starts_with("interop/")
}

/// The name of the function that begins in this line.
fn function(code: &str) -> Option<&str> {
    let name = code.strip_prefix("async ").unwrap_or(code).strip_prefix("fn ")?;
    name.split_once('(').map(|(name, _)| name)
}

/// The ids that the name of a test begins and ends with.
fn ids_of_name(name: &str) -> impl Iterator<Item = RuleId> + '_ {
    name.split('_').map_while(id_of_word).chain(name.rsplit('_').map_while(id_of_word))
}

/// All of the word is an id: a number is none, nor is a word with a number in it.
fn id_of_word(word: &str) -> Option<RuleId> {
    let letters = word.chars().take_while(char::is_ascii_lowercase).count();
    let id = format!("{}-{}", word[..letters].to_ascii_uppercase(), &word[letters..]);
    ids(&id).find(|(begin, end, _)| (*begin, *end) == (0, id.len())).map(|(_, _, rule)| rule)
}

/// The ids in a line, with where they begin and end.
fn ids(line: &str) -> impl Iterator<Item = (usize, usize, RuleId)> + '_ {
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    line.match_indices('-').filter_map(move |(dash, _)| {
        let letters = line[..dash].chars().rev().take_while(char::is_ascii_uppercase).count();
        let begin = dash - letters;
        let after = &line[dash + 1..];
        let digits = after.chars().take_while(char::is_ascii_digit).count();
        let number = after[..digits].parse().ok()?;
        let part = after[digits..].chars().next().filter(char::is_ascii_lowercase);
        let end = dash + 1 + digits + part.map_or(0, char::len_utf8);
        let is_apart = !line[..begin].ends_with(is_word) && !line[end..].starts_with(is_word);
        let rule = RuleId { prefix: line[begin..dash].to_owned(), number, part };
        ((1..=2).contains(&letters) && is_apart).then_some((begin, end, rule))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source { path: (*path).to_owned(), text: (*text).to_owned() }).collect()
    }

    fn names(ids: impl IntoIterator<Item = RuleId>) -> Vec<String> {
        ids.into_iter().map(|id| id.to_string()).collect()
    }

    #[test]
    fn items_of_lists_and_rows_of_tables_define_rules() {
        let digest = "- P-1 [XP] One.\n  - P-2: two\n| C-23a | row |\n- **D-3** bold\ntext P-9\n- see P-8\n| P-7, P-8 | both |\n| P-1 … P-97 | range |";
        let rules = defined(&tree(&[("docs/rules/01.md", digest)]));
        assert_eq!(names(rules.into_keys()), ["C-23a", "D-3", "P-1", "P-2"]);
    }

    #[test]
    fn a_citation_of_a_rule_that_does_not_exist_is_found() {
        let sources =
            tree(&[("docs/rules/01.md", "- P-57 (a) one"), ("a.rs", "x\n// P-57a, P-58 and UTF-8, XP-57, P-57-x")]);
        let rules = defined(&sources);
        let cited = citations(&sources, &rules);
        assert_eq!(names(cited.iter().map(|c| c.rule.clone())), ["P-57a", "P-58"]);
        let lost: Vec<_> = cited.iter().filter(|citation| !exists(&rules, &citation.rule)).collect();
        assert_eq!(lost, [&Citation { path: "a.rs".to_owned(), line: 2, rule: cited[1].rule.clone(), by_test: false }]);
    }

    #[test]
    fn the_name_of_a_test_cites_what_it_begins_and_ends_with() {
        let text = "    #[tokio::test]\n    #[cfg(unix)]\n    async fn two_h2_rules_p57_p58a() {}\nfn helper_p57() {}\n\
                    #[test]\nfn over_http2() {}\n#[test]\nfn p58_of_2_p9() {}\n#[test]\nfn without() {}";
        let sources =
            tree(&[("docs/rules/01.md", "- P-57 One.\n- P-58 Two.\n- H-2 No."), ("crates/x/src/lib.rs", text)]);
        let cited = citations(&sources, &defined(&sources));
        let found: Vec<_> = cited.iter().map(|c| (c.line, c.rule.to_string(), c.by_test)).collect();
        let expected = [(3, "P-58a", true), (3, "P-57", true), (8, "P-58", true), (8, "P-9", true)];
        assert_eq!(found, expected.map(|(line, rule, by_test)| (line, rule.to_owned(), by_test)));
    }

    #[test]
    fn rules_are_untested_until_a_test_names_them() {
        let sources = tree(&[
            ("docs/rules/01.md", "- P-1 First rule.\n- P-2 Second rule."),
            ("crates/x/src/lib.rs", "// P-1 P-2"),
            ("crates/x/src/tests.rs", "// P-2"),
        ]);
        let rules = defined(&sources);
        let page = untested_page(&rules, &citations(&sources, &rules));
        assert!(
            page.contains("1 of 2 rules") && page.contains("- P-1: First rule.") && !page.contains("P-2"),
            "{page}"
        );
    }
}
