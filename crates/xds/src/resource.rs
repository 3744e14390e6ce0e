//! Resources: protobuf in, checked values out. Past these parsers there is no protobuf.
//!
//! Every parser reads the whole message, collects every fault with its field path, and answers
//! with a value that is safe to use or with all that is wrong with it.

use std::sync::Arc;

use bytes::Bytes;
use prost::{DecodeError, Message};

use crate::bootstrap::{Bootstrap, ServerConfig};
use crate::invalid::Invalid;
use crate::resource_type::resource_types;

pub use crate::resource_type::ResourceType;

pub mod cluster;
pub mod endpoint;
pub mod filter;
pub mod lb_policy;
pub mod listener;
pub mod matcher;
pub mod route;
pub mod tls;

pub mod cidr;
mod extension;
mod fields;

pub use cluster::Cluster;
pub use endpoint::{EndpointCollection, EndpointGlob, Endpoints};
pub use listener::Listener;
pub use route::RouteConfig;

/// What a parser may ask about the place a resource came from.
#[derive(Clone, Copy, Debug)]
pub struct ParseContext<'a> {
    /// The bootstrap, for certificate provider instances and guards.
    pub bootstrap: &'a Bootstrap,
    /// The server that sent the resource, for `lrs_server` and `trusted_xds_server`.
    pub server: &'a Arc<ServerConfig>,
}

/// A type of resource: how its message is read, and what makes a value of it.
pub(crate) trait FromWire: Sized {
    /// The message on the wire.
    type Message: Message + Default;

    /// Reads the message.
    fn read(bytes: &Bytes) -> Result<Self::Message, DecodeError> {
        Self::Message::decode(bytes.as_ref())
    }

    /// The name inside the message; `None` if the type has no name field (P-5).
    fn name(message: &mut Self::Message) -> Option<String>;

    /// The value, or everything that is wrong with it.
    fn from_message(message: &Self::Message, cx: ParseContext<'_>) -> Result<Self, Invalid>;
}

macro_rules! make_resource {
    ($($(#[$doc:meta])* $name:ident: $package:literal $message:literal $carries:ident;)+) => {
        /// A parsed resource of any kind. Cheap to clone.
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Resource {
            $($(#[$doc])* $name(Arc<$name>),)+
        }

        impl Resource {
            /// Its kind.
            pub const fn resource_type(&self) -> ResourceType {
                match self {
                    $(Self::$name(_) => ResourceType::$name,)+
                }
            }
        }

        /// Decodes and checks the bytes of one resource.
        pub fn decode(resource_type: ResourceType, bytes: &Bytes, cx: ParseContext<'_>) -> Decoded {
            match resource_type {
                $(ResourceType::$name => decode_as(bytes, cx, Resource::$name),)+
            }
        }
    };
}

resource_types!(make_resource);

/// A resource from the wire: its own name, if it has one that can be read, and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decoded {
    /// The name inside the message; `None` if the bytes are no such message or the type has no name field (P-5).
    pub name: Option<String>,
    /// The value, or everything that is wrong with it.
    pub result: Result<Resource, Invalid>,
}

fn decode_as<R: FromWire>(bytes: &Bytes, cx: ParseContext<'_>, make: fn(Arc<R>) -> Resource) -> Decoded {
    match R::read(bytes) {
        Ok(mut message) => {
            let result = R::from_message(&message, cx).map(|value| make(Arc::new(value)));
            Decoded { result, name: R::name(&mut message) }
        }
        Err(error) => Decoded { name: None, result: Err(Invalid::one("", format!("cannot be decoded: {error}"))) },
    }
}
