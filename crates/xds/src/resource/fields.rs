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
        faults.field("type_url", |f| f.add(format!("is {found}: expected {}", M::full_name())));
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

/// What is used of metadata.
#[derive(Default)]
pub(crate) struct KnownMetadata {
    /// The HTTP proxy on the way to an endpoint (A86).
    pub(crate) proxy: Option<SocketAddr>,
}

/// Checks the metadata types that gRPC knows, whether or not they are used: a resource that other clients
/// reject must not pass here only to break when they are. `faults` is at the Metadata.
pub(crate) fn parse_metadata(pb: &Metadata, faults: &mut Faults) -> KnownMetadata {
    let mut known = KnownMetadata::default();
    if pb.typed_filter_metadata.is_empty() {
        return known;
    }
    // The map has a random order; the texts of faults must not.
    let mut entries: Vec<(&String, &Any)> = pb.typed_filter_metadata.iter().collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    faults.field("typed_filter_metadata", |f| {
        for (key, any) in entries {
            f.key(key, |f| match any_type(any, f) {
                Some(AUDIENCE) => check_audience(any, f),
                Some(ADDRESS) => {
                    let address = unpack::<Address>(any, f).and_then(|address| ip_address(Some(&address), f));
                    if key == PROXY_ADDRESS {
                        known.proxy = address;
                    }
                }
                _ => {}
            });
        }
    });
    known
}

fn check_audience(any: &Any, faults: &mut Faults) {
    if unpack::<Audience>(any, faults).is_some_and(|audience| audience.url.is_empty()) {
        faults.field("url", |f| f.add("must not be empty"));
    }
}

const AUDIENCE: &str = "envoy.extensions.filters.http.gcp_authn.v3.Audience";
const ADDRESS: &str = "envoy.config.core.v3.Address";

/// The key under which an endpoint or a locality names its proxy (A86).
pub(crate) const PROXY_ADDRESS: &str = "envoy.http11_proxy_transport_socket.proxy_address";

