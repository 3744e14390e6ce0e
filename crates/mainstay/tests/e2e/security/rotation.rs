//! Certificates that are replaced, in every way in which tools do it, under load.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use envoy_types::util::pack_any;
use mainstay_control_plane::{Server, SnapshotBuilder, resources};
use mainstay_testservice::Backend;
use rustls::pki_types::CertificateDer;
use tokio::sync::Semaphore;
use tonic::Status;

use super::facts::client_certificate;
use super::terminator::Terminator;
use super::{Pki, mtls, upstream};
use crate::common::{Client, backends, call, control_plane, in_time, until_answered_by};
use crate::no_downgrade::with_cluster;
use crate::pki::Issued;

/// TL-13, S-26, S-32: 500 RPCs per second see nothing of it, and new connections are made with the newest pair that is
/// whole.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rpcs_see_nothing_of_certificates_that_are_replaced() {
    let pki = Pki::new();
    let mut mesh = Mesh::start(&pki).await;
    let load = Load::start(&mesh.client);

    let renewed = pki.ca.issue("client");
    rename_into_place(&pki, &renewed);
    mesh.until_presented(&renewed.der).await;

    // As Kubernetes does it: the files lead through a link that is exchanged.
    let [third, fourth] = [pki.ca.issue("client"), pki.ca.issue("client")];
    for (directory, issued) in [("v3", &third), ("v4", &fourth)] {
        std::fs::create_dir(pki.files.path(directory)).unwrap();
        pki.files.write(&format!("{directory}/cert.pem"), &issued.certificate_pem);
        pki.files.write(&format!("{directory}/key.pem"), &issued.key_pem);
    }
    link(Path::new("v3"), &pki.files.path("..data"));
    for name in ["cert.pem", "key.pem"] {
        link(&Path::new("..data").join(name), &pki.files.path(name));
    }
    mesh.until_presented(&third.der).await;
    link(Path::new("v4"), &pki.files.path("..data"));
    mesh.until_presented(&fourth.der).await;

    // What cannot be used takes nothing away: half of a file, a pair that is none, nothing at all.
    let fifth = pki.ca.issue("client");
    let half = &fifth.certificate_pem[..fifth.certificate_pem.len() / 2];
    let broken: [&dyn Fn(); 3] = [
        &|| pki.files.write("v4/cert.pem", half),
        &|| pki.files.write("v4/cert.pem", &pki.ca.issue("client").certificate_pem),
        &|| std::fs::remove_file(pki.files.path("v4/key.pem")).unwrap(),
    ];
    for break_it in broken {
        break_it();
        mesh.reconnect_for(A_LOOK_AND_MORE, &fourth.der).await;
    }
    pki.files.write("v4/cert.pem", &fifth.certificate_pem);
    pki.files.write("v4/key.pem", &fifth.key_pem);
    mesh.until_presented(&fifth.der).await;
    assert_eq!(client_certificate(&pki), fifth.der);

    let (sent, failed) = load.end().await;
    assert!(failed.is_empty(), "{} of {sent} RPCs failed: {}", failed.len(), failed[0]);
    assert!(sent > 200, "{sent} RPCs are no load");
}

/// Two servers that ask for our certificate. RPCs go to one of them, and then to the other: that makes new connections.
struct Mesh {
    fronts: [Terminator; 2],
    _plain: [Backend; 2],
    control_plane: Server,
    client: Client,
    at: usize,
}

impl Mesh {
    async fn start(pki: &Pki) -> Self {
        let plain = backends(["0", "1"]).await;
        let config = || pki.ca.serve_mtls(pki.ca.issue("service"), &rustls::version::TLS13);
        let fronts =
            [Terminator::start(config(), plain[0].addr()).await, Terminator::start(config(), plain[1].addr()).await];
        let control_plane = control_plane(serving(&fronts[0])).await;
        let mut client = pki.client(&control_plane);
        assert_eq!(call(&mut client).await.unwrap(), "0");
        Self { fronts, _plain: plain, control_plane, client, at: 0 }
    }

    /// Goes to the other server; the certificate that it was shown.
    async fn reconnect(&mut self) -> CertificateDer<'static> {
        self.at = 1 - self.at;
        self.control_plane.control_plane().set(serving(&self.fronts[self.at]));
        until_answered_by(&mut self.client, &self.at.to_string()).await;
        self.fronts[self.at].clients().pop().flatten().expect("a certificate")
    }

    async fn until_presented(&mut self, wanted: &CertificateDer<'_>) {
        in_time(async { while self.reconnect().await != *wanted {} }).await;
    }

    /// New connections for so long, all of them with this certificate.
    async fn reconnect_for(&mut self, time: Duration, expected: &CertificateDer<'_>) {
        let until = Instant::now() + time;
        while Instant::now() < until {
            assert_eq!(self.reconnect().await, *expected);
        }
    }
}

/// 500 RPCs per second, whatever becomes of those before; fewer where the machine is so busy that the circuit breaker would be the
/// one to fail them.
struct Load {
    ended: Arc<AtomicBool>,
    calls: tokio::task::JoinHandle<(usize, Vec<Status>)>,
}

impl Load {
    fn start(client: &Client) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let (client, end) = (client.clone(), ended.clone());
        let calls = tokio::spawn(async move {
            let mut beat = tokio::time::interval(Duration::from_millis(2));
            let mut running = tokio::task::JoinSet::new();
            let under_way = Arc::new(Semaphore::new(256));
            while !end.load(Ordering::Relaxed) {
                beat.tick().await;
                let Ok(permit) = under_way.clone().try_acquire_owned() else { continue };
                let mut client = client.clone();
                running.spawn(async move {
                    let outcome = call(&mut client).await;
                    drop(permit);
                    outcome
                });
            }
            let outcomes = running.join_all().await;
            (outcomes.len(), outcomes.into_iter().filter_map(Result::err).collect())
        });
        Self { ended, calls }
    }

    /// How many were sent, and those that failed.
    async fn end(self) -> (usize, Vec<Status>) {
        self.ended.store(true, Ordering::Relaxed);
        self.calls.await.expect("a caller does not panic")
    }
}

fn serving(front: &Terminator) -> SnapshotBuilder {
    with_cluster(pack_any(upstream(mtls(&["service"]))), resources::endpoints("service", [front.address]))
}

fn rename_into_place(pki: &Pki, issued: &Issued) {
    for (name, content) in [("cert.pem", &issued.certificate_pem), ("key.pem", &issued.key_pem)] {
        pki.files.write("draft", content);
        std::fs::rename(pki.files.path("draft"), pki.files.path(name)).unwrap();
    }
}

/// Puts a link in the place of whatever is there.
#[cfg(unix)]
fn link(to: &Path, at: &Path) {
    let draft = at.with_file_name("link");
    std::os::unix::fs::symlink(to, &draft).unwrap_or_else(|error| panic!("{}: {error}", draft.display()));
    std::fs::rename(&draft, at).unwrap_or_else(|error| panic!("{}: {error}", at.display()));
}

/// Files are looked at twice a second, and three times more if they cannot be used.
const A_LOOK_AND_MORE: Duration = Duration::from_millis(900);
