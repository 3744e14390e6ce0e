//! Small stand-ins for what other parts of the crate will bring; to be removed when they are there.

use std::sync::Arc;

use crate::name::{AuthorityKey, NameError, ResourceKey};
use crate::resource::ResourceType;
use crate::resource::route::{ClusterTarget, DomainPattern, RouteAction, RouteConfig, VirtualHost};

impl RouteConfig {
    pub(super) fn virtual_host(&self, authority: &str) -> Option<&Arc<VirtualHost>> {
        let matches = |pattern: &DomainPattern| match pattern {
            DomainPattern::Exact(domain) => *domain == authority.to_lowercase(),
            DomainPattern::Any => true,
            _ => false,
        };
        self.virtual_hosts.iter().find(|host| host.domains.iter().any(matches))
    }
}

impl VirtualHost {
    pub(super) fn clusters(&self) -> impl Iterator<Item = &str> {
        self.routes.iter().flat_map(|route| match &route.action {
            RouteAction::Forward(forward) => match &forward.target {
                ClusterTarget::Cluster(name) => vec![name.as_str()],
                ClusterTarget::Weighted(choices) => choices.iter().map(|choice| choice.name.as_str()).collect(),
            },
            _ => Vec::new(),
        })
    }
}

pub(super) fn parse_key(
    resource_type: ResourceType,
    name: &str,
    federation: bool,
) -> Result<(ResourceKey, AuthorityKey), NameError> {
    let key = ResourceKey { resource_type, name: name.into() };
    match name.strip_prefix("xdstp:").filter(|_| federation) {
        None => Ok((key, AuthorityKey::TopLevel)),
        Some(rest) => match rest.strip_prefix("//").and_then(|rest| rest.split_once('/')) {
            None => Err(NameError::Malformed("expected xdstp://authority/type/id".to_owned())),
            Some((authority, _)) => Ok((key, AuthorityKey::Named(authority.into()))),
        },
    }
}