/// Longest text from the wire that a fault shows in full, in characters.
const MAX_EXCERPT: usize = 100;

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::core::v3::{AggregatedConfigSource, PathConfigSource, Pipe, SelfConfigSource};
    use envoy_types::pb::google::protobuf::UInt32Value;

    use super::*;

    #[test]
    fn r3_durations_have_the_bounds_of_protobuf() {
        let parse = |seconds, nanos| run(|f| duration(&PbDuration { seconds, nanos }, f));
        assert_eq!(parse(0, 0), Ok(Some(Duration::ZERO)));
        assert_eq!(parse(315_576_000_000, 999_999_999), Ok(Some(Duration::new(315_576_000_000, 999_999_999))));
        for (seconds, nanos) in [(-1, 0), (0, -1), (315_576_000_001, 0), (0, 1_000_000_000), (i64::MIN, i32::MIN)] {
            assert_eq!(
                parse(seconds, nanos),
                Err(format!(
                    "duration of {seconds} s and {nanos} ns is out of range: \
                     seconds must be in [0, 315576000000], nanos in [0, 999999999]"
                ))
            );
        }
    }

    #[test]
    fn r4_fractions_are_scaled_to_a_million_and_capped() {
        let parse = |numerator, denominator| run(|f| per_million(&FractionalPercent { numerator, denominator }, f));
        assert_eq!(parse(25, DenominatorType::Hundred as i32), Ok(Some(250_000)));
        assert_eq!(parse(25, DenominatorType::TenThousand as i32), Ok(Some(2_500)));
        assert_eq!(parse(25, DenominatorType::Million as i32), Ok(Some(25)));
        assert_eq!(parse(101, DenominatorType::Hundred as i32), Ok(Some(1_000_000)));
        // 429497 * 10000 wraps round to 2704 in 32 bits.
        assert_eq!(parse(429_497, DenominatorType::Hundred as i32), Ok(Some(1_000_000)));
        assert_eq!(parse(1, 3), Err("denominator: unknown value 3: expected HUNDRED, TEN_THOUSAND or MILLION".into()));
    }

    #[test]
    fn r5_the_type_of_an_any_follows_the_last_slash() {
        let parse = |type_url: &str| {
            let any = Any { type_url: type_url.into(), value: vec![] };
            run(|f| any_type(&any, f).map(str::to_owned))
        };
        assert_eq!(parse("type.googleapis.com/a.B"), Ok(Some("a.B".into())));
        assert_eq!(parse("x/y/a.B"), Ok(Some("a.B".into())));
        for malformed in ["", "a.B", "type.googleapis.com/"] {
            assert_eq!(
                parse(malformed),
                Err(format!(
                    "type_url: {malformed:?} is not a type URL: expected a prefix, a slash and a message name"
                ))
            );
        }
    }

    #[test]
    fn r5_an_any_is_unpacked_only_as_what_it_says_it_is() {
        let unpack = |type_url: &str, value: &[u8]| {
            let any = Any { type_url: type_url.into(), value: value.to_vec() };
            run(|f| unpack::<UInt32Value>(&any, f).map(|value| value.value))
        };
        assert_eq!(unpack("t/google.protobuf.UInt32Value", &[8, 7]), Ok(Some(7)));
        assert_eq!(unpack("t/a.B", &[8, 7]), Err("type_url: is a.B: expected google.protobuf.UInt32Value".into()));
        let undecodable = unpack("t/google.protobuf.UInt32Value", &[8]).unwrap_err();
        assert!(undecodable.starts_with("value: is not a google.protobuf.UInt32Value: "), "{undecodable}");
        assert!(unpack("", &[]).is_err());
    }

    #[test]
    fn r7_an_address_is_an_ip_and_a_port() {
        let parse = |ip: &str, port| run(|f| ip_address(Some(&socket(ip, port)), f));
        let value = |port| Some(PortSpecifier::PortValue(port));
        assert_eq!(parse("10.0.0.1", value(80)), Ok(Some("10.0.0.1:80".parse().unwrap())));
        assert_eq!(parse("2001:db8::1", value(65_535)), Ok(Some("[2001:db8::1]:65535".parse().unwrap())));
        assert_eq!(parse("::", value(0)), Ok(Some("[::]:0".parse().unwrap())));
        for not_ip in ["", "host", "10.0.0", "10.0.0.01", "[::1]", "::1%1", "10.0.0.1:80"] {
            assert_eq!(
                parse(not_ip, value(80)),
                Err(format!("socket_address.address: {not_ip:?} is not an IPv4 or IPv6 address"))
            );
        }
        let port = |port| parse("::1", port).unwrap_err();
        assert_eq!(port(None), "socket_address.port_value: must be set");
        assert_eq!(port(value(65_536)), "socket_address.port_value: 65536 is not a port: expected at most 65535");
        assert_eq!(
            port(Some(PortSpecifier::NamedPort("http".into()))),
            "socket_address.named_port: not supported: expected port_value"
        );
        // Both faults of one address are named.
        assert_eq!(
            parse("x", None),
            Err("socket_address.address: \"x\" is not an IPv4 or IPv6 address; \
                 socket_address.port_value: must be set"
                .into())
        );
    }

    #[test]
    fn r7_only_socket_addresses_are_supported() {
        let parse = |pb: Option<&Address>| run(|f| ip_address(pb, f));
        assert_eq!(parse(None), Err("must be set".into()));
        assert_eq!(parse(Some(&Address::default())), Err("must be set".into()));
        let pipe = Address { address: Some(address::Address::Pipe(Pipe::default())) };
        assert_eq!(parse(Some(&pipe)), Err("only socket_address is supported".into()));
    }

    #[test]
    fn r8_config_sources_name_this_stream() {
        let source = |specifier| Some(ConfigSource { config_source_specifier: specifier, ..Default::default() });
        let ads = source(Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource::default())));
        let this = source(Some(ConfigSourceSpecifier::Self_(SelfConfigSource::default())));
        let path = source(Some(ConfigSourceSpecifier::PathConfigSource(PathConfigSource::default())));
        let ads_or_self = |pb: &Option<ConfigSource>| run(|f| ads_config_source(pb.as_ref(), f));
        let only_self = |pb: &Option<ConfigSource>| run(|f| self_config_source(pb.as_ref(), f));
        assert_eq!(ads_or_self(&ads), Ok(()));
        assert_eq!(ads_or_self(&this), Ok(()));
        assert_eq!(ads_or_self(&path), Err("must be ads or self".into()));
        assert_eq!(ads_or_self(&source(None)), Err("must be set to ads or self".into()));
        assert_eq!(ads_or_self(&None), Err("must be set to ads or self".into()));
        assert_eq!(only_self(&this), Ok(()));
        for other in [ads, path, source(None), None] {
            assert_eq!(only_self(&other), Err("must be self".into()));
        }
    }

    /// The value, or the text of all faults.
    fn run<T>(parse: impl FnOnce(&mut Faults) -> T) -> Result<T, String> {
        let mut faults = Faults::new();
        let value = parse(&mut faults);
        faults.finish(value).map_err(|invalid| invalid.to_string())
    }

    fn socket(ip: &str, port_specifier: Option<PortSpecifier>) -> Address {
        let socket = SocketAddress { address: ip.into(), port_specifier, ..Default::default() };
        Address { address: Some(address::Address::SocketAddress(socket)) }
    }
}
