//! Chance that is written down, so that the reference sees the same.

use mainstay_xds::Choose;

use crate::choose::Seeded;

/// Draws by a seed, and keeps what was asked and answered.
#[derive(Clone, Debug)]
pub(super) struct Tape {
    source: Seeded,
    pub(super) drawn: Vec<(u64, u64)>,
}

/// Answers as before, if asked as before.
#[derive(Clone, Debug)]
pub(super) struct Playback {
    drawn: std::vec::IntoIter<(u64, u64)>,
    trouble: Option<String>,
}

impl Tape {
    pub(super) fn new(seed: u64) -> Self {
        Self { source: Seeded::new(seed), drawn: Vec::new() }
    }

    /// What was drawn since the last call, to be drawn again.
    pub(super) fn play_back(&mut self) -> Playback {
        Playback { drawn: std::mem::take(&mut self.drawn).into_iter(), trouble: None }
    }
}

impl Choose for Tape {
    fn choose(&mut self, bound: u64) -> u64 {
        // The ends of a range are where errors are; and hashes of which nothing is known are rarely there.
        let drawn = match self.source.choose(8) {
            0 => 0,
            1 => bound - 1,
            _ => self.source.choose(bound),
        };
        self.drawn.push((bound, drawn));
        drawn
    }
}

impl Playback {
    /// What was not drawn alike, if anything.
    pub(super) fn trouble(mut self) -> Option<String> {
        let rest = self.drawn.next().map(|(bound, _)| format!("a number below {bound} was drawn for nothing"));
        self.trouble.or(rest)
    }
}

impl Choose for Playback {
    fn choose(&mut self, bound: u64) -> u64 {
        match self.drawn.next() {
            Some((known, drawn)) if known == bound => return drawn,
            Some((known, _)) => {
                let text = || format!("a number below {known} was drawn where one below {bound} was due");
                self.trouble.get_or_insert_with(text);
            }
            None => {
                self.trouble.get_or_insert_with(|| format!("no number below {bound} was drawn"));
            }
        }
        0
    }
}
