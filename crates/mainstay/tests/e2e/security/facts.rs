//! What a handshake found out, where applications and operators see it.

use mainstay::{Credentials, Peer};
use mainstay_testservice::proto::SimpleRequest;

use super::terminator::Terminator;
use super::{Pki, mtls, secured, upstream};
use crate::channelz_v1::channelz_client::ChannelzClient;
use crate::channelz_v1::security::{Model, Tls, tls::CipherSuite};
use crate::channelz_v1::{GetSocketRequest, GetSubchannelRequest, GetTopChannelsRequest};
use crate::common::{Client, backends, control_plane, service};
use crate::no_downgrade::with_cluster;
use envoy_types::pb::envoy::extensions::transport_sockets::tls::v3 as tls;
use envoy_types::util::pack_any;
use mainstay::certificates::Identity;
use mainstay_control_plane::resources;
use rcgen::{CertificateParams, DnType};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

#[tokio::test]
async fn the_response_says_who_answered_and_how_the_connection_is_secured() {
    let pki = Pki::new();
    let issued = pki.ca.issue("service");
    let backend = pki.backend("one", &issued, true).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    let peer = peer(&mut pki.client(&server)).await;
    assert_eq!((peer.address(), peer.cluster(), peer.principal()), (backend.addr(), "service", Some("service")));
    let tls = peer.tls().expect("TLS");
    assert_eq!((tls.version(), tls.alpn()), ("TLSv1.3", Some("h2")));
    assert!(tls.cipher_suite().starts_with("TLS_") && tls.cipher_suite().contains("_SHA"), "{tls:?}");
    assert_eq!(tls.certificate(), Some(&*issued.der));
    assert_eq!(tls.local_certificate(), Some(&*client_certificate(&pki)), "the server asked for it");
}

/// A41: whose URI counts before the names of hosts, and those before the subject.
#[tokio::test]
async fn the_principal_is_the_uri_or_the_host_name_or_the_subject() {
    let pki = Pki::new();
    let with = |subject: &[(DnType, &str)], names: &[&str], uris: &[&str]| {
        let mut params =
            CertificateParams::new(names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>()).unwrap();
        params.subject_alt_names.extend(uris.iter().map(|uri| rcgen::SanType::URI((*uri).try_into().unwrap())));
        params.distinguished_name = rcgen::DistinguishedName::new();
        subject.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
        pki.ca.issue_as(params)
    };
    let subject =
        [(DnType::CountryName, "DE"), (DnType::OrganizationName, "Shops, Inc. "), (DnType::CommonName, "#shop")];
    for (issued, expected) in [
        (with(&subject, &["a.example", "b.example"], &["spiffe://example.com/shop"]), "spiffe://example.com/shop"),
        (with(&subject, &["a.example", "b.example"], &[]), "a.example"),
        (with(&subject, &["10.0.0.1"], &[]), "CN=\\#shop,O=Shops\\, Inc.\\ ,C=DE"),
    ] {
        let backend = pki.backend("one", &issued, true).await;
        let server = control_plane(secured(&backend, mtls(&[]))).await;
        assert_eq!(peer(&mut pki.client(&server)).await.principal(), Some(expected));
    }
}

/// TL-11: TLS 1.2 will do.
#[tokio::test]
async fn either_version_of_tls_will_do() {
    let pki = Pki::new();
    let [plain] = backends(["one"]).await;
    for (version, name) in [(&rustls::version::TLS12, "TLSv1.2"), (&rustls::version::TLS13, "TLSv1.3")] {
        let front = Terminator::start(pki.ca.serve_mtls(pki.ca.issue("service"), version), plain.addr()).await;
        let endpoints = resources::endpoints("service", [front.address]);
        let server = control_plane(with_cluster(pack_any(upstream(mtls(&["service"]))), endpoints)).await;
        let peer = peer(&mut pki.client(&server)).await;
        let tls = peer.tls().expect("TLS");
        assert_eq!((tls.version(), tls.local_certificate()), (name, Some(&*client_certificate(&pki))));
        assert_eq!(front.clients(), [Some(client_certificate(&pki))]);
    }
}

#[tokio::test]
async fn our_certificate_is_not_presented_to_those_who_do_not_ask() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), false).await;
    let server = control_plane(secured(&backend, mtls(&["service"]))).await;
    let peer = peer(&mut pki.client(&server)).await;
    assert_eq!(peer.tls().expect("TLS").local_certificate(), None);
}

