//! ORCA: what an endpoint says about its own load (A51).
//!
//! An endpoint may say anything. What gets past [`OrcaLoadReport::read`] is of bounded size, and its numbers can be added
//! and divided by whoever uses them without one of them ending up infinite.

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
    /// Reads the value of the trailer [`ORCA_TRAILER`]; nothing if it is malformed, or absurdly long.
    pub fn from_trailer(value: &[u8]) -> Option<Self> {
        if value.len() > MAX_TRAILER {
            return None;
        }
        Self::read(&BASE64.decode(value).ok()?)
    }

    /// Reads an encoded report, as streams of their own bring them; nothing if it is malformed, or absurdly long.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        if bytes.len() > MAX_REPORT {
            return None;
        }
        let mut report = Self::decode(bytes).ok()?;
        for measure in [
            &mut report.cpu_utilization,
            &mut report.mem_utilization,
            &mut report.rps_fractional,
            &mut report.eps,
            &mut report.application_utilization,
        ] {
            // What is no number, or below zero, was not reported.
            *measure = if *measure > 0.0 && measure.is_finite() { measure.min(MAX_VALUE) } else { 0.0 };
        }
        for metrics in [&mut report.request_cost, &mut report.utilization, &mut report.named_metrics] {
            bound(metrics);
        }
        Some(report)
    }
}

/// Leaves out what is no number, and names that are too long or too many.
fn bound(metrics: &mut BTreeMap<String, f64>) {
    metrics.retain(|name, value| name.len() <= MAX_NAME && value.is_finite());
    if let Some(first_out) = metrics.keys().nth(MAX_NAMES).cloned() {
        metrics.split_off(&first_out);
    }
    metrics.values_mut().for_each(|value| *value = value.clamp(-MAX_VALUE, MAX_VALUE));
}

/// The trailer with the report of one RPC (L-109).
pub const ORCA_TRAILER: &str = "endpoint-load-metrics-bin";

/// Longer ones are not read: no HTTP/2 stack takes headers of that length unless told to.
const MAX_REPORT: usize = 16 << 10;

/// The same in base64.
const MAX_TRAILER: usize = MAX_REPORT.div_ceil(3) * 4;

/// How many names of each kind are read, and how long they may be.
const MAX_NAMES: usize = 128;
const MAX_NAME: usize = 256;

/// No number of a report is larger. That is far beyond what can be measured, and any number of such numbers can be added.
const MAX_VALUE: f64 = 1e15;

/// Binary headers may come with or without padding.
const BASE64: GeneralPurpose = GeneralPurpose::new(&STANDARD, PADDING);
const PADDING: GeneralPurposeConfig = general_purpose::NO_PAD
    .with_decode_padding_mode(DecodePaddingMode::Indifferent)
    .with_decode_allow_trailing_bits(true);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_have_the_numbers_of_the_message() {
        // S-91: numbers 1, 2, 6, 7 and 9 are doubles, 4, 5 and 8 are maps from texts to doubles.
        let entry = |number: u8, value: f64| {
            let entry = [&[1 << 3 | 2, 1, b'k', 2 << 3 | 1][..], &value.to_le_bytes()].concat();
            [&[number << 3 | 2, entry.len() as u8][..], &entry].concat()
        };
        let number = |number: u8, value: f64| [&[number << 3 | 1][..], &value.to_le_bytes()].concat();
        let maps = [entry(4, 0.4), entry(5, 0.5), entry(8, 0.8)].concat();
        let bytes = [number(1, 0.1), number(2, 0.2), number(6, 6.0), number(7, 7.0), number(9, 0.9), maps].concat();
        let map = |value| BTreeMap::from([("k".to_owned(), value)]);
        let expected = OrcaLoadReport {
            cpu_utilization: 0.1,
            mem_utilization: 0.2,
            request_cost: map(0.4),
            utilization: map(0.5),
            rps_fractional: 6.0,
            eps: 7.0,
            named_metrics: map(0.8),
            application_utilization: 0.9,
        };
        assert_eq!(OrcaLoadReport::decode(&*bytes), Ok(expected), "S-91");
    }

    #[test]
    fn numbers_that_nobody_measured_are_none_and_large_ones_are_bounded() {
        let read = |value: f64| {
            let named_metrics = BTreeMap::from([("x".to_owned(), value)]);
            let report =
                OrcaLoadReport { cpu_utilization: value, rps_fractional: value, named_metrics, ..Default::default() };
            let read = OrcaLoadReport::read(&report.encode_to_vec()).expect("a report");
            (read.cpu_utilization, read.rps_fractional, read.named_metrics.get("x").copied())
        };
        for none in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert_eq!(read(none), (0.0, 0.0, None), "{none}");
        }
        assert_eq!(read(-1.0), (0.0, 0.0, Some(-1.0)), "what the application names may be below zero");
        assert_eq!(read(1e308), (MAX_VALUE, MAX_VALUE, Some(MAX_VALUE)));
        assert_eq!(read(-1e308), (0.0, 0.0, Some(-MAX_VALUE)));
        assert_eq!(read(0.25), (0.25, 0.25, Some(0.25)));
    }

    #[test]
    fn names_are_bounded_in_number_and_in_length() {
        let named = |names: Vec<String>| {
            let named_metrics = names.into_iter().map(|name| (name, 1.0)).collect();
            let report = OrcaLoadReport { named_metrics, ..Default::default() };
            OrcaLoadReport::read(&report.encode_to_vec()).expect("a report").named_metrics.len()
        };
        assert_eq!(named((0..1_000).map(|n| n.to_string()).collect()), MAX_NAMES);
        assert_eq!(named(vec!["n".repeat(MAX_NAME), "m".repeat(MAX_NAME + 1)]), 1);
    }

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
        // Fields that nobody knows, which are skipped otherwise: field 15 with so many bytes.
        let unknown = |length: usize| {
            let mut bytes = vec![15 << 3 | 2];
            prost::encode_length_delimiter(length, &mut bytes).expect("room");
            bytes.resize(bytes.len() + length, 0);
            general_purpose::STANDARD.encode(bytes)
        };
        assert_eq!(OrcaLoadReport::from_trailer(unknown(1000).as_bytes()), Some(OrcaLoadReport::default()));
        assert_eq!(OrcaLoadReport::from_trailer(unknown(MAX_TRAILER).as_bytes()), None, "too long");
    }
}
