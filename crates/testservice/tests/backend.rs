//! The backend over real sockets, called through the generated client.

use std::time::Duration;

use mainstay_testservice::{
    ATTEMPTS_KEY, BEHAVIOR_KEY, Backend, HOSTNAME_KEY, Identity, MAX_RESPONSE_SIZE, ServerTlsConfig,
    proto::{
        EchoStatus, Empty, Payload, ResponseParameters, SimpleRequest, StreamingInputCallRequest,
        StreamingOutputCallRequest, test_service_client::TestServiceClient,
    },
};
use tokio::net::TcpStream;
use tokio_stream::StreamExt as _;
use tonic::{
    Code, Request,
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint},
};

type Client = TestServiceClient<Channel>;

#[tokio::test]
async fn unary_call_names_the_server_and_echoes_the_size() {
    // I-16
    let backend = Backend::builder("one").hostname("host-1").spawn("127.0.0.1:0").await.unwrap();
    let mut client = client(&backend);
    let request = SimpleRequest { response_size: 5, fill_server_id: true, ..SimpleRequest::default() };
    let response = client.unary_call(request).await.unwrap();
    assert_eq!(response.metadata().get(HOSTNAME_KEY).unwrap(), "host-1");
    let message = response.into_inner();
    assert_eq!(message.payload.unwrap().body, b"00000");
    assert_eq!((message.server_id.as_str(), message.hostname.as_str()), ("one", "host-1"));
    assert_eq!(backend.requests(), 1);
    assert_eq!(backend.open_connections(), 1);
}

#[tokio::test]
async fn the_server_id_is_told_without_being_asked_for() {
    // I-16
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let message = client(&backend).unary_call(SimpleRequest::default()).await.unwrap().into_inner();
    assert_eq!((message.server_id.as_str(), message.hostname.as_str()), ("one", "one"));
}

#[tokio::test]
async fn empty_call_names_the_host_in_its_header() {
    // I-16
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let response = client(&backend).empty_call(Empty {}).await.unwrap();
    assert_eq!(response.metadata().get(HOSTNAME_KEY).unwrap(), "one");
}

#[tokio::test]
async fn wrong_sizes_and_wanted_statuses_are_errors() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let mut client = client(&backend);
    for response_size in [-1, MAX_RESPONSE_SIZE + 1] {
        let request = SimpleRequest { response_size, ..SimpleRequest::default() };
        assert_eq!(client.unary_call(request).await.unwrap_err().code(), Code::InvalidArgument);
    }
    let response_status = Some(EchoStatus { code: 9, message: "as you wish".to_owned() });
    let request = SimpleRequest { response_status, ..SimpleRequest::default() };
    let status = client.unary_call(request).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::FailedPrecondition, "as you wish"));
}

#[tokio::test]
async fn behavior_is_read_from_the_metadata() {
    // I-20
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let mut client = client(&backend);
    let status = client.empty_call(behaving("hostname=one error-code-7", Empty {})).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    client.empty_call(behaving("hostname=two error-code-7", Empty {})).await.unwrap();
    let mut request = behaving("succeed-on-retry-attempt-1,error-code-14", SimpleRequest::default());
    request.metadata_mut().insert(ATTEMPTS_KEY, "1".parse().unwrap());
    client.unary_call(request).await.unwrap();
    assert_eq!(backend.requests(), 3);
}

#[tokio::test]
async fn streaming_output_sends_what_is_asked_and_then_the_status() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let request = StreamingOutputCallRequest {
        response_parameters: sizes(&[3, 0, 7]),
        response_status: Some(EchoStatus { code: 10, message: "enough".to_owned() }),
        ..StreamingOutputCallRequest::default()
    };
    let mut responses = client(&backend).streaming_output_call(request).await.unwrap().into_inner();
    for size in [3, 0, 7] {
        assert_eq!(responses.message().await.unwrap().unwrap().payload.unwrap().body.len(), size);
    }
    assert_eq!(responses.message().await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn streaming_input_adds_up_the_sizes() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let requests = [1, 20, 300].map(|size| StreamingInputCallRequest {
        payload: Some(Payload { body: vec![0; size], ..Payload::default() }),
        expect_compressed: None,
    });
    let response = client(&backend).streaming_input_call(tokio_stream::iter(requests)).await.unwrap();
    assert_eq!(response.metadata().get(HOSTNAME_KEY).unwrap(), "one");
    assert_eq!(response.into_inner().aggregated_payload_size, 321);
}

#[tokio::test]
async fn full_duplex_answers_each_request_before_the_next() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let mut responses = client(&backend).full_duplex_call(stream).await.unwrap().into_inner();
    for size in [2, 4] {
        let request =
            StreamingOutputCallRequest { response_parameters: sizes(&[size]), ..StreamingOutputCallRequest::default() };
        requests.send(request).await.unwrap();
        let payload = responses.next().await.unwrap().unwrap().payload.unwrap();
        assert_eq!(payload.body.len(), usize::try_from(size).unwrap());
    }
    drop(requests);
    assert!(responses.message().await.unwrap().is_none());
}

