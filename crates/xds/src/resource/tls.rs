//! The transport socket of a cluster, with a proxy around it (A86), and that of a server's filter chain: their TLS
//! contexts.
//!
//! A TLS context is checked whether or not the application uses xDS credentials. What we would have to
//! ignore is a fault: a connection must never be less secure than it was asked to be.

use std::net::SocketAddr;

use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType;
use envoy_types::pb::envoy::extensions::transport_sockets::http_11_proxy::v3::Http11ProxyUpstreamTransport;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as pb;
use pb::common_tls_context::ValidationContextType;
use pb::downstream_tls_context::OcspStaplePolicy;

use super::filter::Side;
use super::matcher::StringMatcher;
use super::{ParseContext, fields};
use crate::invalid::Faults;

/// What a cluster says about connections to its endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Socket {
    /// TLS, if it asks for any.
    pub(crate) tls: Option<UpstreamTls>,
    /// An HTTP proxy on the way, if it asks for one.
    pub(crate) http_connect: Option<HttpConnect>,
}

/// Connections go through the HTTP proxy that the metadata of the endpoint names, or else that of its locality, by
/// CONNECT (A86). Where neither does, through the default; without one, directly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct HttpConnect {
    /// For endpoints without a proxy of their own.
    pub default: Option<SocketAddr>,
}

/// How a channel with xDS credentials secures connections to a cluster's endpoints.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct UpstreamTls {
    /// What the server's certificate is checked against.
    pub roots: Roots,
    /// Certificate provider instance of our own certificate.
    pub identity_instance: Option<String>,
    /// The server's certificate must have a name that one of these matches; any if empty.
    pub match_subject_alt_names: Vec<StringMatcher>,
    /// Server name to ask for.
    pub sni: Option<String>,
    /// Use the endpoint's hostname as the server name (A101).
    pub auto_host_sni: bool,
    /// Check the certificate against the server name (A101).
    pub auto_sni_san_validation: bool,
}

/// How a server with xDS credentials secures the connections of a filter chain.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DownstreamTls {
    /// Certificate provider instance of our own certificate.
    pub identity_instance: String,
    /// The certificate provider instance that a client's certificate is checked against. Without one, none is asked for.
    pub roots_instance: Option<String>,
    /// Whether a client without a certificate is refused (S-24).
    pub require_client_certificate: bool,
}

/// What a certificate is checked against.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Roots {
    /// A certificate provider instance of the bootstrap.
    Instance(String),
    /// The system's roots (A82).
    System,
}

impl Socket {
    /// Checks the transport socket of a cluster; `faults` is at it.
    pub(crate) fn parse(pb: &TransportSocket, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        let Some(ConfigType::TypedConfig(any)) = &pb.config_type else {
            faults.field("typed_config", |f| f.add("must be set"));
            return None;
        };
        faults.field("typed_config", |f| {
            if fields::any_type(any, f)? != HTTP_11_PROXY || !cx.bootstrap.guards.http_connect {
                let tls = UpstreamTls::parse(&fields::unpack(any, f)?, cx, f);
                return Some(Self { tls, http_connect: None });
            }
            Self::parse_proxy(&fields::unpack(any, f)?, cx, f)
        })
    }

    /// The proxy only carries the connection (A86); inside it is TLS or nothing, and no further proxy.
    fn parse_proxy(pb: &Http11ProxyUpstreamTransport, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        // Newer than A86. Whoever sets it does not want direct connections.
        let default = pb
            .default_proxy_address
            .as_ref()
            .and_then(|address| faults.field("default_proxy_address", |f| fields::ip_address(Some(address), f)));
        let http_connect = Some(HttpConnect { default });
        let Some(TransportSocket { config_type, .. }) = &pb.transport_socket else {
            return Some(Self { tls: None, http_connect });
        };
        faults.field("transport_socket.typed_config", |f| match config_type {
            Some(ConfigType::TypedConfig(any)) => {
                Some(Self { tls: UpstreamTls::parse(&fields::unpack(any, f)?, cx, f), http_connect })
            }
            None => {
                f.add("must be set");
                None
            }
        })
    }
}

impl UpstreamTls {
    fn parse(pb: &pb::UpstreamTlsContext, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        if pb.sni.len() > MAX_SNI {
            faults.field("sni", |f| f.add(format!("has {} bytes: at most {MAX_SNI}", pb.sni.len())));
        }
        let Some(common) = &pb.common_tls_context else {
            faults.field("common_tls_context", |f| f.add("must be set"));
            return None;
        };
        faults.field("common_tls_context", |f| {
            check_common(common, f);
            let identity_instance = identity_instance(common, cx, f);
            let validation = Validation::parse(common, Side::Client, cx, f);
            validation.map(|Validation { roots, match_subject_alt_names }| Self {
                roots,
                identity_instance,
                match_subject_alt_names,
                sni: (!pb.sni.is_empty()).then(|| pb.sni.clone()),
                auto_host_sni: pb.auto_host_sni,
                auto_sni_san_validation: pb.auto_sni_san_validation,
            })
        })
    }
}

