//! The screen of `top`: what is shown of a look, and what keys do to it.

use crate::{
    fleet::{self, age, or_dash},
    get::clean,
    output::{BAD, DIM, TITLE, styled},
};

use super::{Look, Rated, Sort, keys::Key, line_of};

/// What the user has chosen.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) sort: Sort,
    pub(super) filter: String,
    /// The filter as it is typed, until Enter.
    typing: Option<String>,
    chosen: usize,
    /// The client that is shown alone, by address and target.
    detail: Option<(String, Option<String>)>,
}

impl Screen {
    pub(super) fn new(sort: Sort, filter: String) -> Self {
        Self { sort, filter, typing: None, chosen: 0, detail: None }
    }

    /// Takes a key. False ends it all.
    pub(super) fn press(&mut self, key: Key, look: &Look) -> bool {
        if let Some(mut text) = self.typing.take() {
            match key {
                Key::Char(letter) => text.push(letter),
                Key::Backspace => _ = text.pop(),
                Key::Enter => {
                    (self.filter, self.chosen) = (text, 0);
                    return true;
                }
                Key::Escape => return true,
                Key::Up | Key::Down => {}
            }
            self.typing = Some(text);
            return true;
        }
        match key {
            Key::Char('q') => return false,
            Key::Char('s') => self.sort = self.sort.next(),
            Key::Char('/') => self.typing = Some(self.filter.clone()),
            Key::Char('j') | Key::Down => self.chosen = self.chosen.saturating_add(1),
            Key::Char('k') | Key::Up => self.chosen = self.chosen.saturating_sub(1),
            Key::Enter if self.detail.is_none() => {
                let look = look.arranged(self.sort, &self.filter);
                self.detail = look.rows.get(self.chosen).map(Rated::key);
            }
            // One step back.
            Key::Escape if self.detail.is_none() => self.filter.clear(),
            Key::Enter | Key::Escape => self.detail = None,
            Key::Backspace | Key::Char(_) => {}
        }
        true
    }

    /// The lines for a terminal of this size, at most as many as it has.
    pub(super) fn draw(&mut self, look: &Look, (width, height): (usize, usize)) -> Vec<String> {
        let footer = styled(DIM, self.footer());
        let room = height.saturating_sub(1).max(1);
        let mut lines = match &self.detail {
            Some(key) => match look.rows.iter().find(|rated| rated.key() == *key) {
                Some(rated) => rated.everything(width),
                None => vec![format!("{} is not there any more", clean(&key.0))],
            },
            None => self.overview(look, width, room),
        };
        lines.truncate(room);
        lines.push(footer);
        lines
    }

    fn overview(&mut self, look: &Look, width: usize, room: usize) -> Vec<String> {
        let all = look.rows.len();
        let look = look.arranged(self.sort, &self.filter);
        self.chosen = self.chosen.min(look.rows.len().saturating_sub(1));
        let troubled = look.rows.iter().filter(|rated| rated.is_troubled()).count();
        let shown = match look.rows.len() {
            count if count == all => format!("{all} clients"),
            count => format!("{count} of {all} clients with {:?}", self.filter),
        };
        let title = format!("{shown}, {troubled} in trouble, by {}", self.sort.name());
        let mut lines = vec![styled(TITLE, clean(&title))];
        let cells: Vec<_> = look.rows.iter().map(line_of).collect();
        let (head, blocks) = fleet::blocks(&super::HEAD, &cells, width.saturating_sub(MARGIN));
        lines.extend(head.map(|head| format!("{:MARGIN$}{head}", "")));
        let heights: Vec<usize> = blocks.iter().map(Vec::len).collect();
        for at in window(&heights, self.chosen, room.saturating_sub(lines.len())) {
            let mark = if at == self.chosen { "> " } else { "  " };
            let marks = std::iter::once(mark).chain(std::iter::repeat("  "));
            lines.extend(blocks[at].iter().zip(marks).map(|(line, mark)| format!("{mark}{line}")));
        }
        lines
    }

    fn footer(&self) -> String {
        match (&self.typing, &self.detail) {
            (Some(text), _) => format!("only rows with: {}_   Enter: do it   Esc: leave it", clean(text)),
            (None, Some(_)) => "Esc: back   q: quit".to_owned(),
            (None, None) => "q: quit   s: sort   /: filter   up, down, Enter: details".to_owned(),
        }
    }
}

impl Rated {
    /// All that is known of a client, line by line.
    fn everything(&self, width: usize) -> Vec<String> {
        let Rated { row, calls_per_second, failed_per_second } = self;
        let calls = row.calls.map(|calls| {
            let rates = calls_per_second.zip(*failed_per_second);
            let rates = rates.map_or_else(String::new, |(all, failed)| format!("; {all} and {failed} per second"));
            format!("{} started, {} failed, {} in flight{rates}", calls.started, calls.failed, calls.in_flight)
        });
        let servers = row.servers.iter().flatten().map(|(uri, state)| ("server", format!("{uri} {state}")));
        let facts = [
            ("target", or_dash(row.target.as_ref())),
            ("node", or_dash(row.node.as_ref())),
            ("user agent", or_dash(row.user_agent.as_ref())),
            ("channel", or_dash(row.channel)),
            ("calls", or_dash(calls)),
        ];
        let more = [
            ("in charge", or_dash(row.in_charge.as_ref())),
            ("fallback", or_dash(row.fallback.map(|is| if is { "yes" } else { "no" }))),
            ("last resource", or_dash(row.age_ms.map(|ms| format!("{} ago", age(ms))))),
            ("resources", row.counts()),
        ];
        let told = facts.into_iter().chain(servers).chain(more).filter(|(_, text)| text != "-");
        let mut lines = vec![styled(TITLE, clean(&row.address))];
        lines.extend(told.map(|(name, text)| format!("{}  {}", styled(DIM, format!("{name:13}")), clean(&text))));
        if let Some(error) = &row.last_error {
            let error = clean(error).chars().collect::<Vec<_>>();
            let pieces = error.chunks(width.max(1)).map(|piece| piece.iter().collect::<String>());
            lines.extend(pieces.map(|piece| styled(BAD, piece)));
        }
        lines
    }
}

