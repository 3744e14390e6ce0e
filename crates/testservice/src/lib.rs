//! `grpc.testing.TestService`: the backend that Mainstay's tests, demo and command line call, and the stubs to call it.
//!
//! A [`Backend`] is a real server on a real port. It counts what it serves, it can be killed as a process would be
//! killed, stopped gracefully, and brought back on the same port. What a single call shall suffer is asked for in the
//! call's `rpc-behavior` metadata, as gRPC's own interop servers do (I-20).
//!
//! ```
//! # tokio_test_block(async {
//! use mainstay_testservice::{Backend, proto::{SimpleRequest, test_service_client::TestServiceClient}};
//!
//! let mut backend = Backend::spawn("127.0.0.1:0", "one").await?;
//! let mut client = TestServiceClient::connect(format!("http://{}", backend.addr())).await?;
//! let request = SimpleRequest { fill_server_id: true, ..SimpleRequest::default() };
//! assert_eq!(client.unary_call(request).await?.into_inner().server_id, "one");
//!
//! backend.stop().await;
//! assert!(client.unary_call(SimpleRequest::default()).await.is_err());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # });
//! # fn tokio_test_block<T, E: std::fmt::Debug>(future: impl Future<Output = Result<T, E>>) -> T {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future).unwrap()
//! # }
//! ```

mod backend;
mod behavior;
mod connection;
mod service;

pub use backend::{Backend, Builder};
pub use behavior::{ATTEMPTS_KEY, BEHAVIOR_KEY};
pub use service::{HOSTNAME_KEY, MAX_RESPONSE_SIZE, service};
pub use tonic::transport::{Identity, ServerTlsConfig};

/// The messages and stubs of package `grpc.testing`.
pub mod proto {
    #![allow(missing_docs, reason = "generated")]

    include!("generated/grpc.testing.rs");

    /// The descriptors of this package, encoded, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("generated/descriptors.bin");
}
