//! A connection to one member of an etcd cluster.

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use http::uri::InvalidUri;
use hyper_util::rt::TokioIo;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_rustls::TlsConnector;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataValue;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tower_service::Service;

use crate::etcd::wire::kv_client::KvClient;
use crate::etcd::wire::watch_client::WatchClient;
use crate::etcd::wire::watch_request::RequestUnion;
use crate::etcd::wire::{
    KeyValue, RangeRequest, ResponseHeader, TxnRequest, TxnResponse, WatchCreateRequest, WatchRequest, WatchResponse,
};

/// The members of an etcd cluster. There is at least one.
#[derive(Clone, Debug)]
pub struct Endpoints {
    members: Vec<Member>,
}

/// Files in PEM for connections to `https:` members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsFiles {
    /// The authorities of the members; those of the system if there is none.
    pub ca: Option<PathBuf>,
    /// Our certificate and its key, if the members want one.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A list of members cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EndpointsError(String);

impl Endpoints {
    /// Members by their URIs, such as `https://etcd-1:2379`; without a scheme, in plaintext.
    ///
    /// # Errors
    /// If one is no URI, or a file cannot be read.
    pub fn new<'a>(uris: impl IntoIterator<Item = &'a str>, tls: &TlsFiles) -> Result<Self, EndpointsError> {
        let members = uris.into_iter().map(|uri| member(uri, tls)).collect::<Result<Vec<_>, _>>()?;
        if members.is_empty() {
            return Err(EndpointsError("no member of the etcd cluster is named".to_owned()));
        }
        Ok(Self { members })
    }

    /// Connects to one of them; higher numbers begin again with the first.
    pub(crate) async fn connect(&self, number: usize) -> Result<Connection, String> {
        let Some(member) = self.members.get(number % self.members.len()) else {
            return Err("there are no members".to_owned());
        };
        let connecting = member.endpoint.connect_with_connector(member.connector.clone());
        let channel = match tokio::time::timeout(CONNECT, connecting).await {
            Ok(Ok(channel)) => channel,
            Ok(Err(error)) => return Err(format!("etcd {}: {}", member.name, causes(&error))),
            Err(_) => return Err(format!("etcd {}: no connection within {} s", member.name, CONNECT.as_secs())),
        };
        Ok(Connection {
            name: member.name.clone(),
            kv: KvClient::new(channel.clone()).max_decoding_message_size(MOST_BYTES),
            watch: WatchClient::new(channel).max_decoding_message_size(MOST_BYTES),
        })
    }
}

fn member(uri: &str, tls: &TlsFiles) -> Result<Member, EndpointsError> {
    let whole = if uri.contains("://") { uri.to_owned() } else { format!("http://{uri}") };
    let wrong = |problem: String| EndpointsError(format!("{uri:?}: {problem}"));
    let parsed: Uri = whole.parse().map_err(|error: InvalidUri| wrong(error.to_string()))?;
    let Some(host) = parsed.host() else { return Err(wrong("expected a host".to_owned())) };
    let authority = format!("{host}:{}", parsed.port_u16().unwrap_or(2379));
    // Connections are made by us, over TLS too; so this is all that tonic must know.
    let endpoint = Endpoint::from_shared(format!("http://{authority}")).map_err(|error| wrong(causes(&error)))?;
    let connector = match parsed.scheme_str() {
        Some("http") => Connector { authority, tls: None },
        Some("https") => {
            let name = ServerName::try_from(host.trim_matches(['[', ']']).to_owned());
            let name = name.map_err(|error| wrong(error.to_string()))?;
            Connector { authority, tls: Some((tls.config().map_err(wrong)?, name)) }
        }
        _ => return Err(wrong("expected http: or https:".to_owned())),
    };
    let endpoint = endpoint
        .origin(parsed)
        .connect_timeout(CONNECT)
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(3))
        .keep_alive_while_idle(true);
    Ok(Member { name: whole, endpoint, connector })
}

#[derive(Clone, Debug)]
struct Member {
    name: String,
    endpoint: Endpoint,
    connector: Connector,
}

