//! MS1xx: what clients reject, in their own words.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::bootstrap::{Bootstrap, CertificateProviderConfig, ServerConfig};
use mainstay_xds::name::ResourceKey;
use mainstay_xds::resource::{ParseContext, Resource, ResourceType, decode};

use crate::catalog::Id;
use crate::finding::Findings;
use crate::input::{Body, Item};
use crate::set::Set;
use crate::walk;

/// Reads resources as a client with a given bootstrap does, or any.
#[derive(Debug)]
pub(crate) struct Parser<'b> {
    /// That of the clients, if it is known.
    pub(crate) real: Option<&'b Bootstrap>,
    /// The same, or an empty one, with every certificate provider that resources name.
    lenient: Bootstrap,
}

impl<'b> Parser<'b> {
    pub(crate) fn new(items: &[Item], real: Option<&'b Bootstrap>) -> Self {
        let mut lenient = real.cloned().unwrap_or_else(|| {
            let server = ServerConfig::insecure("unknown");
            Bootstrap::builder().server(server).build().expect("a bootstrap with one server is good")
        });
        for instance in items.iter().flat_map(walk::certificate_provider_instances) {
            lenient.certificate_providers.entry(instance).or_insert(CertificateProviderConfig::Application);
        }
        if real.is_none() {
            // Whether a server is trusted, or speaks delta, is not known; what it could send is not held against it.
            let mut server = (*lenient.servers[0]).clone();
            server.features.trusted_xds_server = true;
            server.features.delta = mainstay_xds::bootstrap::DeltaMode::Preferred;
            lenient.servers = vec![Arc::new(server)];
        }
        Self { real, lenient }
    }

    /// What a client makes of it, whatever certificate providers it has.
    pub(crate) fn value(&self, resource_type: ResourceType, bytes: &Bytes) -> Option<Resource> {
        decode(resource_type, bytes, context(&self.lenient)).result.ok()
    }
}

fn context(bootstrap: &Bootstrap) -> ParseContext<'_> {
    ParseContext { bootstrap, server: &bootstrap.servers[0] }
}

pub(crate) fn check(set: &Set<'_>, parser: &Parser<'_>, findings: &mut Findings) {
    for item in &set.items {
        match (ResourceType::from_type_url(&item.message_name), &item.body) {
            (Some(resource_type), Body::Message(bytes)) => resource(item, resource_type, bytes, parser, findings),
            (None, Body::Message(_)) => {
                let message = format!("gRPC clients never ask for a {}", item.message_name);
                findings.add(Id::MS105, item, "", message);
            }
            (_, Body::Error | Body::Nothing { .. }) => {}
        }
    }
}

fn resource(item: &Item, resource_type: ResourceType, bytes: &Bytes, parser: &Parser<'_>, findings: &mut Findings) {
    // As the client does before it reads the content.
    if let Err(error) = ResourceKey::parse(resource_type, &item.name, true) {
        let nack = format!("{resource_type}: name: {:?}: {error}", item.name);
        return findings.add(Id::MS103, item, "name", nack);
    }
    let nack = |path: &str, message: &str| match path {
        "" => format!("{resource_type} {:?}: {message}", item.name),
        path => format!("{resource_type} {:?}: {path}: {message}", item.name),
    };
    let mut told = BTreeSet::new();
    if let Err(invalid) = decode(resource_type, bytes, context(&parser.lenient)).result {
        for fault in invalid.faults() {
            told.insert((fault.path.clone(), fault.message.clone()));
            findings.add(Id::MS103, item, &fault.path, nack(&fault.path, &fault.message));
        }
    }
    let Some(real) = parser.real else { return };
    // What is a fault only with this bootstrap is a certificate provider instance that it does not have.
    if let Err(invalid) = decode(resource_type, bytes, context(real)).result {
        for fault in invalid.faults() {
            if !told.contains(&(fault.path.clone(), fault.message.clone())) {
                findings.add(Id::MS211, item, &fault.path, nack(&fault.path, &fault.message));
            }
        }
    }
}

/// Reads a message of this type from an Any.
pub(crate) fn unpack<M: prost::Message + prost::Name + Default>(any: &Any) -> Option<M> {
    let name = any.type_url.rsplit('/').next().unwrap_or(&any.type_url);
    (name == M::full_name()).then(|| M::decode(any.value.as_slice()).ok()).flatten()
}
