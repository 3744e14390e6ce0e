//! How the connections of a filter chain are secured.

use std::io;
use std::sync::Arc;

use mainstay_xds::bootstrap::Bootstrap;
use mainstay_xds::resource::tls::DownstreamTls;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tonic::transport::server::{Connected, TcpConnectInfo, TlsConnectInfo};

use crate::credentials::{OwnServerTls, ServerCredentials};
use crate::telemetry::ServerObserver;
use crate::tls::{
    ChainTls, ChainTlsCache, ClusterTlsError, Handshake, HandshakeResult, OwnProviders, Providers, TlsInfo,
};
use crate::transport::Stream;

/// How a server secures connections.
#[derive(Clone)]
pub(super) struct ServerSecurity {
    /// As the application says; plaintext if absent.
    own: Option<OwnServerTls>,
    /// Where the certificates of filter chains come from, if they are asked.
    chains: Option<Arc<ChainTlsCache>>,
}

/// How the connections of a filter chain are secured. There is no way from one to the other (TL-1).
#[derive(Clone, Debug)]
pub(super) enum ChainSecurity {
    Plaintext,
    /// As the application says.
    Own(OwnServerTls),
    /// As the chain says.
    Chain(Arc<ChainTls>),
}

/// A connection on which HTTP/2 may begin.
pub(super) struct Secured {
    pub(super) stream: Box<dyn Stream>,
    pub(super) tls: Option<Arc<TlsInfo>>,
    pub(super) info: ConnectInfo,
}

/// What tonic tells handlers of a connection.
pub(super) enum ConnectInfo {
    Tcp(TcpConnectInfo),
    Tls(TlsConnectInfo<TcpConnectInfo>),
}

/// Why a connection is not let in.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandshakeError {
    #[error("no TLS: {0}")]
    Certificates(#[source] ClusterTlsError),
    #[error("TLS handshake failed: {0}")]
    Tls(#[source] io::Error),
    #[error("the caller did not offer the protocol h2")]
    Alpn,
    #[error("the handshake took too long")]
    TimedOut,
}

impl ServerSecurity {
    pub(super) fn new(credentials: &ServerCredentials, bootstrap: &Arc<Bootstrap>, providers: OwnProviders) -> Self {
        let providers = || Providers::new(bootstrap.clone(), providers);
        let chains = credentials.follow_xds().then(|| Arc::new(ChainTlsCache::new(providers())));
        Self { own: credentials.own().cloned(), chains }
    }

    pub(super) fn follows_xds(&self) -> bool {
        self.chains.is_some()
    }

    pub(super) fn own(&self) -> ChainSecurity {
        self.own.clone().map_or(ChainSecurity::Plaintext, ChainSecurity::Own)
    }

    /// How connections of a chain with this context are secured; `None` if chains are not asked.
    pub(super) fn chain(&self, context: &Arc<DownstreamTls>) -> Option<Arc<ChainTls>> {
        self.chains.as_ref().map(|chains| chains.of(context))
    }
}

impl ChainSecurity {
    /// Secures a connection, by `deadline`.
    pub(super) async fn accept(
        &self,
        stream: TcpStream,
        deadline: Instant,
        observer: &ServerObserver,
    ) -> Result<Secured, HandshakeError> {
        let (config, identity) = match self {
            Self::Plaintext => {
                let info = ConnectInfo::Tcp(stream.connect_info());
                return Ok(Secured { stream: Box::new(stream), tls: None, info });
            }
            Self::Own(OwnServerTls { config, identity }) => (config.clone(), identity.clone()),
            Self::Chain(chain) => {
                let wait = deadline.saturating_duration_since(Instant::now());
                let acceptance = chain.accept(wait).await.map_err(HandshakeError::Certificates)?;
                (acceptance.config, Some(acceptance.identity))
            }
        };
        let accepted = tokio::time::timeout_at(deadline, TlsAcceptor::from(config).accept(stream)).await;
        let accepted =
            accepted.map_err(|_| HandshakeError::TimedOut).and_then(|done| done.map_err(HandshakeError::Tls));
        // A caller that offers other protocols is refused by rustls; one that offers none, here (TL-11).
        let accepted = accepted.and_then(|stream| match stream.get_ref().1.alpn_protocol() {
            Some(b"h2") => Ok(stream),
            Some(_) | None => Err(HandshakeError::Alpn),
        });
        observer.handshake(match &accepted {
            Ok(stream) => Handshake::done(stream.get_ref().1),
            Err(error) => Handshake::failed(error.result()),
        });
        let stream = accepted?;
        let connection = stream.get_ref().1;
        let presented = identity.as_ref().and_then(|identity| identity.certified_key().cert.first());
        let tls = TlsInfo::of(connection, presented.map(|certificate| &**certificate));
        let info = ConnectInfo::Tls(stream.connect_info());
        Ok(Secured { stream: Box::new(stream), tls: Some(Arc::new(tls)), info })
    }
}

impl HandshakeError {
    fn result(&self) -> HandshakeResult {
        match self {
            // What we lack is no fault of the handshake, which did not begin.
            Self::Certificates(_) => HandshakeResult::Unknown,
            Self::Tls(error) => HandshakeResult::of(error),
            Self::Alpn => HandshakeResult::NoApplicationProtocol,
            Self::TimedOut => HandshakeResult::TimedOut,
        }
    }
}

impl ConnectInfo {
    /// Puts it where `Request::remote_addr`, `local_addr` and `peer_certs` of tonic look for it (SV-2).
    pub(super) fn insert_into(&self, extensions: &mut http::Extensions) {
        match self {
            Self::Tcp(info) => _ = extensions.insert(info.clone()),
            Self::Tls(info) => {
                extensions.insert(info.get_ref().clone());
                extensions.insert(info.clone());
            }
        }
    }
}
