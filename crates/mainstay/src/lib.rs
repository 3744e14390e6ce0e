//! xDS channels and servers for [tonic]: a control plane says which endpoints there are, how RPCs are routed and balanced, and
//! how connections are secured; channels and servers keep working when the control plane does not.
//!
//! ```no_run
//! # use mainstay_testservice::proto::test_service_client::TestServiceClient as GreeterClient;
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::new("xds:///greeter")?; // bootstrap from GRPC_XDS_BOOTSTRAP
//! let client = GreeterClient::new(channel); // any tonic-generated client, unchanged
//! # Ok(())
//! # }
//! ```
//!
//! [tonic]: https://docs.rs/tonic
//!
//! # Concepts
//!
//! - A **control plane** is one or more *xDS servers*: Istio, go-control-plane, Envoy Gateway, or the one that comes with
//!   Mainstay. It sends *resources*.
//! - The **bootstrap** says which xDS servers there are, in order of preference, and who this client is. It comes from
//!   the environment, as in every gRPC implementation, or from code: [`bootstrap`].
//! - A **target** such as `xds:///greeter` names a Listener. The Listener leads to a RouteConfiguration, its routes lead
//!   to Clusters, and Clusters lead to endpoints.
//! - A [`Channel`] follows this chain and puts a **configuration** in force when it is complete, as a whole. No RPC sees
//!   half of an update. What is in force, and where each part came from, is what [`view`] shows.
//! - An **RPC** takes the first route that matches its path and headers, and an endpoint that the load-balancing policy
//!   of the cluster picks. It runs in the task of its caller, without a queue or a lock.
//! - What the xDS side does, as it happens, is an [`event`].
//!
//! # The life of a channel
//!
//! 1. **Made.** [`Channel::new`] and [`ChannelBuilder::build`] check the bootstrap, the target and the credentials,
//!    return at once, and connect in the background. Channels that are built with equal settings share everything.
//! 2. **Connecting.** RPCs wait for the first configuration and for a connection, as long as their deadlines let them.
//!    [`Channel::ready`] waits for the same.
//! 3. **Ready.** Updates are put in force when they are complete, and new clusters and endpoints when they are connected
//!    ([`ChannelBuilder::warm_switching`]).
//! 4. **Transient failure.** No endpoint can be reached, or there is no usable configuration. RPCs fail with UNAVAILABLE
//!    and a text that says which resource, which server and why, unless they [wait](WaitForReady).
//! 5. **Idle.** After 30 minutes without an RPC the channel lets go of its connections and its configuration
//!    ([`ChannelBuilder::idle_timeout`]). The next RPC fetches them again.
//! 6. **Closed.** When the last clone is dropped, RPCs under way end by themselves, and everything else is closed.
//!
//! # When things fail
//!
//! | what happens | what RPCs notice | where you see it |
//! |---|---|---|
//! | an xDS server goes down | nothing: what the channel has been told stays in use | [`Event::StreamEnded`], [`Event::Unreachable`] |
//! | it is down, and something is needed that the channel does not have | nothing: the next server of the list is asked, and its configuration is put in force as a whole | [`Event::FellBack`], later [`Event::Recovered`] |
//! | it accepts connections and says nothing | nothing: without a sign of life for 10 s it counts as unreachable | [`Event::Unreachable`] |
//! | no xDS server can be reached when the program starts | RPCs fail with UNAVAILABLE, or wait if they are told to | [`Event::Unreachable`] |
//! | the control plane sends a resource with faults | nothing: the last good one stays in use | [`Event::Nacked`], [`ResourceStatus::error`] |
//! | it deletes a resource that is in use | nothing, unless the bootstrap says `fail_on_data_errors` | [`ResourceStatus::error`] |
//! | it sends half of an update and dies | nothing: the configuration in force stays until the next one is complete | [`ConfigView::resources`] |
//! | an endpoint goes down | RPCs that it never saw are sent elsewhere; those under way fail, or are tried again if their route has a retry policy | [`admin::channelz`] |
//! | an endpoint falls silent | RPCs run out of time; then it is pinged, and left after 5 s ([`ChannelBuilder::silence_timeout`]) | [`admin::channelz`] |
//! | all endpoints of a priority go down | RPCs go to the next priority | the [`Peer`] of each response |
//! | all endpoints of a cluster go down | RPCs fail with UNAVAILABLE, or wait if they are told to | [`Channel::state`] |
//! | a resolver, codec or stream of yours panics | that call or lookup fails, and nothing else | the status, the logs |
//! | the tokio runtime of the channel ends | the channel starts again on the runtime of the next RPC | the logs |
//!
//! [`Event::StreamEnded`]: event::Event::StreamEnded
//! [`Event::Unreachable`]: event::Event::Unreachable
//! [`Event::FellBack`]: event::Event::FellBack
//! [`Event::Recovered`]: event::Event::Recovered
//! [`Event::Nacked`]: event::Event::Nacked
//! [`ResourceStatus::error`]: view::ResourceStatus::error
//! [`ConfigView::resources`]: view::ConfigView::resources
//!
//! # How to
//!
//! ## Change settings
//!
//! ```no_run
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::builder("xds:///greeter")
//!     .connect_timeout(Duration::from_secs(3))
//!     .idle_timeout(None)
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Bring a bootstrap
//!
//! ```no_run
//! use mainstay::bootstrap::{Bootstrap, Node, ServerConfig};
//!
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let bootstrap = Bootstrap::builder()
//!     .server(ServerConfig::insecure("xds-primary.example:18000"))
//!     .server(ServerConfig::insecure("xds-fallback.example:18000"))
//!     .node(Node::new("client-1"))
//!     .build()?;
//! let channel = mainstay::Channel::builder("xds:///greeter").bootstrap(bootstrap).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Secure the connections to endpoints
//!
//! ```no_run
//! # async fn example() -> Result<(), mainstay::BuildError> {
//! let channel = mainstay::Channel::builder("xds:///greeter")
//!     .credentials(mainstay::Credentials::tls()?) // trusts the roots of the system
//!     .require_xds_security(true) // refuses clusters that ask for other TLS
//!     .build()?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Credentials::xds`] follow the control plane, cluster by cluster, with the certificate providers of the bootstrap or
//! of the application ([`certificates`]). [`Credentials::tls_with`] takes any rustls configuration. Connections to xDS
//! servers are secured by the bootstrap: [`bootstrap::CertificateFiles`].
//!
//! ## Wait for an endpoint, and for how long
//!
//! ```no_run
//! # use mainstay_testservice::proto::{SimpleRequest as HelloRequest, test_service_client::TestServiceClient as GreeterClient};
//! use std::time::Duration;
//!
//! # async fn example(mut client: GreeterClient<mainstay::Channel>) -> Result<(), tonic::Status> {
//! let mut request = tonic::Request::new(HelloRequest::default());
//! request.extensions_mut().insert(mainstay::WaitForReady(true)); // or for all: ChannelBuilder::wait_for_ready
//! request.set_timeout(Duration::from_secs(5)); // holds in every phase
//! let response = client.unary_call(request).await?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Add interceptors and layers
//!
//! A channel is a tower service, so whatever goes around tonic's own channel goes around this one.
//!
//! ```no_run
//! # use mainstay_testservice::proto::test_service_client::TestServiceClient as GreeterClient;
//! # async fn example(channel: mainstay::Channel) {
//! let client = GreeterClient::with_interceptor(channel, |mut request: tonic::Request<()>| {
//!     request.metadata_mut().insert("authorization", "Bearer token".parse().unwrap());
//!     Ok(request)
//! });
//! # }
//! ```
//!
//! ## See who answered
//!
//! ```no_run
//! # use mainstay_testservice::proto::{SimpleRequest as HelloRequest, test_service_client::TestServiceClient as GreeterClient};
//! # async fn example(mut client: GreeterClient<mainstay::Channel>) -> Result<(), tonic::Status> {
//! let response = client.unary_call(HelloRequest::default()).await?;
//! if let Some(peer) = response.extensions().get::<mainstay::Peer>() {
//!     println!("{} of cluster {} in {}", peer.address(), peer.cluster(), peer.locality());
//!     println!("which proved over TLS to be {:?}", peer.principal());
//! }
//! # Ok(())
//! # }
//! ```
//!
//! ## Hear what happens
//!
//! ```no_run
//! # async fn example(channel: mainstay::Channel) {
//! let mut events = channel.events();
//! tokio::spawn(async move {
//!     while let Some(event) = events.next().await {
//!         println!("{event}");
//!     }
//! });
//! # }
//! ```
//!
//! ## Look at the configuration
//!
//! ```no_run
//! # async fn example(channel: mainstay::Channel) {
//! if let Some(view) = channel.config().await {
//!     println!("{} resources from {} servers", view.resources.len(), view.servers.len());
//! }
//! # }
//! ```
//!
//! ## Bring a resolver
//!
//! LOGICAL_DNS clusters and names of xDS servers are looked up by [`SystemDns`], or by what [`ResolveHost`] is
//! implemented for.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let dns = mainstay::SystemDns::with_servers(["10.0.0.53:53".parse()?]);
//! let channel = mainstay::Channel::builder("xds:///greeter").dns(dns).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Serve
//!
//! A [`Server`] takes any tonic service, and the control plane says whether it serves, to whom, and with which certificate.
//!
//! ```no_run
//! use mainstay::{Server, ServerCredentials};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! # let greeter = mainstay_testservice::service("one", "one").unwrap();
//! Server::builder()
//!     .credentials(ServerCredentials::xds(ServerCredentials::insecure()))
//!     .add_service(greeter)
//!     .serve_xds("0.0.0.0:50051".parse()?)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Serve CSDS and channelz
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! tonic::transport::Server::builder()
//!     .add_service(mainstay::admin::csds())
//!     .add_service(mainstay::admin::channelz())
//!     .serve("127.0.0.1:9901".parse()?)
//!     .await?;
//! # Ok(())
//! # }
//! ```
//!
//! ## Send metrics and traces
//!
//! Turn on the feature `opentelemetry` and hand a `Telemetry` to the builder. What is not handed in costs nothing.
#![cfg_attr(feature = "opentelemetry", doc = "[`Telemetry`] has an example.")]
//!
//! # Types of other crates
//!
//! The API has its own types, except for those of these crates. A new major version of one of them is a new major version
//! of this crate. A test keeps the list true.
//!
//! - `bytes`: the data of response bodies, and encoded resources
//! - `futures_core`: [`event::Events`] is a `Stream`
//! - `http`: requests, responses and the error of an authority
//! - `http_body`: [`ResponseBody`] is a `Body`
//! - `opentelemetry`: providers for telemetry, with the feature `opentelemetry`
//! - `rustls`: configurations, roots and errors of [`Credentials`] and [`certificates`]; re-exported, so that its release fits
//! - `tonic`: bodies of requests, and `Status` as the error of RPCs
//! - `tower_layer`: [`ServerBuilder::layer`] takes a `Layer`
//! - `tower_service`: a [`Channel`] is a `Service`, and so are the services of a [`Server`]
//!
//! The crates `mainstay-xds` and `mainstay-lb` are parts of the implementation without any promise of stability. Nothing
//! of them is in this API.

