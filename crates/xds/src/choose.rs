/// The one source of chance.
///
/// Every random draw of the cores goes through an argument of this type. Production passes a
/// random generator; a simulator passes a seed, a recorded list, or an odometer that visits every
/// outcome.
pub trait Choose {
    /// A number in `0..bound`. `bound` is never zero.
    fn choose(&mut self, bound: u64) -> u64;
}

impl<T: Choose + ?Sized> Choose for &mut T {
    fn choose(&mut self, bound: u64) -> u64 {
        (**self).choose(bound)
    }
}
