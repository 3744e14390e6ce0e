//! Snapshots from files, and back.
//!
//! # The format
//!
//! A directory holds files with the extensions `.yaml`, `.yml` and `.json`, in subdirectories if you like; hidden ones
//! are skipped. Resources are written in the JSON of protobuf, as everywhere in Envoy's documentation. A file is one of
//! these, and a YAML file may hold several of them as documents:
//!
//! ```yaml
//! # A list of resources, as in the files that Envoy itself reads.
//! resources:
//!   - "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
//!     name: greeter
//!     type: EDS
//!     eds_cluster_config: { eds_config: { ads: {} } }
//!   # What has no name of its own is wrapped.
//!   - "@type": type.googleapis.com/envoy.service.discovery.v3.Resource
//!     name: greeter-endpoints
//!     resource:
//!       "@type": type.googleapis.com/envoy.config.endpoint.v3.LbEndpointCollection
//!       entries: []
//! # Names that are answered with an error (TP3).
//! errors:
//!   - { type_url: envoy.config.cluster.v3.Cluster, name: gone, code: NOT_FOUND, message: no such cluster }
//! # Resources as bytes in base64: what JSON cannot say, such as fields and types that nobody here knows.
//! encoded:
//!   - { type_url: envoy.config.cluster.v3.Cluster, name: other, value: CgVvdGhlcg== }
//! # Only for this node; without it, for all nodes.
//! node: node-1
//! ---
//! # One resource.
//! "@type": type.googleapis.com/envoy.config.listener.v3.Listener
//! name: greeter
//! ```
//!
//! `resources` may be a map from names to resources, too; then no wrapper is needed. A list of resources may stand by
//! itself. `version_info`, `type_url` and `nonce`, which Envoy's files may have, are allowed and mean nothing.
//!
//! Files in a directory `nodes/ID` are for the node `ID`. A node is served its own resources and those for all nodes;
//! where both have one of the same name, its own.
//!
//! A file without any content is an error, as it is more likely one that was cut off than one that says nothing; a
//! comment in it says that it is meant.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::Serialize;
use tonic::Code;

use crate::files::depth::{check_tree, with_room};
use crate::files::proto::{Json, read_resource, write_resource};
use crate::files::tree::{FieldError, TYPE_KEY, Tree, Value};
use crate::snapshot::{Body, Resource, Snapshot};
use crate::store::Snapshots;
use crate::type_url::TypeUrl;

mod depth;
mod proto;
mod source;
mod tree;
mod watch;

pub use crate::files::proto::DESCRIPTORS as ENVOY_DESCRIPTORS;
pub use crate::files::source::{Location, Source, Sources};
pub use crate::files::watch::{Deletions, DirectoryWatch, Judge, Reload, follow_directory};

/// Reads every file of a directory. All errors of all files are reported together.
pub fn load_directory(directory: impl AsRef<Path>) -> Result<Snapshots, LoadErrors> {
    read_directory(directory.as_ref())?.into_snapshots()
}

/// Reads every file of a directory.
fn read_directory(directory: &Path) -> Result<Sources, LoadErrors> {
    // A file in the place of the directory cannot be listed.
    list(directory, MAX_DEPTH, &mut Vec::new())?;
    Sources::read(directory, |_, _| false)
}

impl Sources {
    /// What is to be served, if there are no errors.
    pub fn into_snapshots(self) -> Result<Snapshots, LoadErrors> {
        if !self.errors.is_empty() {
            return Err(LoadErrors(self.errors));
        }
        let (mut default, mut nodes) = (Snapshot::default(), BTreeMap::<String, Snapshot>::new());
        for Source { node, resource, .. } in self.resources {
            match node {
                Some(node) => nodes.entry(node).or_default().insert(resource),
                None => default.insert(resource),
            }
        }
        let nodes = nodes.into_iter().map(|(id, own)| {
            let mut snapshot = default.clone();
            own.resources().for_each(|resource| snapshot.insert(resource));
            (id, snapshot)
        });
        Ok(Snapshots { nodes: nodes.collect(), default })
    }
}