#![deny(missing_docs)]

pub mod admin;
pub mod audit;
pub mod bootstrap;
pub mod event;
pub mod last_good;
pub mod view;

mod ads;
mod body;
mod call;
mod calls;
pub mod certificates;
mod channel;
mod channelz_node;
mod code;
mod connection;
mod credentials;
mod deadline;
mod disconnect;
mod dns;
mod driver;
mod error;
mod failure;
mod frames;
mod guard;
mod http2;
mod http_connect;
mod hub;
mod intern;
mod keep_alive;
mod local_stream;
mod logs;
mod names;
mod orca_oob;
mod peer;
mod process;
mod pulse;
mod queue;
mod random;
mod request;
mod server;
mod serving_state;
mod shared;
mod stream;
mod subchannel;
mod supervisor;
mod sync;
mod task;
mod telemetry;
mod throttle;
mod tls;
mod transport;
mod xds_status;

pub use body::ResponseBody;
pub use call::WaitForReady;
pub use channel::{Channel, ChannelBuilder, ChannelState};
pub use credentials::{Credentials, CredentialsError, ServerCredentials};
pub use dns::{ResolveHost, SystemDns};
pub use error::{BuildError, TargetError, TargetErrorKind};
pub use names::{Fault, Locality, ResourceName, ResourceType};
pub use peer::Peer;
pub use rustls;
pub use server::{Handlers, Running, ServeError, Server, ServerBuilder};
pub use serving_state::{ServingState, ServingStates};
#[cfg(feature = "opentelemetry")]
pub use telemetry::{Telemetry, TelemetryBuilder};
pub use throttle::RetryThrottle;
pub use tls::TlsInfo;

/// What the front page of the package shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
