//! The table of checks: one entry each, and nowhere else.

use std::fmt;

use crate::finding::Level;

macro_rules! catalog {
    ($($id:ident $level:ident $title:literal $explanation:literal $remedy:literal;)+) => {
        /// The id of a check. Ids are never used for something else: what is given up stays unused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[allow(missing_docs)] // Each has a title and an explanation.
        pub enum Id {
            $($id,)+
        }

        impl Id {
            /// All of them, in order.
            pub const ALL: [Id; [$(Id::$id),+].len()] = [$(Id::$id),+];

            /// As users write it, such as `MS302`.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Id::$id => stringify!($id),)+
                }
            }

            /// How bad what it finds is.
            pub const fn level(self) -> Level {
                match self {
                    $(Id::$id => Level::$level,)+
                }
            }

            /// What it finds, in one line.
            pub const fn title(self) -> &'static str {
                match self {
                    $(Id::$id => $title,)+
                }
            }

            /// What that means.
            pub const fn explanation(self) -> &'static str {
                match self {
                    $(Id::$id => $explanation,)+
                }
            }

            /// What to do about it.
            pub const fn remedy(self) -> &'static str {
                match self {
                    $(Id::$id => $remedy,)+
                }
            }
        }
    };
}

catalog! {
    MS101 Error "A file cannot be read"
        "The file is neither YAML nor JSON, is empty, or the system refuses to read it. Nothing in it is served."
        "Correct the syntax at the line that is named. A file that is meant to say nothing has a comment in it.";
    MS102 Error "A field does not exist or has a value of another type"
        "Resources are written in the JSON of protobuf. A field that its message does not have is most often a misspelling, or one from another version of Envoy's API; nothing of the resource is served."
        "Compare the field with Envoy's documentation of the message. Both spellings work: load_balancing_weight and loadBalancingWeight.";
    MS103 Error "Clients reject the resource"
        "A gRPC client that is sent this resource answers with a NACK and goes on with the last good one; if it never had one, its RPCs fail. The message is what a Mainstay client says in its NACK."
        "Change the field that is named. The path is that of the field in the resource.";
    MS104 Error "Two resources have the same type and name"
        "Nobody can say which of the two is meant, so neither is served."
        "Rename or remove one of them. The message says where the other one is.";
    MS105 Warning "gRPC clients never ask for this type of resource"
        "gRPC asks for Listeners, RouteConfigurations, Clusters, ClusterLoadAssignments and collections of endpoints. Other types are for Envoy; secrets come from the certificate providers of the bootstrap."
        "Remove it, or allow this if Envoys are served from the same files.";
    MS106 Warning "A comment that allows something cannot be understood"
        "Comments of the form `# mainstay: allow MS302 because REASON` allow a finding. This one names no check that exists, or says no reason; it allows nothing."
        "Write the id of the check and, after `because`, why it is all right here.";
    MS107 Note "A comment allows what is not found"
        "What the comment once allowed is gone, or it stands in the wrong place: it is for what begins on its own or on the next line, and for the whole document if it comes before everything else."
        "Remove the comment, or move it.";
    MS108 Error "A running client rejects a resource"
        "The client says, over CSDS, that it rejected what the control plane sent last, and why, in its own words. It goes on with the version before, if it had one."
        "Correct the resource at the control plane.";
    MS109 Error "An implementation of --for rejects it, or fails RPCs with it"
        "Implementations of xDS differ in what they reject. With --for go,cpp,java,envoy each resource is compared with cases that were served to the real clients, of the versions that the message names: one of them answered with a NACK, in these words, or took the resource and failed the RPC. What was not measured is not told; nothing was of Envoy and Listeners for gRPC channels, which it does not take."
        "Write it in a way that all of your clients take, or leave out of --for who will not see it. `interop/run --only verdicts` measures again.";
    MS110 Error "The bootstrap cannot be used"
        "A channel to an xds: target, or a server, cannot be built with this bootstrap."
        "Correct the field that is named.";
    MS111 Warning "A field of the bootstrap is unknown"
        "gRPC ignores what it does not know in a bootstrap. A misspelt field so has no effect and gives no error."
        "Correct the spelling, or remove the field.";
    MS112 Warning "A value in the bootstrap is unknown"
        "A server feature, a plugin or a type of credentials that no client knows is passed over."
        "Correct the spelling, or remove the value.";

    MS201 Error "A route names a cluster that does not exist"
        "Clients ask for the cluster and wait; after 15 seconds it counts as absent, and RPCs of this route fail with UNAVAILABLE. Where it is one of several weighted clusters, its share of the RPCs does. Clusters whose name begins with xdstp: and an authority of which nothing is here are taken to be served by somebody else."
        "Add the cluster, or correct its name.";
    MS202 Error "A Listener names a route configuration that does not exist"
        "Clients wait 15 seconds for it, and then all their RPCs fail; a server does not serve the filter chain."
        "Add the RouteConfiguration, or correct rds.route_config_name.";
    MS203 Error "A cluster has no endpoints resource"
        "A cluster of type EDS takes its endpoints from the ClusterLoadAssignment with the name eds_cluster_config.service_name, or else its own. There is none: RPCs to the cluster wait 15 seconds and fail."
        "Add the ClusterLoadAssignment, or correct the name.";
    MS204 Warning "An aggregate cluster names a cluster that does not exist"
        "Clients skip it and use the others, so that one step of the failover is missing."
        "Add the cluster, or remove it from the list.";
    MS205 Error "None of the clusters of an aggregate exists"
        "With no member left, RPCs to the aggregate fail."
        "Add the clusters, or correct their names.";
    MS206 Error "An aggregate cluster contains itself"
        "Clients follow members 16 levels deep and then give up: RPCs to the cluster fail."
        "Break the circle.";
    MS207 Error "Aggregate clusters are nested too deep"
        "Clients follow members 16 levels deep and then give up: RPCs to the cluster fail (A37)."
        "List the members directly.";
    MS208 Warning "An aggregate reaches a cluster twice"
        "Only its first place in the order of preference counts (A37)."
        "Remove the second one.";
    MS209 Error "A collection of endpoints does not exist"
        "The locality takes its endpoints from an LbEndpointCollection that is not there (A95): clients wait 15 seconds and then have none of them."
        "Add the collection, or correct leds_collection_name.";
    MS210 Warning "A resource that nothing uses yet names one that does not exist"
        "No Listener here leads to this resource, so that no RPC fails because of it. As soon as one does, it will."
        "Add what is missing before something refers to this resource.";
    MS211 Error "The bootstrap lacks a certificate provider instance"
        "Clients and servers reject a resource that names a certificate provider instance which their bootstrap does not define."
        "Add it to certificate_providers of the bootstrap, or name one that is there.";
    MS212 Note "Nothing refers to a resource"
        "No Listener here leads to it. gRPC clients ask only for what they need, and so never for this."
        "Remove it if nobody else needs it.";

    MS301 Warning "A route can never match"
        "Routes are tried in order and the first that matches is used. An earlier one takes every RPC that this one would match."
        "Move the more specific route up, or remove it.";
    MS302 Warning "Two virtual hosts have the same domain"
        "Mainstay uses the first of them and never the second for that domain. Others may choose the other one, or reject the route configuration."
        "Give each domain to one virtual host.";
    MS303 Note "A virtual host has no default route"
        "RPCs that no route matches fail with UNAVAILABLE. That may be what you want."
        "Add a last route with match: { prefix: \"\" }.";
    MS304 Error "No virtual host is for the channels of a Listener"
        "A channel to xds:///NAME asks for the Listener NAME and takes the virtual host whose domains match NAME. There is none: all of its RPCs fail with UNAVAILABLE. Channels that are built with another authority are the exception."
        "Add NAME, or \"*\", to the domains of a virtual host. If the name has a port, the domain needs it as well.";
    MS305 Warning "Fractions of routes do not do what they seem to"
        "A runtime_fraction is a share of the RPCs that come to the route, which is what the routes before it left. 50 % followed by 50 % is 75 % together, not everything; 0 is nothing."
        "Leave the fraction out of the last route, or use weighted_clusters.";
    MS306 Note "A pattern matches every path"
        "It says no more than an empty prefix and costs more for each RPC."
        "Write prefix: \"\".";
    MS307 Warning "A route asks for a binary header"
        "Headers that end in -bin hold bytes. To gRPC's matchers they are not there, whatever the request has (A28)."
        "Match a header with text in it.";
    MS308 Warning "A route asks for a header that is not there yet"
        "Headers of the transport, such as grpc-timeout, are added after the route is chosen: matchers see custom metadata only (A28)."
        "Match custom metadata.";
    MS309 Warning "The name of a header has capital letters"
        "Header names are in lower case in HTTP/2. Mainstay converts the name; a client that compares it as it is never matches."
        "Write it in lower case.";
    MS310 Warning "gRPC leaves a route out"
        "The route has a match that no RPC can have, or an action that gRPC does not support: it is as if it were not written, and the routes after it are tried."
        "Use prefix or path of the form /package.Service/Method, and cluster or weighted_clusters.";
    MS311 Warning "gRPC does not support the action of a route"
        "RPCs that match the route fail with UNAVAILABLE: gRPC neither redirects nor makes up responses."
        "Route them to a cluster, or remove the route.";
    MS312 Error "A route is of the wrong kind for its side"
        "Clients forward RPCs to clusters, servers take them themselves (non_forwarding_action). RPCs that match a route of the other kind fail with UNAVAILABLE (A36)."
        "Use route: { cluster: … } for clients and non_forwarding_action: {} for servers.";
    MS313 Warning "gRPC ignores a field of a route"
        "The field means something to Envoy. In gRPC it changes nothing; a timeout, for example, is not enforced."
        "Remove it. For timeouts use max_stream_duration.";
    MS314 Warning "A retry policy retries nothing"
        "gRPC retries on cancelled, deadline-exceeded, internal, resource-exhausted and unavailable, and ignores other conditions such as 5xx (A44)."
        "Name the status codes to retry.";
    MS315 Warning "The total weight is not the sum of the weights"
        "gRPC takes shares of the sum of the weights and does not look at total_weight."
        "Remove total_weight, or correct the weights.";

    MS401 Error "No locality has a weight"
        "Clients leave out a locality without load_balancing_weight (A27, A52). With none left, the cluster has no endpoints at all, and RPCs fail with an error that speaks of no localities."
        "Add load_balancing_weight: 1 to each entry of endpoints.";
    MS402 Warning "A locality has no weight"
        "Clients leave out a locality without load_balancing_weight: its endpoints get no RPCs."
        "Add load_balancing_weight, or remove the locality.";
    MS403 Warning "A cluster has no endpoints"
        "RPCs to the cluster fail until there are some."
        "Add endpoints, if this is not a service without instances.";
    MS404 Warning "No endpoint of a cluster may be used"
        "All of them are UNHEALTHY, DRAINING, TIMEOUT or DEGRADED. Clients use those that are HEALTHY or UNKNOWN: RPCs fail."
        "Correct health_status.";
    MS405 Warning "Some endpoints have a weight and some have none"
        "An endpoint without load_balancing_weight weighs 1. Beside others of 100 that is next to nothing."
        "Give all of them a weight, or none.";
    MS406 Warning "A ring has no room for all endpoints"
        "With more endpoints than places on the ring, some are never chosen."
        "Raise maximum_ring_size, up to 4096.";
    MS407 Warning "A ring is larger than clients make it"
        "gRPC clients bound rings to 4096 entries by default (A42)."
        "Ask for at most 4096.";
    MS408 Warning "A cluster with ring_hash is routed to without a hash policy"
        "Without hash_policy on the route, and without a request hash header, each RPC gets a random hash: there is no affinity."
        "Add hash_policy to the route.";
    MS409 Warning "Outlier detection may eject every endpoint"
        "With max_ejection_percent at 100 a fault that hits all endpoints, such as a bad request that they all refuse, takes the whole cluster away."
        "Set max_ejection_percent lower; the default is 10.";
    MS410 Warning "Outlier detection never ejects anything"
        "There are fewer endpoints than the minimum that ejection needs."
        "Lower success_rate_minimum_hosts or failure_percentage_minimum_hosts.";
    MS411 Warning "Everything is dropped, or drops do not add up"
        "Each category of drop_overloads drops a share of what the categories before it let through; a share of 100 % drops everything."
        "Correct the percentages.";
    MS412 Warning "Clients choose different policies from the same list"
        "A client uses the first policy of load_balancing_policy that it knows. The list begins with one that gRPC does not have by itself."
        "Leave it if all clients that matter have the policy registered.";
    MS413 Warning "A circuit breaker lets nothing through"
        "max_requests is 0: every RPC fails with UNAVAILABLE."
        "Set it to the number of RPCs that may be under way at once, or remove it; the default is 1024.";
    MS414 Warning "gRPC ignores a field of a cluster"
        "The field means something to Envoy. In gRPC it changes nothing: there are no active health checks, for example."
        "Remove it, or allow this if Envoys use the same cluster.";

    MS501 Warning "A route leads to clusters with TLS and to others without"
        "Some RPCs of the route are secured and some are not, depending on weights or on failover."
        "Secure all of the clusters, or none.";
    MS502 Warning "Any name in a server's certificate is believed"
        "Without match_subject_alt_names a client accepts every certificate that its roots have signed, for whatever service (A29)."
        "Name the identities of the servers in match_subject_alt_names.";
    MS503 Warning "An RBAC filter refuses every RPC"
        "Its action is ALLOW and it has no policies, so that nothing is allowed."
        "Add a policy, or leave it if that is what you want.";
    MS504 Warning "A policy can never match"
        "It asks for Envoy's metadata, or for headers that belong to single connections. gRPC has neither: an ALLOW policy lets nobody in, a DENY policy refuses nobody."
        "Ask for something that gRPC has: paths, headers, principals, addresses, ports.";
    MS505 Warning "An RBAC filter refuses nothing"
        "Its action is DENY and it has no policies."
        "Add a policy, or remove the filter.";
    MS506 Warning "The name of a header in a policy has capital letters"
        "Header names are in lower case in HTTP/2. Mainstay converts the name; to a server that compares it as it is the policy never matches, and is a hole or a wall."
        "Write it in lower case.";
    MS507 Warning "A policy asks for authenticated clients on a plaintext listener"
        "Clients are authenticated by TLS. Without it the policy matches no RPC: ALLOW lets nobody in, DENY refuses nobody."
        "Add a transport_socket with TLS to the filter chain.";
    MS508 Warning "A policy asks for names of clients that have none"
        "The server has TLS but no validation context, and so asks clients for no certificate. A policy with a principal_name matches no RPC."
        "Add a validation_context with ca_certificate_provider_instance, and require_client_certificate.";

    MS601 Warning "Responses come near the limit of 4 MiB"
        "4 MiB is the usual limit of messages that a gRPC client receives; what a client allows xDS servers may be another one. Listeners and Clusters are sent all together in the state-of-the-world variant of the protocol, the other types as clients ask for them. Beyond the limit the stream breaks, again and again."
        "Serve clients only what they need (nodes/ID/), or use collections of endpoints.";
    MS602 Error "Two names are the same to clients"
        "In a name of the form xdstp:…?a=1&b=2 the context parameters have no order. Clients reject a response that has a resource twice."
        "Keep one of them.";
    MS603 Warning "The same content is sent in other bytes"
        "Clients and servers compare bytes. A control plane that writes maps in a random order sends changes that are none: work for clients, drained connections on servers (grpc-go #4695, envoy #8564)."
        "Let the control plane write messages in a fixed order. Mainstay's own does.";
    MS604 Warning "Clients ignore auto_host_rewrite"
        "Only a server that has \"trusted_xds_server\" in the server_features of the bootstrap may change the authority of RPCs (A81)."
        "Add the server feature, if the server is trusted so far.";
    MS605 Warning "A fallback is the server itself"
        "The same server stands in the list twice: when it is down, so is its fallback."
        "Name another server.";
    MS606 Note "The configuration comes in plaintext"
        "Whoever can change what is on the wire can send RPCs anywhere."
        "Use tls credentials for servers that are not on this machine.";
    MS607 Error "An authority is not in the bootstrap"
        "A client can ask for names of an authority only if its bootstrap has that authority (A47)."
        "Add it to authorities of the bootstrap.";
    MS611 Error "A change takes all endpoints from a cluster"
        "Told with --against: before the change the cluster has endpoints that may be used, and afterwards none. Its RPCs fail from then on."
        "Add the new endpoints before the old ones go.";
    MS612 Warning "A change drains the connections of a server"
        "Told with --against: a server replaces its filter chains when its Listener changes. Connections are told to go away and closed after a grace period (A36)."
        "Expect clients to reconnect; make such changes together.";
    MS613 Warning "A change replaces connections"
        "Told with --against: when the TLS settings of a cluster change, clients with xDS credentials connect anew to all of its endpoints."
        "Expect handshakes; change one cluster at a time.";
    MS614 Error "A change takes a Listener away"
        "Told with --against: channels to it, or servers that use it, have nothing to go by any more. Clients that keep deleted resources (the default of A88) go on until they restart."
        "Remove a Listener only when nobody uses it.";
}

impl Id {
    /// The check with this name, in capitals or not.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|id| id.name().eq_ignore_ascii_case(name))
    }

    /// Whether it is about names that lead nowhere.
    pub fn is_reference(self) -> bool {
        self.name().starts_with("MS2")
    }
}

impl fmt::Display for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The page of a check, in Markdown.
pub fn page(id: Id) -> String {
    format!(
        "# {id}: {}\n\nLevel: {}\n\n{}\n\n**What to do:** {}\n\n{}\n",
        id.title(),
        id.level(),
        id.explanation(),
        id.remedy(),
        format_args!(
            "Allow it with `--allow {id}`, or in the file with `# mainstay: allow {id} because REASON` before what it is about."
        ),
    )
}
