//! Services that show what the channels of this process do, for any tonic server.
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

mod channelz;
mod csds;

pub use channelz::{Channelz, channelz};
pub use csds::{Csds, csds};

/// The messages and stubs of `grpc.channelz.v1`.
pub mod channelz_v1 {
    #![allow(missing_docs, reason = "generated")]

    include!("../generated/grpc.channelz.v1.rs");

    /// The descriptors of this package, encoded, for server reflection.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../generated/descriptors.bin");
}
