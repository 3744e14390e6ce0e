//! Parsed resources that the clients of a process share.

use bytes::Bytes;

use crate::resource::{ParseContext, Resource, ResourceType};

/// Parsed resources by their bytes, for many clients.
///
/// What a parser makes depends on the bytes and the context alone. So sharing changes what things
/// cost, and nothing else: with it or without, a client does the same.
pub trait Intern {
    /// What these bytes were parsed to before in an equal context, if anybody still holds it.
    fn find(&mut self, resource_type: ResourceType, bytes: &[u8], cx: ParseContext<'_>) -> Option<Parsed>;

    /// Remembers what `bytes` were parsed to. Answers with what to hold: perhaps another client was quicker.
    fn keep(&mut self, resource: Resource, bytes: &[u8], cx: ParseContext<'_>) -> Parsed;
}

/// A resource and the bytes that it was parsed from.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parsed {
    /// The resource.
    pub resource: Resource,
    /// Its bytes: a copy, because a slice would keep the whole response in memory.
    pub bytes: Bytes,
}

/// Shares nothing.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unshared;

impl Intern for Unshared {
    fn find(&mut self, _: ResourceType, _: &[u8], _: ParseContext<'_>) -> Option<Parsed> {
        None
    }

    fn keep(&mut self, resource: Resource, bytes: &[u8], _: ParseContext<'_>) -> Parsed {
        Parsed { resource, bytes: Bytes::copy_from_slice(bytes) }
    }
}
