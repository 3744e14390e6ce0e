//! What files say, resource by resource, with the lines on which they say it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::files::depth::{check_tree, with_room};
use crate::files::tree::{FieldError, TYPE_KEY, Tree, Value};
use crate::files::{LoadError, LoadErrors, Loader, list, node_of, parse, proto};
use crate::snapshot::Resource;
use crate::type_url::TypeUrl;

/// Everything that was read, and what could not be: for tools that look at files before they are put into force.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The resources of all files, in the order in which they were found.
    pub resources: Vec<Source>,
    /// What is wrong with the files.
    pub errors: Vec<LoadError>,
    /// The texts of the files, in the order of their paths.
    pub texts: Vec<(PathBuf, String)>,
}

/// A resource and where it is written.
#[derive(Clone, Debug)]
pub struct Source {
    /// The node that it is for; all nodes if there is none.
    pub node: Option<String>,
    /// The resource.
    pub resource: Resource,
    /// Where it is written.
    pub location: Location,
}

/// Where something is written: a file, and the lines of its parts.
#[derive(Clone, Debug)]
pub struct Location {
    file: Arc<Path>,
    tree: Arc<Tree>,
}

impl Sources {
    /// Reads every file of a directory, or a single file. Fails only if there is nothing to read from.
    ///
    /// Files for which `skip` answers `true`, given their path and text, are left alone.
    pub fn read(path: &Path, skip: impl Fn(&Path, &str) -> bool) -> Result<Self, LoadErrors> {
        let mut files = Vec::new();
        let metadata = fs::metadata(path);
        let metadata = metadata
            .map_err(|error| LoadErrors::from(LoadError::unreadable(path, format!("cannot be read: {error}"))))?;
        if metadata.is_dir() {
            list(path, super::MAX_DEPTH, &mut files)?;
            files.sort();
        } else {
            files.push(path.to_owned());
        }
        let mut loader = Loader::default();
        let mut texts = Vec::new();
        for file in files {
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) => {
                    loader.errors.push(LoadError::unreadable(&file, format!("cannot be read: {error}")));
                    continue;
                }
            };
            if skip(&file, &text) {
                continue;
            }
            loader.read_text(&file, &text, node_of(path, &file).as_deref());
            texts.push((file, text));
        }
        Ok(Self { resources: loader.sources, errors: loader.errors, texts })
    }

    /// Reads files that are not on a disk: their names, which are only told in errors, and their texts.
    pub fn of_texts(files: impl IntoIterator<Item = (PathBuf, String)>) -> Self {
        let mut loader = Loader::default();
        let texts: Vec<_> = files.into_iter().collect();
        texts.iter().for_each(|(file, text)| loader.read_text(file, text, None));
        Self { resources: loader.sources, errors: loader.errors, texts }
    }
}

impl Location {
    pub(super) fn new(file: &Path, tree: Tree) -> Self {
        Self { file: file.into(), tree: Arc::new(tree) }
    }

