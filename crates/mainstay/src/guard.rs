//! Panics of code that is not ours: request streams and codecs, resolvers, telemetry. Each ends what it was asked for,
//! and nothing else.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_util::FutureExt;

/// What a panic said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Panic(String);

/// Runs `run`. What it leaves half done after a panic must not be used again.
pub(crate) fn catch<T>(run: impl FnOnce() -> T) -> Result<T, Panic> {
    catch_unwind(AssertUnwindSafe(run)).map_err(Panic::from)
}

/// Runs `future` to its end, or to its panic.
pub(crate) async fn caught<F: Future>(future: F) -> Result<F::Output, Panic> {
    AssertUnwindSafe(future).catch_unwind().await.map_err(Panic::from)
}

/// Runs something that the rest does not depend on. `who` is to blame for a panic.
pub(crate) fn shielded(who: &str, run: impl FnOnce()) {
    if let Err(panic) = catch(run) {
        tracing::error!(who, %panic, "panicked");
    }
}

impl From<Box<dyn Any + Send>> for Panic {
    fn from(payload: Box<dyn Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(|text| (*text).to_owned());
        let said =
            text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned());
        // Dropping a payload may panic once more, with another payload: that one is left alone.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
            std::mem::forget(again);
        }
        Self(said)
    }
}

impl std::fmt::Display for Panic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_a_value_with_its_text() {
        let number = 7;
        assert_eq!(catch(|| -> () { panic!("plain") }), Err(Panic("plain".to_owned())));
        assert_eq!(catch(|| -> () { panic!("number {number}") }).unwrap_err().to_string(), "number 7");
        assert_eq!(caught(async { std::panic::panic_any(5_u8) }).await, Err::<(), _>(Panic("no message".to_owned())));
        assert_eq!(caught(async { 1 }).await, Ok(1));
        shielded("nobody", || panic!("ignored"));
    }
}
