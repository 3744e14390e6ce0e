//! Which loggers there are, and who is told of a decision.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::{Duration, SystemTime};

use mainstay_lb::AuditRecord as Decision;
use mainstay_xds::bootstrap::{AuditLoggerKind, Bootstrap};
use mainstay_xds::resource::filter::AuditLoggerConfig;
use tokio::sync::oneshot;

use super::{AuditLogger, AuditLoggerFactory, AuditQueue, AuditRecord, JsonLines, Queued};
use crate::guard;

/// The audit loggers that the application has, by name.
#[derive(Clone, Default)]
pub(crate) struct OwnLoggers(BTreeMap<String, Arc<dyn AuditLoggerFactory>>);

/// The audit loggers of a server.
pub(crate) struct Auditor {
    factories: OwnLoggers,
    queue: AuditQueue,
    /// Made when the first configuration asks for it, and kept as long as the server.
    stdout: OnceLock<Arc<Queued>>,
    /// Those in use. Loggers with equal configs are one.
    shared: Mutex<BTreeMap<AuditLoggerConfig, Weak<dyn AuditLogger>>>,
}

/// The audit loggers that one filter chain has used so far, and keeps.
pub(crate) struct ChainLoggers {
    auditor: Arc<Auditor>,
    held: Mutex<BTreeMap<AuditLoggerConfig, Arc<dyn AuditLogger>>>,
}

// === impl OwnLoggers ===

impl OwnLoggers {
    pub(crate) fn insert(&mut self, name: String, factory: Arc<dyn AuditLoggerFactory>) {
        self.0.insert(name, factory);
    }

    /// Lets the parser of resources know them.
    pub(crate) fn announce(&self, mut bootstrap: Arc<Bootstrap>) -> Arc<Bootstrap> {
        for (name, factory) in &self.0 {
            let known = &mut Arc::make_mut(&mut bootstrap).audit_loggers;
            known.insert(name.clone(), Arc::new(Kind(Arc::clone(factory))));
        }
        bootstrap
    }
}

/// A factory as the parser knows it.
struct Kind(Arc<dyn AuditLoggerFactory>);

impl AuditLoggerKind for Kind {
    fn check(&self, config: &str) -> Result<(), String> {
        match guard::catch(|| self.0.check(config).map_err(|error| error.to_string())) {
            Ok(checked) => checked,
            Err(panic) => Err(format!("it panicked: {panic}")),
        }
    }
}

// === impl Auditor ===

impl Auditor {
    pub(crate) fn new(factories: OwnLoggers, queue: AuditQueue) -> Self {
        Self { factories, queue, stdout: OnceLock::new(), shared: Mutex::default() }
    }

    /// How many records for standard output were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.stdout.get().map_or(0, |stdout| stdout.lost())
    }

    /// Waits until standard output has taken all records so far, though not for long: it may be stuck.
    pub(crate) async fn flush(&self) {
        let Some(stdout) = self.stdout.get().cloned() else { return };
        let (done, flushed) = oneshot::channel();
        let flush = move || {
            stdout.flush();
            // Whoever waits may have given up.
            let _ = done.send(());
        };
        // Not one of the runtime's threads, whose end would wait for it.
        if std::thread::Builder::new().name("mainstay-audit".to_owned()).spawn(flush).is_ok() {
            let _ = tokio::time::timeout(FLUSH_TIMEOUT, flushed).await;
        }
    }

    /// The logger with this config, which is made if nobody has it. `None` if it cannot be made.
    fn logger(&self, config: &AuditLoggerConfig) -> Option<Arc<dyn AuditLogger>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(logger) = shared.get(config).and_then(Weak::upgrade) {
            return Some(logger);
        }
        let logger = self.build(config)?;
        shared.retain(|_, logger| logger.strong_count() > 0);
        shared.insert(config.clone(), Arc::downgrade(&logger));
        Some(logger)
    }

    fn build(&self, config: &AuditLoggerConfig) -> Option<Arc<dyn AuditLogger>> {
        match config {
            AuditLoggerConfig::Stdout => {
                let open = || Arc::new(Queued::new(JsonLines::new(std::io::stdout()), self.queue));
                Some(self.stdout.get_or_init(open).clone())
            }
            AuditLoggerConfig::Application { name, config } => {
                // The parser knows no others.
                let factory = self.factories.0.get(name)?;
                match guard::catch(|| factory.build(config)) {
                    Ok(logger) => Some(logger),
                    Err(panic) => {
                        tracing::error!(name, %panic, "an audit logger cannot be made, and its records are lost");
                        None
                    }
                }
            }
        }
    }
}

// === impl ChainLoggers ===

impl ChainLoggers {
    pub(crate) fn new(auditor: Arc<Auditor>) -> Self {
        Self { auditor, held: Mutex::default() }
    }

    /// Tells the loggers that the decision is for.
    pub(crate) fn tell(&self, decision: &Decision<'_>) {
        let record = AuditRecord {
            time: SystemTime::now(),
            rpc_method: decision.path.to_owned(),
            principal: decision.principal.to_owned(),
            policy_name: decision.filter.to_owned(),
            matched_rule: decision.verdict.policy.unwrap_or_default().to_owned(),
            authorized: decision.verdict.allowed,
        };
        for config in decision.loggers {
            if let Some(logger) = self.logger(config) {
                guard::shielded("an audit logger", || logger.log(&record));
            }
        }
    }

    fn logger(&self, config: &AuditLoggerConfig) -> Option<Arc<dyn AuditLogger>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(logger) = held.get(config) {
            return Some(Arc::clone(logger));
        }
        let logger = self.auditor.logger(config)?;
        held.insert(config.clone(), Arc::clone(&logger));
        Some(logger)
    }
}

/// How long the end of a server waits for its audit log.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
