//! Audit logs: who was let in by the authorization filters of a server, and who was refused (gRFC A59).
//!
//! The control plane says in an RBAC filter which decisions are told to which loggers. `StdoutAuditLog` is built in and
//! writes lines of JSON to standard output. Loggers of your own are added under a name with
//! [`ServerBuilder::audit_logger`](crate::ServerBuilder::audit_logger); the control plane names them in a `TypedStruct`, with a config:
//!
//! ```yaml
//! audit_logging_options:
//!   audit_condition: ON_DENY
//!   logger_configs:
//!     - audit_logger:
//!         name: refused
//!         typed_config:
//!           "@type": type.googleapis.com/xds.type.v3.TypedStruct
//!           type_url: type.googleapis.com/audit_file
//!           value: { path: /var/log/audit.jsonl }
//! ```
//!
//! A logger is called while an RPC waits, so that it must not block. [`Queued`] makes a logger that may block one that
//! does not:
//!
//! ```
//! use std::fs::File;
//! use std::sync::Arc;
//!
//! use mainstay::audit::{AuditLogger, AuditLoggerFactory, AuditQueue, JsonLines, Queued};
//!
//! /// Makes loggers that write to the file `path` of their config.
//! struct Files;
//!
//! impl AuditLoggerFactory for Files {
//!     fn check(&self, config: &str) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//!         path(config).map(drop).ok_or_else(|| "path must be set".into())
//!     }
//!
//!     fn build(&self, config: &str) -> Arc<dyn AuditLogger> {
//!         let open = |path| File::options().append(true).create(true).open(path);
//!         match path(config).map(open) {
//!             Some(Ok(file)) => Arc::new(Queued::new(JsonLines::new(file), AuditQueue::default())),
//!             _ => Arc::new(Queued::new(JsonLines::new(std::io::stderr()), AuditQueue::default())),
//!         }
//!     }
//! }
//!
//! fn path(config: &str) -> Option<String> {
//!     let config: serde_json::Value = serde_json::from_str(config).ok()?;
//!     config["path"].as_str().map(str::to_owned)
//! }
//! ```

use std::error::Error;
use std::sync::Arc;
use std::time::SystemTime;

mod auditor;
mod json;
mod queued;

pub(crate) use auditor::{Auditor, ChainLoggers, OwnLoggers};
pub use json::JsonLines;
pub use queued::{AuditQueue, OnFull, Queued};

/// Is told of decisions about RPCs.
pub trait AuditLogger: Send + Sync + 'static {
    /// Takes note of a decision. Called in the task of the RPC, before it goes on: must not block. A panic is logged and
    /// changes nothing for the RPC.
    fn log(&self, record: &AuditRecord);
}

/// Makes the audit loggers of a kind, as the control plane configures them.
pub trait AuditLoggerFactory: Send + Sync + 'static {
    /// Says what is wrong with a config, which is a JSON object; a resource with a wrong one is refused. Must not block,
    /// and answer the same each time.
    fn check(&self, config: &str) -> Result<(), Box<dyn Error + Send + Sync>>;

    /// Makes a logger with a config that was found to be right. Loggers with equal configs are one; it is dropped when no
    /// connection is left whose configuration names it.
    fn build(&self, config: &str) -> Arc<dyn AuditLogger>;
}

/// A decision of an RBAC filter about an RPC.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct AuditRecord {
    /// When it was made.
    pub time: SystemTime,
    /// The method that was called: `/package.Service/Method`.
    pub rpc_method: String,
    /// Who called: the first URI of the certificate, else its first DNS name, else its subject. Empty without a certificate.
    pub principal: String,
    /// The name of the filter in its filter chain.
    pub policy_name: String,
    /// The policy of the filter that matched; empty if none did.
    pub matched_rule: String,
    /// Whether this filter let the RPC pass.
    pub authorized: bool,
}

#[cfg(test)]
mod tests;
