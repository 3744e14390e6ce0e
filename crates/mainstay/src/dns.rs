//! Name resolution for xDS servers and LOGICAL_DNS clusters.

use std::fmt;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;

use hickory_resolver::TokioResolver;
use tokio::sync::OnceCell;

/// Looks up the addresses of a host. Implement it to bring your own resolver; [`SystemDns`] is the default.
pub trait ResolveHost: fmt::Debug + Send + Sync + 'static {
    /// All addresses of `host` in order of preference, or why there are none.
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>>;
}

/// DNS as the system is configured: its name servers, search list and hosts file.
#[derive(Clone, Default)]
pub struct SystemDns {
    resolver: Arc<OnceCell<TokioResolver>>,
}

impl ResolveHost for SystemDns {
    fn resolve<'a>(&'a self, host: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        Box::pin(async move {
            let resolver = self
                .resolver
                .get_or_try_init(|| async {
                    // Made at first use: the system's configuration is read once, and only if a name must be looked up.
                    TokioResolver::builder_tokio().and_then(|builder| builder.build())
                })
                .await
                .map_err(|error| format!("the system's DNS configuration cannot be used: {error}"))?;
            let answer = resolver.lookup_ip(host).await.map_err(|error| error.to_string())?;
            Ok(answer.iter().collect())
        })
    }
}

impl fmt::Debug for SystemDns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SystemDns")
    }
}
