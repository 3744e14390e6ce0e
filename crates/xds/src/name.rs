//! Names of resources: opaque ones and `xdstp:` ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::resource_type::ResourceType;

mod encoding;

pub(crate) use encoding::{decode_authority, encode_authority, encode_path, percent_decode};

/// A resource type and the canonical name of a resource of it: the key of caches and requests (P-84).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceKey {
    /// Which kind.
    pub resource_type: ResourceType,
    /// Canonical name.
    pub name: Arc<str>,
}

/// Which servers are asked for a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum AuthorityKey {
    /// Old-style names: the top-level servers (P-81).
    TopLevel,
    /// The authority of an `xdstp:` name; may be empty (P-83).
    Named(Arc<str>),
}

/// Why a string is not a usable resource name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum NameError {
    /// Not a well-formed `xdstp:` name, with what is wrong.
    #[error("{0}")]
    Malformed(String),
    /// The type segment is not the type that is watched (P-82).
    #[error("names a resource of type {found:?}: expected {expected}")]
    WrongType {
        /// The segment.
        found: String,
        /// The type that is watched.
        expected: &'static str,
    },
}

// === impl ResourceKey ===

impl ResourceKey {
    /// Parses and canonicalizes `name`, and says whose it is. With federation off every name is old-style (B-30).
    ///
    /// The canonical form has its context parameters sorted by key, the last of equal keys, no fragment,
    /// and only such percent-encodings as are needed, in capitals (P-84, P-87). A slash that is
    /// encoded stays so: decoded it would part the id at another place.
    pub fn parse(resource_type: ResourceType, name: &str, federation: bool) -> Result<(Self, AuthorityKey), NameError> {
        if !federation || !name.starts_with(SCHEME) {
            return Ok((Self { resource_type, name: name.into() }, AuthorityKey::TopLevel)); // P-81
        }
        let (authority, canonical) = canonicalize(resource_type, name)?;
        Ok((Self { resource_type, name: canonical.into() }, AuthorityKey::Named(authority.into())))
    }
}

/// Whether a name stands for a glob collection (P-90). Of an `xdstp:` name the path says so, without its
/// percent-encoding, which is not there any more in what servers are sent.
pub(crate) fn is_glob(name: &str) -> bool {
    if !name.starts_with(SCHEME) {
        return name.ends_with("/*");
    }
    let path = name.split(['?', '#']).next().unwrap_or(name);
    path.rsplit_once('/').is_some_and(|(_, last)| encoding::decode(last).is_ok_and(|last| last == b"*"))
}

/// The authority of an `xdstp:` name and the name in canonical form.
fn canonicalize(resource_type: ResourceType, name: &str) -> Result<(String, String), NameError> {
    let malformed =
        || NameError::Malformed(format!("{name:?} is not of the form xdstp://[authority]/type/id[?k=v&..]"));

    let (name_and_query, _fragment) = split(name, '#');
    let (hierarchy, query) = split(name_and_query, '?');
    let (authority, path) = hierarchy.strip_prefix("xdstp://").and_then(|h| h.split_once('/')).ok_or_else(malformed)?;
    let (found, id) = split(path, '/');
    let found = String::from_utf8_lossy(&encoding::decode(found)?).into_owned();
    let expected = resource_type.message_name();
    if found != expected {
        return Err(NameError::WrongType { found, expected }); // P-82
    }
    if id.is_empty() {
        return Err(malformed());
    }

    let authority = decode_authority(authority)?;
    let mut canonical = format!("xdstp://{}/{expected}", encode_authority(&authority));
    for segment in id.split('/') {
        canonical.push('/');
        canonical.push_str(&encoding::encode_segment(&encoding::decode(segment)?));
    }
    for (i, (key, value)) in context_parameters(query)?.into_iter().enumerate() {
        canonical.push(if i == 0 { '?' } else { '&' });
        canonical.push_str(&encoding::encode_parameter(&key));
        canonical.push('=');
        canonical.push_str(&encoding::encode_parameter(&value));
    }
    Ok((authority, canonical))
}

/// The parameters of a query, decoded and sorted by key. Of equal keys the last one stays (P-84).
fn context_parameters(query: &str) -> Result<BTreeMap<Vec<u8>, Vec<u8>>, NameError> {
    query
        .split('&')
        .filter(|parameter| !parameter.is_empty())
        .map(|parameter| {
            let (key, value) = split(parameter, '=');
            Ok((encoding::decode(key)?, encoding::decode(value)?))
        })
        .collect()
}

/// What is before and what is behind the first `separator`.
fn split(text: &str, separator: char) -> (&str, &str) {
    text.split_once(separator).unwrap_or((text, ""))
}

impl fmt::Display for ResourceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.resource_type, self.name)
    }
}

impl fmt::Display for AuthorityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TopLevel => f.write_str("top-level servers"),
            Self::Named(name) => write!(f, "authority {name:?}"),
        }
    }
}

/// What new-style names start with (P-81).
pub(crate) const SCHEME: &str = "xdstp:";

#[cfg(test)]
pub(crate) mod tests;
