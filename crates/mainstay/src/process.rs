//! What the whole process shares. Everything that outlives a channel or a server is kept here and nowhere else, so that one look says
//! what two channels, two servers, two runtimes or two tests have in common.
//!
//! What a table holds is defined by the module that it is for; here is only known that there is one of each [`Kind`].

use std::any::Any;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, OnceLock, PoisonError};

use mainstay_lb::Counter;
use rustls::RootCertStore;

use crate::dns::{ResolveHost, SystemDns};

/// The tables of the process. None keeps alive what nobody uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    /// What runs for channels, so that equal ones share it; for CSDS and channelz, too.
    Hubs,
    /// Connections to endpoints, shared by all channels.
    Connections,
    /// Connections to xDS servers, shared by the streams of a runtime.
    XdsConnections,
    /// The counters of circuit breakers (A32: for all channels of the process).
    CircuitBreakers,
    /// Parsed resources, shared by channels with equal bootstraps.
    Interners,
    /// Files with certificates, read by one thread for each set.
    FileWatchers,
    /// What runs for servers, so that those with one bootstrap share it; for CSDS, too.
    ServerHubs,
    /// Servers that run, for channelz.
    Servers,
}

/// What the process keeps under a kind.
pub(crate) trait Table: Default + Send + 'static {
    const KIND: Kind;
}

/// The faults at work, of all channels (A33: `max_active_faults` is for the process).
pub(crate) static ACTIVE_FAULTS: LazyLock<Arc<Counter>> = LazyLock::new(Arc::default);

/// The resolver of all channels and servers that bring none of their own.
pub(crate) static SYSTEM_DNS: LazyLock<Arc<dyn ResolveHost>> = LazyLock::new(|| Arc::new(SystemDns::default()));

/// The roots of the system, once they were found.
pub(crate) static SYSTEM_ROOTS: OnceLock<Arc<RootCertStore>> = OnceLock::new();

static TABLES: [OnceLock<Box<dyn Any + Send + Sync>>; Kind::Servers as usize + 1] =
    [const { OnceLock::new() }; Kind::Servers as usize + 1];

static LAST_ID: AtomicI64 = AtomicI64::new(0);

/// The table of this type, locked.
pub(crate) fn table<T: Table>() -> MutexGuard<'static, T> {
    let table = TABLES[T::KIND as usize].get_or_init(|| Box::new(Mutex::new(T::default())));
    let table: &Mutex<T> = table.downcast_ref().expect("each kind is of one type");
    table.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An id that nothing else in the process has, now or later.
pub(crate) fn new_id() -> i64 {
    LAST_ID.fetch_add(1, Ordering::Relaxed) + 1
}
