//! Authorization: the parser and the engine of RBAC filters beside a naive reference.
//!
//! A case is a random filter, as often wrong as right, and some random RPCs. The reference works on the protobuf messages
//! and the list of headers as they are on the wire, and shares no code with what it judges.

use std::sync::{Arc, LazyLock};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use http::{HeaderMap, HeaderName, HeaderValue};
use mainstay_lb::identity::SubjectAltNames;
use mainstay_lb::{Authorization, Caller, CallerCertificate, Facts};
use mainstay_xds::Choose;
use mainstay_xds::bootstrap::{Bootstrap, Guards};
use mainstay_xds::resource::ParseContext;
use mainstay_xds::resource::filter::{FilterConfig, HttpFilter, Rbac};
use prost::Message;

use crate::choose::Seeded;

mod draw;
mod naive;

use draw::{Certificate, Draw, Rpc};
use naive::Naive;

/// What authorization in the field did wrong (grpc-go, by the number of the advisory or the pull request).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Names of headers are compared as the policy writes them (GHSA-qc2q-p7wx-3px3).
    HeaderCase,
    /// A regular expression matches if a part of the value does (#9148).
    PartialMatch,
    /// All names of a certificate are looked at, not only those of the first kind that it has (#9111).
    FallsThrough,
    /// Rules that are not known are passed over (GHSA-hrxh-6v49-42gf).
    DropsUnknown,
    /// A range without a length is too much (#9250).
    WantsPrefixLength,
}

/// Every defect: the cases must find each of them.
pub const DEFECTS: [Defect; 5] =
    [Defect::HeaderCase, Defect::PartialMatch, Defect::FallsThrough, Defect::DropsUnknown, Defect::WantsPrefixLength];

/// What cases came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Filters that were refused.
    pub refused: u64,
    /// Filters without any effect.
    pub idle: u64,
    /// RPCs that were let in, and those that were not.
    pub allowed: u64,
    /// RPCs that were not.
    pub denied: u64,
    /// Decisions that somebody was told of.
    pub told: u64,
}

/// What becomes of an RPC: whether it is let in, by which policy, and whether that is told.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Outcome {
    allowed: bool,
    policy: Option<String>,
    told: bool,
}

/// Runs the case of a seed. The same seed is the same case. With a defect, the reference has it.
///
/// # Errors
/// If the engine and the reference do not agree: the filter, the RPC and what each says.
pub fn run(seed: u64, defect: Option<Defect>, tally: &mut Tally) -> Result<(), String> {
    let judged = judge(&mut Seeded::new(seed), &Naive(defect), tally);
    judged.map_err(|difference| format!("seed {seed}: {difference}"))
}

/// Runs one case, of which the choices are bytes.
pub(crate) fn replay(choose: &mut dyn Choose) -> Result<(), String> {
    judge(choose, &Naive(None), &mut Tally::default())
}

fn judge(choose: &mut dyn Choose, naive: &Naive, tally: &mut Tally) -> Result<(), String> {
    let mut draw = Draw::new(choose);
    let pb = draw.filter();
    let parsed = Rbac::decode(&pb.encode_to_vec(), context());
    let expected = naive.check(&pb);
    let rbac = match (parsed, expected) {
        (Ok(rbac), Ok(())) => rbac,
        (Err(_), Err(_)) => {
            tally.refused += 1;
            return Ok(());
        }
        (parsed, expected) => return Err(format!("{pb:#?}\nparsed: {parsed:#?}\nexpected: {expected:?}")),
    };
    tally.idle += u64::from(rbac.is_none());
    let chain = [HttpFilter { name: "authz".into(), config: FilterConfig::Rbac(rbac), disabled: false }];
    let authorization = Authorization::new(&chain, &[]);
    for _ in 0..RPCS {
        let rpc = draw.rpc();
        let found = decide(&authorization, &rpc);
        let expected = naive.decide(&pb, &rpc);
        if found != expected {
            return Err(format!("{pb:#?}\n{rpc:#?}\nfound: {found:?}\nexpected: {expected:?}"));
        }
        *(if found.allowed { &mut tally.allowed } else { &mut tally.denied }) += 1;
        tally.told += u64::from(found.told);
    }
    Ok(())
}