#[tokio::test]
async fn in_plaintext_there_is_nothing_to_say() {
    let [backend] = backends(["plain"]).await;
    let server = control_plane(service(&[&backend])).await;
    let peer = peer(&mut crate::common::client(&[&server])).await;
    assert!(peer.tls().is_none() && peer.principal().is_none());
}

/// TL-15, S-89: channelz shows both certificates of a socket, whoever said how it is secured.
#[tokio::test]
async fn channelz_shows_the_certificates_of_both_sides() {
    let pki = Pki::new();
    let issued = pki.ca.issue("service");
    let ours = client_certificate(&pki).to_vec();
    let identity = std::fs::read(pki.files.path("cert.pem")).unwrap();
    let identity = Identity::from_pem(&identity, &std::fs::read(pki.files.path("key.pem")).unwrap()).unwrap();
    let own = Credentials::tls_from_pem(pki.ca.pem().as_bytes(), Some(identity)).unwrap();
    for (demands, credentials, context, expected) in [
        (true, Credentials::xds(Credentials::insecure()), Some(mtls(&["service"])), &ours),
        (false, Credentials::xds(Credentials::insecure()), Some(mtls(&["service"])), &Vec::new()),
        (true, own.clone(), None, &ours),
        (false, own, None, &Vec::new()),
    ] {
        let backend = pki.backend("one", &issued, demands).await;
        let snapshot = match context {
            Some(context) => secured(&backend, context).build(),
            None => service(&[&backend]),
        };
        let server = control_plane(snapshot).await;
        let channel = pki.builder(&server).credentials(credentials).build().unwrap();
        let mut client = Client::new(channel);
        peer(&mut client).await;
        let tls = socket_to(&backend.addr().to_string()).await.expect("TLS");
        assert_eq!((&tls.local_certificate, &tls.remote_certificate), (expected, &issued.der.to_vec()));
        assert!(matches!(tls.cipher_suite, Some(CipherSuite::StandardName(name)) if name.starts_with("TLS_")));
    }
    let [plain] = backends(["plain"]).await;
    let server = control_plane(service(&[&plain])).await;
    let mut client = crate::common::client(&[&server]);
    peer(&mut client).await;
    assert_eq!(socket_to(&plain.addr().to_string()).await, None);
}

/// The system's trust says who is believed, not who is asked for: a TLS context without our certificate presents none.
#[tokio::test]
async fn a_context_without_our_certificate_presents_none() {
    let pki = Pki::new();
    let backend = pki.backend("one", &pki.ca.issue("service"), false).await;
    let context = tls::CommonTlsContext { tls_certificate_provider_instance: None, ..mtls(&["service"]) };
    let server = control_plane(secured(&backend, context)).await;
    let peer = peer(&mut pki.client(&server)).await;
    assert_eq!(peer.tls().expect("TLS").local_certificate(), None);
}

/// Who answers a call.
async fn peer(client: &mut Client) -> Peer {
    let response = client.unary_call(SimpleRequest::default()).await.expect("an answer");
    response.extensions().get::<Peer>().expect("a peer").clone()
}

/// The certificate in the files.
pub(super) fn client_certificate(pki: &Pki) -> CertificateDer<'static> {
    CertificateDer::from_pem_file(pki.files.path("cert.pem")).expect("a certificate")
}

/// What channelz says of the security of the socket to this address, asked as the drivers of suites do.
async fn socket_to(address: &str) -> Option<Tls> {
    let mut channelz = ChannelzClient::new(mainstay::admin::channelz());
    let top = channelz.get_top_channels(GetTopChannelsRequest::default()).await.unwrap().into_inner();
    for subchannel in top.channel.iter().flat_map(|channel| &channel.subchannel_ref) {
        let request = GetSubchannelRequest { subchannel_id: subchannel.subchannel_id };
        // It may be one of another test, and gone.
        let Ok(answer) = channelz.get_subchannel(request).await else { continue };
        let subchannel = answer.into_inner().subchannel.unwrap();
        if subchannel.data.unwrap().target != address {
            continue;
        }
        let request = GetSocketRequest { socket_id: subchannel.socket_ref[0].socket_id, summary: false };
        let socket = channelz.get_socket(request).await.unwrap().into_inner().socket.unwrap();
        return socket.security.and_then(|security| security.model).map(|Model::Tls(tls)| tls);
    }
    panic!("no subchannel to {address}");
}
