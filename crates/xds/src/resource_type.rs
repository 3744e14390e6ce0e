//! The table of resource types.

use std::fmt;

/// One line per type: its name, which is that of the type of its values too; the package and the message on the wire;
/// and whether a state-of-the-world response must carry every subscribed resource of the type, or some of them (P-49).
///
/// `$make` is given the table: here it makes [`ResourceType`], in [`crate::resource`] the values.
macro_rules! resource_types {
    ($make:ident) => {
        $make! {
            /// LDS.
            Listener: "envoy.config.listener.v3" "Listener" all;
            /// RDS.
            RouteConfig: "envoy.config.route.v3" "RouteConfiguration" some;
            /// CDS.
            Cluster: "envoy.config.cluster.v3" "Cluster" all;
            /// EDS.
            Endpoints: "envoy.config.endpoint.v3" "ClusterLoadAssignment" some;
            /// LEDS list collections (A95).
            EndpointCollection: "envoy.config.endpoint.v3" "LbEndpointCollection" some;
            /// LEDS glob collections, only over delta (GC-2): subscribed by a name that ends in `/*`, sent member by member.
            EndpointGlob: "envoy.config.endpoint.v3" "LbEndpoint" some;
        }
    };
}

macro_rules! make_resource_type {
    ($($(#[$doc:meta])* $name:ident: $package:literal $message:literal $carries:ident;)+) => {
        /// The kinds of resource we subscribe to.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ResourceType {
            $($(#[$doc])* $name,)+
        }

        impl ResourceType {
            /// Every type, parents before children.
            pub const ALL: [ResourceType; [$($message),+].len()] = [$(Self::$name),+];

            /// Full name of the message.
            pub const fn message_name(self) -> &'static str {
                match self {
                    $(Self::$name => concat!($package, ".", $message),)+
                }
            }

            /// Type URL on the wire (P-5).
            pub const fn type_url(self) -> &'static str {
                match self {
                    $(Self::$name => concat!("type.googleapis.com/", $package, ".", $message),)+
                }
            }

            /// Whether a state-of-the-world response must carry every subscribed resource, so that a
            /// missing one is deleted (P-49).
            pub const fn full_state(self) -> bool {
                match self {
                    $(Self::$name => carries!($carries),)+
                }
            }
        }

        impl fmt::Display for ResourceType {
            /// The short name that operators use.
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $message,)+
                })
            }
        }
    };
}

macro_rules! carries {
    (all) => {
        true
    };
    (some) => {
        false
    };
}

resource_types!(make_resource_type);

pub(crate) use resource_types;

impl ResourceType {
    /// The type of a type URL, compared after the last `/` (P-5).
    pub fn from_type_url(type_url: &str) -> Option<Self> {
        let message = type_url.rsplit('/').next().unwrap_or(type_url);
        Self::ALL.into_iter().find(|t| t.message_name() == message)
    }
}
