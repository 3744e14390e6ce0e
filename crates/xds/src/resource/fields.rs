//! Parsers of small messages that several resources share.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::config_source::ConfigSourceSpecifier;
use envoy_types::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use envoy_types::pb::envoy::config::core::v3::{Address, ConfigSource, Metadata, SocketAddress, address};
use envoy_types::pb::envoy::extensions::filters::http::gcp_authn::v3::Audience;
use envoy_types::pb::envoy::r#type::v3::FractionalPercent;
use envoy_types::pb::envoy::r#type::v3::fractional_percent::DenominatorType;
use envoy_types::pb::google::protobuf::{Any, Duration as PbDuration};
use prost::{Message, Name};

use crate::invalid::Faults;

/// A duration within the bounds of protobuf.
pub(crate) fn duration(pb: &PbDuration, faults: &mut Faults) -> Option<Duration> {
    match (u64::try_from(pb.seconds), u32::try_from(pb.nanos)) {
        (Ok(seconds), Ok(nanos)) if seconds <= 315_576_000_000 && nanos <= 999_999_999 => {
            Some(Duration::new(seconds, nanos))
        }
        _ => {
            faults.add(format!(
                "duration of {} s and {} ns is out of range: seconds must be in [0, 315576000000], nanos in [0, 999999999]",
                pb.seconds, pb.nanos
            ));
            None
        }
    }
}

/// A fraction in parts of a million, at most a million.
pub(crate) fn per_million(pb: &FractionalPercent, faults: &mut Faults) -> Option<u32> {
    let scale = match DenominatorType::try_from(pb.denominator) {
        Ok(DenominatorType::Hundred) => 10_000,
        Ok(DenominatorType::TenThousand) => 100,
        Ok(DenominatorType::Million) => 1,
        Err(_) => {
            faults.field("denominator", |f| {
                f.add(format!("unknown value {}: expected HUNDRED, TEN_THOUSAND or MILLION", pb.denominator));
            });
            return None;
        }
    };
    // Saturating: a hostile numerator must not wrap round to a small share.
    Some(pb.numerator.saturating_mul(scale).min(1_000_000))
}

/// The `socket_address` of an address; `faults` is at the Address.
pub(crate) fn socket_address<'a>(pb: Option<&'a Address>, faults: &mut Faults) -> Option<&'a SocketAddress> {
    match pb.and_then(|address| address.address.as_ref()) {
        Some(address::Address::SocketAddress(socket)) => Some(socket),
        Some(_) => {
            faults.add("only socket_address is supported");
            None
        }
        None => {
            faults.add("must be set");
            None
        }
    }
}

/// The port of a socket address; `faults` is at the Address.
pub(crate) fn port(pb: &SocketAddress, faults: &mut Faults) -> Option<u16> {
    faults.field("socket_address", |f| match pb.port_specifier {
        Some(PortSpecifier::PortValue(port)) => match u16::try_from(port) {
            Ok(port) => Some(port),
            Err(_) => {
                f.field("port_value", |f| f.add(format!("{port} is not a port: expected at most 65535")));
                None
            }
        },
        Some(PortSpecifier::NamedPort(_)) => {
            f.field("named_port", |f| f.add("not supported: expected port_value"));
            None
        }
        None => {
            f.field("port_value", |f| f.add("must be set"));
            None
        }
    })
}

/// An IP literal and a port; `faults` is at the Address.
pub(crate) fn ip_address(pb: Option<&Address>, faults: &mut Faults) -> Option<SocketAddr> {
    let socket = socket_address(pb, faults)?;
    let ip = match socket.address.parse::<IpAddr>() {
        Ok(ip) => Some(ip),
        Err(_) => {
            faults.field("socket_address.address", |f| {
                f.add(format!("{} is not an IPv4 or IPv6 address", excerpt(&socket.address)));
            });
            None
        }
    };
    let port = port(socket, faults);
    Some(SocketAddr::new(ip?, port?))
}

/// A ConfigSource that means this ADS stream: `ads` or `self`. `faults` is at the ConfigSource.
pub(crate) fn ads_config_source(pb: Option<&ConfigSource>, faults: &mut Faults) {
    match pb.and_then(|source| source.config_source_specifier.as_ref()) {
        Some(ConfigSourceSpecifier::Ads(_) | ConfigSourceSpecifier::Self_(_)) => {}
        Some(_) => faults.add("must be ads or self"),
        None => faults.add("must be set to ads or self"),
    }
}

/// A ConfigSource that must be `self`. `faults` is at the ConfigSource.
pub(crate) fn self_config_source(pb: Option<&ConfigSource>, faults: &mut Faults) {
    match pb.and_then(|source| source.config_source_specifier.as_ref()) {
        Some(ConfigSourceSpecifier::Self_(_)) => {}
        _ => faults.add("must be self"),
    }
}

/// The message type of an Any: what follows the last `/` of its type URL.
pub(crate) fn any_type<'a>(any: &'a Any, faults: &mut Faults) -> Option<&'a str> {
    match any.type_url.rsplit_once('/') {
        Some((_, message)) if !message.is_empty() => Some(message),
        _ => {
            faults.field("type_url", |f| {
                let found = excerpt(&any.type_url);
                f.add(format!("{found} is not a type URL: expected a prefix, a slash and a message name"));
            });
            None
        }
    }
}

/// Decodes an Any that must hold an `M`; `faults` is at the Any.
pub(crate) fn unpack<M: Message + Name + Default>(any: &Any, faults: &mut Faults) -> Option<M> {
    let found = any_type(any, faults)?;
    if found != M::full_name() {
        faults.field("type_url", |f| f.add(format!("is {}: expected {}", excerpt(found), M::full_name())));
        return None;
    }
    match M::decode(any.value.as_slice()) {
        Ok(message) => Some(message),
        Err(error) => {
            faults.field("value", |f| f.add(format!("is not a {}: {error}", M::full_name())));
            None
        }
    }
}

/// A text from the wire in quotes, cut if it is long: what goes into a fault must stay small.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(MAX_EXCERPT) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// Checks the metadata types that gRPC knows. None of them is used yet, so nothing is kept: a resource that
/// other clients reject must not pass here only to break when it is. `faults` is at the Metadata.
pub(crate) fn check_metadata(pb: &Metadata, faults: &mut Faults) {
    if pb.typed_filter_metadata.is_empty() {
        return;
    }
    // The map has a random order; the texts of faults must not.
    let mut entries: Vec<(&String, &Any)> = pb.typed_filter_metadata.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    faults.field("typed_filter_metadata", |f| {
        for (key, any) in entries {
            f.key(key, |f| match any_type(any, f) {
                Some(AUDIENCE) => {
                    if unpack::<Audience>(any, f).is_some_and(|audience| audience.url.is_empty()) {
                        f.field("url", |f| f.add("must not be empty"));
                    }
                }
                Some(ADDRESS) => {
                    if let Some(address) = unpack::<Address>(any, f) {
                        ip_address(Some(&address), f);
                    }
                }
                _ => {}
            });
        }
    });
}

/// Longest text from the wire that a fault shows in full, in characters.
const MAX_EXCERPT: usize = 100;

const AUDIENCE: &str = "envoy.extensions.filters.http.gcp_authn.v3.Audience";
const ADDRESS: &str = "envoy.config.core.v3.Address";
