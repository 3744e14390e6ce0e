//! through the Cluster that carries them.

use std::sync::Arc;

use envoy_types::pb::envoy::config::cluster::v3::Cluster as PbCluster;
use envoy_types::pb::envoy::config::core::v3::{
    Address, DataSource, Metadata, SocketAddress, TypedExtensionConfig, address, socket_address,
};
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3::common_tls_context as pb_common;
use envoy_types::pb::envoy::r#type::matcher::v3 as pb_matcher;
use envoy_types::pb::google::protobuf::{Any, BoolValue};
use pb::certificate_validation_context::SystemRootCerts;

use super::*;
use crate::bootstrap::CertificateProviderConfig;
use crate::resource::cluster::tests::{dns, eds, faults_of, pack, parse};
use crate::resource::route::fixture::TestSource;

const TLS: &str = "transport_socket.typed_config.common_tls_context";

#[test]
fn r82_no_transport_socket_is_no_tls() {
    assert_eq!(parse(&eds("c")).unwrap().tls, None);
}

#[test]
fn r82_an_upstream_tls_context_is_read() {
    let tls = tls_of(&upstream(valid()));
    assert_eq!(
        tls,
        UpstreamTls {
            roots: Roots::Instance("known".into()),
            identity_instance: None,
            match_subject_alt_names: vec![],
            sni: None,
            auto_host_sni: false,
            auto_sni_san_validation: false,
        }
    );
}

#[test]
fn r82_other_transport_sockets_are_rejected() {
    assert_eq!(
        faults_of(&socket(Some(pack(&pb::DownstreamTlsContext::default())))),
        ["transport_socket.typed_config.type_url: is envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext: \
          expected envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext"]
    );
    assert_eq!(faults_of(&socket(None)), ["transport_socket.typed_config: must be set"]);
    let garbage =
        Any { type_url: "t/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext".into(), value: vec![9] };
    assert!(faults_of(&socket(Some(garbage)))[0].starts_with("transport_socket.typed_config.value: is not a"));
}

#[test]
fn r82_a_proxy_carries_tls_or_plaintext_and_nothing_else() {
    let proxy = |transport_socket| {
        socket(Some(pack(&Http11ProxyUpstreamTransport { transport_socket, default_proxy_address: None })))
    };
    let nested = |any| Some(TransportSocket { name: "n".into(), config_type: Some(ConfigType::TypedConfig(any)) });
    assert_eq!(parse(&proxy(None)).unwrap().tls, None);
    let inside = tls_of(&proxy(nested(pack(&upstream_context(valid())))));
    assert_eq!(inside, tls_of(&upstream(valid())));

    let path = "transport_socket.typed_config.transport_socket.typed_config";
    let expected = "expected envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
    let twice = nested(pack(&Http11ProxyUpstreamTransport::default()));
    assert_eq!(faults_of(&proxy(twice)), [format!("{path}.type_url: is {HTTP_11_PROXY}: {expected}")]);
    assert_eq!(faults_of(&proxy(Some(TransportSocket::default()))), [format!("{path}: must be set")]);
    // The rules of TLS hold inside too.
    assert_eq!(
        faults_of(&proxy(nested(pack(&pb::UpstreamTlsContext::default())))),
        [format!("{path}.common_tls_context: must be set")]
    );
}

/// A86: the metadata of endpoints says which proxy, so the cluster says only that there may be one.
#[test]
fn r82_a_proxy_is_wanted_by_its_wrapper_only() {
    let proxy = |default: Option<&str>| {
        let default_proxy_address = default.map(|ip| address(ip, 3128));
        socket(Some(pack(&Http11ProxyUpstreamTransport { default_proxy_address, ..Default::default() })))
    };
    assert_eq!(parse(&upstream(valid())).unwrap().http_connect, None);
    assert_eq!(parse(&proxy(None)).unwrap().http_connect, Some(HttpConnect { default: None }));
    let default = Some("10.0.0.1:3128".parse().unwrap());
    assert_eq!(parse(&proxy(Some("10.0.0.1"))).unwrap().http_connect, Some(HttpConnect { default }));
    assert_eq!(
        faults_of(&proxy(Some("proxy"))),
        ["transport_socket.typed_config.default_proxy_address.socket_address.address: \
          \"proxy\" is not an IPv4 or IPv6 address"]
    );
}

