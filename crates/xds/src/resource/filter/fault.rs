//! Fault injection: RPCs that are held up or aborted on purpose (A33).

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::filters::common::fault::v3 as pb_common;
use envoy_types::pb::envoy::extensions::filters::common::fault::v3::fault_delay::FaultDelaySecifier;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3 as pb;
use envoy_types::pb::envoy::extensions::filters::http::fault::v3::fault_abort::ErrorType;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;

use super::super::extension::Extension;
use super::super::fields;
use super::{FilterConfig, FilterOverride, FilterType};
use crate::Code;
use crate::invalid::Faults;

/// Which faults are injected into how many RPCs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fault {
    /// Hold an RPC up before anything is sent.
    pub delay: Option<FaultDelay>,
    /// Then end it.
    pub abort: Option<FaultAbort>,
    /// How many faults the process may have at work before this one is left out.
    pub max_active: u32,
}

/// How long RPCs are held up.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FaultDelay {
    /// How long.
    pub time: DelayTime,
    /// How many of them.
    pub share: FaultShare,
}

/// How long.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum DelayTime {
    /// This long.
    Fixed(Duration),
    /// As the request says in its headers (S-53).
    Header,
}

/// How RPCs are ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FaultAbort {
    /// With which status.
    pub status: AbortStatus,
    /// How many of them.
    pub share: FaultShare,
}

/// With which status.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum AbortStatus {
    /// This gRPC status code.
    Code(Code),
    /// As the request says in its headers (S-53).
    Header,
}

/// How many RPCs get a fault. Not in parts of a million, as headers may lower the numerator (S-53).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FaultShare {
    /// So many of `denominator`; more than that is all.
    pub numerator: u32,
    /// 100, 10,000 or 1,000,000.
    pub denominator: u32,
}

pub(super) static FAULT: FilterType = FilterType {
    config_type: TYPE,
    on_client: true,
    on_server: false,
    terminal: false,
    parse: |extension, _, faults| Fault::parse(extension, faults).map(FilterConfig::Fault),
    overrides: Some((TYPE, |extension, _, faults| Fault::parse(extension, faults).map(FilterOverride::Fault))),
};

impl Fault {
    fn parse(extension: &Extension<'_>, faults: &mut Faults) -> Option<Arc<Self>> {
        let pb = extension.message::<pb::HttpFault>(faults)?;
        let delay = pb.delay.as_ref().and_then(|pb| faults.field("delay", |f| FaultDelay::parse(pb, f)));
        let abort = pb.abort.as_ref().and_then(|pb| faults.field("abort", |f| FaultAbort::parse(pb, f)));
        let max_active = pb.max_active_faults.map_or(u32::MAX, |max| max.value);
        Some(Arc::new(Self { delay, abort, max_active }))
    }
}

impl FaultDelay {
    /// `None` if it has faults, or does not say how long.
    fn parse(pb: &pb_common::FaultDelay, faults: &mut Faults) -> Option<Self> {
        let share = FaultShare::parse(pb.percentage.as_ref(), faults);
        let time = match pb.fault_delay_secifier.as_ref()? {
            FaultDelaySecifier::FixedDelay(pb) => {
                DelayTime::Fixed(faults.field("fixed_delay", |f| fields::duration(pb, f))?)
            }
            FaultDelaySecifier::HeaderDelay(_) => DelayTime::Header,
        };
        Some(Self { time, share: share? })
    }
}

impl FaultAbort {
    /// `None` if it has faults, or does not say with which status.
    fn parse(pb: &pb::FaultAbort, faults: &mut Faults) -> Option<Self> {
        let share = FaultShare::parse(pb.percentage.as_ref(), faults);
        let status = match pb.error_type.as_ref()? {
            // S-52
            ErrorType::HttpStatus(status) => {
                AbortStatus::Code(Code::of_http_status(u16::try_from(*status).unwrap_or(u16::MAX)))
            }
            ErrorType::GrpcStatus(number) => match Code::from_number(*number) {
                Some(code) => AbortStatus::Code(code),
                None => {
                    let largest = Code::ALL.len() - 1;
                    faults.field("grpc_status", |f| f.add(format!("is {number}: expected 0 to {largest}")));
                    return None;
                }
            },
            ErrorType::HeaderAbort(_) => AbortStatus::Header,
        };
        Some(Self { status, share: share? })
    }
}

impl FaultShare {
    /// Checks `percentage` of the message that `faults` is at; unset is none (S-55).
    fn parse(pb: Option<&FractionalPercent>, faults: &mut Faults) -> Option<Self> {
        let Some(pb) = pb else { return Some(Self { numerator: 0, denominator: 100 }) };
        faults.field("percentage", |f| fields::per_million(pb, f))?;
        let denominator = match DenominatorType::try_from(pb.denominator).ok()? {
            DenominatorType::Hundred => 100,
            DenominatorType::TenThousand => 10_000,
            DenominatorType::Million => 1_000_000,
        };
        Some(Self { numerator: pb.numerator, denominator })
    }
}

const TYPE: &str = "envoy.extensions.filters.http.fault.v3.HTTPFault";