impl Snapshot {
    /// Reads a snapshot from YAML or JSON in the format of [`files`](crate::files). Nodes cannot be told apart here.
    ///
    /// ```
    /// use mainstay_control_plane::{Snapshot, TypeUrl};
    ///
    /// let snapshot = Snapshot::from_yaml("{'@type': envoy.config.cluster.v3.Cluster, name: a, typ: EDS}");
    /// assert_eq!(snapshot.unwrap_err().to_string(), "<text>:1: a: unrecognized field name 'typ'");
    /// ```
    pub fn from_yaml(text: &str) -> Result<Self, LoadErrors> {
        let file = Path::new("<text>");
        let mut loader = Loader::default();
        loader.read_file(file, text, None);
        let sources = Sources { resources: loader.sources, errors: loader.errors, texts: Vec::new() };
        let Snapshots { default, nodes } = sources.into_snapshots()?;
        match nodes.keys().next() {
            None => Ok(default),
            Some(node) => {
                Err(LoadError::malformed(file, format!("is for node {node:?}, and not for all nodes")).into())
            }
        }
    }

    /// Writes this snapshot as YAML that [`from_yaml`](Self::from_yaml) and [`load_directory`] read. Given versions and
    /// the wish to wrap everything are not written.
    pub fn to_yaml(&self) -> Result<String, ExportError> {
        in_room(|| Document::new(self)?.to_yaml())
    }

    /// Writes this snapshot as YAML that is read with the same bytes: resources that would have others are written as
    /// they are.
    pub fn to_exact_yaml(&self) -> Result<String, ExportError> {
        let (mut plain, mut encoded) = (Self::default(), Vec::new());
        for resource in self.resources() {
            let mut alone = Self::default();
            alone.insert(resource.clone());
            let read = alone.to_yaml().ok().and_then(|text| Self::from_yaml(&text).ok());
            match (read.as_ref() == Some(&alone), &resource.body) {
                (false, Body::Message(any)) => encoded.push(EncodedEntry {
                    type_url: resource.type_url.as_str().to_owned(),
                    name: resource.name,
                    value: BASE64_STANDARD.encode(&any.value),
                }),
                (true, Body::Message(_)) | (_, Body::Error { .. }) => plain.insert(resource),
            }
        }
        in_room(|| {
            let mut document = Document::new(&plain)?;
            document.encoded = encoded;
            document.to_yaml()
        })
    }

    /// Writes this snapshot as JSON.
    pub fn to_json(&self) -> Result<String, ExportError> {
        in_room(|| {
            let document = Document::new(self)?;
            serde_json::to_string_pretty(&document)
                .map_err(|error| ExportError { resource: None, problem: error.to_string() })
        })
    }
}

/// Everything that is wrong with a set of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadErrors(pub Vec<LoadError>);

/// One thing that is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadError {
    /// What kind of trouble it is.
    pub kind: LoadErrorKind,
    /// The file.
    pub file: PathBuf,
    /// The line, counted from 1, if it is known.
    pub line: Option<u64>,
    /// The name of the resource, if there is one.
    pub resource: Option<String>,
    /// The path of the field, such as `virtual_hosts[0].domains`; empty for the resource or the file as a whole.
    pub field: String,
    /// What is wrong, and what was expected.
    pub problem: String,
}

/// What kind of trouble there is with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadErrorKind {
    /// It cannot be read, or is neither YAML nor JSON.
    Unreadable,
    /// It says something that is no resource: a field that does not exist, a value of another type.
    Malformed,
    /// It says something that was said before.
    Duplicate,
    /// It can be read, but looks like an accident: see [`Deletions`].
    Refused,
    /// It can be read, but whoever was asked does not want it in force.
    Judged,
}

impl LoadError {
    fn unreadable(file: &Path, problem: impl Into<String>) -> Self {
        Self::about(LoadErrorKind::Unreadable, file, problem)
    }

    fn malformed(file: &Path, problem: impl Into<String>) -> Self {
        Self::about(LoadErrorKind::Malformed, file, problem)
    }

    fn refused(file: &Path, problem: impl Into<String>) -> Self {
        Self::about(LoadErrorKind::Refused, file, problem)
    }

    fn about(kind: LoadErrorKind, file: &Path, problem: impl Into<String>) -> Self {
        let (file, problem) = (file.to_owned(), problem.into());
        Self { kind, file, line: None, resource: None, field: String::new(), problem }
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.file.display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if let Some(resource) = &self.resource {
            write!(f, ": {resource}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": {}", self.field)?;
        }
        write!(f, ": {}", self.problem)
    }
}

impl std::error::Error for LoadError {}

impl From<LoadError> for LoadErrors {
    fn from(error: LoadError) -> Self {
        Self(vec![error])
    }
}

impl fmt::Display for LoadErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, error) in self.0.iter().enumerate() {
            let separator = if n == 0 { "" } else { "\n" };
            write!(f, "{separator}{error}")?;
        }
        Ok(())
    }
}

