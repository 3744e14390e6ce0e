//! Where an xDS server is, as its `server_uri` says.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// A `server_uri` in parts that a connector can use.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ServerUri {
    /// A name to resolve, or an IP literal: `host`, `host:port`, `dns:host:port`, `dns:///host:port`.
    HostPort {
        /// Name or IP literal, without brackets.
        host: String,
        /// Port; 443 if the URI has none, as with gRPC's DNS resolver.
        port: u16,
    },
    /// Addresses to try in order: `ipv4:` or `ipv6:` and a list with commas. Never empty.
    Ip(Vec<SocketAddr>),
    /// A Unix socket: `unix:path` or `unix:///path`.
    Unix(PathBuf),
    /// A directory of resources that an operator keeps: `file:///path` (FB-1).
    Directory(PathBuf),
    /// A directory of what clients themselves had last. It is never written in a bootstrap: the setting `last_good`
    /// adds it (FB-1).
    LastGood(PathBuf),
}

/// Why a `server_uri` cannot be used. It makes that one server unreachable, not the bootstrap invalid (B-49).
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("server_uri {uri:?} cannot be used: {reason}")]
pub struct ServerUriError {
    /// As configured.
    pub uri: String,
    /// What is wrong with it and what was expected.
    pub reason: String,
}

impl ServerUri {
    /// Parses the `server_uri` of a server.
    pub fn parse(uri: &str) -> Result<Self, ServerUriError> {
        let parsed = match uri.split_once(':') {
            Some(("dns", rest)) => endpoint(rest).and_then(host_port),
            Some(("ipv4", rest)) => endpoint(rest).and_then(|list| addresses(list, ipv4)),
            Some(("ipv6", rest)) => endpoint(rest).and_then(|list| addresses(list, ipv6)),
            Some(("unix", rest)) => unix(rest),
            // Without a slash it is a host of this name, and its port.
            Some(("file", rest)) if rest.starts_with('/') => directory(rest),
            Some(("last-good", rest)) if rest.starts_with("//") => {
                Ok(Self::LastGood(PathBuf::from(rest.strip_prefix("//").unwrap_or(rest))))
            }
            Some((scheme, rest)) if rest.starts_with("//") => Err(format!(
                "the scheme {scheme:?} is not supported: expected host:port, or a URI with dns:, ipv4:, ipv6:, unix: or file:"
            )),
            _ => host_port(uri),
        };
        parsed.map_err(|reason| ServerUriError { uri: uri.to_owned(), reason })
    }

    /// The URI of the server that stands for the last-good files in `directory`.
    pub(super) fn of_last_good(directory: &Path) -> String {
        format!("last-good://{}", directory.display())
    }

    /// Whether the server is a part of this process, and no peer: a directory, or last-good files.
    pub fn is_local(&self) -> bool {
        match self {
            Self::HostPort { .. } | Self::Ip(_) | Self::Unix(_) => false,
            Self::Directory(_) | Self::LastGood(_) => true,
        }
    }
}

/// A path after `file:`, with an empty authority or none.
fn directory(rest: &str) -> Result<ServerUri, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err("expected an absolute path after file://, as in file:///etc/xds".to_owned()),
        None => rest,
    };
    if path == "/" {
        return Err("expected the path of a directory after file:".to_owned());
    }
    Ok(ServerUri::Directory(PathBuf::from(path)))
}

/// What follows `scheme:`, without an empty authority and the slash that ends it.
fn endpoint(rest: &str) -> Result<&str, String> {
    let Some(rest) = rest.strip_prefix("//") else { return Ok(rest) };
    match rest.split_once('/') {
        Some(("", endpoint)) => Ok(endpoint),
        _ => Err("an authority in it is not supported: expected three slashes or none after the scheme".to_owned()),
    }
}

fn host_port(text: &str) -> Result<ServerUri, String> {
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, port))) if host.parse::<Ipv6Addr>().is_ok() => (host, port),
        Some(_) => return Err("expected an IPv6 address between the brackets".to_owned()),
        // More than one colon and no brackets: an IPv6 address without port.
        None if text.parse::<Ipv6Addr>().is_ok() => (text, ""),
        None => text.split_at(text.find(':').unwrap_or(text.len())),
    };
    if host.is_empty() || host.contains(|c: char| c.is_whitespace() || c.is_control() || "/?#@[],".contains(c)) {
        return Err("expected host:port".to_owned());
    }
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => DEFAULT_PORT,
        None => return Err(format!("found {port:?} after the host, expected a colon and a port")),
        Some(port) => parse_port(port)?,
    };
    Ok(ServerUri::HostPort { host: host.to_owned(), port })
}

fn parse_port(text: &str) -> Result<u16, String> {
    match text.parse::<u16>() {
        Ok(port) if port > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(port),
        _ => Err(format!("{text:?} is not a port: expected a number from 1 to 65535")),
    }
}

fn addresses(list: &str, parse: impl Fn(&str) -> Result<SocketAddr, String>) -> Result<ServerUri, String> {
    list.split(',').map(parse).collect::<Result<_, _>>().map(ServerUri::Ip)
}

fn ipv4(text: &str) -> Result<SocketAddr, String> {
    let (ip, port) = match text.split_once(':') {
        Some((ip, port)) => (ip, parse_port(port)?),
        None => (text, DEFAULT_PORT),
    };
    let ip: Ipv4Addr = ip.parse().map_err(|_| format!("{text:?} is not an IPv4 address with an optional port"))?;
    Ok(SocketAddr::new(IpAddr::V4(ip), port))
}

