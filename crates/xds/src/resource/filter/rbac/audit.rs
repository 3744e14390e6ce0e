//! Who is told of decisions (A59).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::rbac::v3::rbac as pb;
use envoy_types::pb::envoy::config::rbac::v3::rbac::audit_logging_options as pb_options;
use envoy_types::pb::envoy::extensions::rbac::audit_loggers::stream::v3::StdoutAuditLog;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, Value as PbValue};
use serde_json::Value;

use super::super::super::ParseContext;
use super::super::super::extension::Extension;
use super::super::super::fields::excerpt;
use crate::invalid::Faults;

/// Which decisions are told to whom (S-50).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct AuditOptions {
    /// Which.
    pub condition: AuditCondition,
    /// To whom: all of them.
    pub loggers: Vec<AuditLoggerConfig>,
}

/// Which decisions are told: those of the filter, whatever its action is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum AuditCondition {
    /// None.
    #[default]
    Never,
    /// To refuse an RPC.
    OnDeny,
    /// To let it through this filter.
    OnAllow,
    /// Both.
    OnDenyAndAllow,
}

/// Somebody who is told of decisions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuditLoggerConfig {
    /// `StdoutAuditLog`: a line on standard output.
    Stdout,
    /// A logger of the application.
    Application {
        /// The name of its kind.
        name: String,
        /// A JSON object, which that kind has found to be right.
        config: String,
    },
}

impl AuditOptions {
    /// Checks AuditLoggingOptions; `faults` is at them.
    pub(super) fn parse(pb: &pb::AuditLoggingOptions, cx: ParseContext<'_>, faults: &mut Faults) -> Self {
        use pb_options::AuditCondition as PbCondition;
        let condition = match PbCondition::try_from(pb.audit_condition) {
            Ok(PbCondition::None) => AuditCondition::Never,
            Ok(PbCondition::OnDeny) => AuditCondition::OnDeny,
            Ok(PbCondition::OnAllow) => AuditCondition::OnAllow,
            Ok(PbCondition::OnDenyAndAllow) => AuditCondition::OnDenyAndAllow,
            Err(_) => {
                faults.field("audit_condition", |f| f.add(format!("unknown value {}", pb.audit_condition)));
                AuditCondition::Never
            }
        };
        let loggers = faults.field("logger_configs", |f| {
            let loggers = pb.logger_configs.iter().enumerate();
            loggers.filter_map(|(i, pb)| f.index(i, |f| AuditLoggerConfig::parse(pb, cx, f))).collect()
        });
        Self { condition, loggers }
    }

    /// Who is told of a decision.
    pub fn loggers_of(&self, allowed: bool) -> &[AuditLoggerConfig] {
        let wanted = match self.condition {
            AuditCondition::Never => false,
            AuditCondition::OnDeny => !allowed,
            AuditCondition::OnAllow => allowed,
            AuditCondition::OnDenyAndAllow => true,
        };
        if wanted { &self.loggers } else { &[] }
    }
}

impl AuditLoggerConfig {
    /// Checks an AuditLoggerConfig; `faults` is at it. `None` if it has faults, or is of an unknown kind and optional.
    fn parse(pb: &pb_options::AuditLoggerConfig, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        faults.field("audit_logger.typed_config", |f| {
            let Some(any) = pb.audit_logger.as_ref().and_then(|pb| pb.typed_config.as_ref()) else {
                f.add("must be set");
                return None;
            };
            let extension = Extension::parse(any, f)?;
            let name = extension.type_name();
            match (extension.is_struct(), name) {
                (false, STDOUT_TYPE) => return extension.message::<StdoutAuditLog>(f).map(|_| Self::Stdout),
                (true, STDOUT_NAME) => return Some(Self::Stdout),
                _ => {}
            }
            // Only those that come with JSON: what is in a message of an unknown type nobody can read.
            let Some(kind) = cx.bootstrap.audit_loggers.get(name).filter(|_| extension.is_struct()) else {
                if !pb.is_optional {
                    f.add(format!("audit logger type {} is not supported", excerpt(name)));
                }
                return None;
            };
            let config = json_object(extension.object(f)?).to_string();
            match kind.check(&config) {
                Ok(()) => Some(Self::Application { name: name.to_owned(), config }),
                Err(error) => {
                    f.add(format!("the audit logger {} refuses its config: {error}", excerpt(name)));
                    None
                }
            }
        })
    }
}

fn json_object(object: Struct) -> Value {
    // The map of the message has a random order.
    let sorted: BTreeMap<String, PbValue> = object.fields.into_iter().collect();
    Value::Object(sorted.into_iter().map(|(key, value)| (key, json(value))).collect())
}

fn json(value: PbValue) -> Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::BoolValue(value)) => Value::Bool(value),
        // Most numbers are whole, and no reader of JSON expects those with a point.
        Some(Kind::NumberValue(value)) if value.fract() == 0.0 && value.abs() < EXACT => Value::from(value as i64),
        Some(Kind::NumberValue(value)) => Value::from(value),
        Some(Kind::StringValue(value)) => Value::String(value),
        Some(Kind::StructValue(value)) => json_object(value),
        Some(Kind::ListValue(list)) => Value::Array(list.values.into_iter().map(json).collect()),
    }
}

const STDOUT_TYPE: &str = "envoy.extensions.rbac.audit_loggers.stream.v3.StdoutAuditLog";

/// What gRPC calls the same logger where loggers have names.
const STDOUT_NAME: &str = "stdout_logger";

/// Up to here all whole numbers are told apart: two to the power of 53.
const EXACT: f64 = 9_007_199_254_740_992.0;