/// A LOGICAL_DNS cluster has its endpoint, and what is said about it, inside (A86).
#[test]
fn r82_the_proxy_of_a_dns_name_is_in_the_cluster() {
    let named = |ip: &str| {
        let key = "envoy.http11_proxy_transport_socket.proxy_address".to_owned();
        let typed_filter_metadata = [(key, pack(&address(ip, 3128)))].into();
        Some(Metadata { typed_filter_metadata, ..Default::default() })
    };
    let with = |endpoint: Option<Metadata>, locality: Option<Metadata>| {
        let PbCluster { transport_socket, .. } = socket(Some(pack(&Http11ProxyUpstreamTransport::default())));
        let mut cluster = PbCluster { transport_socket, ..dns("host", 80) };
        let only = &mut cluster.load_assignment.as_mut().unwrap().endpoints[0];
        only.metadata = locality;
        only.lb_endpoints[0].metadata = endpoint;
        cluster
    };
    let default = |ip: &str| Some(HttpConnect { default: Some(format!("{ip}:3128").parse().unwrap()) });
    let http_connect = |cluster| parse(&cluster).unwrap().http_connect;
    assert_eq!(http_connect(with(None, None)), Some(HttpConnect { default: None }));
    assert_eq!(http_connect(with(None, named("10.0.0.2"))), default("10.0.0.2"));
    assert_eq!(http_connect(with(named("10.0.0.1"), named("10.0.0.2"))), default("10.0.0.1"));
    assert_eq!(
        faults_of(&with(named("proxy"), None)),
        ["load_assignment.endpoints[0].lb_endpoints[0].metadata.typed_filter_metadata\
          [envoy.http11_proxy_transport_socket.proxy_address].socket_address.address: \
          \"proxy\" is not an IPv4 or IPv6 address"]
    );
}

fn address(ip: &str, port: u32) -> Address {
    let port_specifier = Some(socket_address::PortSpecifier::PortValue(port));
    let socket = SocketAddress { address: ip.into(), port_specifier, ..Default::default() };
    Address { address: Some(address::Address::SocketAddress(socket)) }
}

#[test]
fn r99_the_identity_instance_must_be_in_the_bootstrap() {
    let with =
        |name: &str| upstream(pb::CommonTlsContext { tls_certificate_provider_instance: instance(name), ..valid() });
    assert_eq!(tls_of(&with("known")).identity_instance.as_deref(), Some("known"));
    assert_eq!(
        faults_of(&with("other")),
        [format!(
            "{TLS}.tls_certificate_provider_instance.instance_name: \
             \"other\" is not a certificate provider instance of the bootstrap"
        )]
    );
}

#[test]
fn r100_other_sources_of_identity_are_rejected_unless_an_instance_is_set() {
    let other = pb::CommonTlsContext {
        tls_certificates: vec![pb::TlsCertificate::default()],
        tls_certificate_sds_secret_configs: vec![pb::SdsSecretConfig::default()],
        ..valid()
    };
    assert_eq!(
        faults_of(&upstream(other.clone())),
        [
            format!("{TLS}.tls_certificates: not supported: expected tls_certificate_provider_instance"),
            format!(
                "{TLS}.tls_certificate_sds_secret_configs: not supported: expected tls_certificate_provider_instance"
            ),
        ]
    );
    let with_instance = pb::CommonTlsContext { tls_certificate_provider_instance: instance("known"), ..other };
    assert_eq!(tls_of(&upstream(with_instance)).identity_instance.as_deref(), Some("known"));
}

