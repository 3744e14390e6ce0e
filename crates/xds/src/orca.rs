//! ORCA: what an endpoint says about its own load (A51).

use std::collections::BTreeMap;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use base64::engine::{DecodePaddingMode, general_purpose};
use prost::Message;

/// `xds.data.orca.v3.OrcaLoadReport`. The messages that are generated for us do not have it.
#[derive(Clone, PartialEq, Message)]
pub struct OrcaLoadReport {
    /// Share of the processor in use; may exceed one.
    #[prost(double, tag = "1")]
    pub cpu_utilization: f64,
    /// Share of the memory in use.
    #[prost(double, tag = "2")]
    pub mem_utilization: f64,
    /// What the request cost, by name.
    #[prost(btree_map = "string, double", tag = "4")]
    pub request_cost: BTreeMap<String, f64>,
    /// Other utilizations, by name.
    #[prost(btree_map = "string, double", tag = "5")]
    pub utilization: BTreeMap<String, f64>,
    /// Requests per second.
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    /// Errors per second.
    #[prost(double, tag = "7")]
    pub eps: f64,
    /// Whatever else the application reports, by name.
    #[prost(btree_map = "string, double", tag = "8")]
    pub named_metrics: BTreeMap<String, f64>,
    /// Utilization as the application sees it.
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

impl OrcaLoadReport {
    /// Reads the value of the trailer [`ORCA_TRAILER`]; nothing if it is malformed.
    pub fn from_trailer(value: &[u8]) -> Option<Self> {
        Self::decode(&*BASE64.decode(value).ok()?).ok()
    }
}

/// The trailer with the report of one RPC (L-109).
pub const ORCA_TRAILER: &str = "endpoint-load-metrics-bin";

/// Binary headers may come with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, PADDING);
const PADDING: GeneralPurposeConfig = general_purpose::NO_PAD
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trailer_is_read_with_and_without_padding() {
        let named_metrics = BTreeMap::from([("queue".to_owned(), 3.0)]);
        let report = OrcaLoadReport { cpu_utilization: 0.5, named_metrics, ..Default::default() };
        let padded = general_purpose::STANDARD.encode(report.encode_to_vec());
        assert_eq!(OrcaLoadReport::from_trailer(padded.as_bytes()), Some(report.clone()), "L-109");
        assert_eq!(OrcaLoadReport::from_trailer(padded.trim_end_matches('=').as_bytes()), Some(report), "L-109");
        for garbage in [&b"!"[..], b"AAAA", b"\xff"] {
            assert_eq!(OrcaLoadReport::from_trailer(garbage), None, "{garbage:?}");
        }
    }
}
