//! Who is asked before a stream is let in.

use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use crate::event::lock;

/// All who are asked. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Guards(Arc<Mutex<Vec<Arc<Guard>>>>);

type Guard = dyn Fn() -> Answer + Send + Sync;
type Answer = Pin<Box<dyn Future<Output = Result<(), String>> + Send>>;

impl Guards {
    pub(crate) fn add<F>(&self, guard: impl Fn() -> F + Send + Sync + 'static)
    where
        F: Future<Output = Result<(), String>> + Send + 'static,
    {
        lock(&self.0).push(Arc::new(move || Box::pin(guard())));
    }

    /// Asks one after the other; the first that says no says why.
    pub(crate) async fn admit(&self) -> Result<(), String> {
        let guards = lock(&self.0).clone();
        for guard in guards {
            guard().await?;
        }
        Ok(())
    }
}

impl fmt::Debug for Guards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guards").field(&lock(&self.0).len()).finish()
    }
}