#[tokio::test]
async fn a_killed_backend_cuts_calls_and_refuses_connections_until_it_returns() {
    let mut backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let addr = backend.addr();
    let mut client = client(&backend);
    client.empty_call(Empty {}).await.unwrap();
    let hanging = tokio::spawn({
        let mut client = client.clone();
        async move { client.empty_call(behaving("keep-open", Empty {})).await }
    });
    until(|| backend.requests() == 2).await;

    backend.stop().await;
    assert_eq!(backend.open_connections(), 0);
    assert!(!backend.is_running());
    assert!(hanging.await.unwrap().is_err());
    let refused = TcpStream::connect(addr).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    backend.restart().await.unwrap();
    assert_eq!(backend.addr(), addr);
    TestServiceClient::connect(format!("http://{addr}")).await.unwrap().empty_call(Empty {}).await.unwrap();
    assert_eq!(backend.requests(), 3);
}

#[tokio::test]
async fn a_graceful_stop_finishes_the_calls_under_way() {
    let mut backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let addr = backend.addr();
    let (requests, stream) = tokio::sync::mpsc::channel(1);
    let stream = tokio_stream::wrappers::ReceiverStream::new(stream);
    let call = tokio::spawn({
        let mut client = client(&backend);
        async move { client.streaming_input_call(stream).await }
    });
    until(|| backend.requests() == 1).await;

    let finish = async {
        // Not before the port is closed: the call must outlive the beginning of the stop.
        while TcpStream::connect(addr).await.is_ok() {
            tokio::task::yield_now().await;
        }
        requests.send(StreamingInputCallRequest::default()).await.unwrap();
        drop(requests);
    };
    tokio::join!(backend.stop_gracefully(), finish);
    assert_eq!(call.await.unwrap().unwrap().into_inner().aggregated_payload_size, 0);
    assert_eq!(backend.open_connections(), 0);
}

#[tokio::test]
async fn dropping_the_backend_kills_it() {
    let backend = Backend::spawn("127.0.0.1:0", "one").await.unwrap();
    let mut client = client(&backend);
    let hanging = tokio::spawn(async move { client.empty_call(behaving("keep-open", Empty {})).await });
    until(|| backend.requests() == 1).await;
    drop(backend);
    assert!(hanging.await.unwrap().is_err());
}

#[tokio::test]
async fn a_fixed_port_is_not_shared() {
    let mut chosen = Backend::spawn("127.0.0.1:0", "chosen").await.unwrap();
    // Stopped, it keeps the port from being chosen for others; who asks for it by number may have it.
    chosen.stop().await;
    let fixed = Backend::spawn(chosen.addr(), "fixed").await.unwrap();
    let second = Backend::spawn(fixed.addr(), "second").await;
    assert_eq!(second.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    assert!(chosen.restart().await.is_err());
}

#[tokio::test]
async fn a_hostname_that_no_header_can_carry_is_refused() {
    let error = Backend::builder("one").hostname("a\nb").spawn("127.0.0.1:0").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
}

#[tokio::test]
async fn tls_is_served_when_asked_for() {
    let certified = rcgen::generate_simple_self_signed(["backend.test".to_owned()]).unwrap();
    let pem = certified.cert.pem();
    let identity = Identity::from_pem(&pem, certified.signing_key.serialize_pem());
    let backend =
        Backend::builder("one").tls(ServerTlsConfig::new().identity(identity)).spawn("127.0.0.1:0").await.unwrap();
    let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(pem)).domain_name("backend.test");
    let channel = Endpoint::from_shared(format!("https://{}", backend.addr())).unwrap().tls_config(tls).unwrap();
    let response = TestServiceClient::new(channel.connect_lazy()).empty_call(Empty {}).await.unwrap();
    assert_eq!(response.metadata().get(HOSTNAME_KEY).unwrap(), "one");
    assert!(client(&backend).empty_call(Empty {}).await.is_err(), "plaintext must not be served too");
}

fn client(backend: &Backend) -> Client {
    let endpoint = Endpoint::from_shared(format!("http://{}", backend.addr())).unwrap();
    TestServiceClient::new(endpoint.connect_lazy())
}

fn behaving<T>(behavior: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    request.metadata_mut().insert(BEHAVIOR_KEY, behavior.parse().unwrap());
    request
}

fn sizes(sizes: &[i32]) -> Vec<ResponseParameters> {
    sizes.iter().map(|&size| ResponseParameters { size, ..ResponseParameters::default() }).collect()
}

/// Lets the other tasks run until `condition` holds.
async fn until(condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), wait).await.expect("the condition must come true");
}