/// A case for another implementation, as lines of text: a filter, what we make of it, and RPCs. Bytes are in base64.
pub fn case(seed: u64) -> String {
    let mut source = Seeded::new(seed);
    let mut draw = Draw::alike(&mut source);
    let pb = draw.filter().encode_to_vec();
    let parsed = Rbac::decode(&pb, context());
    let rpcs: Vec<Rpc> = (0..RPCS).map(|_| draw.rpc()).collect();
    let mut lines = format!("filter {}\n", BASE64.encode(&pb));
    match parsed {
        Err(_) => lines += "expect nack\n",
        Ok(rbac) => {
            let chain = [HttpFilter { name: "authz".into(), config: FilterConfig::Rbac(rbac), disabled: false }];
            let authorization = Authorization::new(&chain, &[]);
            let allowed = rpcs.iter().map(|rpc| decide(&authorization, rpc).allowed);
            let verdicts: String = allowed.map(|allowed| if allowed { 'A' } else { 'D' }).collect();
            lines += &format!("expect {verdicts}\n");
        }
    }
    for rpc in &rpcs {
        let (path, authority) = (BASE64.encode(&rpc.path), BASE64.encode(&rpc.authority));
        lines += &format!("rpc {path} {authority} {} {}\n", rpc.local, rpc.peer);
        for (name, value) in &rpc.headers {
            lines += &format!("header {name} {}\n", BASE64.encode(value));
        }
        match &rpc.certificate {
            Certificate::Plaintext => {}
            Certificate::None => lines += "tls\n",
            Certificate::Shown { uri, dns, .. } => {
                lines += "tls\ncertificate\n";
                uri.iter().for_each(|name| lines += &format!("uri {}\n", BASE64.encode(name)));
                dns.iter().for_each(|name| lines += &format!("dns {}\n", BASE64.encode(name)));
            }
        }
    }
    lines + "end\n"
}

/// Any bytes for a filter: the same bytes are the same rules or the same faults, and a decision is made by either.
pub(crate) fn decode(bytes: &[u8]) {
    let parsed = Rbac::decode(bytes, context());
    assert_eq!(parsed, Rbac::decode(bytes, context()));
    match parsed {
        Err(invalid) => assert!(!invalid.to_string().is_empty()),
        Ok(rbac) => {
            let chain = [HttpFilter { name: "authz".into(), config: FilterConfig::Rbac(rbac), disabled: false }];
            let authorization = Authorization::new(&chain, &[]);
            for seed in 0..RPCS {
                let rpc = Draw::new(&mut Seeded::new(seed)).rpc();
                assert_eq!(decide(&authorization, &rpc), decide(&authorization, &rpc));
            }
        }
    }
}

fn decide(authorization: &Authorization, rpc: &Rpc) -> Outcome {
    let mut headers = HeaderMap::new();
    for (name, value) in &rpc.headers {
        // Draws have no others.
        let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value)) else {
            continue;
        };
        headers.append(name, value);
    }
    let certificate = match &rpc.certificate {
        Certificate::Shown { uri, dns, subject } => {
            let names = SubjectAltNames { uri: uri.clone(), dns: dns.clone(), ..Default::default() };
            Some(CallerCertificate { names, subject: subject.clone() })
        }
        Certificate::Plaintext | Certificate::None => None,
    };
    let caller = match (&rpc.certificate, &certificate) {
        (Certificate::Plaintext, _) => Caller::Plaintext,
        (_, Some(certificate)) => Caller::Certified(certificate),
        (_, None) => Caller::Anonymous,
    };
    let facts = Facts {
        path: &rpc.path,
        authority: &rpc.authority,
        method: "POST",
        headers: &headers,
        local: rpc.local,
        peer: rpc.peer,
        caller,
    };
    let mut told = None;
    let allowed = authorization.allows(&facts, &mut |record| told = Some(record.verdict.policy.map(str::to_owned)));
    // The policy is known of what is told only; naive outcomes have it in the same case.
    Outcome { allowed, told: told.is_some(), policy: told.flatten() }
}

fn context() -> ParseContext<'static> {
    static BOOTSTRAP: LazyLock<Arc<Bootstrap>> = LazyLock::new(|| {
        let json = r#"{"xds_servers": [{"server_uri": "a:1", "channel_creds": [{"type": "insecure"}]}]}"#;
        Arc::new(Bootstrap::parse(json, Guards::default()).unwrap_or_else(|error| panic!("{error}")))
    });
    ParseContext { bootstrap: &BOOTSTRAP, server: &BOOTSTRAP.servers[0] }
}

/// How many RPCs meet the filter of a case.
const RPCS: u64 = 4;
