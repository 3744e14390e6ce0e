//! Where choices come from: a seed, bytes of a fuzzer, a recorded list, or an odometer that visits every outcome.

use std::fmt;
use std::str::FromStr;

use mainstay_xds::Choose;

/// Choices from a seed. The same seed makes the same choices on every machine.
#[derive(Clone, Debug)]
pub struct Seeded {
    state: u64,
}

/// Choices from bytes, as a fuzzer makes them. After the last byte every choice is the first one.
#[derive(Clone, Debug)]
pub struct FromBytes<'a> {
    bytes: &'a [u8],
}

/// Choices from a list. After the last one every choice is the first one.
#[derive(Clone, Debug)]
pub struct Replayed<'a> {
    choices: &'a [u64],
}

/// Choices in such an order that every sequence of outcomes comes once, the first ones first.
///
/// ```
/// use mainstay_sim::Odometer;
/// use mainstay_xds::Choose;
///
/// let mut odometer = Odometer::default();
/// let mut seen = Vec::new();
/// loop {
///     let first = odometer.choose(2);
///     let second = if first == 0 { odometer.choose(3) } else { 0 };
///     seen.push((first, second));
///     if !odometer.turn() {
///         break;
///     }
/// }
/// assert_eq!(seen, [(0, 0), (0, 1), (0, 2), (1, 0)]);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Odometer {
    /// Value and bound of every choice of this round.
    digits: Vec<(u64, u64)>,
    at: usize,
}

/// Writes down what another source chooses.
#[derive(Clone, Debug)]
pub struct Recorder<C> {
    source: C,
    taken: Choices,
}

/// Takes the middle of every range wider than a limit, without asking the source: jitter is then no
/// choice, and a search over all choices stays small.
#[derive(Clone, Debug)]
pub struct Narrow<C> {
    /// Where narrow choices come from.
    pub source: C,
    /// The widest range that is a choice.
    pub limit: u64,
}

/// A list of choices. As text, `0*12 3 1` is twelve times 0, then 3, then 1.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Choices(pub Vec<u64>);

// === sources ===

impl Seeded {
    /// Starts from a seed.
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }
}

impl Choose for Seeded {
    fn choose(&mut self, bound: u64) -> u64 {
        // SplitMix64: tiny, and good enough for choices.
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        // The high half of the product: without a division, and fair enough for small ranges.
        ((u128::from(z) * u128::from(bound)) >> 64) as u64
    }
}

impl<'a> FromBytes<'a> {
    /// Starts at the first byte.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }
}

impl Choose for FromBytes<'_> {
    /// Takes one byte for a narrow range and two for a wide one, so that a change of a byte is a change of one choice.
    fn choose(&mut self, bound: u64) -> u64 {
        let width = if bound <= 256 { 1 } else { 2 };
        let (taken, rest) = self.bytes.split_at(width.min(self.bytes.len()));
        self.bytes = rest;
        taken.iter().fold(0, |value, byte| value << 8 | u64::from(*byte)) % bound
    }
}

impl<'a> Replayed<'a> {
    /// Starts at the first choice.
    pub const fn new(choices: &'a Choices) -> Self {
        Self { choices: choices.0.as_slice() }
    }
}

impl Choose for Replayed<'_> {
    fn choose(&mut self, bound: u64) -> u64 {
        let Some((first, rest)) = self.choices.split_first() else { return 0 };
        self.choices = rest;
        // A list that was made shorter may ask for what is not there.
        (*first).min(bound - 1)
    }
}

impl Odometer {
    /// Goes on to the next sequence; `false` if all were visited.
    pub fn turn(&mut self) -> bool {
        self.at = 0;
        while let Some((value, bound)) = self.digits.last_mut() {
            *value += 1;
            if value < bound {
                return true;
            }
            self.digits.pop();
        }
        false
    }
}

impl Choose for Odometer {
    fn choose(&mut self, bound: u64) -> u64 {
        if self.at == self.digits.len() {
            self.digits.push((0, bound));
        }
        let (value, _) = self.digits[self.at];
        self.at += 1;
        value
    }
}

impl<C> Recorder<C> {
    /// Records what `source` chooses.
    pub const fn new(source: C) -> Self {
        Self { source, taken: Choices(Vec::new()) }
    }

    /// How often was chosen.
    pub fn taken(&self) -> usize {
        self.taken.0.len()
    }

    /// What was chosen.
    pub fn into_choices(self) -> Choices {
        self.taken
    }
}

impl<C: Choose> Choose for Recorder<C> {
    fn choose(&mut self, bound: u64) -> u64 {
        let value = self.source.choose(bound);
        self.taken.0.push(value);
        value
    }
}

impl<C: Choose> Choose for Narrow<C> {
    fn choose(&mut self, bound: u64) -> u64 {
        if bound <= self.limit { self.source.choose(bound) } else { bound / 2 }
    }
}

// === impl Choices ===

impl Choices {
    /// Leaves out the end that a replay would choose by itself.
    pub fn trim(&mut self) {
        while self.0.last() == Some(&0) {
            self.0.pop();
        }
    }
}

impl fmt::Display for Choices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.0.chunk_by(PartialEq::eq).enumerate() {
            let space = if index == 0 { "" } else { " " };
            match run {
                [value] => write!(f, "{space}{value}")?,
                [value, ..] => write!(f, "{space}{value}*{}", run.len())?,
                [] => {}
            }
        }
        Ok(())
    }
}

impl FromStr for Choices {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut choices = Vec::new();
        for word in text.split_whitespace() {
            let (value, times) = word.split_once('*').unwrap_or((word, "1"));
            let number =
                |text: &str| text.parse::<u64>().map_err(|_| format!("{word:?} is not a number or value*times"));
            let times = usize::try_from(number(times)?).ok().filter(|times| choices.len() + times <= MAX_CHOICES);
            let times = times.ok_or_else(|| format!("{word:?} makes more than {MAX_CHOICES} choices"))?;
            choices.extend(std::iter::repeat_n(number(value)?, times));
        }
        Ok(Self(choices))
    }
}

/// The longest list that is read from text.
const MAX_CHOICES: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_choices_is_the_same_after_it_was_text() {
        let choices = Choices(vec![0, 0, 0, 3, 1, 1, 200]);
        assert_eq!(choices.to_string(), "0*3 3 1*2 200");
        assert_eq!(choices.to_string().parse(), Ok(choices));
        assert_eq!("".parse(), Ok(Choices::default()));
        assert!("x".parse::<Choices>().is_err());
        assert!("1*99999999999".parse::<Choices>().is_err());
    }

    #[test]
    fn a_recorded_run_is_replayed() {
        let mut recorder = Recorder::new(Seeded::new(7));
        let first: Vec<u64> = (1..50).map(|bound| recorder.choose(bound)).collect();
        let choices = recorder.into_choices();
        let mut replayed = Replayed::new(&choices);
        assert_eq!((1..50).map(|bound| replayed.choose(bound)).collect::<Vec<_>>(), first);
        assert_eq!(replayed.choose(9), 0, "after the end");
    }

    #[test]
    fn every_choice_is_below_its_bound() {
        let (mut seeded, mut bytes) = (Seeded::new(1), FromBytes::new(&[255; 90]));
        for bound in 1..100 {
            assert!(seeded.choose(bound) < bound && bytes.choose(bound) < bound);
        }
        assert!(Replayed::new(&Choices(vec![9])).choose(3) == 2);
    }
}