impl DownstreamTls {
    /// Checks the TLS context of a filter chain; `faults` is at it.
    pub(super) fn parse(pb: &pb::DownstreamTlsContext, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        //
        if pb.require_sni.is_some_and(|on| on.value) {
            faults.field("require_sni", |f| f.add("not supported"));
        }
        if pb.ocsp_staple_policy != OcspStaplePolicy::LenientStapling as i32 {
            faults.field("ocsp_staple_policy", |f| f.add("must be LENIENT_STAPLING"));
        }
        let require_client_certificate = pb.require_client_certificate.is_some_and(|on| on.value);
        let Some(common) = &pb.common_tls_context else {
            faults.field("common_tls_context", |f| f.add("must be set"));
            return None;
        };
        let faults_before = faults.count();
        let (identity, validation) = faults.field("common_tls_context", |f| {
            check_common(common, f);
            let identity = identity_instance(common, cx, f);
            if identity.is_none() && f.count() == faults_before {
                f.field("tls_certificate_provider_instance", |f| f.add("must be set"));
            }
            (
                identity,
                common.validation_context_type.as_ref().and_then(|_| Validation::parse(common, Side::Server, cx, f)),
            )
        });
        let roots_instance = validation.and_then(|validation| match validation.roots {
            Roots::Instance(instance) => Some(instance),
            Roots::System => None, // A fault on servers.
        });
        if require_client_certificate && roots_instance.is_none() && faults.count() == faults_before {
            faults.field("require_client_certificate", |f| {
                f.add("needs a validation context with ca_certificate_provider_instance");
            });
        }
        Some(Self { identity_instance: identity?, roots_instance, require_client_certificate })
    }
}

/// What the certificate of the other side is checked for.
struct Validation {
    roots: Roots,
    match_subject_alt_names: Vec<StringMatcher>,
}

impl Validation {
    /// `faults` is at the CommonTlsContext.
    fn parse(pb: &pb::CommonTlsContext, side: Side, cx: ParseContext<'_>, faults: &mut Faults) -> Option<Self> {
        let none = pb::CertificateValidationContext::default();
        match &pb.validation_context_type {
            Some(ValidationContextType::ValidationContext(context)) => {
                faults.field("validation_context", |f| Self::parse_context(context, None, side, cx, f))
            }
            Some(ValidationContextType::CombinedValidationContext(combined)) => {
                faults.field("combined_validation_context", |f| {
                    let context = combined.default_validation_context.as_ref().unwrap_or(&none);
                    // Still sent by control planes of gRPC meshes, in place of the one in the context.
                    #[expect(deprecated)]
                    let old = combined.validation_context_certificate_provider_instance.as_ref();
                    let old = old.filter(|_| context.ca_certificate_provider_instance.is_none());
                    let old = old.map(|old| f.field(OLD_ROOTS, |f| known_instance(&old.instance_name, cx, f)));
                    f.field("default_validation_context", |f| Self::parse_context(context, old, side, cx, f))
                })
            }
            Some(ValidationContextType::ValidationContextSdsSecretConfig(_)) => {
                faults.field("validation_context_sds_secret_config", |f| f.add("SDS is not supported"));
                None
            }
            #[expect(deprecated)]
            Some(ValidationContextType::ValidationContextCertificateProviderInstance(old)) => {
                let instance = faults.field(OLD_ROOTS, |f| known_instance(&old.instance_name, cx, f))?;
                Some(Self { roots: Roots::Instance(instance), match_subject_alt_names: Vec::new() })
            }
            _ => {
                faults.field("validation_context", |f| f.add("must be set"));
                None
            }
        }
    }

