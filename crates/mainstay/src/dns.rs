//! Name resolution for xDS servers and LOGICAL_DNS clusters.

use std::fmt;
use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolveHosts, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;

use crate::guard;

/// Looks up the addresses of a host. [`SystemDns`] is the default; implement this trait to bring your own resolver.
///
/// ```
/// use std::net::IpAddr;
/// use std::pin::Pin;
///
/// #[derive(Debug)]
/// struct Fixed(Vec<IpAddr>);
///
/// impl mainstay::ResolveHost for Fixed {
///     fn resolve<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
///         Box::pin(async { Ok(self.0.clone()) })
///     }
/// }
///
/// let channel = mainstay::Channel::builder("xds:///greeter").dns(Fixed(vec![IpAddr::from([127, 0, 0, 1])]));
/// ```
pub trait ResolveHost: fmt::Debug + Send + Sync + 'static {
    /// Returns all addresses of `host` in order of preference, or why there are none.
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>>;
}

/// A resolver that may panic: that is a failed lookup, and no more.
#[derive(Debug)]
pub(crate) struct Shielded<R>(pub(crate) R);

impl<R: ResolveHost> ResolveHost for Shielded<R> {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async move {
            // Its own future is made inside, as that may panic, too.
            let answer = guard::caught(async { self.0.resolve(host).await }).await;
            answer.unwrap_or_else(|panic| Err(format!("the resolver panicked: {panic}")))
        })
    }
}

/// A resolver that asks name servers over UDP, and over TCP for long answers, for A and AAAA records.
///
/// The default asks as the system is configured at that moment: its name servers, search list and hosts file. Nothing is
/// cached: channels look up rarely, and then they need to know what is true now.
#[derive(Clone, Debug, Default)]
pub struct SystemDns {
    /// Asked instead of the system's.
    servers: Option<Arc<[SocketAddr]>>,
}

impl SystemDns {
    /// Returns a resolver that asks these name servers, with neither search list nor hosts file.
    ///
    /// ```
    /// let dns = mainstay::SystemDns::with_servers(["10.0.0.53:53".parse()?]);
    /// let channel = mainstay::Channel::builder("xds:///greeter").dns(dns);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn with_servers(servers: impl IntoIterator<Item = SocketAddr>) -> Self {
        Self { servers: Some(servers.into_iter().collect()) }
    }

    /// A resolver for one lookup. One that is kept would hold on to the system's configuration as it was, and to tasks
    /// of a runtime that may end before the next lookup comes from another one.
    fn resolver(&self) -> Result<TokioResolver, NetError> {
        let mut builder = match &self.servers {
            None => TokioResolver::builder_tokio()?,
            Some(servers) => {
                let servers = servers.iter().map(|server| name_server(*server)).collect();
                let config = ResolverConfig::from_name_servers(servers);
                let mut builder = TokioResolver::builder_with_config(config, TokioRuntimeProvider::default());
                builder.options_mut().use_hosts_file = ResolveHosts::Never;
                builder
            }
        };
        builder.options_mut().cache_size = 0;
        builder.build()
    }
}

impl ResolveHost for SystemDns {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async move {
            let resolver =
                self.resolver().map_err(|error| format!("the system's DNS configuration cannot be used: {error}"))?;
            let answer = resolver.lookup_ip(host).await.map_err(|error| explain(&error))?;
            Ok(answer.iter().collect())
        })
    }
}

fn name_server(server: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = server.port();
        connection
    });
    NameServerConfig::new(server.ip(), true, connections.into())
}

