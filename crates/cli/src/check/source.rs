//! Where what is checked comes from: files, or a running process.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::service::status::v3::client_status_discovery_service_client::ClientStatusDiscoveryServiceClient;
use envoy_types::pb::envoy::service::status::v3::{ClientStatusRequest, ClientStatusResponse};
use mainstay_check::{
    BootstrapFile, Finding, Id, Implementation, Input, Item, Lines, Origin, is_bootstrap, items_of_clients, verdicts,
};
use mainstay_control_plane::files::{Location, Sources};
use mainstay_control_plane::{Body, LoadError, LoadErrorKind, Resource, Snapshot};
use prost::Message as _;
use tonic::transport::Endpoint;

use crate::failure::{Failure, causes, told};

/// A directory, a file, or a process.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Path(PathBuf),
    /// Its admin address.
    Csds(String),
}

impl FromStr for Source {
    type Err = String;

    /// As other commands understand it, but that only gRPC processes and files can be checked.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_address = |text: &str| {
            text.rsplit_once(':').is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
        };
        match text.split_once(':') {
            _ if Path::new(text).exists() => Ok(Self::Path(text.into())),
            Some(("csds", address)) if is_address(address) => Ok(Self::Csds(address.to_owned())),
            Some(("csds", _)) => Err("expected csds:HOST:PORT, such as csds:127.0.0.1:50051".to_owned()),
            Some(("dir" | "file", path)) if !path.is_empty() => Ok(Self::Path(path.into())),
            Some(("envoy", _)) => {
                Err("only gRPC processes, which have CSDS, and files can be checked; `mainstay inspect` shows what an \
                     Envoy holds and rejects"
                    .to_owned())
            }
            _ if text.is_empty() => Err("expected a directory, a file, or csds:HOST:PORT".to_owned()),
            _ if is_address(text) => Ok(Self::Csds(text.to_owned())),
            _ => Ok(Self::Path(text.into())),
        }
    }
}

impl Source {
    /// Where it is, if it holds the classes of a mirror and no resources.
    pub(crate) fn mirror_config(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => {
                let name = path.file_name().and_then(|name| name.to_str());
                name.is_some_and(|name| ["mirror.yaml", "mirror.yml"].contains(&name)).then_some(path)
            }
            Self::Csds(_) => None,
        }
    }

    /// What is there: one set of resources for files, one for each client of a process.
    pub(crate) async fn gather(&self, bootstrap: Option<&BootstrapFile>) -> Result<Vec<(String, Input)>, Failure> {
        let mut inputs = match self {
            Self::Path(path) => of_path(path)?,
            Self::Csds(address) => of_response(&ask(address).await?, &format!("csds:{address}")),
        };
        inputs.iter_mut().for_each(|(_, input)| input.bootstrap = bootstrap.cloned());
        Ok(inputs)
    }
}

/// Adds what other implementations say, as measured.
pub(crate) fn add_verdicts(input: &mut Input, implementations: &BTreeSet<Implementation>) {
    if implementations.is_empty() {
        return;
    }
    let found = input.items.iter().flat_map(|item| match &item.body {
        mainstay_check::Body::Message(bytes) => {
            tree(item, bytes).map_or_else(Vec::new, |tree| verdicts(item, &tree, implementations))
        }
        mainstay_check::Body::Error | mainstay_check::Body::Nothing { .. } => Vec::new(),
    });
    let found: Vec<_> = found.collect();
    input.troubles.extend(found);
}

/// A resource in the JSON of protobuf; nothing if its type is not known.
fn tree(item: &Item, bytes: &[u8]) -> Option<serde_json::Value> {
    let mut snapshot = Snapshot::default();
    snapshot.insert(Resource::new(item.message_name.as_str(), item.name.clone(), bytes));
    let mut document: serde_json::Value = serde_json::from_str(&snapshot.to_json().ok()?).ok()?;
    Some(document.get_mut("resources")?.get_mut(0)?.take())
}

/// All of them as one set; of several resources of one type and name, the first.
pub(crate) fn together(inputs: Vec<(String, Input)>) -> Input {
    let mut all = Input::default();
    for (_, mut input) in inputs {
        let is_there = |item: &Item, items: &[Item]| {
            items.iter().any(|other| {
                other.message_name == item.message_name && other.name == item.name && other.node == item.node
            })
        };
        input.items.retain(|item| !is_there(item, &all.items));
        all.items.append(&mut input.items);
        all.bootstraps.append(&mut input.bootstraps);
        all.troubles.append(&mut input.troubles);
        all.texts.append(&mut input.texts);
        all.bootstrap = all.bootstrap.or(input.bootstrap);
    }
    all
}

/// The bootstrap in a file.
pub(crate) fn bootstrap(path: &Path) -> Result<BootstrapFile, Failure> {
    let text = fs::read_to_string(path)
        .map_err(|error| Failure::usage(format!("cannot read the bootstrap {}: {error}", path.display())))?;
    Ok(bootstrap_file(path, text))
}

fn bootstrap_file(path: &Path, text: String) -> BootstrapFile {
    let file = path.display().to_string();
    // What is no JSON is told when it is checked.
    let origin = match Location::of_text(path, &text) {
        Ok(location) => Origin::with_lines(file, Arc::new(Written(location))),
        Err(_) => Origin::new(file),
    };
    BootstrapFile { text, origin }
}