impl std::error::Error for LoadErrors {}

/// A snapshot cannot be written: it holds a message whose type is not known, or bytes that are no message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportError {
    /// The type and the name of the resource.
    pub resource: Option<(TypeUrl, String)>,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for ExportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.resource {
            Some((type_url, name)) => write!(f, "{} {name:?}: {}", type_url.message_name(), self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

impl std::error::Error for ExportError {}

/// Collects what files say.
#[derive(Debug, Default)]
struct Loader {
    sources: Vec<Source>,
    /// Where each resource was found, by node, type and name.
    found: BTreeMap<(Option<String>, TypeUrl, String), PathBuf>,
    errors: Vec<LoadError>,
}

impl Loader {
    /// Reads a file, which must not be empty.
    fn read_text(&mut self, file: &Path, text: &str, node: Option<&str>) {
        if text.trim().is_empty() {
            return self.errors.push(LoadError::unreadable(file, "is empty: expected resources, or no such file"));
        }
        self.read_file(file, text, node);
    }

    fn read_file(&mut self, file: &Path, text: &str, node: Option<&str>) {
        if let Err(error) = with_room(|| self.read_with_room(file, text, node)) {
            self.errors.push(LoadError::unreadable(file, format!("cannot be read: {error}")));
        }
    }

    fn read_with_room(&mut self, file: &Path, text: &str, node: Option<&str>) {
        match parse(file, text) {
            Ok(documents) => documents.into_iter().for_each(|document| self.read_document(file, document, node)),
            Err(error) => self.errors.push(error),
        }
    }

    fn read_document(&mut self, file: &Path, document: Tree, node: Option<&str>) {
        if document.get(TYPE_KEY).is_some() {
            return self.read_resource(file, document, None, node);
        }
        let described = document.describe();
        match document.value {
            Value::Null => {}
            Value::List(items) => self.read_list(file, items, node),
            Value::Map(entries) => self.read_map(file, entries, node),
            Value::Bool(_) | Value::Signed(_) | Value::Unsigned(_) | Value::Float(_) | Value::String(_) => {
                let problem = format!("expected resources, found {described}");
                self.report(file, None, &FieldError::new(&document, problem));
            }
        }
    }

    fn read_map(&mut self, file: &Path, entries: Vec<(String, Tree)>, node: Option<&str>) {
        let named = entries.iter().find(|(key, _)| key == "node").map(|(_, value)| value.clone());
        let node = match named.as_ref().map(|value| (value, value.as_str())) {
            None => node,
            Some((_, Some(id))) => Some(id),
            Some((value, None)) => {
                let problem = format!("expected the id of a node, found {}", value.describe());
                return self.report(file, None, &FieldError::new(value, problem).inside("node", None));
            }
        };
        for (key, value) in entries {
            let (line, described) = (value.line, value.describe());
            match (key.as_str(), value.value) {
                ("resources", Value::List(items)) => self.read_list(file, items, node),
                ("resources", Value::Map(named)) => {
                    named.into_iter().for_each(|(name, tree)| self.read_resource(file, tree, Some(&name), node));
                }
                ("errors", Value::List(items)) => items.into_iter().for_each(|item| self.read_error(file, item, node)),
                ("encoded", Value::List(items)) => {
                    items.into_iter().for_each(|item| self.read_encoded(file, item, node));
                }
                ("node" | "version_info" | "type_url" | "nonce", _)
                | ("resources" | "errors" | "encoded", Value::Null) => {}
                (key, _) => {
                    let problem = match key {
                        "resources" | "errors" | "encoded" => format!("expected a list, found {described}"),
                        _ => "expected \"resources\", \"errors\", \"encoded\" and \"node\" here, or \"@type\" of one resource"
                            .to_owned(),
                    };
                    let here = Tree { line, value: Value::Null };
                    self.report(file, None, &FieldError::new(&here, problem).inside(key, None));
                }
            }
        }
    }

    fn read_list(&mut self, file: &Path, items: Vec<Tree>, node: Option<&str>) {
        items.into_iter().for_each(|item| self.read_resource(file, item, None, node));
    }

    fn read_resource(&mut self, file: &Path, tree: Tree, key: Option<&str>, node: Option<&str>) {
        match check_tree(&tree).and_then(|()| read_resource(&tree, key)) {
            Ok(resource) => self.insert(file, tree, resource, node),
            Err(error) => {
                let name = key.or_else(|| NAME_FIELDS.iter().find_map(|field| tree.get(field)?.as_str()));
                self.report(file, name, &error);
            }
        }
    }

    fn read_encoded(&mut self, file: &Path, tree: Tree, node: Option<&str>) {
        let read = || {
            let value = BASE64_STANDARD.decode(text(&tree, "value")?).map_err(|error| {
                FieldError::new(&tree, format!("expected bytes in base64: {error}")).inside("value", None)
            })?;
            Ok(Resource::new(text(&tree, "type_url")?, text(&tree, "name")?, value))
        };
        match read() {
            Ok(resource) => self.insert(file, tree, resource, node),
            Err(error) => self.report(file, tree.get("name").and_then(Tree::as_str), &error),
        }
    }

    fn read_error(&mut self, file: &Path, tree: Tree, node: Option<&str>) {
        let text = |field: &str| text(&tree, field);
        let read = || {
            let code = text("code")?;
            let code = CODES.into_iter().find(|(_, name)| *name == code).map(|(code, _)| code).ok_or_else(|| {
                let problem = format!("expected a status code such as NOT_FOUND, found {code:?}");
                FieldError::new(&tree, problem).inside("code", None)
            })?;
            Ok(Resource::error(text("type_url")?, text("name")?, code, text("message")?))
        };
        match read() {
            Ok(resource) => self.insert(file, tree, resource, node),
            Err(error) => self.report(file, tree.get("name").and_then(Tree::as_str), &error),
        }
    }

    fn insert(&mut self, file: &Path, tree: Tree, resource: Resource, node: Option<&str>) {
        let key = (node.map(str::to_owned), resource.type_url.clone(), resource.name.clone());
        if let Some(first) = self.found.insert(key, file.to_owned()) {
            let problem =
                format!("there is already a {} of this name in {}", resource.type_url.message_name(), first.display());
            return self.errors.push(LoadError {
                line: tree.line,
                resource: Some(resource.name),
                ..LoadError::about(LoadErrorKind::Duplicate, file, problem)
            });
        }
        self.sources.push(Source { node: node.map(str::to_owned), resource, location: Location::new(file, tree) });
    }

    fn report(&mut self, file: &Path, resource: Option<&str>, error: &FieldError) {
        self.errors.push(LoadError {
            line: error.line,
            resource: resource.map(str::to_owned),
            field: error.field(),
            ..LoadError::malformed(file, error.problem.clone())
        });
    }
}

/// What is written for a snapshot.
#[derive(Serialize)]
struct Document {
    resources: Vec<Json>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    errors: Vec<ErrorEntry>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    encoded: Vec<EncodedEntry>,
}

#[derive(Serialize)]
struct EncodedEntry {
    type_url: String,
    name: String,
    value: String,
}

#[derive(Serialize)]
struct ErrorEntry {
    type_url: String,
    name: String,
    code: &'static str,
    message: String,
}

impl Document {
    fn new(snapshot: &Snapshot) -> Result<Self, ExportError> {
        let mut document = Self { resources: Vec::new(), errors: Vec::new(), encoded: Vec::new() };
        for resource in snapshot.resources() {
            match &resource.body {
                Body::Message(_) => {
                    let json = write_resource(&resource);
                    document.resources.push(json.map_err(|problem| ExportError {
                        resource: Some((resource.type_url.clone(), resource.name.clone())),
                        problem,
                    })?);
                }
                Body::Error { code, message } => document.errors.push(ErrorEntry {
                    type_url: resource.type_url.as_str().to_owned(),
                    name: resource.name.clone(),
                    code: CODES.into_iter().find(|(c, _)| c == code).map_or("UNKNOWN", |(_, name)| name),
                    message: message.clone(),
                }),
            }
        }
        Ok(document)
    }

    fn to_yaml(&self) -> Result<String, ExportError> {
        // Type URLs are long, and must stay on one line to be found.
        let options = serde_saphyr::ser_options! { prefer_block_scalars: false };
        serde_saphyr::to_string_with_options(self, options)
            .map_err(|error| ExportError { resource: None, problem: error.to_string() })
    }
}

/// Writes where there is room for what is nested.
fn in_room(write: impl FnOnce() -> Result<String, ExportError> + Send) -> Result<String, ExportError> {
    with_room(write).unwrap_or_else(|error| Err(ExportError { resource: None, problem: error.to_string() }))
}

/// A text inside of an entry.
fn text<'a>(tree: &'a Tree, field: &str) -> Result<&'a str, FieldError> {
    tree.get(field).and_then(Tree::as_str).ok_or_else(|| {
        let found = tree.get(field).map_or_else(|| "nothing".to_owned(), Tree::describe);
        FieldError::new(tree, format!("expected a text, found {found}")).inside(field, None)
    })
}

