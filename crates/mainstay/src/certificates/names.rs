//! What certificates say of their owners.

use std::net::IpAddr;

use mainstay_lb::identity::SubjectAltNames;
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::objects::{oid_registry, oid2abbrev};
use x509_parser::prelude::FromDer;
use x509_parser::x509::AttributeTypeAndValue;

/// Why a certificate is refused that its issuer vouches for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LeafError {
    #[error("cannot be read")]
    Unreadable,
    #[error("is that of a certificate authority: a workload cannot have it")]
    Authority,
    #[error("may sign certificates or revocations: that of a workload must not")]
    MaySign,
}

/// The names in a certificate.
pub(crate) fn names_of(der: &[u8]) -> Result<SubjectAltNames, LeafError> {
    let certificate = read(der)?;
    let mut names = SubjectAltNames::default();
    let extension = certificate.subject_alternative_name().map_err(|_| LeafError::Unreadable)?;
    for name in extension.iter().flat_map(|extension| &extension.value.general_names) {
        match name {
            GeneralName::DNSName(name) => names.dns.push((*name).to_owned()),
            GeneralName::URI(name) => names.uri.push((*name).to_owned()),
            GeneralName::RFC822Name(name) => names.email.push((*name).to_owned()),
            GeneralName::IPAddress(bytes) => names.ip.extend(ip_of(bytes)),
            // Kinds that no rule of xDS speaks of.
            _ => {}
        }
    }
    Ok(names)
}

/// Checks a certificate against what SPIFFE asks of workloads: it must not be able to vouch for others.
pub(crate) fn check_svid(der: &[u8]) -> Result<(), LeafError> {
    let certificate = read(der)?;
    if certificate.is_ca() {
        return Err(LeafError::Authority);
    }
    match certificate.key_usage() {
        Ok(Some(usage)) if usage.value.key_cert_sign() || usage.value.crl_sign() => Err(LeafError::MaySign),
        Ok(_) => Ok(()),
        Err(_) => Err(LeafError::Unreadable),
    }
}

/// The subject of a certificate, as RFC 2253 writes it: the most specific part first.
pub(crate) fn subject_of(der: &[u8]) -> Result<String, LeafError> {
    let certificate = read(der)?;
    let mut parts = Vec::new();
    for part in certificate.subject().iter_rdn() {
        let attributes: Vec<_> = part.iter().map(attribute).collect();
        parts.push(attributes.join("+"));
    }
    parts.reverse();
    Ok(parts.join(","))
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let known = oid2abbrev(attribute.attr_type(), oid_registry());
    let key = known.map_or_else(|_| attribute.attr_type().to_id_string(), str::to_owned);
    let Ok(text) = attribute.as_str() else {
        let hex: Vec<_> = attribute.as_slice().iter().map(|byte| format!("{byte:02x}")).collect();
        return format!("{key}=#{}", hex.concat());
    };
    let mut value = String::with_capacity(text.len());
    for (at, character) in text.char_indices() {
        let at_an_end = at == 0 || at + 1 == text.len();
        let is_special = matches!(character, ',' | '+' | '"' | '\\' | '<' | '>' | ';');
        if is_special || (character == ' ' && at_an_end) || (character == '#' && at == 0) {
            value.push('\\');
        }
        value.push(character);
    }
    format!("{key}={value}")
}

/// When a certificate ends, in seconds since 1970.
pub(super) fn not_after(der: &[u8]) -> Option<i64> {
    Some(read(der).ok()?.validity().not_after.timestamp())
}

fn read(der: &[u8]) -> Result<X509Certificate<'_>, LeafError> {
    X509Certificate::from_der(der).map(|(_, certificate)| certificate).map_err(|_| LeafError::Unreadable)
}

fn ip_of(bytes: &[u8]) -> Option<IpAddr> {
    <[u8; 4]>::try_from(bytes).map(IpAddr::from).or_else(|_| <[u8; 16]>::try_from(bytes).map(IpAddr::from)).ok()
}
