//! Targets: which Listener a channel or a server asks for.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::bootstrap::Bootstrap;
use crate::name::{AuthorityKey, NameError, ResourceKey, SCHEME, encode_authority, encode_path, percent_decode};
use crate::resource_type::ResourceType;

/// A channel target, resolved against a bootstrap (B-31 to B-35).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// Canonical form, `xds:///name` or `xds://authority/name`: the scope of the client (C-1).
    pub canonical: Arc<str>,
    /// The Listener to watch, canonical.
    pub listener: Arc<str>,
    /// `:authority` of RPCs and key of virtual host matching (B-35).
    pub data_plane_authority: Arc<str>,
}

/// Why a target cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum TargetError {
    /// The scheme is not `xds`.
    #[error("target {0:?} does not start with xds:")]
    Scheme(String),
    /// No usable path.
    #[error("target {0:?} names no service: expected xds:///name or xds://authority/name")]
    Path(String),
    /// The percent-encoding hides bytes that are no text.
    #[error("target {0:?} is not UTF-8 once its percent-encoding is undone")]
    NotUtf8(String),
    /// The authority is not in the bootstrap (B-32, B-33).
    #[error("target {target:?}: authority {authority:?} is not in the bootstrap's authorities")]
    UnknownAuthority {
        /// As given.
        target: String,
        /// As given.
        authority: String,
    },
    /// The template makes a name that cannot be used.
    #[error("target {target:?}: listener name {name:?}: {error}")]
    Listener {
        /// As given.
        target: String,
        /// What the template made.
        name: String,
        /// What is wrong with it.
        error: NameError,
    },
}

/// Why there is no Listener name for a listening address (B-36).
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ServerListenerError {
    /// The bootstrap has no template.
    #[error("the bootstrap has no server_listener_resource_name_template: an xDS-enabled server needs one")]
    NoTemplate,
    /// The authority of the name is not in the bootstrap.
    #[error("server listener name {name:?}: authority {authority:?} is not in the bootstrap's authorities")]
    UnknownAuthority {
        /// What the template made.
        name: String,
        /// Its authority.
        authority: String,
    },
    /// The template makes a name that cannot be used.
    #[error("server listener name {name:?}: {error}")]
    Listener {
        /// What the template made.
        name: String,
        /// What is wrong with it.
        error: NameError,
    },
}

// === impl Target ===

impl Target {
    /// Resolves `target` against `bootstrap`.
    pub fn resolve(target: &str, bootstrap: &Bootstrap) -> Result<Self, TargetError> {
        let uri = target.strip_prefix("xds:").ok_or_else(|| TargetError::Scheme(target.to_owned()))?;
        let hierarchy = uri.split(['?', '#']).next().unwrap_or(uri);
        let (authority, path) = match hierarchy.strip_prefix("//") {
            Some(rest) => rest.split_at(rest.find('/').unwrap_or(rest.len())),
            None => ("", hierarchy),
        };
        let service = path.strip_prefix('/').unwrap_or(path);
        let decode = |text| percent_decode(text).ok_or_else(|| TargetError::NotUtf8(target.to_owned()));
        let (authority, service) = (decode(authority)?, decode(service)?);
        if service.is_empty() || service.ends_with('/') {
            return Err(TargetError::Path(target.to_owned())); // B-31
        }

        let unknown = |authority: &str| TargetError::UnknownAuthority {
            target: target.to_owned(),
            authority: authority.to_owned(),
        };
        let template = if authority.is_empty() {
            &bootstrap.client_default_listener_resource_name_template // B-33
        } else {
            let entry = bootstrap.authorities.get(&authority).ok_or_else(|| unknown(&authority))?; // B-32
            &entry.client_listener_resource_name_template
        };
        let name = expand(template, &service, bootstrap);
        let (listener, owner) = match ResourceKey::parse(ResourceType::Listener, &name, bootstrap.guards.federation) {
            Ok(parsed) => parsed,
            Err(error) => return Err(TargetError::Listener { target: target.to_owned(), name, error }),
        };
        if let Some(authority) = unknown_authority(&owner, bootstrap) {
            return Err(unknown(authority));
        }
        Ok(Self {
            canonical: format!("xds://{}/{}", encode_authority(&authority), encode_path(&service)).into(),
            listener: listener.name,
            data_plane_authority: encode_authority(&service).into(),
        })
    }
}

// === impl Bootstrap ===

impl Bootstrap {
    /// The canonical name of the Listener of a server that listens on `address` (B-36).
    pub fn server_listener_name(&self, address: SocketAddr) -> Result<Arc<str>, ServerListenerError> {
        let template = self.server_listener_resource_name_template.as_deref();
        let name = expand(template.ok_or(ServerListenerError::NoTemplate)?, &address.to_string(), self);
        let (listener, owner) = match ResourceKey::parse(ResourceType::Listener, &name, self.guards.federation) {
            Ok(parsed) => parsed,
            Err(error) => return Err(ServerListenerError::Listener { name, error }),
        };
        if let Some(authority) = unknown_authority(&owner, self) {
            return Err(ServerListenerError::UnknownAuthority { authority: authority.to_owned(), name });
        }
        Ok(listener.name)
    }
}

/// Puts `value` in every place that the template has for it, encoded if the template makes `xdstp:` names (B-34).
fn expand(template: &str, value: &str, bootstrap: &Bootstrap) -> String {
    if bootstrap.guards.federation && template.starts_with(SCHEME) {
        template.replace("%s", &encode_path(value))
    } else {
        template.replace("%s", value)
    }
}

/// The authority of a name if the bootstrap does not know it.
fn unknown_authority<'a>(owner: &'a AuthorityKey, bootstrap: &Bootstrap) -> Option<&'a str> {
    match owner {
        AuthorityKey::Named(authority) if !bootstrap.authorities.contains_key(&**authority) => Some(authority),
        AuthorityKey::Named(_) | AuthorityKey::TopLevel => None,
    }
}

#[cfg(test)]
mod tests;