/// The documents of a file.
fn parse(file: &Path, text: &str) -> Result<Vec<Tree>, LoadError> {
    if text.len() > MAX_FILE_SIZE {
        return Err(LoadError::unreadable(file, format!("is larger than {MAX_FILE_SIZE} bytes")));
    }
    let is_json = file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json"));
    let options = serde_saphyr::options! {
        // `on` and `no` are texts.
        strict_booleans: true,
        budget: serde_saphyr::budget! {
            max_depth: MAX_PARSED_DEPTH,
            max_events: MAX_NODES,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_FILE_SIZE,
        },
    };
    if is_json {
        // Strictly JSON. The YAML parser reads nearly all of it and knows the lines, so it is asked first.
        let tree = serde_json::from_str::<Tree>(text).map_err(|error| LoadError {
            line: Some(error.line() as u64),
            ..LoadError::unreadable(file, format!("is not JSON: {error}"))
        })?;
        return Ok(serde_saphyr::from_multiple_with_options(text, options).unwrap_or_else(|_| vec![tree]));
    }
    serde_saphyr::from_multiple_with_options(text, options).map_err(|error| LoadError {
        line: error.location().map(|location| location.line()),
        ..LoadError::unreadable(file, format!("is not YAML: {}", error.without_snippet()))
    })
}

