//! The resources that running clients hold, as CSDS tells them (A40, A71).

use bytes::Bytes;
use envoy_types::pb::envoy::admin::v3::{ClientResourceStatus, UpdateFailureState};
use envoy_types::pb::envoy::service::status::v3::per_xds_config::PerXdsConfig as Kind;
use envoy_types::pb::envoy::service::status::v3::{ClientConfig, ClientStatusResponse};
use envoy_types::pb::google::protobuf::Any;
use mainstay_xds::resource::ResourceType;

use crate::catalog::Id;
use crate::finding::Finding;
use crate::input::{Body, Item, Origin};

/// The resources of each client of a process, and what they reject. A process may have several clients, one for each target and
/// one for its servers; they are looked at apart.
pub fn items_of_clients(response: &ClientStatusResponse, process: &str) -> Vec<(Vec<Item>, Vec<Finding>)> {
    response.config.iter().map(|config| of_client(config, process)).collect()
}

/// One entry of a client, whichever of the two forms it came in.
struct Entry<'c> {
    message_name: &'c str,
    name: String,
    resource: Option<&'c Any>,
    status: i32,
    error: Option<&'c UpdateFailureState>,
}

fn of_client(config: &ClientConfig, process: &str) -> (Vec<Item>, Vec<Finding>) {
    let file = match config.client_scope.as_str() {
        "" => process.to_owned(),
        scope => format!("{process} {scope}"),
    };
    let (mut items, mut findings) = (Vec::new(), Vec::new());
    for entry in entries(config) {
        let origin = Origin::new(&file);
        let kind = entry.message_name.rsplit(['.', '/']).next().unwrap_or_default();
        if let Some(error) = entry.error.filter(|error| !error.details.is_empty()) {
            let version =
                if error.version_info.is_empty() { String::new() } else { format!(" {}", error.version_info) };
            let message = format!("this client rejects version{version}: {}", error.details);
            findings.push(Finding::at(Id::MS108, &origin, &format!("{kind} {}", entry.name), "", message));
        }
        let status = ClientResourceStatus::try_from(entry.status);
        let nothing = || Body::Nothing { status: in_words(status.ok()).to_owned() };
        let body = match entry.resource {
            Some(any) => Body::Message(Bytes::copy_from_slice(&any.value)),
            None => nothing(),
        };
        let mut item = Item::new(entry.message_name, entry.name, Bytes::new(), origin);
        item.body = body;
        items.push(item);
    }
    (items, findings)
}

fn entries(config: &ClientConfig) -> Vec<Entry<'_>> {
    let generic = config.generic_xds_configs.iter().map(|entry| Entry {
        message_name: &entry.type_url,
        name: entry.name.clone(),
        resource: entry.xds_config.as_ref(),
        status: entry.client_status,
        error: entry.error_state.as_ref(),
    });
    #[expect(deprecated)] // Older clients, such as those before generic_xds_configs, have only this.
    let old = config.xds_config.iter().filter_map(|config| config.per_xds_config.as_ref()).flat_map(per_xds);
    generic.chain(old).collect()
}

fn per_xds(kind: &Kind) -> Vec<Entry<'_>> {
    let entry = |resource_type: ResourceType, name: Option<String>, resource, status, error| {
        let name = name.unwrap_or_default();
        Entry { message_name: resource_type.message_name(), name, resource, status, error }
    };
    match kind {
        Kind::ListenerConfig(dump) => {
            let each = dump.dynamic_listeners.iter().map(|it| {
                let resource = it.active_state.as_ref().and_then(|state| state.listener.as_ref());
                entry(
                    ResourceType::Listener,
                    Some(it.name.clone()),
                    resource,
                    it.client_status,
                    it.error_state.as_ref(),
                )
            });
            each.collect()
        }
        Kind::RouteConfig(dump) => {
            let each = dump.dynamic_route_configs.iter().map(|it| {
                let resource = it.route_config.as_ref();
                entry(ResourceType::RouteConfig, name_in(resource), resource, it.client_status, it.error_state.as_ref())
            });
            each.collect()
        }
        Kind::ClusterConfig(dump) => {
            let each = dump.dynamic_active_clusters.iter().map(|it| {
                let resource = it.cluster.as_ref();
                entry(ResourceType::Cluster, name_in(resource), resource, it.client_status, it.error_state.as_ref())
            });
            each.collect()
        }
        Kind::EndpointConfig(dump) => {
            let each = dump.dynamic_endpoint_configs.iter().map(|it| {
                let resource = it.endpoint_config.as_ref();
                entry(ResourceType::Endpoints, name_in(resource), resource, it.client_status, it.error_state.as_ref())
            });
            each.collect()
        }
        Kind::ScopedRouteConfig(_) => Vec::new(),
    }
}

/// The name of a message that has it as its first field, as all of these have.
fn name_in(any: Option<&Any>) -> Option<String> {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
    }
    let named: Named = prost::Message::decode(any?.value.as_slice()).ok()?;
    Some(named.name)
}

fn in_words(status: Option<ClientResourceStatus>) -> &'static str {
    match status {
        Some(ClientResourceStatus::Requested) => "the client asked for it and has no answer yet",
        Some(ClientResourceStatus::DoesNotExist) => "the control plane says that it does not exist",
        Some(ClientResourceStatus::Nacked) => "the client rejected it",
        Some(ClientResourceStatus::Timeout) => "the control plane did not answer in time",
        Some(ClientResourceStatus::ReceivedError) => "the control plane answered with an error",
        Some(ClientResourceStatus::Acked | ClientResourceStatus::Unknown) | None => "the client does not have it",
    }
}