impl TlsFiles {
    fn config(&self) -> Result<Arc<ClientConfig>, String> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(ca) => {
                for certificate in certificates_in(ca)? {
                    roots.add(certificate).map_err(|error| format!("{}: {error}", ca.display()))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let builder = builder.map_err(|error| error.to_string())?.with_root_certificates(roots);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let in_key = |error: &dyn std::fmt::Display| format!("{}: {error}", key.display());
                let private = PrivateKeyDer::from_pem_file(key).map_err(|error| in_key(&error))?;
                let chain = certificates_in(certificate)?;
                builder.with_client_auth_cert(chain, private).map_err(|error| in_key(&error))?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }
}

fn certificates_in(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let read = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    read.map_err(|error| format!("{}: {error}", path.display()))
}

/// Makes connections to one member, over TLS if it wants that.
#[derive(Clone, Debug)]
struct Connector {
    authority: String,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<Box<dyn Io>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let Self { authority, tls } = self.clone();
        Box::pin(async move {
            let tcp = TcpStream::connect(&authority).await?;
            tcp.set_nodelay(true)?;
            let io: Box<dyn Io> = match tls {
                None => Box::new(tcp),
                Some((config, name)) => Box::new(TlsConnector::from(config).connect(name, tcp).await?),
            };
            Ok(TokioIo::new(io))
        })
    }
}

/// A connection, secured or not.
trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// A connection; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Connection {
    name: String,
    kv: KvClient<Channel>,
    watch: WatchClient<Channel>,
}

/// What one key had, and when.
pub(crate) struct Got {
    pub(crate) header: ResponseHeader,
    pub(crate) kv: Option<KeyValue>,
}

impl Connection {
    /// The URI of the member.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The value of a key, with a quorum: nothing that was written before this was called is missed.
    pub(crate) async fn get(&self, key: String) -> Result<Got, Status> {
        let range = RangeRequest { key: key.into_bytes(), ..RangeRequest::default() };
        let response = self.kv.clone().range(unary(range)).await?.into_inner();
        let header = response.header.unwrap_or_default();
        Ok(Got { header, kv: response.kvs.into_iter().next() })
    }

    /// All keys that begin like this, as of a revision, or as of now; page by page, all as of the same revision.
    pub(crate) async fn list(&self, prefix: &str, revision: i64, keys_only: bool) -> Result<Vec<KeyValue>, Status> {
        let (mut all, mut key, mut revision) = (Vec::new(), prefix.as_bytes().to_vec(), revision);
        loop {
            let range_end = end_of(prefix);
            let range = RangeRequest { key, range_end, limit: PAGE, revision, keys_only, ..RangeRequest::default() };
            let response = self.kv.clone().range(unary(range)).await?.into_inner();
            if revision == 0 {
                revision = response.header.unwrap_or_default().revision;
            }
            all.extend(response.kvs);
            match all.last().filter(|_| response.more) {
                // The next key is this one and the lowest byte.
                Some(last) => key = [last.key.as_slice(), b"\0"].concat(),
                None => return Ok(all),
            }
        }
    }

    pub(crate) async fn txn(&self, txn: TxnRequest) -> Result<TxnResponse, Status> {
        Ok(self.kv.clone().txn(unary(txn)).await?.into_inner())
    }

    /// Watches a key. A member that has no leader ends it.
    pub(crate) async fn watch(
        &self,
        key: String,
        start_revision: i64,
        requests: (mpsc::Sender<WatchRequest>, mpsc::Receiver<WatchRequest>),
    ) -> Result<Streaming<WatchResponse>, Status> {
        let (sender, receiver) = requests;
        let create = WatchCreateRequest {
            key: key.into_bytes(),
            start_revision,
            progress_notify: true,
            ..WatchCreateRequest::default()
        };
        // There is room in a new queue.
        let _ = sender.try_send(WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) });
        let mut request = Request::new(ReceiverStream::new(receiver));
        require_leader(&mut request);
        Ok(self.watch.clone().watch(request).await?.into_inner())
    }
}

/// Where keys end that begin like this. Ours end with `/`, and `0` is the next byte.
pub(crate) fn end_of(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    if let Some(last) = end.last_mut() {
        *last += 1;
    }
    end
}

fn unary<T>(message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.set_timeout(RPC);
    require_leader(&mut request);
    request
}

fn require_leader<T>(request: &mut Request<T>) {
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
}

/// An error with what led to it.
fn causes(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

const CONNECT: Duration = Duration::from_secs(1);
/// A member that does not answer for this long is left for the next.
const RPC: Duration = Duration::from_secs(2);
/// So many keys at once: a value has 1.5 MiB at most.
const PAGE: i64 = 128;
const MOST_BYTES: usize = 512 << 20;