#[test]
fn r101_the_validation_context_may_be_combined_but_not_from_sds() {
    let combined = pb_common::CombinedCertificateValidationContext {
        default_validation_context: Some(roots("known")),
        ..Default::default()
    };
    let tls = tls_of(&validated_by(ValidationContextType::CombinedValidationContext(combined)));
    assert_eq!(tls.roots, Roots::Instance("known".into()));
    let sds = ValidationContextType::ValidationContextSdsSecretConfig(pb::SdsSecretConfig::default());
    assert_eq!(
        faults_of(&validated_by(sds)),
        [format!("{TLS}.validation_context_sds_secret_config: SDS is not supported")]
    );
}

#[test]
fn r102_a_client_needs_roots() {
    assert_eq!(
        faults_of(&context(pb::CertificateValidationContext::default())),
        [format!(
            "{TLS}.validation_context.ca_certificate_provider_instance: must be set, or system_root_certs instead"
        )]
    );
    let no_context = pb::CommonTlsContext::default();
    assert_eq!(faults_of(&upstream(no_context)), [format!("{TLS}.validation_context: must be set")]);
    let no_common = pb::UpstreamTlsContext::default();
    assert_eq!(faults_of(&socket(Some(pack(&no_common)))), [format!("{TLS}: must be set")]);
    let empty = ValidationContextType::CombinedValidationContext(Default::default());
    assert_eq!(
        faults_of(&validated_by(empty)),
        [format!(
            "{TLS}.combined_validation_context.default_validation_context.ca_certificate_provider_instance: \
             must be set, or system_root_certs instead"
        )]
    );
}

#[test]
fn r102_the_instance_wins_over_the_systems_roots() {
    let system = pb::CertificateValidationContext { system_root_certs: Some(SystemRootCerts {}), ..Default::default() };
    assert_eq!(tls_of(&context(system.clone())).roots, Roots::System);
    let both = pb::CertificateValidationContext { ca_certificate_provider_instance: instance("known"), ..system };
    assert_eq!(tls_of(&context(both.clone())).roots, Roots::Instance("known".into()));
    // an instance that is not there is not replaced by the system's roots.
    let unknown = pb::CertificateValidationContext { ca_certificate_provider_instance: instance("other"), ..both };
    assert_eq!(
        faults_of(&context(unknown)),
        [format!(
            "{TLS}.validation_context.ca_certificate_provider_instance.instance_name: \
             \"other\" is not a certificate provider instance of the bootstrap"
        )]
    );
}

#[test]
fn r103_names_of_the_server_are_matched() {
    let exact = pb_matcher::StringMatcher {
        match_pattern: Some(pb_matcher::string_matcher::MatchPattern::Exact("spiffe://x".into())),
        ..Default::default()
    };
    #[expect(deprecated)]
    let with =
        |matchers| context(pb::CertificateValidationContext { match_subject_alt_names: matchers, ..roots("known") });
    assert_eq!(
        tls_of(&with(vec![exact.clone()])).match_subject_alt_names,
        [StringMatcher::Exact { value: "spiffe://x".into(), ignore_case: false }]
    );
    let faults = faults_of(&with(vec![exact, pb_matcher::StringMatcher::default()]));
    assert_eq!(faults.len(), 1);
    assert!(faults[0].starts_with(&format!("{TLS}.validation_context.match_subject_alt_names[1]")), "{faults:?}");
}

