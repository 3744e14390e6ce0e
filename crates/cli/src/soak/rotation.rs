//! `mainstay soak --script certificates`: every certificate is replaced once a second, on both sides, while RPCs go on.

use std::{
    fs, io,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use mainstay::{
    Channel, Credentials, Peer, Running, Server, ServerCredentials,
    bootstrap::{Bootstrap, CertificateFiles, Node, ServerConfig},
};
use mainstay_control_plane::{ControlPlane, Server as ControlPlaneServer, Snapshot, resources};
use mainstay_testservice::proto::test_service_client::TestServiceClient;
use tempfile::TempDir;
use tonic::{Request, Status, service::interceptor::InterceptedService};

use super::{Act, FIRST_TIMEOUT, Stage};
use crate::{
    call::Caller,
    connect,
    failure::Failure,
    pki::{Authority, Issued, no_certificate},
};

/// A client and two servers with certificates in files. RPCs go to one server, and after each rotation to the other, so
/// that there are always new connections.
pub(super) struct Rotation {
    authority: Authority,
    /// `client/` and `server/` have what each side reads.
    directory: TempDir,
    control_plane: ControlPlaneServer,
    servers: Vec<(SocketAddr, Running)>,
    /// Which server is called.
    at: usize,
    /// The certificates of the client, the newest last.
    issued: Vec<Vec<u8>>,
    /// The certificate that the client showed with the last RPC.
    shown: Arc<Mutex<Option<Vec<u8>>>>,
    /// How often a new connection was made with a certificate that had been replaced more than a second before.
    stale: usize,
}

impl Rotation {
    pub(super) async fn start() -> Result<Self, Failure> {
        let directory = TempDir::new().map_err(|error| no_files(&error))?;
        let control_plane = ControlPlane::new().serve("127.0.0.1:0").await;
        let control_plane =
            control_plane.map_err(|error| Failure::failed(format!("cannot start the control plane: {error}")))?;
        let mut stage = Self {
            authority: Authority::new()?,
            directory,
            control_plane,
            servers: Vec::new(),
            at: 0,
            issued: Vec::new(),
            shown: Arc::default(),
            stale: 0,
        };
        for side in ["client", "server"] {
            fs::create_dir(stage.path(side)).map_err(|error| no_files(&error))?;
            fs::write(stage.path(side).join("ca.pem"), stage.authority.pem()).map_err(|error| no_files(&error))?;
        }
        stage.rotate()?;
        for name in ["one", "two"] {
            stage.start_server(name)?;
        }
        stage.announce();
        stage.until_serving().await?;
        Ok(stage)
    }

    /// On a slow machine a client may have its endpoints before the servers listen.
    async fn until_serving(&self) -> Result<(), Failure> {
        for (address, running) in &self.servers {
            let serving = async { running.serving_state(*address)?.serving().await.then_some(()) };
            if tokio::time::timeout(FIRST_TIMEOUT, serving).await.ok().flatten().is_none() {
                return Err(Failure::failed(format!("the server at {address} does not serve")));
            }
        }
        Ok(())
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    fn bootstrap(&self, side: &str) -> Result<Bootstrap, Failure> {
        let path = self.path(side);
        let files = CertificateFiles::default()
            .with_identity(path.join("cert.pem"), path.join("key.pem"))
            .with_ca_certificate_file(path.join("ca.pem"));
        let bootstrap = Bootstrap::builder()
            .node(Node::new(side))
            .server(ServerConfig::insecure(self.control_plane.addr().to_string()))
            .server_listener_resource_name_template("server/%s")
            .certificate_provider("files", files);
        bootstrap.build().map_err(|invalid| Failure::failed(format!("the bootstrap: {invalid}")))
    }

    fn start_server(&mut self, name: &str) -> Result<(), Failure> {
        let failed = |cause: String| Failure::failed(format!("cannot start server {name}: {cause}"));
        let service = mainstay_testservice::service(name, name).ok_or_else(|| failed("not a name".to_owned()))?;
        let shown = self.shown.clone();
        let note = move |request: Request<()>| -> Result<Request<()>, Status> {
            let certificate = request.extensions().get::<Peer>().and_then(|peer| peer.tls()?.certificate());
            *shown.lock().unwrap_or_else(PoisonError::into_inner) = certificate.map(<[u8]>::to_vec);
            Ok(request)
        };
        let running = Server::builder()
            .bootstrap(self.bootstrap("server")?)
            .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
            .add_service(InterceptedService::new(service, note))
            .listen(SocketAddr::from(([127, 0, 0, 1], 0)))
            .start()
            .map_err(|error| failed(error.to_string()))?;
        let address = running.local_addresses().first().copied().ok_or_else(|| failed("no address".to_owned()))?;
        self.servers.push((address, running));
        Ok(())
    }

    fn announce(&self) {
        let cluster = resources::with_mtls(resources::eds_cluster("cluster"), "files", [id("server")]);
        let mut snapshot = Snapshot::builder()
            .listener(resources::listener("service", resources::route("routes", "cluster")))
            .cluster(cluster)
            .endpoints(resources::endpoints("cluster", [self.servers[self.at].0]));
        for (address, _) in &self.servers {
            let name = format!("server/{address}");
            let listener = resources::server_listener(name, address, resources::server_route("server-routes"));
            snapshot = snapshot.listener(resources::with_server_tls(listener, "files", true));
        }
        self.control_plane.control_plane().set(snapshot);
    }

    /// New certificates for both sides, put into place in one of the ways in which tools do it.
    fn rotate(&mut self) -> Result<&'static str, Failure> {
        let way = WAYS[self.issued.len() % WAYS.len()];
        for side in ["client", "server"] {
            let issued = self.authority.issue(&id(side))?;
            place(&self.path(side), &issued, way, self.issued.len()).map_err(|error| no_files(&error))?;
            if side == "client" {
                self.issued.push(issued.certificate.der().to_vec());
            }
        }
        Ok(way)
    }

    /// Whether the newest connection was made with the newest certificate, or with the one before: files are looked at
    /// twice a second.
    fn is_fresh(&self) -> bool {
        let shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = &self.issued[self.issued.len().saturating_sub(2)..];
        shown.as_ref().is_some_and(|shown| newest.contains(shown))
    }
}

impl Stage for Rotation {
    fn client(&mut self) -> Result<Box<dyn Caller>, Failure> {
        let builder = Channel::builder("xds:///service")
            .bootstrap(self.bootstrap("client")?)
            .credentials(Credentials::xds(Credentials::insecure()));
        Ok(Box::new(TestServiceClient::new(connect::build(builder)?)))
    }

    fn pause(&mut self) -> Duration {
        Duration::from_secs(1)
    }

    async fn act(&mut self) -> Result<Act, Failure> {
        self.stale += usize::from(!self.is_fresh());
        let way = self.rotate()?;
        self.at = 1 - self.at;
        self.announce();
        Ok(Act { kind: way, what: format!("certificates replaced {way}") })
    }

    async fn heal(&mut self) -> Result<Vec<String>, Failure> {
        let rotations = self.issued.len() - 1;
        if self.stale > 0 {
            let stale = self.stale;
            return Err(Failure::failed(format!("{stale} of {rotations} new connections had an old certificate")));
        }
        Ok(vec![format!("{rotations} rotations, a new connection after each, none with an old certificate")])
    }

    async fn end(self) {
        for (_, running) in self.servers {
            running.shutdown().await;
        }
        self.control_plane.stop().await;
    }
}

/// Puts a pair into a directory.
fn place(directory: &Path, issued: &Issued, way: &str, number: usize) -> io::Result<()> {
    let files = [("cert.pem", issued.certificate.pem()), ("key.pem", issued.key.serialize_pem())];
    match way {
        #[cfg(unix)]
        BY_LINK => {
            let version = format!("v{number}");
            fs::create_dir(directory.join(&version))?;
            for (name, content) in files {
                fs::write(directory.join(&version).join(name), content)?;
            }
            exchange(directory, Path::new(&version), DATA)?;
            for name in ["cert.pem", "key.pem"] {
                exchange(directory, &Path::new(DATA).join(name), name)?;
            }
            Ok(())
        }
        BY_RENAME => files.into_iter().try_for_each(|(name, content)| {
            let draft = directory.join(format!("draft-{number}"));
            fs::write(&draft, content)?;
            fs::rename(&draft, directory.join(name))
        }),
        // A link must not be written through: it leads to files of before.
        _ => files.into_iter().try_for_each(|(name, content)| {
            let path = directory.join(name);
            if path.is_symlink() {
                fs::remove_file(&path)?;
            }
            fs::write(path, content)
        }),
    }
}

/// Puts a link in the place of whatever has that name.
#[cfg(unix)]
fn exchange(directory: &Path, to: &Path, name: &str) -> io::Result<()> {
    std::os::unix::fs::symlink(to, directory.join("draft"))?;
    fs::rename(directory.join("draft"), directory.join(name))
}

fn id(side: &str) -> String {
    format!("spiffe://soak.example/{side}")
}

fn no_files(error: &io::Error) -> Failure {
    no_certificate(error)
}

const IN_PLACE: &str = "in place";
const BY_RENAME: &str = "by rename";
const BY_LINK: &str = "by link";
const WAYS: [&str; 3] = [IN_PLACE, BY_RENAME, BY_LINK];
/// The link that leads to the newest version, as in Kubernetes.
#[cfg(unix)]
const DATA: &str = "..data";