/// Which of these blocks of lines are shown, so that one of them is and all fit.
fn window(heights: &[usize], chosen: usize, room: usize) -> std::ops::Range<usize> {
    let mut first = 0;
    while first < chosen && heights[first..=chosen].iter().sum::<usize>() > room {
        first += 1;
    }
    let mut left = room;
    let fit = heights[first..].iter().take_while(|height| match left.checked_sub(**height) {
        Some(less) => {
            left = less;
            true
        }
        None => false,
    });
    // One that is higher than the terminal is shown as far as it goes.
    let count = fit.count().max(1).min(heights.len() - first);
    first..first + count
}

/// For the mark of the one that is chosen.
const MARGIN: usize = 2;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::fleet::{Calls, Row};

    fn rated(address: &str, rate: f64, error: Option<&str>) -> Rated {
        let row = Row {
            address: address.to_owned(),
            target: Some("xds:///greeter".to_owned()),
            node: Some("n".to_owned()),
            user_agent: None,
            channel: Some("ready"),
            servers: Some(BTreeMap::from([("primary:443".to_owned(), "READY".to_owned())])),
            in_charge: Some("primary:443".to_owned()),
            fallback: Some(false),
            age_ms: Some(3000),
            resources: BTreeMap::from([("acked", 4)]),
            last_error: error.map(str::to_owned),
            calls: Some(Calls { started: 10, failed: 1, in_flight: 2 }),
        };
        Rated { row, calls_per_second: Some(rate), failed_per_second: Some(0.0) }
    }

    fn look() -> Look {
        let rows = (0..30).map(|at| rated(&format!("host-{at:02}:1"), f64::from(at), None));
        let bad = rated("host-30:1", 0.0, Some("primary:443 cannot be reached: connection refused"));
        Look { rows: rows.chain([bad]).collect(), unreachable: Vec::new() }
    }

    fn plain(lines: &[String]) -> Vec<String> {
        lines.iter().map(|line| anstream::adapter::strip_str(line).to_string()).collect()
    }

    #[test]
    fn nothing_is_drawn_below_the_end_of_the_terminal_and_the_chosen_one_is_seen() {
        let (look, mut screen) = (look(), Screen::new(Sort::Errors, String::new()));
        for size in [(120, 24), (60, 24), (30, 10), (20, 3)] {
            for _ in 0..40 {
                let lines = plain(&screen.draw(&look, size));
                assert!(lines.len() <= size.1, "{size:?}: {lines:#?}");
                assert!(lines.iter().any(|line| line.starts_with("> host-")), "{size:?}: {lines:#?}");
                assert!(screen.press(Key::Down, &look));
            }
            (0..40).for_each(|_| assert!(screen.press(Key::Up, &look)));
        }
        let lines = plain(&screen.draw(&look, (120, 24)));
        assert_eq!(lines[0], "31 clients, 1 in trouble, by errors");
        assert!(lines[2].starts_with("> host-30:1"), "those in trouble come first: {lines:#?}");
    }

    #[test]
    fn keys_sort_filter_and_go_into_details_and_back() {
        let (look, mut screen) = (look(), Screen::new(Sort::Errors, String::new()));
        let press = |screen: &mut Screen, text: &str| text.chars().all(|key| screen.press(Key::Char(key), &look));
        assert!(press(&mut screen, "s"));
        assert!(plain(&screen.draw(&look, (120, 24)))[2].starts_with("> host-29:1"), "most calls first");
        assert!(press(&mut screen, "/host-1q"));
        assert!(screen.press(Key::Backspace, &look) && screen.press(Key::Enter, &look));
        assert_eq!(
            plain(&screen.draw(&look, (120, 24)))[0],
            "10 of 31 clients with \"host-1\", 0 in trouble, by calls"
        );
        assert!(screen.press(Key::Down, &look) && screen.press(Key::Enter, &look));
        let lines = plain(&screen.draw(&look, (120, 24)));
        assert_eq!(lines[0], "host-18:1");
        assert!(
            lines.contains(&"calls          10 started, 1 failed, 2 in flight; 18 and 0 per second".to_owned()),
            "{lines:#?}"
        );
        assert!(lines.contains(&"server         primary:443 READY".to_owned()), "{lines:#?}");
        assert!(screen.press(Key::Escape, &look) && screen.press(Key::Escape, &look));
        assert_eq!(plain(&screen.draw(&look, (120, 24)))[0], "31 clients, 1 in trouble, by calls");
        assert!(!press(&mut screen, "q"));
    }

    #[test]
    fn a_client_that_has_gone_is_said_to_have_gone() {
        let (look, mut screen) = (look(), Screen::new(Sort::Errors, String::new()));
        assert!(screen.press(Key::Enter, &look));
        let lines = plain(&screen.draw(&Look::default(), (80, 24)));
        assert_eq!(lines, ["host-30:1 is not there any more", "Esc: back   q: quit"]);
    }
}