fn ipv6(text: &str) -> Result<SocketAddr, String> {
    let not_ipv6 = || format!("{text:?} is not an IPv6 address, in brackets if a port follows");
    let (ip, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(not_ipv6)?,
        None => (text, ""),
    };
    let ip: Ipv6Addr = ip.parse().map_err(|_| not_ipv6())?;
    let port = match port.strip_prefix(':') {
        Some(port) => parse_port(port)?,
        None if port.is_empty() => DEFAULT_PORT,
        None => return Err(not_ipv6()),
    };
    Ok(SocketAddr::new(IpAddr::V6(ip), port))
}

fn unix(rest: &str) -> Result<ServerUri, String> {
    let path = match rest.strip_prefix("//") {
        Some(path) if path.starts_with('/') => path,
        Some(_) => return Err("expected an absolute path after unix://".to_owned()),
        None => rest,
    };
    if path.is_empty() {
        return Err("expected the path of a socket after unix:".to_owned());
    }
    Ok(ServerUri::Unix(PathBuf::from(path)))
}

/// The port of a URI without one.
const DEFAULT_PORT: u16 = 443;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_of_a_host_is_understood_and_the_port_defaults_to_443() {
        // B-11: any gRPC target, dns by default.
        for (uri, host, port) in [
            ("xds.example:18000", "xds.example", 18000),
            ("xds.example", "xds.example", 443),
            ("dns:xds.example:1", "xds.example", 1),
            ("dns:///xds.example:65535", "xds.example", 65535),
            ("dns:xds.example", "xds.example", 443),
            ("127.0.0.1:80", "127.0.0.1", 80),
            ("[::1]:80", "::1", 80),
            ("[::1]", "::1", 443),
            ("::1", "::1", 443),
            ("dns:///[2001:db8::1]:8443", "2001:db8::1", 8443),
            ("trafficdirector.googleapis.com:443", "trafficdirector.googleapis.com", 443),
        ] {
            assert_eq!(ServerUri::parse(uri), Ok(ServerUri::HostPort { host: host.to_owned(), port }), "{uri}");
        }
    }

    #[test]
    fn address_lists_keep_their_order() {
        for (uri, expected) in [
            ("ipv4:1.2.3.4:5,6.7.8.9", vec!["1.2.3.4:5", "6.7.8.9:443"]),
            ("ipv4:///1.2.3.4:5", vec!["1.2.3.4:5"]),
            ("ipv6:[::1]:5,[::2],::3", vec!["[::1]:5", "[::2]:443", "[::3]:443"]),
        ] {
            let expected = expected.into_iter().map(|address| address.parse().unwrap()).collect();
            assert_eq!(ServerUri::parse(uri), Ok(ServerUri::Ip(expected)), "{uri}");
        }
    }

    #[test]
    fn unix_sockets_have_relative_and_absolute_paths() {
        for (uri, path) in [
            ("unix:run/xds.sock", "run/xds.sock"),
            ("unix:/run/xds.sock", "/run/xds.sock"),
            ("unix:///run/a", "/run/a"),
        ] {
            assert_eq!(ServerUri::parse(uri), Ok(ServerUri::Unix(PathBuf::from(path))), "{uri}");
        }
    }

    #[test]
    fn directories_are_servers_of_this_process_and_a_host_may_be_called_file() {
        // FB-1.
        let directory = |path: &str| Ok(ServerUri::Directory(PathBuf::from(path)));
        assert_eq!(ServerUri::parse("file:///etc/xds"), directory("/etc/xds"));
        assert_eq!(ServerUri::parse("file:/etc/xds"), directory("/etc/xds"));
        assert_eq!(ServerUri::parse("file:80"), Ok(ServerUri::HostPort { host: "file".to_owned(), port: 80 }));
        let last_good = ServerUri::of_last_good(Path::new("/var/cache/x"));
        assert_eq!(ServerUri::parse(&last_good), Ok(ServerUri::LastGood(PathBuf::from("/var/cache/x"))));
        for uri in ["file:///etc/xds", &last_good] {
            assert!(ServerUri::parse(uri).unwrap().is_local(), "{uri}");
        }
        assert!(!ServerUri::parse("unix:///etc/xds").unwrap().is_local());
    }

    #[test]
    fn an_unusable_uri_says_what_was_expected() {
        // B-49: an error of its own, made when the server is to be reached.
        for (uri, reason) in [
            ("", "expected host:port"),
            (":443", "expected host:port"),
            ("a b:443", "expected host:port"),
            ("host:", "\"\" is not a port"),
            ("host:+80", "\"+80\" is not a port"),
            ("host:0", "\"0\" is not a port"),
            ("host:65536", "\"65536\" is not a port"),
            ("host:http", "\"http\" is not a port"),
            ("[::1", "between the brackets"),
            ("[nope]:1", "between the brackets"),
            ("[::1]80", "expected a colon and a port"),
            ("https://host:443", "scheme \"https\" is not supported"),
            ("xds:///host", "scheme \"xds\" is not supported"),
            ("dns://8.8.8.8/host", "an authority in it is not supported"),
            ("ipv4:", "\"\" is not an IPv4 address"),
            ("ipv4:1.2.3.4,", "\"\" is not an IPv4 address"),
            ("ipv4:[::1]:1", "is not a port"),
            ("ipv6:1.2.3.4", "\"1.2.3.4\" is not an IPv6 address"),
            ("ipv6:[::1]x", "\"[::1]x\" is not an IPv6 address"),
            ("unix:", "expected the path"),
            ("unix://host/path", "expected an absolute path"),
            ("file://host/path", "expected an absolute path after file://"),
            ("file:///", "expected the path of a directory"),
        ] {
            let error = ServerUri::parse(uri).unwrap_err();
            assert!(error.reason.contains(reason), "{uri:?}: {error}");
            assert!(error.to_string().starts_with(&format!("server_uri {uri:?} cannot be used: ")), "{error}");
        }
    }
}