#[test]
fn r104_settings_that_would_have_to_be_obeyed_are_rejected() {
    let bad_context = pb::CertificateValidationContext {
        verify_certificate_spki: vec!["x".into()],
        verify_certificate_hash: vec!["x".into()],
        require_signed_certificate_timestamp: Some(BoolValue { value: true }),
        crl: Some(DataSource::default()),
        custom_validator_config: Some(TypedExtensionConfig::default()),
        ..roots("known")
    };
    let common = pb::CommonTlsContext {
        tls_params: Some(pb::TlsParameters::default()),
        custom_handshaker: Some(TypedExtensionConfig::default()),
        validation_context_type: Some(ValidationContextType::ValidationContext(bad_context)),
        ..Default::default()
    };
    let expected = [
        "tls_params",
        "custom_handshaker",
        "validation_context.verify_certificate_spki",
        "validation_context.verify_certificate_hash",
        "validation_context.require_signed_certificate_timestamp",
        "validation_context.crl",
        "validation_context.custom_validator_config",
    ];
    assert_eq!(faults_of(&upstream(common)), expected.map(|field| format!("{TLS}.{field}: not supported")));
    let asked_not_to = pb::CertificateValidationContext {
        require_signed_certificate_timestamp: Some(BoolValue { value: false }),
        ..roots("known")
    };
    assert_eq!(tls_of(&context(asked_not_to)), tls_of(&upstream(valid())));
}

#[test]
fn r105_settings_that_do_not_matter_are_ignored() {
    let ignored = pb::CertificateValidationContext {
        trusted_ca: Some(DataSource::default()),
        watched_directory: Some(Default::default()),
        allow_expired_certificate: true,
        trust_chain_verification: 1,
        ..roots("known")
    };
    let common = pb::CommonTlsContext {
        alpn_protocols: vec!["h2".into()],
        validation_context_type: Some(ValidationContextType::ValidationContext(ignored)),
        ..Default::default()
    };
    let pb = pb::UpstreamTlsContext { allow_renegotiation: true, ..upstream_context(common) };
    assert_eq!(tls_of(&socket(Some(pack(&pb)))), tls_of(&upstream(valid())));
}

#[test]
fn r107_sni_is_read_and_bounded() {
    let with = |sni: String| {
        let pb = pb::UpstreamTlsContext {
            sni,
            auto_host_sni: true,
            auto_sni_san_validation: true,
            ..upstream_context(valid())
        };
        socket(Some(pack(&pb)))
    };
    let tls = tls_of(&with("s".repeat(255)));
    assert_eq!(tls.sni, Some("s".repeat(255)));
    assert!(tls.auto_host_sni && tls.auto_sni_san_validation);
    assert_eq!(faults_of(&with("s".repeat(256))), ["transport_socket.typed_config.sni: has 256 bytes: at most 255"]);
}

#[test]
#[expect(deprecated)]
fn r108_the_old_places_of_instances_are_read_after_the_new_ones() {
    let old = |name: &str| pb_common::CertificateProviderInstance { instance_name: name.into(), ..Default::default() };
    let combined = |name: &str, default_validation_context| {
        ValidationContextType::CombinedValidationContext(pb_common::CombinedCertificateValidationContext {
            default_validation_context,
            validation_context_certificate_provider_instance: Some(old(name)),
            ..Default::default()
        })
    };
    let identity = pb::CommonTlsContext {
        tls_certificate_certificate_provider_instance: Some(old("known")),
        validation_context_type: Some(combined("known", None)),
        ..Default::default()
    };
    let tls = tls_of(&upstream(identity));
    assert_eq!(tls.identity_instance.as_deref(), Some("known"));
    assert_eq!(tls.roots, Roots::Instance("known".into()));
    let alone = ValidationContextType::ValidationContextCertificateProviderInstance(old("known"));
    assert_eq!(tls_of(&validated_by(alone)).roots, Roots::Instance("known".into()));

    let unknown = "\"other\" is not a certificate provider instance of the bootstrap";
    let field = "validation_context_certificate_provider_instance.instance_name";
    let alone = ValidationContextType::ValidationContextCertificateProviderInstance(old("other"));
    assert_eq!(faults_of(&validated_by(alone)), [format!("{TLS}.{field}: {unknown}")]);
    assert_eq!(
        faults_of(&validated_by(combined("other", None))),
        [format!("{TLS}.combined_validation_context.{field}: {unknown}")]
    );
    // What is not used need not be known.
    assert_eq!(tls_of(&validated_by(combined("other", Some(roots("known"))))).roots, Roots::Instance("known".into()));
}

