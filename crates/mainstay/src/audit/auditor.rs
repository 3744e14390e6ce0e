//! Which loggers there are, and who is told of a decision.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use mainstay_lb::AuditRecord as Decision;
use mainstay_xds::bootstrap::{AuditLoggerKind, Bootstrap};
use mainstay_xds::resource::filter::AuditLoggerConfig;

use super::{AuditLogger, AuditLoggerFactory, AuditQueue, AuditRecord, JsonLines, Queued};
use crate::guard;

/// The audit loggers that the application has, by name.
#[derive(Clone, Default)]
pub(crate) struct OwnLoggers(BTreeMap<String, Arc<dyn AuditLoggerFactory>>);

/// The audit loggers of a server.
pub(crate) struct Auditor {
    factories: OwnLoggers,
    stdout: AuditQueue,
    lost: Arc<AtomicU64>,
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
    pub(crate) fn new(factories: OwnLoggers, stdout: AuditQueue) -> Self {
        Self { factories, stdout, lost: Arc::default(), shared: Mutex::default() }
    }

    /// How many records for standard output were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
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
                let lines = JsonLines::new(std::io::stdout());
                Some(Arc::new(Queued::counting(lines, self.stdout, Arc::clone(&self.lost))))
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
