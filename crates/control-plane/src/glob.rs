//! Glob collections: `xdstp://authority/type/path/*` stands for every resource one step below the path (GC-3, GC-10).

use std::collections::BTreeMap;

/// The name of a glob collection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Glob {
    name: String,
    /// Everything up to the last slash, and that.
    prefix: String,
    /// Context parameters, with the question mark.
    parameters: String,
}

impl Glob {
    /// A name that ends in `/*` is one of a collection; context parameters may follow.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        let (path, parameters) = split(name);
        let prefix = path.strip_suffix('*').filter(|prefix| prefix.ends_with('/') && prefix.starts_with("xdstp:"))?;
        Some(Self { name: name.to_owned(), prefix: prefix.to_owned(), parameters: parameters.to_owned() })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether a resource is a member: of the same authority, type and parameters, and one step below.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let (path, parameters) = split(name);
        let below = path.strip_prefix(self.prefix.as_str());
        below.is_some_and(|id| !id.is_empty() && !id.contains('/')) && parameters == self.parameters
    }

    /// Its members among these.
    pub(crate) fn members<'a, T>(&'a self, resources: &'a BTreeMap<String, T>) -> impl Iterator<Item = &'a String> {
        let from = resources.range::<String, _>(&self.prefix..).map(|(name, _)| name);
        from.take_while(|name| name.starts_with(&self.prefix)).filter(|name| self.contains(name))
    }
}

fn split(name: &str) -> (&str, &str) {
    name.split_at(name.find('?').unwrap_or(name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_one_step_below_with_the_same_parameters_gc3() {
        let glob = Glob::parse("xdstp://a/t/foo/*?x=1").unwrap();
        assert!(glob.contains("xdstp://a/t/foo/one?x=1"));
        for other in [
            "xdstp://a/t/foo/one",
            "xdstp://a/t/foo/one?x=2",
            "xdstp://a/t/foo/deep/one?x=1",
            "xdstp://a/t/foo/?x=1",
            "xdstp://a/t/foobar?x=1",
            "xdstp://b/t/foo/one?x=1",
        ] {
            assert!(!glob.contains(other), "{other}");
        }
        for plain in ["*", "a/*", "xdstp://a/t/foo*", "xdstp://a/t/foo"] {
            assert_eq!(Glob::parse(plain), None, "{plain}");
        }
    }

    #[test]
    fn members_are_found_without_a_look_at_all_others_gc10() {
        let names =
            ["xdstp://a/t/e/z", "xdstp://a/t/foo/1", "xdstp://a/t/foo/2", "xdstp://a/t/foo/3/4", "xdstp://a/t/g/a"];
        let resources: BTreeMap<String, ()> = names.iter().map(|name| ((*name).to_owned(), ())).collect();
        let glob = Glob::parse("xdstp://a/t/foo/*").unwrap();
        assert_eq!(glob.members(&resources).collect::<Vec<_>>(), ["xdstp://a/t/foo/1", "xdstp://a/t/foo/2"]);
    }
}