#[test]
fn r109_the_certificate_name_does_not_matter() {
    let named = pb::CertificateProviderPluginInstance { instance_name: "known".into(), certificate_name: "x".into() };
    let context_with_name =
        pb::CertificateValidationContext { ca_certificate_provider_instance: Some(named), ..Default::default() };
    assert_eq!(tls_of(&context(context_with_name)), tls_of(&upstream(valid())));
}

// === servers ===

#[test]
fn r99_a_server_needs_a_certificate_and_no_more() {
    let own =
        DownstreamTls { identity_instance: "known".into(), roots_instance: None, require_client_certificate: false };
    assert_eq!(downstream(served()), Ok(own.clone()));
    assert_eq!(
        downstream(pb::CommonTlsContext::default()),
        Err("common_tls_context.tls_certificate_provider_instance: must be set".to_owned())
    );
    let other = pb::CommonTlsContext { tls_certificate_provider_instance: instance("other"), ..Default::default() };
    assert_eq!(
        downstream(other),
        Err("common_tls_context.tls_certificate_provider_instance.instance_name: \
             \"other\" is not a certificate provider instance of the bootstrap"
            .to_owned())
    );
    let files = pb::CommonTlsContext { tls_certificates: vec![Default::default()], ..Default::default() };
    assert_eq!(
        downstream(files),
        Err("common_tls_context.tls_certificates: not supported: expected tls_certificate_provider_instance".to_owned()),
        "R-100"
    );
    assert_eq!(
        parse_downstream(&pb::DownstreamTlsContext::default()),
        Err("common_tls_context: must be set".to_owned())
    );
}

#[test]
fn r102_certificates_of_clients_are_checked_against_an_instance_and_nothing_else() {
    let with = |context: pb::CertificateValidationContext| pb::CommonTlsContext {
        validation_context_type: Some(ValidationContextType::ValidationContext(context)),
        ..served()
    };
    assert_eq!(downstream(with(roots("known"))).unwrap().roots_instance.as_deref(), Some("known"));
    let path = "common_tls_context.validation_context";
    let missing = Err(format!("{path}.ca_certificate_provider_instance: must be set"));
    assert_eq!(downstream(with(Default::default())), missing);
    let system = pb::CertificateValidationContext { system_root_certs: Some(SystemRootCerts {}), ..Default::default() };
    assert_eq!(downstream(with(system.clone())), missing, "the system's roots would let everybody in");
    let both = pb::CertificateValidationContext { ca_certificate_provider_instance: instance("known"), ..system };
    assert_eq!(downstream(with(both)).unwrap().roots_instance.as_deref(), Some("known"));
    let combined = pb_common::CombinedCertificateValidationContext {
        default_validation_context: Some(roots("known")),
        ..Default::default()
    };
    let combined = pb::CommonTlsContext {
        validation_context_type: Some(ValidationContextType::CombinedValidationContext(combined)),
        ..served()
    };
    assert_eq!(downstream(combined).unwrap().roots_instance.as_deref(), Some("known"), "R-101");
}

#[test]
fn r103_servers_match_no_names() {
    #[expect(deprecated)]
    let context = pb::CertificateValidationContext {
        match_subject_alt_names: vec![Default::default()],
        match_typed_subject_alt_names: vec![Default::default()],
        crl: Some(DataSource::default()),
        ..roots("known")
    };
    let common = pb::CommonTlsContext {
        validation_context_type: Some(ValidationContextType::ValidationContext(context)),
        ..served()
    };
    let faults = downstream(common).unwrap_err();
    for field in ["crl", "match_subject_alt_names", "match_typed_subject_alt_names"] {
        assert!(
            faults.contains(&format!("common_tls_context.validation_context.{field}: not supported")),
            "R-104: {faults}"
        );
    }
}

