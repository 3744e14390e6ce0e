//! The kinds of audit logger that the application has (A59).

use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A kind of audit logger, as far as the parser of resources needs to know it.
pub trait AuditLoggerKind: Send + Sync {
    /// Says what is wrong with the config of such a logger, which is a JSON object. The same config is always right or
    /// always wrong.
    fn check(&self, config: &str) -> Result<(), String>;
}

/// Kinds of audit logger by their names. Two collections are equal if they hold the very same.
#[derive(Clone, Default)]
pub struct AuditLoggerKinds {
    by_name: BTreeMap<String, Arc<dyn AuditLoggerKind>>,
}

impl AuditLoggerKinds {
    /// Adds a kind; the last one of a name counts.
    pub fn insert(&mut self, name: String, kind: Arc<dyn AuditLoggerKind>) {
        self.by_name.insert(name, kind);
    }

    /// The kind of this name.
    pub fn get(&self, name: &str) -> Option<&dyn AuditLoggerKind> {
        self.by_name.get(name).map(|kind| &**kind)
    }
}

impl PartialEq for AuditLoggerKinds {
    fn eq(&self, other: &Self) -> bool {
        let same = |((name, kind), (other_name, other)): ((&String, &Arc<_>), (&String, &Arc<_>))| {
            name == other_name && Arc::ptr_eq(kind, other)
        };
        self.by_name.len() == other.by_name.len() && self.by_name.iter().zip(&other.by_name).all(same)
    }
}

impl Eq for AuditLoggerKinds {}

impl Hash for AuditLoggerKinds {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.by_name.len().hash(state);
        self.by_name.keys().for_each(|name| name.hash(state));
    }
}

impl fmt::Debug for AuditLoggerKinds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.by_name.keys()).finish()
    }
}
