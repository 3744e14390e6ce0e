//! The session of an RPC: where its cookie wants it to go, and the cookie for the answer (A55, A60, L-93, L-94).

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use http::header::COOKIE;
use mainstay_xds::resource::filter::SessionCookie;

use crate::owner::Wake;
use crate::rpc::Rpc;

/// An RPC that belongs to a session, or begins one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Session {
    cookie: Arc<SessionCookie>,
    home: Home,
}

/// Where a session was before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Home {
    /// The addresses of one endpoint.
    hosts: Box<[SocketAddr]>,
    cluster: Option<Box<str>>,
}

/// What a pick says about the session.
#[derive(Debug, Default)]
pub(crate) struct SessionPick {
    /// The addresses of the endpoint that was picked, in any order.
    pub(crate) endpoint: Option<Arc<[SocketAddr]>>,
    /// What has to know that a session uses this endpoint.
    pub(crate) keep: Option<Wake>,
}

impl Session {
    /// What the request says; none if the session is not for its path.
    pub(crate) fn read(cookie: &Arc<SessionCookie>, rpc: Rpc<'_>) -> Option<Self> {
        if !path_matches(&cookie.path, rpc.path) {
            return None;
        }
        let mut pairs = rpc.headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
        let value = pairs.find_map(|pairs| value_of(pairs, &cookie.name));
        let home = value.and_then(Home::decode).unwrap_or_default();
        Some(Self { cookie: Arc::clone(cookie), home })
    }

    /// The addresses that are wanted, in order.
    pub(crate) fn hosts(&self) -> &[SocketAddr] {
        &self.home.hosts
    }

    /// The cluster that is wanted.
    pub(crate) fn cluster(&self) -> Option<&str> {
        self.home.cluster.as_deref()
    }

    /// The `set-cookie` for an answer from `used`, one of the addresses of `endpoint`; none if the caller has it already.
    pub(crate) fn set_cookie(&self, used: SocketAddr, endpoint: &[SocketAddr], cluster: &str) -> Option<HeaderValue> {
        let others = endpoint.iter().copied().filter(|address| *address != used);
        let addresses = || std::iter::once(used).chain(others.clone());
        if self.cluster() == Some(cluster) && addresses().eq(self.home.hosts.iter().copied()) {
            return None;
        }
        let list: Vec<String> = addresses().map(|address| address.to_string()).collect();
        let value = STANDARD.encode(format!("{};{PREFIX}{cluster}", list.join(",")));
        let mut text = format!("{}={value}; HttpOnly", self.cookie.name);
        // Writing to a text never fails.
        if !self.cookie.path.is_empty() {
            let _ = write!(text, "; Path={}", self.cookie.path);
        }
        if !self.cookie.ttl.is_zero() {
            let _ = write!(text, "; Max-Age={}", self.cookie.ttl.as_secs());
        }
        HeaderValue::try_from(text).ok()
    }
}

impl Home {
    /// Reads `address,address;cluster:name` in base64. What is not that counts as no cookie.
    fn decode(value: &str) -> Option<Self> {
        if value.len() > MAX_COOKIE {
            return None;
        }
        let text = String::from_utf8(STANDARD.decode(value).ok()?).ok()?;
        let (hosts, cluster) = text.split_once(';').unwrap_or((&text, ""));
        let hosts = hosts.split(',').take(MAX_HOSTS).map(|host| host.parse().ok()).collect::<Option<_>>()?;
        Some(Self { hosts, cluster: cluster.strip_prefix(PREFIX).map(Box::from) })
    }
}

/// The rule of RFC 6265 section 5.1.4.
fn path_matches(cookie: &str, path: &str) -> bool {
    let Some(rest) = path.strip_prefix(cookie) else { return false };
    rest.is_empty() || cookie.is_empty() || cookie.ends_with('/') || rest.starts_with('/')
}

/// The value of the first cookie with this name; it may be in quotes.
fn value_of<'a>(pairs: &'a str, name: &str) -> Option<&'a str> {
    let mut pairs = pairs.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(found, _)| *found == name)?;
    Some(value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value))
}

/// What stands before the name of a cluster in a cookie (A60).
const PREFIX: &str = "cluster:";

/// Longer cookies are not ours: we make none that browsers would not keep (RFC 6265, section 6.1).
const MAX_COOKIE: usize = 4096;

