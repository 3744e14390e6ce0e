//! Names of servers.

use rustls::client::verify_server_name;
use rustls::pki_types::{CertificateDer, InvalidDnsNameError, ServerName};
use rustls::server::ParsedCertificate;

/// Whether a server certificate in DER has the name of an authority. That it may be trusted was found out before.
pub(crate) fn has_name(certificate: &[u8], authority: &str) -> bool {
    let Ok(name) = server_name(host_of(authority)) else { return false };
    let certificate = CertificateDer::from(certificate);
    let parsed = ParsedCertificate::try_from(&certificate);
    parsed.is_ok_and(|certificate| verify_server_name(&certificate, &name).is_ok())
}

/// The name by which a TLS server is asked for.
pub(crate) fn server_name(host: &str) -> Result<ServerName<'static>, InvalidDnsNameError> {
    ServerName::try_from(host.to_owned())
}

/// The host of `host`, `host:port` or `[v6]:port`.
pub(crate) fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|b| b.is_ascii_digit()) => host,
        _ => authority,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_is_taken_out_of_an_authority() {
        for (authority, host) in
            [("shop", "shop"), ("shop:443", "shop"), ("[::1]:80", "::1"), ("::1", "::1"), ("10.0.0.1:1", "10.0.0.1")]
        {
            assert_eq!(host_of(authority), host);
        }
    }
}
