//! What happened between two looks at a process.

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use serde::Serialize;

use super::watched::{Health, Watched};
use crate::inspect::{Client, Process};

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Entry {
    /// When it was seen, in milliseconds since 1970.
    pub(super) at_ms: u64,
    pub(super) process: String,
    /// The target of the client that it happened to.
    pub(super) client: Option<String>,
    pub(super) level: Health,
    pub(super) text: String,
}

/// What became of a process, the most telling last.
pub(super) fn differences(before: &Watched, after: &Watched, now: SystemTime) -> Vec<Entry> {
    let at_ms = now.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let mut found: Vec<(Health, Option<String>, String)> = Vec::new();
    if before.error.is_none() != after.error.is_none() {
        found.push(match &after.error {
            Some(error) => (Health::Bad, None, format!("does not answer: {error}")),
            None => (Health::Good, None, "answers again".to_owned()),
        });
    }
    if let (Some(old), Some(new), None) = (&before.held, &after.held, &after.error) {
        of_process(old, new, &mut found);
    }
    if before.health != after.health && before.health != Health::Unknown && after.error.is_none() {
        found.push((after.health, None, format!("{}, was: {}", after.words, before.words)));
    }
    let entry = |(level, client, text)| Entry { at_ms, process: after.address.clone(), client, level, text };
    found.into_iter().map(entry).collect()
}

fn of_process(old: &Process, new: &Process, found: &mut Vec<(Health, Option<String>, String)>) {
    for channel in new.channels.iter().flatten() {
        // Those to xDS servers tell of every attempt; what comes of them is told below.
        let is_client = new.clients.iter().any(|client| client.row.target.as_ref() == Some(&channel.target));
        let before = old.channels.iter().flatten().find(|other| other.target == channel.target);
        let Some(before) = before.filter(|_| is_client) else { continue };
        for event in fresh(&before.trace, &channel.trace) {
            found.push((Health::Unknown, Some(channel.target.clone()), event.clone()));
        }
        if before.state != channel.state {
            let level = match channel.state {
                "transient failure" => Health::Bad,
                "ready" => Health::Good,
                _ => Health::Unknown,
            };
            let text = format!("channel {}, was {}", channel.state, before.state);
            found.push((level, Some(channel.target.clone()), text));
        }
    }
    for client in &new.clients {
        let name = client.row.target.clone();
        let before = old.clients.iter().find(|other| other.scope == client.scope && other.row.target == name);
        let mut lines = Vec::new();
        match before {
            None => lines.push((Health::Good, "a new xDS client".to_owned())),
            Some(before) => of_client(before, client, &mut lines),
        }
        found.extend(lines.into_iter().map(|(level, text)| (level, name.clone(), text)));
    }
    for client in &old.clients {
        if !new.clients.iter().any(|other| other.scope == client.scope && other.row.target == client.row.target) {
            found.push((Health::Warn, client.row.target.clone(), "this xDS client is gone".to_owned()));
        }
    }
}

fn of_client(old: &Client, new: &Client, lines: &mut Vec<(Health, String)>) {
    let none = BTreeMap::new();
    let (before, after) = (old.row.servers.as_ref().unwrap_or(&none), new.row.servers.as_ref().unwrap_or(&none));
    for (uri, state) in after {
        if let Some(was) = before.get(uri).filter(|was| first_word(was) != first_word(state)) {
            let level = if state.starts_with("TRANSIENT_FAILURE") { Health::Bad } else { Health::Good };
            lines.push((level, format!("xDS server {uri}: {state}, was {}", first_word(was))));
        }
    }
    let versions: BTreeMap<_, _> =
        old.resources.iter().map(|held| ((&*held.kind, &*held.name), (&*held.version, held.error.as_ref()))).collect();
    let mut updated = Vec::new();
    for held in &new.resources {
        let was = versions.get(&(&*held.kind, &*held.name));
        if let Some(error) = held.error.as_ref().filter(|error| was.is_none_or(|was| was.1 != Some(*error))) {
            lines.push((Health::Bad, format!("{} {:?} {}: {error}", held.kind, held.name, held.state)));
        } else if was.is_none_or(|was| was.0 != held.version) && !held.version.is_empty() {
            updated.push(format!("{} {:?}", held.kind, held.name));
        }
    }
    match &updated[..] {
        [] => {}
        few if few.len() <= SHOWN_UPDATES => {
            lines.push((Health::Unknown, format!("new version of {}", few.join(", "))))
        }
        many => lines.push((Health::Unknown, format!("new versions of {} resources", many.len()))),
    }
    if let (Some(was), Some(is)) = (&old.row.in_charge, &new.row.in_charge)
        && was != is
    {
        let (level, what) = match new.row.fallback {
            Some(true) => (Health::Warn, "switched to the fallback"),
            _ => (Health::Good, "switched to"),
        };
        lines.push((level, format!("{what} {is}, was {was}")));
    }
}

/// The events of a trace that were not there before. A trace has only the newest.
fn fresh<'a>(before: &[String], after: &'a [String]) -> &'a [String] {
    let overlap =
        (0..before.len()).find(|&from| after.starts_with(&before[from..])).map_or(0, |from| before.len() - from);
    &after[overlap..]
}

fn first_word(text: &str) -> &str {
    text.split([':', ' ']).next().unwrap_or_default()
}

impl Entry {
    /// When, for people.
    pub(super) fn time(&self) -> String {
        let at = SystemTime::UNIX_EPOCH + Duration::from_millis(self.at_ms);
        humantime::format_rfc3339_millis(at).to_string()
    }
}

const SHOWN_UPDATES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_new_in_a_trace_is_found_also_when_old_events_have_left_it() {
        let texts = |words: &str| words.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (before, after, new) in [
            ("a b", "a b c", "c"),
            ("a b", "b c d", "c d"),
            ("a b", "a b", ""),
            ("a b", "c d", "c d"),
            ("", "a", "a"),
            ("a a", "a a a", "a"),
        ] {
            assert_eq!(fresh(&texts(before), &texts(after)), texts(new), "{before}, then {after}");
        }
    }

    #[test]
    fn a_process_that_falls_silent_and_comes_back_is_told() {
        let there = Watched { held: None, ..Watched::unknown("a:1".to_owned()) };
        let silent =
            Watched { error: Some("refused".to_owned()), health: Health::Bad, ..Watched::unknown("a:1".to_owned()) };
        let told = |before, after| {
            let found = differences(before, after, SystemTime::UNIX_EPOCH);
            found.into_iter().map(|entry| (entry.level, entry.text)).collect::<Vec<_>>()
        };
        assert_eq!(told(&there, &silent), [(Health::Bad, "does not answer: refused".to_owned())], "OP-21");
        let back = told(&silent, &there);
        assert_eq!(back[0], (Health::Good, "answers again".to_owned()), "OP-21");
        assert!(told(&silent, &silent).is_empty());
    }
}
