//! Panics in code that is not ours: each costs one call, or one lookup, or a moment, and never the channel.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay::{Credentials, ResolveHost};
use mainstay_control_plane::{Snapshot, resources};
use mainstay_testservice::Backend;
use mainstay_testservice::proto::{SimpleRequest, StreamingInputCallRequest, StreamingOutputCallRequest};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tokio_stream::StreamExt;
use tonic::Code;
use tracing::subscriber::Interest;

use crate::common::{Client, backends, builder, call, client, control_plane, in_time, service, spread};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_request_stream_fails_that_call_and_no_other() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    for good in 0..3 {
        let stream = tokio_stream::iter(0..5).map(move |n| match n {
            n if n > good => panic!("bug in a caller"),
            _ => StreamingInputCallRequest::default(),
        });
        let status = in_time(client.streaming_input_call(stream)).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal);
        assert_eq!(status.message(), "the stream of the request panicked: bug in a caller");
        assert_eq!(spread(&mut client, 20).await["one"], 20);
    }
    assert_eq!(one.open_connections(), 1, "the connection goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_panics_or_fails_after_the_answer_has_begun_ends_its_call_with_its_own_cause() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    let (more, rest) = tokio::sync::mpsc::channel(1);
    let stream =
        tokio_stream::wrappers::ReceiverStream::new(rest).map(|request: Option<_>| request.expect("a request"));
    more.send(Some(StreamingOutputCallRequest::default())).await.unwrap();
    let mut answers = in_time(client.full_duplex_call(stream)).await.unwrap().into_inner();
    more.send(None).await.unwrap();
    let status = in_time(async {
        loop {
            match answers.message().await {
                Ok(Some(_)) => {}
                other => break other.unwrap_err(),
            }
        }
    })
    .await;
    assert_eq!(status.code(), Code::Internal);
    assert_eq!(status.message(), "the stream of the request panicked: a request");
    assert!(more.send(None).await.is_err(), "what panicked was dropped");
    assert_eq!(spread(&mut client, 20).await["one"], 20);
    assert_eq!(one.open_connections(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_stream_that_panics_when_it_is_dropped_hurts_nobody() {
    struct Bomb;
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("bug in a destructor");
        }
    }
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    // At its end, which is part of the call, and when the call is over.
    for ends in [true, false] {
        let bomb = Bomb;
        let (more, rest) = tokio::sync::mpsc::channel(1);
        let stream = tokio_stream::wrappers::ReceiverStream::new(rest).map(move |request| {
            let _ = &bomb;
            request
        });
        more.send(StreamingInputCallRequest::default()).await.unwrap();
        let _more = (!ends).then_some(more);
        let mut request = tonic::Request::new(stream);
        request.set_timeout(Duration::from_millis(if ends { 10_000 } else { 50 }));
        let _ = in_time(client.streaming_input_call(request)).await;
        assert_eq!(spread(&mut client, 20).await["one"], 20);
    }
    assert_eq!(one.open_connections(), 1);
}

#[tokio::test]
async fn a_resolver_that_panics_is_a_failed_lookup_and_is_asked_again() {
    let [one] = backends(["one"]).await;
    let server = control_plane(
        Snapshot::builder()
            .listener(resources::listener("service", resources::route("service", "service")))
            .cluster(resources::logical_dns_cluster("service", format!("some.host:{}", one.addr().port()))),
    )
    .await;
    for when in [Bug::BeforeItsFuture, Bug::InItsFuture] {
        let dns = BuggyOnce { when, asked: AtomicUsize::new(0) };
        let mut client = Client::new(builder(&[&server]).dns(dns).build().unwrap());
        let status = call(&mut client).await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().contains("the resolver panicked: bug in a resolver"), "{}", status.message());
        in_time(async { while call(&mut client).await.is_err() {} }).await;
    }
}