fn list(directory: &Path, depth: usize, files: &mut Vec<PathBuf>) -> Result<(), LoadErrors> {
    let unreadable = |error| LoadErrors::from(LoadError::unreadable(directory, format!("cannot be read: {error}")));
    let Some(depth) = depth.checked_sub(1) else {
        return Err(LoadError::unreadable(directory, format!("lies more than {MAX_DEPTH} directories deep")).into());
    };
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        // Hidden are what editors leave behind, and the directories behind Kubernetes' symbolic links.
        if path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        // Links are followed. One that leads nowhere is being replaced, or was left behind; both are no resource.
        let Ok(metadata) = fs::metadata(&path) else { continue };
        if metadata.is_dir() {
            list(&path, depth, files)?;
        } else if is_resource_file(&path) {
            files.push(path);
        }
    }
    Ok(())
}

fn is_resource_file(path: &Path) -> bool {
    path.extension().is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
}

/// The node whose directory a file is in: `nodes/ID/…`.
fn node_of(directory: &Path, file: &Path) -> Option<String> {
    let mut parts = file.strip_prefix(directory).ok()?.parent()?.iter();
    (parts.next()? == "nodes").then_some(())?;
    Some(parts.next()?.to_string_lossy().into_owned())
}

/// Where messages have their names, in both spellings.
const NAME_FIELDS: [&str; 3] = ["name", "cluster_name", "clusterName"];
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];
const MAX_DEPTH: usize = 16;
/// Of texts, as parsers of JSON have it. What is less deep is read, and if it is too deep for a message, the field is named.
const MAX_PARSED_DEPTH: usize = 128;
const MAX_FILE_SIZE: usize = 256 << 20;
const MAX_NODES: usize = 50_000_000;
const CODES: [(Code, &str); 16] = [
    (Code::Cancelled, "CANCELLED"),
    (Code::Unknown, "UNKNOWN"),
    (Code::InvalidArgument, "INVALID_ARGUMENT"),
    (Code::DeadlineExceeded, "DEADLINE_EXCEEDED"),
    (Code::NotFound, "NOT_FOUND"),
    (Code::AlreadyExists, "ALREADY_EXISTS"),
    (Code::PermissionDenied, "PERMISSION_DENIED"),
    (Code::ResourceExhausted, "RESOURCE_EXHAUSTED"),
    (Code::FailedPrecondition, "FAILED_PRECONDITION"),
    (Code::Aborted, "ABORTED"),
    (Code::OutOfRange, "OUT_OF_RANGE"),
    (Code::Unimplemented, "UNIMPLEMENTED"),
    (Code::Internal, "INTERNAL"),
    (Code::Unavailable, "UNAVAILABLE"),
    (Code::DataLoss, "DATA_LOSS"),
    (Code::Unauthenticated, "UNAUTHENTICATED"),
];
