//! The part of the demo with mTLS: servers that the control plane configures, certificates that are made on the spot, and
//! an impostor.

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mainstay::{
    Peer, Running, Server, ServerCredentials,
    bootstrap::{Bootstrap, BootstrapBuilder},
    certificates::{CertificateError, CertificateProvider, Certificates, Identity, Trust},
};
use mainstay_control_plane::{SnapshotBuilder, resources};
use mainstay_testservice::{Backend, ServerTlsConfig};
use tokio::sync::watch;
use tonic::{Request, Status, service::interceptor::InterceptedService};

use super::script::{IMPOSTOR, SECURED};
use crate::{
    failure::Failure,
    pki::{Authority, Issued, no_certificate},
};

/// Everything that proves who it is.
pub(super) struct SecuredServers {
    authority: Authority,
    bootstrap: Bootstrap,
    /// What the client and the servers present.
    client: Arc<Held>,
    server: Arc<Held>,
    servers: BTreeMap<&'static str, Started>,
    /// It has a certificate of the same authority, and another name in it.
    impostor: Backend,
    /// The certificate of the client, in DER, and as the servers were shown it last.
    current: Vec<u8>,
    shown: Shown,
}

struct Started {
    address: SocketAddr,
    running: Running,
}

type Shown = Arc<Mutex<Option<Vec<u8>>>>;

impl SecuredServers {
    /// With a bootstrap that knows the control planes.
    pub(super) async fn start(bootstrap: BootstrapBuilder) -> Result<Self, Failure> {
        let authority = Authority::new()?;
        let bootstrap = bootstrap.server_listener_resource_name_template(format!("{LISTENERS}%s")).build();
        let bootstrap = bootstrap.map_err(|invalid| Failure::failed(format!("the demo's bootstrap: {invalid}")))?;
        let pem = authority.pem();
        let Issued { certificate, key } = authority.issue(&identity(IMPOSTOR))?;
        let identity = mainstay_testservice::Identity::from_pem(certificate.pem(), key.serialize_pem());
        let tls = ServerTlsConfig::new().identity(identity);
        let impostor = Backend::builder(IMPOSTOR).tls(tls).spawn("127.0.0.1:0").await;
        let impostor = impostor.map_err(|error| Failure::failed(format!("cannot start {IMPOSTOR}: {error}")))?;
        let held = |name: &str| {
            let (certificates, der) = certificates(&authority, &pem, name)?;
            Ok::<_, Failure>((Arc::new(Held(watch::Sender::new(certificates))), der))
        };
        let ((client, current), (server, _)) = (held(CLIENT)?, held(WANTED)?);
        let mut servers = Self {
            bootstrap,
            client,
            server,
            servers: BTreeMap::new(),
            impostor,
            current,
            shown: Shown::default(),
            authority,
        };
        for name in SECURED {
            servers.start_server(name, SocketAddr::from(([127, 0, 0, 1], 0)))?;
        }
        Ok(servers)
    }

    /// The certificates of the client, which change.
    pub(super) fn client(&self) -> Arc<dyn CertificateProvider> {
        self.client.clone()
    }

    /// Where a server is, or the impostor.
    pub(super) fn address(&self, name: &str) -> Option<SocketAddr> {
        if name == IMPOSTOR {
            return Some(self.impostor.addr());
        }
        self.servers.get(name).map(|server| server.address)
    }

    /// Adds what the servers ask for.
    pub(super) fn announce(&self, mut snapshot: SnapshotBuilder) -> SnapshotBuilder {
        for Started { address, .. } in self.servers.values() {
            let name = format!("{LISTENERS}{address}");
            let listener = resources::server_listener(name, address, resources::server_route("server-routes"));
            snapshot = snapshot.listener(resources::with_server_tls(listener, INSTANCE, true));
        }
        snapshot
    }

    /// New certificates for everyone. A server is started again, so that it is connected to anew.
    pub(super) async fn rotate(&mut self, restarted: &'static str) -> Result<(), Failure> {
        let pem = self.authority.pem();
        let (renewed, der) = certificates(&self.authority, &pem, CLIENT)?;
        self.current = der;
        drop(self.client.0.send_replace(renewed));
        drop(self.server.0.send_replace(certificates(&self.authority, &pem, WANTED)?.0));
        *self.shown.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if let Some(Started { address, running }) = self.servers.remove(restarted) {
            running.shutdown().await;
            self.start_server(restarted, address)?;
        }
        Ok(())
    }

    /// Whether a server was shown the newest certificate of the client, and the impostor not one request.
    pub(super) fn is_in_order(&self) -> bool {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.as_ref() == Some(&self.current) && self.impostor.requests() == 0
    }

    fn start_server(&mut self, name: &'static str, address: SocketAddr) -> Result<(), Failure> {
        let failed = |cause: String| Failure::failed(format!("cannot start server {name}: {cause}"));
        let service = mainstay_testservice::service(name, name).ok_or_else(|| failed("not a name".to_owned()))?;
        let shown = self.shown.clone();
        let note = move |request: Request<()>| -> Result<Request<()>, Status> {
            let certificate = request.extensions().get::<Peer>().and_then(|peer| peer.tls()?.certificate());
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = certificate.map(<[u8]>::to_vec);
            Ok(request)
        };
        let running = Server::builder()
            .bootstrap(self.bootstrap.clone())
            .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
            .certificate_provider(INSTANCE, self.server.clone())
            .drain_grace(DRAIN)
            .add_service(InterceptedService::new(service, note))
            .listen(address)
            .start()
            .map_err(|error| failed(error.to_string()))?;
        let address = running.local_addresses().first().copied().unwrap_or(address);
        self.servers.insert(name, Started { address, running });
        Ok(())
    }
}

impl fmt::Debug for SecuredServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.servers.iter().map(|(name, server)| (name, server.address))).finish()
    }
}

/// Certificates in memory, which may be replaced at any moment.
struct Held(watch::Sender<Certificates>);

impl CertificateProvider for Held {
    fn certificates(&self) -> Result<Certificates, CertificateError> {
        Ok(self.0.borrow().clone())
    }

    fn changed(&self) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        let mut changes = self.0.subscribe();
        Box::pin(async move {
            // The sender is ours: it cannot be gone.
            let _ = changes.changed().await;
        })
    }
}

/// What one presents and whom it trusts, and the certificate in DER.
fn certificates(authority: &Authority, roots: &str, name: &str) -> Result<(Certificates, Vec<u8>), Failure> {
    let Issued { certificate, key } = authority.issue(&identity(name))?;
    let identity = Identity::from_pem(certificate.pem().as_bytes(), key.serialize_pem().as_bytes());
    let identity = identity.map_err(|error| no_certificate(&error))?;
    let trust = Trust::from_pem(roots.as_bytes()).map_err(|error| no_certificate(&error))?;
    Ok((Certificates::new(Some(identity), Some(trust)), certificate.der().to_vec()))
}

fn identity(name: &str) -> String {
    format!("spiffe://demo.example/{name}")
}

/// The id that the control plane wants the servers to have.
pub(super) fn wanted() -> String {
    identity(WANTED)
}

/// The certificate provider instance of client and servers.
pub(super) const INSTANCE: &str = "demo";
const CLIENT: &str = "client";
const WANTED: &str = "server";
const LISTENERS: &str = "demo/server/";
/// RPCs of the demo are short.
const DRAIN: Duration = Duration::from_secs(2);