#[test]
fn r106_what_servers_are_asked_for() {
    let with = |change: &dyn Fn(&mut pb::DownstreamTlsContext)| {
        let mut pb = pb::DownstreamTlsContext { common_tls_context: Some(served()), ..Default::default() };
        change(&mut pb);
        parse_downstream(&pb)
    };
    let (yes, no) = (Some(BoolValue { value: true }), Some(BoolValue { value: false }));
    assert_eq!(
        with(&|pb| pb.require_client_certificate = yes),
        Err("require_client_certificate: needs a validation context with ca_certificate_provider_instance".to_owned())
    );
    let required = with(&|pb| {
        pb.require_client_certificate = yes;
        let context = ValidationContextType::ValidationContext(roots("known"));
        pb.common_tls_context = Some(pb::CommonTlsContext { validation_context_type: Some(context), ..served() });
    });
    assert!(required.unwrap().require_client_certificate);
    assert_eq!(with(&|pb| pb.require_sni = yes), Err("require_sni: not supported".to_owned()));
    assert!(with(&|pb| (pb.require_sni, pb.require_client_certificate) = (no, no)).is_ok());
    assert_eq!(with(&|pb| pb.ocsp_staple_policy = 1), Err("ocsp_staple_policy: must be LENIENT_STAPLING".to_owned()));
    //
    assert!(with(&|pb| pb.disable_stateful_session_resumption = true).is_ok());
}

fn served() -> pb::CommonTlsContext {
    pb::CommonTlsContext { tls_certificate_provider_instance: instance("known"), ..Default::default() }
}

fn downstream(common: pb::CommonTlsContext) -> Result<DownstreamTls, String> {
    parse_downstream(&pb::DownstreamTlsContext { common_tls_context: Some(common), ..Default::default() })
}

fn parse_downstream(pb: &pb::DownstreamTlsContext) -> Result<DownstreamTls, String> {
    let mut source = TestSource::new(false);
    source.bootstrap.certificate_providers = [("known".to_owned(), CertificateProviderConfig::Application)].into();
    let mut faults = Faults::new();
    let tls = DownstreamTls::parse(pb, source.context(), &mut faults);
    faults.finish(tls).map(|tls| tls.expect("no fault")).map_err(|invalid| invalid.to_string())
}

/// A cluster with this transport socket.
fn socket(any: Option<Any>) -> PbCluster {
    let config_type = any.map(ConfigType::TypedConfig);
    PbCluster { transport_socket: Some(TransportSocket { name: "tls".into(), config_type }), ..eds("c") }
}

fn upstream(common: pb::CommonTlsContext) -> PbCluster {
    socket(Some(pack(&upstream_context(common))))
}

fn upstream_context(common: pb::CommonTlsContext) -> pb::UpstreamTlsContext {
    pb::UpstreamTlsContext { common_tls_context: Some(common), ..Default::default() }
}

fn validated_by(validation: ValidationContextType) -> PbCluster {
    upstream(pb::CommonTlsContext { validation_context_type: Some(validation), ..Default::default() })
}

fn context(context: pb::CertificateValidationContext) -> PbCluster {
    validated_by(ValidationContextType::ValidationContext(context))
}

fn valid() -> pb::CommonTlsContext {
    let validation = ValidationContextType::ValidationContext(roots("known"));
    pb::CommonTlsContext { validation_context_type: Some(validation), ..Default::default() }
}

fn roots(name: &str) -> pb::CertificateValidationContext {
    pb::CertificateValidationContext { ca_certificate_provider_instance: instance(name), ..Default::default() }
}

fn instance(name: &str) -> Option<pb::CertificateProviderPluginInstance> {
    Some(pb::CertificateProviderPluginInstance { instance_name: name.into(), ..Default::default() })
}

#[track_caller]
fn tls_of(pb: &PbCluster) -> UpstreamTls {
    Arc::unwrap_or_clone(parse(pb).unwrap().tls.expect("TLS is asked for"))
}