/// What people know an error by.
fn explain(error: &NetError) -> String {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(none)) if none.response_code == ResponseCode::NXDomain => {
            "the name does not exist (NXDOMAIN)".to_owned()
        }
        NetError::Dns(DnsError::NoRecordsFound(none)) if none.response_code == ResponseCode::NoError => {
            "the name exists, but has no addresses".to_owned()
        }
        NetError::Dns(DnsError::NoRecordsFound(none)) => format!("the name server answered: {}", none.response_code),
        NetError::Dns(DnsError::ResponseCode(code)) => format!("the name server answered: {code}"),
        NetError::Timeout => "no name server answered in time".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::sync::Mutex;

    use tokio::net::UdpSocket;

    use super::*;
    use crate::task::Task;

    #[tokio::test]
    async fn both_families_are_looked_up() {
        let server = NameServer::start([("both.test", Zone::of(["192.0.2.1", "2001:db8::1", "192.0.2.2"]))]).await;
        let mut addresses = server.resolve("both.test").await.unwrap();
        addresses.sort();
        assert_eq!(addresses, ips(["192.0.2.1", "192.0.2.2", "2001:db8::1"]));
    }

    #[tokio::test]
    async fn one_family_is_enough() {
        let server = NameServer::start([("four.test", Zone::of(["192.0.2.1"])), ("six.test", Zone::of(["::9"]))]).await;
        assert_eq!(server.resolve("four.test").await, Ok(ips(["192.0.2.1"])));
        assert_eq!(server.resolve("six.test").await, Ok(ips(["::9"])));
    }

    #[tokio::test]
    async fn every_lookup_asks_again_whatever_the_time_to_live() {
        // L-18: re-resolution wants what is true now; the answers of this server may be kept for a day.
        let server = NameServer::start([("moving.test", Zone::of(["192.0.2.1"]))]).await;
        assert_eq!(server.resolve("moving.test").await, Ok(ips(["192.0.2.1"])));
        server.set("moving.test", Zone::of(["192.0.2.2"]));
        assert_eq!(server.resolve("moving.test").await, Ok(ips(["192.0.2.2"])));
    }

    #[tokio::test]
    async fn a_name_that_was_missing_is_found_as_soon_as_it_is_there() {
        let server = NameServer::start([]).await;
        assert_eq!(server.resolve("late.test").await, Err("the name does not exist (NXDOMAIN)".to_owned()));
        server.set("late.test", Zone::of(["192.0.2.1"]));
        assert_eq!(server.resolve("late.test").await, Ok(ips(["192.0.2.1"])));
    }

    #[tokio::test]
    async fn failures_say_what_the_name_server_said() {
        let server = NameServer::start([("empty.test", Zone::of([])), ("broken.test", Zone::Failure)]).await;
        let empty = server.resolve("empty.test").await.unwrap_err();
        assert_eq!(empty, "the name exists, but has no addresses");
        let broken = server.resolve("broken.test").await.unwrap_err();
        assert_eq!(broken, "the name server answered: Server Failure");
    }

    #[tokio::test]
    async fn an_ip_literal_is_its_own_address_and_nobody_is_asked() {
        let server = NameServer::start([]).await;
        assert_eq!(server.resolve("192.0.2.7").await, Ok(ips(["192.0.2.7"])));
        assert_eq!(server.resolve("2001:db8::7").await, Ok(ips(["2001:db8::7"])));
        assert_eq!(server.asked(), 0);
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_one_is_an_error() {
        let long = "a".repeat(300);
        assert!(SystemDns::with_servers([]).resolve(&long).await.is_err());
        assert!(SystemDns::with_servers([]).resolve("fine.test").await.is_err());
    }

    /// A name server with a handful of names.
    struct NameServer {
        dns: SystemDns,
        zones: Arc<Mutex<Zones>>,
        _serving: Task,
    }

    #[derive(Default)]
    struct Zones {
        names: BTreeMap<String, Zone>,
        asked: usize,
    }

    enum Zone {
        Addresses(Vec<IpAddr>),
        Failure,
    }

    impl Zone {
        fn of<const N: usize>(addresses: [&str; N]) -> Self {
            Self::Addresses(ips(addresses))
        }
    }

    impl NameServer {
        async fn start<const N: usize>(names: [(&str, Zone); N]) -> Self {
            let socket = UdpSocket::bind("127.0.0.1:0").await.unwrap();
            let dns = SystemDns::with_servers([socket.local_addr().unwrap()]);
            let names = names.into_iter().map(|(name, zone)| (name.to_owned(), zone)).collect();
            let zones = Arc::new(Mutex::new(Zones { names, asked: 0 }));
            let served = zones.clone();
            let serving = Task::spawn(async move {
                let mut query = [0; 512];
                while let Ok((length, peer)) = socket.recv_from(&mut query).await {
                    let answer = served.lock().unwrap().answer(&query[..length]);
                    let _ = socket.send_to(&answer, peer).await;
                }
            });
            Self { dns, zones, _serving: serving }
        }

        fn set(&self, name: &str, zone: Zone) {
            self.zones.lock().unwrap().names.insert(name.to_owned(), zone);
        }

        fn asked(&self) -> usize {
            self.zones.lock().unwrap().asked
        }

        async fn resolve(&self, host: &str) -> Result<Vec<IpAddr>, String> {
            self.dns.resolve(host).await
        }
    }

    impl Zones {
        /// RFC 1035, as far as one question needs it.
        fn answer(&mut self, query: &[u8]) -> Vec<u8> {
            self.asked += 1;
            let (mut labels, mut at) = (Vec::new(), 12);
            while query[at] != 0 {
                let end = at + 1 + usize::from(query[at]);
                labels.push(String::from_utf8_lossy(&query[at + 1..end]).to_lowercase());
                at = end;
            }
            let record_type = u16::from_be_bytes([query[at + 1], query[at + 2]]);
            let (code, addresses) = match self.names.get(&labels.join(".")) {
                None => (3, Vec::new()),
                Some(Zone::Failure) => (2, Vec::new()),
                Some(Zone::Addresses(all)) => {
                    let asked_for = |ip: &&IpAddr| record_type == if ip.is_ipv4() { 1 } else { 28 };
                    (0, all.iter().filter(asked_for).copied().collect())
                }
            };
            let mut answer = [&query[..2], &[0x81, 0x80 | code, 0, 1, 0, addresses.len() as u8, 0, 0, 0, 0]].concat();
            answer.extend(&query[12..at + 5]);
            for ip in addresses {
                // The name of the question, class IN, one day.
                answer
                    .extend([&[0xc0, 12][..], &record_type.to_be_bytes(), &[0, 1], &86_400u32.to_be_bytes()].concat());
                match ip {
                    IpAddr::V4(ip) => answer.extend([&[0, 4][..], &Ipv4Addr::octets(&ip)].concat()),
                    IpAddr::V6(ip) => answer.extend([&[0, 16][..], &Ipv6Addr::octets(&ip)].concat()),
                }
            }
            answer
        }
    }

    fn ips<const N: usize>(addresses: [&str; N]) -> Vec<IpAddr> {
        addresses.iter().map(|address| address.parse().unwrap()).collect()
    }
}