/// How many addresses of a cookie are read.
const MAX_HOSTS: usize = 32;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::HeaderMap;

    use super::*;

    #[test]
    fn paths_match_by_whole_segments() {
        for (cookie, path, expected) in [
            ("", "/s/m", true),
            ("/", "/s/m", true),
            ("/s", "/s/m", true),
            ("/s/", "/s/m", true),
            ("/s/m", "/s/m", true),
            ("/s/m", "/s/more", false),
            ("/s/m/", "/s/m", false),
            ("/t", "/s/m", false),
        ] {
            assert_eq!(path_matches(cookie, path), expected, "L-93: {cookie} {path}");
        }
    }

    #[test]
    fn the_first_cookie_with_the_name_counts() {
        let value = |text: &str| STANDARD.encode(text);
        let one = format!("a=b; sid={}; sid={}", value("1.1.1.1:1,[::1]:2;cluster:c"), value("2.2.2.2:2"));
        let session = read(&["x=y", &one]).unwrap();
        assert_eq!(session.hosts(), [address("1.1.1.1:1"), address("[::1]:2")], "L-93");
        assert_eq!(session.cluster(), Some("c"), "L-93");
        let quoted = read(&[&format!("sid=\"{}\"", value("1.1.1.1:1"))]).unwrap();
        assert_eq!((quoted.hosts(), quoted.cluster()), (&[address("1.1.1.1:1")][..], None));
    }

    #[test]
    fn what_cannot_be_read_is_no_cookie() {
        for bad in ["", "%", "sid", &STANDARD.encode("nonsense"), &STANDARD.encode("1.1.1.1;cluster:c"), "sid2=x"] {
            let session = read(&[&format!("sid={bad}")]).unwrap();
            assert_eq!((session.hosts().len(), session.cluster()), (0, None), "L-93: {bad}");
        }
        assert_eq!(read(&[]).unwrap().hosts(), []);
    }

    #[test]
    fn other_paths_have_no_session() {
        let cookie = Arc::new(SessionCookie { path: "/other".into(), ..cookie() });
        assert_eq!(Session::read(&cookie, Rpc { path: "/s/m", headers: &HeaderMap::new() }), None, "L-93");
    }

    #[test]
    fn the_cookie_is_set_when_it_changes_and_is_read_back() {
        let endpoint = [address("1.1.1.1:1"), address("2.2.2.2:2")];
        let new = read(&[]).unwrap();
        let set = new.set_cookie(endpoint[1], &endpoint, "c").unwrap();
        let value = STANDARD.encode("2.2.2.2:2,1.1.1.1:1;cluster:c");
        assert_eq!(set, format!("sid={value}; HttpOnly; Path=/s; Max-Age=120"), "L-94: the address in use is first");
        let known = read(&[&format!("sid={value}")]).unwrap();
        assert_eq!(known.set_cookie(endpoint[1], &endpoint, "c"), None, "L-94");
        assert!(known.set_cookie(endpoint[0], &endpoint, "c").is_some(), "L-94: another address");
        assert!(known.set_cookie(endpoint[1], &endpoint[1..], "c").is_some(), "L-94: another list");
        assert!(known.set_cookie(endpoint[1], &endpoint, "d").is_some(), "L-94: another cluster");
        let plain = Arc::new(SessionCookie { path: String::new(), ttl: Duration::ZERO, ..cookie() });
        let plain = Session::read(&plain, Rpc { path: "/s/m", headers: &HeaderMap::new() }).unwrap();
        let set = plain.set_cookie(endpoint[0], &endpoint[..1], "c").unwrap();
        assert_eq!(set, format!("sid={}; HttpOnly", STANDARD.encode("1.1.1.1:1;cluster:c")), "L-94");
    }

    fn read(cookies: &[&str]) -> Option<Session> {
        let mut headers = HeaderMap::new();
        for cookie in cookies {
            headers.append(COOKIE, cookie.parse().expect("a header value"));
        }
        Session::read(&Arc::new(cookie()), Rpc { path: "/s/m", headers: &headers })
    }

    fn cookie() -> SessionCookie {
        SessionCookie { name: "sid".into(), path: "/s".into(), ttl: Duration::from_secs(120) }
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }
}
