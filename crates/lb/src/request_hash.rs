//! The hash of a request, by which ring_hash finds an endpoint (A42, L-42).

use http::{HeaderMap, HeaderName};
use mainstay_xds::Choose;
use mainstay_xds::resource::matcher::RegexRewrite;
use mainstay_xds::resource::route::{HashPolicy, HashSource};
use xxhash_rust::xxh64::xxh64;

use crate::rpc::{visible_name, visible_value};

/// The hash policies of a route, ready for use.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashSteps(Box<[Step]>);

/// One hash policy.
#[derive(Clone, Debug)]
struct Step {
    source: Source,
    terminal: bool,
}

#[derive(Clone, Debug)]
enum Source {
    Header(HeaderName, Option<RegexRewrite>),
    ChannelId,
}

impl HashSteps {
    pub(crate) fn new(policies: &[HashPolicy]) -> Self {
        let step = |policy: &HashPolicy| {
            let source = match &policy.source {
                // One that requests cannot have adds nothing to the hash.
                HashSource::Header { name, rewrite } => Source::Header(visible_name(name)?, rewrite.clone()),
                HashSource::ChannelId => Source::ChannelId,
            };
            Some(Step { source, terminal: policy.terminal })
        };
        Self(policies.iter().filter_map(step).collect())
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the hash may depend on the channel's own number.
    pub(crate) fn needs_channel_id(&self) -> bool {
        self.0.iter().any(|step| matches!(step.source, Source::ChannelId))
    }

    /// The results of all policies up to the first terminal one that leaves a hash; none if no policy has a result.
    pub(crate) fn hash(&self, headers: &HeaderMap, channel_id: u64) -> Option<u64> {
        let mut hash: Option<u64> = None;
        for step in &self.0 {
            let result = match &step.source {
                Source::Header(name, rewrite) => hash_header(headers, name, rewrite.as_ref()),
                Source::ChannelId => Some(channel_id),
            };
            if let Some(result) = result {
                hash = Some(hash.map_or(result, |hash| hash.rotate_left(1) ^ result));
            }
            if step.terminal && hash.is_some() {
                break;
            }
        }
        hash
    }
}

/// The hash of a header, if the request has it.
pub(crate) fn hash_header(headers: &HeaderMap, name: &HeaderName, rewrite: Option<&RegexRewrite>) -> Option<u64> {
    let value = visible_value(headers, name)?;
    Some(match rewrite {
        Some(rewrite) => hash_bytes(rewrite.replace(&value).as_bytes()),
        None => hash_bytes(value.as_bytes()),
    })
}

/// The hash function of requests and of endpoints.
pub(crate) fn hash_bytes(bytes: &[u8]) -> u64 {
    xxh64(bytes, 0)
}

/// Any hash.
pub(crate) fn random_hash(choose: &mut dyn Choose) -> u64 {
    choose.choose(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_header_is_xxh64_of_its_value() {
        assert_eq!(hash("a", &["user"]), Some(0xd24e_c4f1_a98c_6e5b), "L-42: XXH64, seed 0");
        assert_eq!(hash("", &["user"]), Some(0xef46_db37_51d8_e999), "L-42: a value that is empty is a value");
        assert_eq!(hash("a", &["other"]), None, "L-42: no header, no hash");
    }

    #[test]
    fn several_values_are_hashed_as_one() {
        let mut headers = HeaderMap::new();
        headers.append("user", "a".parse().expect("a value"));
        headers.append("user", "b".parse().expect("a value"));
        assert_eq!(steps(&["user"]).hash(&headers, 0), hash("a,b", &["user"]), "L-34: joined with commas");
    }

    #[test]
    fn a_header_is_rewritten_before_it_is_hashed() {
        let rewrite = RegexRewrite::new("/[0-9]+", "/N").expect("a pattern");
        let source = HashSource::Header { name: "user".into(), rewrite: Some(rewrite) };
        let steps = HashSteps::new(&[HashPolicy { source, terminal: false }]);
        let of = |value: &str| steps.hash(&headers(value), 0);
        assert_eq!(of("/1/22/x"), hash("/N/N/x", &["user"]), "L-42: every match is replaced");
        assert_eq!(of("/7/8/x"), of("/1/22/x"));
    }

    #[test]
    fn results_are_combined_in_order() {
        let (a, id) = (hash("a", &["user"]).expect("a hash"), 0x8000_0000_0000_0001);
        let of = |names: &[&str]| steps(names).hash(&headers("a"), id);
        assert_eq!(of(&["channel"]), Some(id));
        assert_eq!(of(&["user", "channel"]), Some(a.rotate_left(1) ^ id), "L-42");
        assert_eq!(of(&["channel", "user"]), Some(0x0000_0000_0000_0003 ^ a), "L-42: rotated, not shifted");
        assert_eq!(of(&["absent", "channel"]), Some(id), "L-42: what has no result changes nothing");
    }

    #[test]
    fn a_terminal_policy_is_the_last_once_there_is_a_hash() {
        let a = hash("a", &["user"]);
        let of = |names: &[&str]| steps(names).hash(&headers("a"), 1);
        assert_eq!(of(&["user!", "channel"]), a, "L-42: terminal");
        assert_eq!(of(&["absent!", "channel"]), Some(1), "L-42: there is no hash yet");
        assert_eq!(of(&["channel", "absent!", "user"]), Some(1), "L-42: there is one from before");
    }

    #[test]
    fn headers_that_routes_cannot_see_are_not_hashed() {
        for name in ["user-bin", "grpc-timeout", ":path", "no name"] {
            assert!(steps(&[name]).is_empty(), "L-34: {name}");
        }
    }

    fn hash(value: &str, names: &[&str]) -> Option<u64> {
        steps(names).hash(&headers(value), 0)
    }

    fn headers(value: &str) -> HeaderMap {
        HeaderMap::from_iter([(HeaderName::from_static("user"), value.parse().expect("a value"))])
    }

    /// `channel` is the channel's own number; `!` makes a policy terminal.
    fn steps(names: &[&str]) -> HashSteps {
        let policy = |name: &&str| {
            let (name, terminal) = name.strip_suffix('!').map_or((*name, false), |name| (name, true));
            let source = match name {
                "channel" => HashSource::ChannelId,
                name => HashSource::Header { name: name.into(), rewrite: None },
            };
            HashPolicy { source, terminal }
        };
        HashSteps::new(&names.iter().map(policy).collect::<Vec<_>>())
    }
}
