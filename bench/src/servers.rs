//! The servers that clients are measured against, in a process of their own.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use mainstay::bootstrap::{Bootstrap, BootstrapBuilder, CertificateFiles, Node, ServerConfig};
use mainstay_control_plane::{ControlPlane, Snapshot, resources};
use mainstay_testservice::{Backend, Identity, ServerTlsConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tonic::transport::Certificate;

use crate::policy::Policy;
use crate::{Result, reporting};

/// A running process with a backend and a control plane. Ends when dropped.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) backend: SocketAddr,
    pub(crate) control_plane: SocketAddr,
    /// The same backend over mTLS, known as [`SECURE_TARGET`].
    pub(crate) secure_backend: SocketAddr,
    /// What a client of it needs: `ca.pem`, `cert.pem` and `key.pem`.
    pub(crate) certificates: PathBuf,
    child: Child,
    /// Closed to end the process.
    input: Option<ChildStdin>,
}

/// The target that stands for the backend.
pub(crate) const TARGET: &str = "xds:///service";

/// The target that stands for the backend over mTLS.
pub(crate) const SECURE_TARGET: &str = "xds:///secure";

/// How many more targets there are, called `target-0` and so on: the same backend under other names.
pub(crate) const TARGETS: usize = 512;

impl Servers {
    pub(crate) fn start() -> Result<Self> {
        let program = std::env::current_exe()?;
        let mut child = Command::new(program).arg("servers").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output of the servers")?).read_line(&mut line)?;
        let words: Vec<_> = line.trim().splitn(4, ' ').collect();
        let [backend, control_plane, secure_backend, certificates] = words[..] else {
            return Err("the servers did not start".into());
        };
        Ok(Self {
            backend: backend.parse()?,
            control_plane: control_plane.parse()?,
            secure_backend: secure_backend.parse()?,
            certificates: certificates.into(),
            input: child.stdin.take(),
            child,
        })
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The process itself: prints its addresses and serves until its input ends.
pub(crate) fn run() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let directory = tempfile::tempdir()?;
    let (_backends, _server) = runtime.block_on(async {
        let backend = Backend::spawn("127.0.0.1:0", "backend").await?;
        let secure = secure_backend(directory.path()).await?;
        let control_plane = ControlPlane::new();
        let names = (0..TARGETS).map(|n| format!("target-{n}"));
        let snapshot = service(backend.addr())
            .listener(resources::listener("secure", resources::route("secure", "secure")))
            .cluster(resources::with_mtls(resources::eds_cluster("secure"), "files", ["service"]))
            .endpoints(resources::endpoints("secure", [secure.addr()]))
            .resources(names.map(|name| resources::listener(name, resources::route("routes", "service"))));
        let reporting = ["a", "b", "c", "d"].map(reporting::start).into_iter().collect::<Result<Vec<_>>>()?;
        control_plane.set(Policy::ALL.iter().fold(snapshot, |snapshot, policy| policy.add_to(snapshot, &reporting)));
        let server = control_plane.serve("127.0.0.1:0").await?;
        println!("{} {} {} {}", backend.addr(), server.addr(), secure.addr(), directory.path().display());
        Ok::<_, Box<dyn std::error::Error + Send + Sync>>(([backend, secure], server))
    })?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A backend that demands a certificate, and one in files for its clients.
async fn secure_backend(directory: &Path) -> Result<Backend> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
    let issue = |name: &str| -> Result<(String, String)> {
        let key = KeyPair::generate()?;
        let certificate = CertificateParams::new(vec![name.to_owned()])?.signed_by(&key, &ca)?;
        Ok((certificate.pem(), key.serialize_pem()))
    };
    let (cert, key) = issue("client")?;
    for (name, content) in [("ca.pem", ca.pem()), ("cert.pem", cert), ("key.pem", key)] {
        std::fs::write(directory.join(name), content)?;
    }
    let (cert, key) = issue("service")?;
    let tls = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
    let tls = tls.client_ca_root(Certificate::from_pem(ca.pem()));
    Ok(Backend::builder("backend").tls(tls).spawn("127.0.0.1:0").await?)
}

/// The resources of [`TARGET`].
pub(crate) fn service(backend: SocketAddr) -> mainstay_control_plane::SnapshotBuilder {
    Snapshot::builder()
        .listener(resources::listener("service", resources::rds("service")))
        .route(resources::route("service", "service"))
        .cluster(resources::eds_cluster("service"))
        .endpoints(resources::endpoints("service", [backend]))
}

/// A bootstrap with these xDS servers in order.
pub(crate) fn bootstrap(servers: &[SocketAddr]) -> Result<Bootstrap> {
    with_servers(Bootstrap::builder(), servers)
}

/// The same with the certificates in a directory.
pub(crate) fn secure_bootstrap(servers: &[SocketAddr], certificates: &Path) -> Result<Bootstrap> {
    let files = CertificateFiles::default()
        .with_identity(certificates.join("cert.pem"), certificates.join("key.pem"))
        .with_ca_certificate_file(certificates.join("ca.pem"));
    with_servers(Bootstrap::builder().certificate_provider("files", files), servers)
}

fn with_servers(builder: BootstrapBuilder, servers: &[SocketAddr]) -> Result<Bootstrap> {
    let mut builder = builder.node(Node::new("bench"));
    for server in servers {
        builder = builder.server(ServerConfig::insecure(server.to_string()));
    }
    Ok(builder.build()?)
}
