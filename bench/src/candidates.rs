//! The channels that are compared: one connection each, to the same backend.

use std::net::SocketAddr;
use std::path::Path;
use std::str::FromStr;

use mainstay_testservice::proto::test_service_client::TestServiceClient;
use mainstay_testservice::proto::{ResponseParameters, SimpleRequest, StreamingOutputCallRequest};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Status, Streaming};

use crate::Result;
use crate::servers::{SECURE_TARGET, TARGET, bootstrap, secure_bootstrap};

/// A kind of channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Candidate {
    Mainstay,
    /// With the default metrics.
    #[cfg(feature = "telemetry")]
    MainstayObserved,
    TonicChannel,
    TonicBalanceList,
    #[cfg(feature = "tonic-xds")]
    TonicXds,
}

/// A generated client over a channel.
#[derive(Clone)]
pub(crate) enum Stub {
    Mainstay(TestServiceClient<mainstay::Channel>),
    Tonic(TestServiceClient<Channel>),
    #[cfg(feature = "tonic-xds")]
    TonicXds(TestServiceClient<tonic_xds::XdsChannelGrpc>),
}

/// What a call looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    Unary,
    /// [`MESSAGES`] messages from the server.
    Streaming,
}

/// Messages of a streaming call.
pub(crate) const MESSAGES: usize = 10;

impl Candidate {
    pub(crate) const ALL: &[Self] = &[
        Self::Mainstay,
        Self::TonicChannel,
        Self::TonicBalanceList,
        #[cfg(feature = "tonic-xds")]
        Self::TonicXds,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mainstay => "mainstay",
            #[cfg(feature = "telemetry")]
            Self::MainstayObserved => "mainstay_observed",
            Self::TonicChannel => "tonic_channel",
            Self::TonicBalanceList => "tonic_balance_list",
            #[cfg(feature = "tonic-xds")]
            Self::TonicXds => "tonic_xds",
        }
    }

    /// A channel of this kind that is connected.
    pub(crate) async fn connect(self, backend: SocketAddr, control_plane: SocketAddr) -> Result<Stub> {
        let endpoint = Endpoint::from_shared(format!("http://{backend}"))?;
        let stub = match self {
            Self::Mainstay => {
                let channel = mainstay::Channel::builder(TARGET).bootstrap(bootstrap(&[control_plane])?).build()?;
                Stub::Mainstay(TestServiceClient::new(channel))
            }
            #[cfg(feature = "telemetry")]
            Self::MainstayObserved => {
                let meters = opentelemetry_sdk::metrics::SdkMeterProvider::default();
                let telemetry = mainstay::Telemetry::builder().meter_provider(&meters).build();
                let builder = mainstay::Channel::builder(TARGET).bootstrap(bootstrap(&[control_plane])?);
                Stub::Mainstay(TestServiceClient::new(builder.telemetry(telemetry).build()?))
            }
            Self::TonicChannel => Stub::Tonic(TestServiceClient::new(endpoint.connect().await?)),
            Self::TonicBalanceList => {
                Stub::Tonic(TestServiceClient::new(Channel::balance_list(std::iter::once(endpoint))))
            }
            #[cfg(feature = "tonic-xds")]
            Self::TonicXds => Stub::TonicXds(TestServiceClient::new(tonic_xds(control_plane)?)),
        };
        self.connected(stub).await
    }

    /// The same over mTLS, with the certificates in a directory. Only ours and tonic's own channel.
    pub(crate) async fn connect_secure(
        self,
        backend: SocketAddr,
        control_plane: SocketAddr,
        certificates: &Path,
    ) -> Result<Stub> {
        let stub = match self {
            Self::Mainstay => {
                let builder = mainstay::Channel::builder(SECURE_TARGET);
                let builder = builder.bootstrap(secure_bootstrap(&[control_plane], certificates)?);
                let credentials = mainstay::Credentials::xds(mainstay::Credentials::insecure());
                Stub::Mainstay(TestServiceClient::new(builder.credentials(credentials).build()?))
            }
            Self::TonicChannel => {
                let read = |name: &str| std::fs::read(certificates.join(name));
                let tls = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(read("ca.pem")?))
                    .identity(Identity::from_pem(read("cert.pem")?, read("key.pem")?))
                    .domain_name("service");
                let endpoint = Endpoint::from_shared(format!("https://{backend}"))?.tls_config(tls)?;
                Stub::Tonic(TestServiceClient::new(endpoint.connect().await?))
            }
            other => return Err(format!("{} is not measured over TLS", other.name()).into()),
        };
        self.connected(stub).await
    }

    async fn connected(self, mut stub: Stub) -> Result<Stub> {
        // tonic-xds fails calls until it has endpoints; the others wait.
        let mut last = Ok(());
        for _ in 0..200 {
            let call = tokio::time::timeout(std::time::Duration::from_secs(30), stub.call(Shape::Unary)).await;
            last = call.map_err(|_| format!("{}: no answer within 30 s", self.name()))?;
            match last {
                Ok(()) => return Ok(stub),
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(20)).await,
            }
        }
        last?;
        Ok(stub)
    }
}

/// With a scheme before the address: without one it never connects in plaintext.
#[cfg(feature = "tonic-xds")]
fn tonic_xds(control_plane: SocketAddr) -> Result<tonic_xds::XdsChannelGrpc> {
    let bootstrap = tonic_xds::BootstrapConfig::from_json(&format!(
        r#"{{"xds_servers": [{{"server_uri": "http://{control_plane}", "channel_creds": [{{"type": "insecure"}}]}}],
            "node": {{"id": "bench"}}}}"#
    ))?;
    let config = tonic_xds::XdsChannelConfig::new(tonic_xds::XdsUri::parse(TARGET)?).with_bootstrap(bootstrap);
    Ok(tonic_xds::XdsChannelBuilder::new(config).build_grpc_channel()?)
}

impl FromStr for Candidate {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let all = Self::ALL.iter();
        #[cfg(feature = "telemetry")]
        let all = all.chain([&Self::MainstayObserved]);
        let found = all.into_iter().find(|candidate| candidate.name() == name);
        found.copied().ok_or_else(|| format!("{name:?} is no candidate"))
    }
}

impl Stub {
    /// One call, to its end.
    pub(crate) async fn call(&mut self, shape: Shape) -> Result<(), Status> {
        match self {
            Self::Mainstay(client) => call(client, shape).await,
            Self::Tonic(client) => call(client, shape).await,
            #[cfg(feature = "tonic-xds")]
            Self::TonicXds(client) => call(client, shape).await,
        }
    }
}

async fn call<T>(client: &mut TestServiceClient<T>, shape: Shape) -> Result<(), Status>
where
    T: tonic::client::GrpcService<tonic::body::Body>,
    T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T::ResponseBody: http_body::Body<Data = bytes::Bytes> + Send + 'static,
    <T::ResponseBody as http_body::Body>::Error: Into<Box<dyn std::error::Error + Send + Sync>> + Send,
{
    match shape {
        Shape::Unary => client.unary_call(SimpleRequest::default()).await.map(drop),
        Shape::Streaming => {
            let message = ResponseParameters { size: 8, ..Default::default() };
            let request =
                StreamingOutputCallRequest { response_parameters: vec![message; MESSAGES], ..Default::default() };
            let mut messages: Streaming<_> = client.streaming_output_call(request).await?.into_inner();
            while messages.message().await?.is_some() {}
            Ok(())
        }
    }
}