/// A subscriber of `tracing` is code of the user that the driver runs.
#[tokio::test]
async fn a_driver_that_panics_fails_calls_with_the_cause_and_is_started_again() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let bomb = Arc::new(AtomicUsize::new(usize::MAX));
    let _guard = tracing::subscriber::set_default(Bomb(bomb.clone()));
    let channel = builder(&[&server]).backoff(Duration::from_millis(200), Duration::from_millis(200));
    let mut client = Client::new(channel.build().unwrap());
    call(&mut client).await.unwrap();
    bomb.store(1, Ordering::Relaxed);
    server.control_plane().update(|snapshot| snapshot.insert(resources::route("service", "other")));
    let status = in_time(async {
        loop {
            match call(&mut client).await {
                Ok(_) => tokio::task::yield_now().await,
                Err(status) => break status,
            }
        }
    })
    .await;
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("panicked, and is started again soon: bug in a subscriber"), "{status}");
    server.control_plane().update(|snapshot| snapshot.insert(resources::route("service", "service")));
    in_time(async { while call(&mut client).await.is_err() {} }).await;
    assert_eq!(spread(&mut client, 20).await["one"], 20);
}

#[tokio::test]
async fn a_certificate_verifier_that_panics_is_a_failed_attempt_to_connect() {
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new(vec!["service".to_owned()]).unwrap().self_signed(&key).unwrap();
    let identity = mainstay_testservice::Identity::from_pem(certificate.pem(), key.serialize_pem());
    let tls = mainstay_testservice::ServerTlsConfig::new().identity(identity);
    let one = Backend::builder("one").tls(tls).spawn("127.0.0.1:0").await.unwrap();
    let server = control_plane(service(&[&one])).await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let verifier = Arc::new(BuggyVerifier(AtomicUsize::new(0)));
    let config = config.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth();
    let channel = builder(&[&server]).credentials(Credentials::tls_with(config)).build().unwrap();
    let mut client = Client::new(channel);
    let status = call(&mut client).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(status.message().contains("panicked: bug in a verifier"), "{}", status.message());
    in_time(async { while call(&mut client).await.is_err() {} }).await;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Bug {
    BeforeItsFuture,
    InItsFuture,
}

#[derive(Debug)]
struct BuggyOnce {
    when: Bug,
    asked: AtomicUsize,
}

impl ResolveHost for BuggyOnce {
    fn resolve<'a>(&'a self, _: &'a str) -> Pin<Box<dyn Future<Output = Result<Vec<IpAddr>, String>> + Send + 'a>> {
        let bug = self.asked.fetch_add(1, Ordering::Relaxed) == 0;
        assert!(!(bug && self.when == Bug::BeforeItsFuture), "bug in a resolver");
        Box::pin(async move {
            assert!(!bug, "bug in a resolver");
            Ok(vec![IpAddr::from([127, 0, 0, 1])])
        })
    }
}

/// Panics at the next events of the driver, as many as it is told.
pub(crate) struct Bomb(pub(crate) Arc<AtomicUsize>);

impl tracing::Subscriber for Bomb {
    fn register_callsite(&self, _: &'static tracing::Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "mainstay::logs"
    }

    fn event(&self, _: &tracing::Event<'_>) {
        let armed = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
            0 | usize::MAX => None,
            left => Some(left - 1),
        });
        assert!(armed.is_err(), "bug in a subscriber");
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Panics the first time; then it trusts everybody.
#[derive(Debug)]
struct BuggyVerifier(AtomicUsize);

impl ServerCertVerifier for BuggyVerifier {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        assert!(self.0.fetch_add(1, Ordering::Relaxed) > 0, "bug in a verifier");
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        rustls::crypto::ring::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_that_panic_by_the_dozen_leave_no_task_behind() {
    let [one] = backends(["one"]).await;
    let server = control_plane(service(&[&one])).await;
    let mut client = client(&[&server]);
    call(&mut client).await.unwrap();
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    // Few at a time: servers turn away clients that take back many requests at once.
    for wave in 0..4 {
        let callers: Vec<_> = (wave..wave + 8)
            .map(|number| {
                let mut client = client.clone();
                tokio::spawn(async move {
                    let stream = tokio_stream::iter(0..number).map(|n| match n {
                        2 => panic!("bug in a caller"),
                        _ => StreamingInputCallRequest::default(),
                    });
                    let streamed = client.streaming_input_call(stream).await.map(drop);
                    client.unary_call(SimpleRequest::default()).await.unwrap();
                    (number < 3, streamed)
                })
            })
            .collect();
        for caller in callers {
            let (good, streamed) = in_time(caller).await.unwrap();
            assert_eq!(good, streamed.is_ok(), "{streamed:?}");
        }
    }
    in_time(async {
        while tasks() > before {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(one.open_connections(), 1);
}
