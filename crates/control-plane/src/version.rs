//! Versions that are counted by nobody: a function of the content, equal on every replica and after every restart (DX-24).
//!
//! A client that moves between two servers can compare what they say, and a version that it claims to have means the same
//! content everywhere. That is worth a hash that nobody finds collisions of.

use std::fmt;

use ring::digest::{Context, SHA256};

use crate::snapshot::Body;

/// The version of a resource or of a set of resources: 128 bits, printed in hex.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(u128);

impl Version {
    /// The version of a resource with this content.
    pub(crate) fn of(body: &Body) -> Self {
        let mut hash = Hash::new();
        match body {
            Body::Message(any) => hash.part(b"message").part(any.type_url.as_bytes()).part(&any.value),
            Body::Error { code, message } => {
                hash.part(b"error").part(&(*code as i32).to_be_bytes()).part(message.as_bytes())
            }
        };
        hash.finish()
    }

    /// The version that is printed so, if it is one of ours.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let version = u128::from_str_radix(text, 16).map(Self).ok()?;
        (version.to_string() == text).then_some(version)
    }

    pub(crate) fn to_bytes(self) -> [u8; 16] {
        self.0.to_be_bytes()
    }

    /// The version of a set of resources, given in the order of their names.
    pub(crate) fn of_all<'a>(resources: impl IntoIterator<Item = (&'a str, Self)>) -> Self {
        let mut hash = Hash::new();
        for (name, version) in resources {
            hash.part(name.as_bytes()).part(&version.to_bytes());
        }
        hash.finish()
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

/// A hash of a list of byte strings: where one ends and the next begins counts.
pub(crate) struct Hash(Context);

impl Hash {
    pub(crate) fn new() -> Self {
        Self(Context::new(&SHA256))
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.update(&(bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
        self
    }

    pub(crate) fn finish(self) -> Version {
        let digest = self.0.finish();
        let half = digest.as_ref().iter().take(size_of::<u128>());
        Version(half.fold(0, |value, byte| value << 8 | u128::from(*byte)))
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;
    use crate::snapshot::Resource;
    use crate::type_url::TypeUrl;

    #[test]
    fn a_version_is_a_function_of_the_content_dx24() {
        // Spelled out: a version that changed from release to release would make every client fetch everything.
        let body = |bytes: &str| Resource::new(TypeUrl::CLUSTER, "name", bytes.as_bytes()).body;
        assert_eq!(Version::of(&body("one")).to_string(), "73a41e510663d6fa0e004cbe5ad48a5d");
        assert_eq!(Version::of(&body("one")), Version::of(&body("one")));
        assert_ne!(Version::of(&body("one")), Version::of(&body("two")));
        let error = |code, text| Version::of(&Resource::error(TypeUrl::CLUSTER, "name", code, text).body);
        assert_ne!(error(Code::NotFound, "gone"), error(Code::Internal, "gone"));
        assert_ne!(error(Code::NotFound, "gone"), error(Code::NotFound, "lost"));
    }

    #[test]
    fn the_version_of_a_set_depends_on_names_and_contents_dx24() {
        let (one, two) = (Version(1), Version(2));
        let set = Version::of_all([("a", one), ("b", two)]);
        assert_ne!(set, Version::of_all([("a", one)]));
        assert_ne!(set, Version::of_all([("a", two), ("b", one)]));
        assert_ne!(Version::of_all([("ab", one)]), Version::of_all([("a", one), ("b", one)]));
        assert_ne!(Version::of_all([]).to_string(), "");
    }
}