fn of_path(path: &Path) -> Result<Vec<(String, Input)>, Failure> {
    let mut bootstraps = Vec::new();
    let mut dumps = Vec::new();
    let others = std::cell::RefCell::new(Vec::new());
    let skip = |file: &Path, text: &str| {
        // Most files are resources, and to read each of them twice would take long.
        let may_be =
            ["xds_server", "server_uri", "certificate_provider", "onfig"].iter().any(|word| text.contains(word));
        let keys = if may_be { Location::of_text(file, text).ok() } else { None };
        let keys = keys.as_ref().map(Location::keys).unwrap_or_default();
        let is_dump = keys.contains(&"config") && !keys.contains(&"resources");
        let skipped = is_bootstrap(&keys) || is_dump;
        if skipped {
            others.borrow_mut().push((file.to_owned(), text.to_owned(), is_dump));
        }
        skipped
    };
    let sources = Sources::read(path, skip).map_err(|errors| {
        let reasons: Vec<_> = errors.0.iter().map(LoadError::to_string).collect();
        Failure::usage(format!("cannot check {}", reasons.join("\n")))
    })?;
    for (file, text, is_dump) in others.into_inner() {
        if is_dump {
            dumps.extend(saved_dump(&file, &text)?);
        } else {
            bootstraps.push(bootstrap_file(&file, text));
        }
    }
    let mut input = of_sources(&sources);
    input.bootstraps = bootstraps;
    let is_empty = input.items.is_empty() && input.bootstraps.is_empty() && input.troubles.is_empty();
    if is_empty && dumps.is_empty() {
        let message = format!("{} holds neither resources nor a bootstrap", path.display());
        return Err(Failure::usage(message)
            .tip("files end in .yaml, .yml or .json; `mainstay serve --help` says what is in them"));
    }
    let own = if is_empty { None } else { Some((String::new(), input)) };
    Ok(own.into_iter().chain(dumps).collect())
}

/// What was read, as the checks want it.
pub(crate) fn of_sources(sources: &Sources) -> Input {
    let items = sources.resources.iter().map(|source| {
        let file = source.location.file().display().to_string();
        let origin = Origin::with_lines(file, Arc::new(Written(source.location.clone())));
        let bytes = match &source.resource.body {
            Body::Message(any) => any.value.clone(),
            Body::Error { .. } => Vec::new(),
        };
        let mut item = Item::new(source.resource.type_url.as_str(), &source.resource.name, bytes, origin);
        if matches!(source.resource.body, Body::Error { .. }) {
            item.body = mainstay_check::Body::Error;
        }
        item.node.clone_from(&source.node);
        item
    });
    Input {
        items: items.collect(),
        troubles: sources.errors.iter().map(trouble).collect(),
        texts: sources.texts.iter().map(|(file, text)| (file.display().to_string(), text.clone())).collect(),
        ..Input::default()
    }
}

fn trouble(error: &LoadError) -> Finding {
    let id = match error.kind {
        LoadErrorKind::Unreadable | LoadErrorKind::Refused | LoadErrorKind::Judged => Id::MS101,
        LoadErrorKind::Malformed => Id::MS102,
        LoadErrorKind::Duplicate => Id::MS104,
    };
    Finding {
        resource: error.resource.clone().unwrap_or_default(),
        path: error.field.clone(),
        ..Finding::in_file(id, error.file.display().to_string(), error.line, error.problem.clone())
    }
}

/// Lines of a file that was read.
#[derive(Debug)]
struct Written(Location);

impl Lines for Written {
    fn line(&self, path: &str) -> Option<u64> {
        self.0.line_of(path)
    }
}

/// A file with the answer of a CSDS server in the JSON of protobuf.
fn saved_dump(file: &Path, text: &str) -> Result<Vec<(String, Input)>, Failure> {
    let name = file.display().to_string();
    let wrong = |error: String| Failure::usage(format!("{name} is no CSDS dump: {error}"));
    let bytes = Location::of_text(file, text).and_then(|location| location.encode_as(CLIENT_STATUS_RESPONSE));
    let bytes = bytes.map_err(|error| wrong(error.to_string()))?;
    let response = ClientStatusResponse::decode(bytes.as_slice()).map_err(|error| wrong(error.to_string()))?;
    Ok(of_response(&response, &name))
}

fn of_response(response: &ClientStatusResponse, process: &str) -> Vec<(String, Input)> {
    let clients = items_of_clients(response, process).into_iter().zip(&response.config);
    let clients = clients.map(|((items, troubles), config)| {
        (config.client_scope.clone(), Input { items, troubles, ..Input::default() })
    });
    clients.collect()
}

/// Asks a process for what its clients hold.
async fn ask(address: &str) -> Result<ClientStatusResponse, Failure> {
    let wrong = |why: String| {
        Failure::usage(format!("cannot read the configuration of {address}: {why}")).tip(
            "the process must serve CSDS, which gRPC's admin services bring along, at this address and in plaintext",
        )
    };
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| wrong(causes(&error)))?;
    let endpoint = endpoint.connect_timeout(PATIENCE).timeout(PATIENCE);
    let channel = endpoint.connect().await.map_err(|error| wrong(causes(&error)))?;
    let mut client = ClientStatusDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
    let response = client.fetch_client_status(ClientStatusRequest::default()).await;
    response.map(tonic::Response::into_inner).map_err(|status| wrong(told(&status)))
}

const CLIENT_STATUS_RESPONSE: &str = "envoy.service.status.v3.ClientStatusResponse";
const PATIENCE: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_checked_is_named_as_it_is_for_other_commands() {
        let csds = |text: &str| matches!(text.parse(), Ok(Source::Csds(address)) if address == "127.0.0.1:1");
        assert!(csds("csds:127.0.0.1:1") && csds("127.0.0.1:1"));
        let path = |text: &str| matches!(text.parse(), Ok(Source::Path(path)) if path == Path::new("new"));
        assert!(path("new") && path("dir:new") && path("file:new"));
        for wrong in ["", "csds:", "csds:localhost", "csds::1", "envoy:127.0.0.1:1"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
    }
}
