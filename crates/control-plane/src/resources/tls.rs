//! TLS contexts of clusters and of server listeners (A29).

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::pb::envoy::r#type::matcher::v3::StringMatcher;
use envoy_types::pb::envoy::r#type::matcher::v3::string_matcher::MatchPattern;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use envoy_types::util::pack_any;
use tls::common_tls_context::ValidationContextType;

/// A cluster whose endpoints are connected to with mTLS, with the certificates of a certificate provider instance of the
/// client. They must have one of these names; any, if there are none.
pub fn with_mtls<N: Into<String>>(
    cluster: Cluster,
    instance: impl Into<String>,
    names: impl IntoIterator<Item = N>,
) -> Cluster {
    let instance = instance.into();
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(common(&instance, Some(&instance), names)),
        ..Default::default()
    };
    Cluster { transport_socket: Some(socket(pack_any(context))), ..cluster }
}

/// The same with TLS of the server alone: clients check it, and present nothing.
pub fn with_tls<N: Into<String>>(
    cluster: Cluster,
    instance: impl Into<String>,
    names: impl IntoIterator<Item = N>,
) -> Cluster {
    let context = tls::UpstreamTlsContext {
        common_tls_context: Some(common(&instance.into(), None, names)),
        ..Default::default()
    };
    Cluster { transport_socket: Some(socket(pack_any(context))), ..cluster }
}

/// A server's listener that serves TLS with the certificate of a certificate provider instance of the server. With
/// `client_certificates` clients must present one that the roots of the instance vouch for.
pub fn with_server_tls(mut listener: Listener, instance: impl Into<String>, client_certificates: bool) -> Listener {
    let instance = instance.into();
    let mut common = common(&instance, Some(&instance), [] as [&str; 0]);
    if !client_certificates {
        common.validation_context_type = None;
    }
    let context = tls::DownstreamTlsContext {
        common_tls_context: Some(common),
        require_client_certificate: client_certificates.then_some(BoolValue { value: true }),
        ..Default::default()
    };
    let socket = socket(pack_any(context));
    for chain in listener.filter_chains.iter_mut().chain(&mut listener.default_filter_chain) {
        chain.transport_socket = Some(socket.clone());
    }
    listener
}

fn common<N: Into<String>>(
    roots: &str,
    identity: Option<&str>,
    names: impl IntoIterator<Item = N>,
) -> tls::CommonTlsContext {
    let instance =
        |name: &str| tls::CertificateProviderPluginInstance { instance_name: name.to_owned(), ..Default::default() };
    let exact = |name: N| StringMatcher { match_pattern: Some(MatchPattern::Exact(name.into())), ..Default::default() };
    #[expect(deprecated, reason = "gRPC reads no other")]
    let validation = tls::CertificateValidationContext {
        ca_certificate_provider_instance: Some(instance(roots)),
        match_subject_alt_names: names.into_iter().map(exact).collect(),
        ..Default::default()
    };
    tls::CommonTlsContext {
        tls_certificate_provider_instance: identity.map(instance),
        validation_context_type: Some(ValidationContextType::ValidationContext(validation)),
        ..Default::default()
    }
}

fn socket(config: Any) -> TransportSocket {
    let name = "envoy.transport_sockets.tls".to_owned();
    TransportSocket { name, config_type: Some(ConfigType::TypedConfig(config)) }
}
