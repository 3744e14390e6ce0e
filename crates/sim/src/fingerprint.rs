//! The hash of a world's state, in which equal futures look equal.
//!
//! States are full of points in time and of numbers that only ever grow. Two states that differ in nothing but when
//! they were reached have the same future, so points in time are hashed by their distance from now. A world's clock
//! starts far from zero: a number that large is a time. What lies in the past matters in few places and only
//! roughly, so it is hashed roughly. Other 64-bit numbers in the cores are ids and generations, of which only matters
//! which ones are equal: they are hashed by the order of their first appearance.

use std::hash::Hasher;
use std::time::Duration;

use mainstay_xds::Time;

/// FNV-1a, in two lanes, over what matters.
pub(crate) struct Fingerprint {
    now: u64,
    low: u64,
    high: u64,
    /// Ids in order of appearance.
    ids: Vec<u64>,
}

impl Fingerprint {
    pub(crate) fn new(now: Time) -> Self {
        let now = u64::try_from(now.since(Time::ZERO).as_nanos()).unwrap_or(u64::MAX);
        Self { now, low: 0xcbf2_9ce4_8422_2325, high: 0x9e37_79b9_7f4a_7c15, ids: Vec::new() }
    }

    pub(crate) fn value(&self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    fn add(&mut self, word: u64) {
        self.low = (self.low ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
        self.high = (self.high ^ word.rotate_left(32)).wrapping_mul(0xff51_afd7_ed55_8ccd).rotate_left(29);
    }

    fn relative(&self, time: u64) -> u64 {
        match time.checked_sub(self.now) {
            Some(ahead) => ahead,
            None => {
                let ago = Duration::from_nanos(self.now - time);
                let rough = PAST.iter().position(|limit| ago < *limit).unwrap_or(PAST.len());
                u64::MAX - rough as u64
            }
        }
    }
}

impl Fingerprint {
    /// The place of an id among all that came before it.
    fn place(&mut self, id: u64) -> u64 {
        let place = self.ids.iter().position(|known| *known == id).unwrap_or_else(|| {
            self.ids.push(id);
            self.ids.len() - 1
        });
        place as u64
    }
}

impl Hasher for Fingerprint {
    fn finish(&self) -> u64 {
        self.low
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut chunks = bytes.chunks_exact(8);
        for chunk in &mut chunks {
            self.add(u64::from_le_bytes(chunk.try_into().unwrap_or_default()));
        }
        let rest = chunks.remainder().iter().fold(bytes.len() as u64, |word, byte| word << 8 | u64::from(*byte));
        self.add(rest);
    }

    fn write_u8(&mut self, value: u8) {
        self.add(value.into());
    }

    fn write_u32(&mut self, value: u32) {
        self.add(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let value = if value > TIMES_FROM { self.relative(value) } else { self.place(value) };
        self.add(value);
    }

    fn write_usize(&mut self, value: usize) {
        self.add(value as u64);
    }

    fn write_isize(&mut self, value: isize) {
        self.add(value as u64);
    }
}

/// A number above this is a time.
const TIMES_FROM: u64 = 1 << 61;

/// How roughly the past is looked at.
const PAST: [Duration; 1] = [Duration::from_secs(16)];
