//! The shell's source of chance.

use mainstay_xds::Choose;

/// A fast generator per thread, seeded by the system.
pub(crate) struct Random;

impl Choose for Random {
    fn choose(&mut self, bound: u64) -> u64 {
        fastrand::u64(..bound)
    }
}