    /// `faults` is at the CertificateValidationContext. `old_instance` is the instance that was named elsewhere, or
    /// `Some(None)` if that was a fault.
    fn parse_context(
        pb: &pb::CertificateValidationContext,
        old_instance: Option<Option<String>>,
        side: Side,
        cx: ParseContext<'_>,
        faults: &mut Faults,
    ) -> Option<Self> {
        check_context(pb, faults);
        if side == Side::Server {
            check_server_context(pb, faults);
        }
        let mut match_subject_alt_names = Vec::new();
        // `match_typed_subject_alt_names` is newer than gRPC's rules, which do not read it.
        #[expect(deprecated)]
        let matchers = pb.match_subject_alt_names.iter().enumerate();
        faults.field("match_subject_alt_names", |f| {
            for (i, matcher) in matchers {
                match_subject_alt_names.extend(f.index(i, |f| StringMatcher::parse(matcher, f)));
            }
        });
        let roots = faults.field("ca_certificate_provider_instance", |f| {
            // the instance wins over the system's roots.
            if let Some(instance) = &pb.ca_certificate_provider_instance {
                return f
                    .field("instance_name", |f| known_instance(&instance.instance_name, cx, f))
                    .map(Roots::Instance);
            }
            if let Some(instance) = old_instance {
                return instance.map(Roots::Instance);
            }
            match side {
                Side::Client if pb.system_root_certs.is_some() => return Some(Roots::System),
                Side::Client => f.add("must be set, or system_root_certs instead"),
                Side::Server => f.add("must be set"),
            }
            None
        });
        Some(Self { roots: roots?, match_subject_alt_names })
    }
}

/// The provider of our own certificate, if one is set; `faults` is at the CommonTlsContext.
fn identity_instance(pb: &pb::CommonTlsContext, cx: ParseContext<'_>, faults: &mut Faults) -> Option<String> {
    if let Some(instance) = &pb.tls_certificate_provider_instance {
        return faults.field("tls_certificate_provider_instance.instance_name", |f| {
            known_instance(&instance.instance_name, cx, f)
        });
    }
    #[expect(deprecated)]
    if let Some(instance) = &pb.tls_certificate_certificate_provider_instance {
        return faults.field("tls_certificate_certificate_provider_instance.instance_name", |f| {
            known_instance(&instance.instance_name, cx, f)
        });
    }
    let other_sources = [
        ("tls_certificates", pb.tls_certificates.len()),
        ("tls_certificate_sds_secret_configs", pb.tls_certificate_sds_secret_configs.len()),
    ];
    for (field, len) in other_sources {
        if len > 0 {
            faults.field(field, |f| f.add("not supported: expected tls_certificate_provider_instance"));
        }
    }
    None
}

/// A certificate provider instance of the bootstrap; `faults` is at the name.
fn known_instance(name: &str, cx: ParseContext<'_>, faults: &mut Faults) -> Option<String> {
    if cx.bootstrap.certificate_providers.contains_key(name) {
        return Some(name.to_owned());
    }
    faults.add(format!("{name:?} is not a certificate provider instance of the bootstrap"));
    None
}

/// Settings that would have to be obeyed; `faults` is at the CommonTlsContext.
fn check_common(pb: &pb::CommonTlsContext, faults: &mut Faults) {
    let unsupported = [("tls_params", pb.tls_params.is_some()), ("custom_handshaker", pb.custom_handshaker.is_some())];
    check_absent(&unsupported, faults);
}

/// Settings that would have to be obeyed; `faults` is at the CertificateValidationContext.
fn check_context(pb: &pb::CertificateValidationContext, faults: &mut Faults) {
    let unsupported = [
        ("verify_certificate_spki", !pb.verify_certificate_spki.is_empty()),
        ("verify_certificate_hash", !pb.verify_certificate_hash.is_empty()),
        ("require_signed_certificate_timestamp", pb.require_signed_certificate_timestamp.is_some_and(|b| b.value)),
        ("crl", pb.crl.is_some()),
        ("custom_validator_config", pb.custom_validator_config.is_some()),
    ];
    check_absent(&unsupported, faults);
}

/// Names that the certificates of clients must have: we look at none; `faults` is at the
/// CertificateValidationContext.
fn check_server_context(pb: &pb::CertificateValidationContext, faults: &mut Faults) {
    #[expect(deprecated)]
    let names = !pb.match_subject_alt_names.is_empty();
    let unsupported = [
        ("match_subject_alt_names", names),
        ("match_typed_subject_alt_names", !pb.match_typed_subject_alt_names.is_empty()),
    ];
    check_absent(&unsupported, faults);
}

fn check_absent(unsupported: &[(&'static str, bool)], faults: &mut Faults) {
    for (field, present) in unsupported {
        if *present {
            faults.field(field, |f| f.add("not supported"));
        }
    }
}

/// The deprecated field for the roots.
const OLD_ROOTS: &str = "validation_context_certificate_provider_instance.instance_name";

///
const MAX_SNI: usize = 255;

const HTTP_11_PROXY: &str = "envoy.extensions.transport_sockets.http_11_proxy.v3.Http11ProxyUpstreamTransport";

#[cfg(test)]
mod tests;
