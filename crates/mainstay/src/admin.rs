//! Services that show what the channels of this process do, for any tonic server (gRFC A38).
//!
//! Tools such as `grpcdebug` understand both.
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

/// Makes a gRPC service of ours of a generated one, whose type and messages stay inside.
macro_rules! service {
    ($service:ident) => {
        impl tower_service::Service<http::Request<tonic::body::Body>> for $service {
            type Response = http::Response<tonic::body::Body>;
            type Error = std::convert::Infallible;
            type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

            fn poll_ready(
                &mut self,
                _: &mut std::task::Context<'_>,
            ) -> std::task::Poll<Result<(), std::convert::Infallible>> {
                std::task::Poll::Ready(Ok(()))
            }

            fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
                tower_service::Service::call(&mut self.0, request)
            }
        }

        impl std::fmt::Debug for $service {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.debug_struct(stringify!($service)).finish_non_exhaustive()
            }
        }
    };
}

mod channelz;
mod csds;

pub use channelz::{CHANNELZ_FILE_DESCRIPTOR_SET, Channelz, channelz};
pub use csds::{Csds, csds};