    /// The places of the parts of any JSON or YAML text, such as a bootstrap. If the text holds several documents, those
    /// of the first.
    pub fn of_text(file: &Path, text: &str) -> Result<Self, LoadError> {
        let empty = || Tree { line: None, value: Value::Null };
        let parsed = with_room(|| parse(file, text))
            .unwrap_or_else(|error| Err(LoadError::unreadable(file, format!("cannot be read: {error}"))))?;
        Ok(Self::new(file, parsed.into_iter().next().unwrap_or_else(empty)))
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The keys of the map that is written here, if it is one.
    pub fn keys(&self) -> Vec<&str> {
        match &self.tree.value {
            Value::Map(entries) => entries.iter().map(|(key, _)| key.as_str()).collect(),
            Value::Null
            | Value::Bool(_)
            | Value::Signed(_)
            | Value::Unsigned(_)
            | Value::Float(_)
            | Value::String(_)
            | Value::List(_) => Vec::new(),
        }
    }

    /// The line of a field, such as `virtual_hosts[0].routes[1].match`, counted from 1. Of what is not written, that of the
    /// innermost part around it that is.
    pub fn line_of(&self, path: &str) -> Option<u64> {
        let mut tree = &*self.tree;
        // What a wrapper holds is the resource.
        let is_wrapper =
            tree.get(TYPE_KEY).and_then(Tree::as_str).is_some_and(|url| TypeUrl::from(url) == TypeUrl::RESOURCE);
        if is_wrapper && let Some(inner) = tree.get("resource") {
            tree = inner;
        }
        let mut line = tree.line;
        for step in steps(path) {
            let Some(next) = descend(tree, step) else { break };
            tree = next;
            line = tree.line.or(line);
        }
        line
    }

    /// Reads what is written here as a message of this type in the JSON of protobuf, and encodes it.
    pub fn encode_as(&self, message_name: &str) -> Result<Vec<u8>, LoadError> {
        let read = || check_tree(&self.tree).and_then(|()| proto::read_message(&self.tree, message_name));
        let read = with_room(read).unwrap_or_else(|error| Err(FieldError::new(&self.tree, error.to_string())));
        read.map_err(|error| LoadError {
            line: error.line,
            field: error.field(),
            ..LoadError::malformed(&self.file, error.problem)
        })
    }
}

/// The parts of a path: names of fields, and what stands in brackets.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    let mut rest = path;
    std::iter::from_fn(move || {
        rest = rest.strip_prefix('.').unwrap_or(rest);
        if let Some(inside) = rest.strip_prefix('[') {
            let mut depth = 1_usize;
            let end = inside.char_indices().find_map(|(at, character)| {
                depth = match character {
                    '[' => depth + 1,
                    ']' => depth - 1,
                    _ => depth,
                };
                (depth == 0).then_some(at)
            });
            let (step, after) = inside.split_at(end.unwrap_or(inside.len()));
            rest = after.strip_prefix(']').unwrap_or(after);
            return Some(step.trim_matches('"'));
        }
        let (step, after) = rest.split_at(rest.find(['.', '[']).unwrap_or(rest.len()));
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}

fn descend<'t>(tree: &'t Tree, step: &str) -> Option<&'t Tree> {
    match &tree.value {
        Value::List(items) => items.get(step.parse::<usize>().ok()?),
        Value::Map(entries) => {
            entries.iter().find(|(key, _)| key == step || is_camel_case_of(key, step)).map(|(_, value)| value)
        }
        Value::Null | Value::Bool(_) | Value::Signed(_) | Value::Unsigned(_) | Value::Float(_) | Value::String(_) => {
            None
        }
    }
}

/// Whether `key` is how JSON writes the field `name` of a `.proto` file.
fn is_camel_case_of(key: &str, name: &str) -> bool {
    let mut up = false;
    let camel = name.chars().filter_map(|character| {
        if character == '_' {
            up = true;
            return None;
        }
        Some(if std::mem::take(&mut up) { character.to_ascii_uppercase() } else { character })
    });
    key.chars().eq(camel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_path_in_either_spelling() {
        let text = "name: a\nvirtualHosts:\n- domains: ['*']\n  routes:\n  - match: {prefix: ''}\n  - match:\n      prefix: /x\n\
                    typed_per_filter_config:\n  a.b[0]:\n    '@type': x\n";
        let location = Location::of_text(Path::new("a.yaml"), text).unwrap();
        let line = |path| location.line_of(path);
        assert_eq!(line(""), Some(1));
        assert_eq!(line("virtual_hosts[0].domains"), Some(3));
        assert_eq!(line("virtual_hosts[0].routes[1].match.prefix"), Some(7));
        assert_eq!(line("virtual_hosts[0].routes[0].route.cluster"), Some(5), "the nearest that is written");
        assert_eq!(line("typed_per_filter_config[a.b[0]].x"), Some(10));
        assert_eq!(line("virtual_hosts[9]"), Some(3), "there is no such element");
        assert_eq!(location.keys(), ["name", "virtualHosts", "typed_per_filter_config"]);
    }

    #[test]
    fn a_wrapper_is_looked_through() {
        let text = "'@type': envoy.service.discovery.v3.Resource\nname: x\nresource:\n  '@type': a.B\n  entries: []\n";
        let location = Location::of_text(Path::new("a.yaml"), text).unwrap();
        assert_eq!(location.line_of("entries"), Some(5));
    }
}
