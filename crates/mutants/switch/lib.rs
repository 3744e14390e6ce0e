//! Which mutant is on, if any: a crate of the mutated copy, read from the environment once.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Whether the mutant of this number is on.
#[inline]
pub fn on(number: u32) -> bool {
    let active = ACTIVE.load(Ordering::Relaxed);
    active == number || (active >= TRACED && look(number))
}

/// A little more of a constant, if the mutant of this number is on.
#[inline]
pub fn more<T: More>(number: u32, value: T) -> T {
    if on(number) { value.more() } else { value }
}

/// Numbers that can be off by one.
pub trait More {
    /// One more, in the unit in which somebody wrote it.
    fn more(self) -> Self;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl More for $type {
            fn more(self) -> Self {
                self.checked_add(1).unwrap_or(self - 1)
            }
        }
    )*};
}

integers!(u8 u16 u32 u64 u128 usize i32 i64);

impl More for f64 {
    fn more(self) -> Self {
        self + 1.0
    }
}

impl More for Duration {
    fn more(self) -> Self {
        let unit = if self.subsec_nanos() == 0 { Duration::from_secs(1) } else { Duration::from_millis(1) };
        self.saturating_add(unit)
    }
}

/// The first look finds out what is on; a traced run notes each mutant that it comes by.
#[cold]
fn look(number: u32) -> bool {
    if ACTIVE.load(Ordering::Relaxed) == UNKNOWN {
        let named = std::env::var("MUTANT").ok().and_then(|number| number.parse().ok());
        ACTIVE
            .store(named.unwrap_or(if TRACE.get_or_init(trace).is_some() { TRACED } else { NONE }), Ordering::Relaxed);
        return on(number);
    }
    if let Some(path) = TRACE.get_or_init(trace)
        && let Some(seen) = SEEN.get(number as usize)
        && !seen.swap(true, Ordering::Relaxed)
    {
        let file = OpenOptions::new().create(true).append(true).open(path);
        file.and_then(|mut file| writeln!(file, "{number}")).expect("a trace that can be written");
    }
    false
}

fn trace() -> Option<String> {
    std::env::var("MUTANT_TRACE").ok()
}

static ACTIVE: AtomicU32 = AtomicU32::new(UNKNOWN);
static TRACE: OnceLock<Option<String>> = OnceLock::new();
static SEEN: [AtomicBool; 1 << 14] = [const { AtomicBool::new(false) }; 1 << 14];

const NONE: u32 = u32::MAX - 2;
const TRACED: u32 = u32::MAX - 1;
const UNKNOWN: u32 = u32::MAX;
