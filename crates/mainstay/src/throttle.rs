//! Retry throttling, as users set it.

use mainstay_lb as core;

/// A bucket of tokens that stops retries while too many attempts fail (gRFC A6), for
/// [`ChannelBuilder::retry_throttle`](crate::ChannelBuilder::retry_throttle).
///
/// An attempt that fails takes a token, an RPC that succeeds brings a part of one. While no more than half of the tokens
/// are there, nothing is tried again.
///
/// ```
/// let throttle = mainstay::RetryThrottle::new(10, 0.1).expect("1 to 1000 tokens, and a ratio above zero");
/// let channel = mainstay::Channel::builder("xds:///greeter").retry_throttle(throttle);
/// ```
#[derive(Debug)]
pub struct RetryThrottle(core::RetryThrottle);

impl RetryThrottle {
    /// Creates a full bucket of `max_tokens`, to which a success adds `token_ratio` tokens.
    ///
    /// Returns `None` unless `max_tokens` is 1 to 1000 and `token_ratio` is at least 0.001; of it three decimal places
    /// count.
    pub fn new(max_tokens: u32, token_ratio: f64) -> Option<Self> {
        core::RetryThrottle::new(max_tokens, token_ratio).map(Self)
    }

    pub(crate) fn into_core(self) -> core::RetryThrottle {
        self.0
    }
}
