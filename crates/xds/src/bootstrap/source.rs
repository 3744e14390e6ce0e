//! Where the bootstrap comes from: a file or a variable, named by the environment.

use std::fmt;
use std::path::{Path, PathBuf};

use super::{Bootstrap, Guards};
use crate::invalid::Invalid;

/// Why there is no bootstrap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BootstrapError {
    /// No variable names one (B-2). A caller that holds a bootstrap made in code may use it now.
    #[error(
        "no xDS bootstrap: set {FILE_VARIABLE} to the path of a bootstrap file, \
         or {TEXT_VARIABLE} to the JSON text itself"
    )]
    Missing,
    /// The file that `GRPC_XDS_BOOTSTRAP` names cannot be read (B-3).
    #[error(
        "cannot read the xDS bootstrap file {path:?}, which {FILE_VARIABLE} names: {cause}; \
         make the file readable for this process or correct the variable"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: String,
    },
    /// The text is there and cannot be used (B-46).
    #[error("the xDS bootstrap in {found_in} is invalid; correct it there: {invalid}")]
    Invalid {
        /// Where the text is.
        found_in: BootstrapSource,
        /// Everything that is wrong with it.
        invalid: Invalid,
    },
}

/// Where the text of a bootstrap is.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum BootstrapSource {
    /// In a file.
    File(PathBuf),
    /// In an environment variable of this name.
    Variable(&'static str),
}

impl Bootstrap {
    /// The bootstrap that the environment names.
    ///
    /// `GRPC_XDS_BOOTSTRAP` is the path of a file and wins over `GRPC_XDS_BOOTSTRAP_CONFIG`, the JSON
    /// text itself (B-1). A file that is named but cannot be used is an error, whatever the other
    /// variable holds (B-3). An empty variable counts as not set. The [`Guards`] are read too.
    ///
    /// `var` answers like `std::env::var(..).ok()` and `read_file` like `std::fs::read_to_string`.
    ///
    /// ```
    /// # use mainstay_xds::bootstrap::{Bootstrap, BootstrapError};
    /// let bootstrap = Bootstrap::from_vars(|name| std::env::var(name).ok(), |path| std::fs::read_to_string(path));
    /// match bootstrap {
    ///     Ok(bootstrap) => println!("{} servers", bootstrap.servers.len()),
    ///     Err(error) => println!("{error}"),
    /// }
    /// ```
    pub fn from_vars<E: fmt::Display>(
        var: impl Fn(&str) -> Option<String>,
        read_file: impl FnOnce(&Path) -> Result<String, E>,
    ) -> Result<Self, BootstrapError> {
        let set = |name| var(name).filter(|value| !value.is_empty());
        let (found_in, json) = if let Some(path) = set(FILE_VARIABLE) {
            let path = PathBuf::from(path);
            match read_file(&path) {
                Ok(json) => (BootstrapSource::File(path), json),
                Err(cause) => return Err(BootstrapError::Unreadable { path, cause: cause.to_string() }),
            }
        } else if let Some(json) = set(TEXT_VARIABLE) {
            (BootstrapSource::Variable(TEXT_VARIABLE), json)
        } else {
            return Err(BootstrapError::Missing);
        };
        Self::parse(&json, Guards::from_vars(var)).map_err(|invalid| BootstrapError::Invalid { found_in, invalid })
    }
}

impl fmt::Display for BootstrapSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path) => write!(f, "file {path:?}"),
            Self::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

/// Holds the path of a bootstrap file.
const FILE_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP";

/// Holds the JSON text of a bootstrap.
const TEXT_VARIABLE: &str = "GRPC_XDS_BOOTSTRAP_CONFIG";

#[cfg(test)]
mod tests {
    use super::super::tests::{minimal, two_servers};
    use super::{Bootstrap, BootstrapError, BootstrapSource, Path, PathBuf};

    #[test]
    fn the_file_wins_over_the_text() {
        // B-1
        let vars = [("GRPC_XDS_BOOTSTRAP", "/b.json"), ("GRPC_XDS_BOOTSTRAP_CONFIG", "not JSON")];
        let bootstrap = from_vars(&vars, |path| {
            assert_eq!(path, Path::new("/b.json"));
            Ok(minimal("from-file").to_string())
        });
        assert_eq!(bootstrap.unwrap().servers[0].server_uri, "from-file");
    }

    #[test]
    fn the_text_is_used_when_no_file_is_named() {
        // B-1; an empty variable names nothing.
        let text = minimal("from-text").to_string();
        for file in [None, Some("")] {
            let vars: Vec<_> = file
                .map(|f| ("GRPC_XDS_BOOTSTRAP", f))
                .into_iter()
                .chain([("GRPC_XDS_BOOTSTRAP_CONFIG", &*text)])
                .collect();
            let bootstrap = from_vars(&vars, |_| panic!("no file is named"));
            assert_eq!(bootstrap.unwrap().servers[0].server_uri, "from-text");
        }
    }

    #[test]
    fn without_a_variable_the_error_says_what_to_set() {
        // B-2
        let error = from_vars(&[], |_| panic!("no file is named")).unwrap_err();
        assert_eq!(error, BootstrapError::Missing);
        assert_eq!(
            error.to_string(),
            "no xDS bootstrap: set GRPC_XDS_BOOTSTRAP to the path of a bootstrap file, \
             or GRPC_XDS_BOOTSTRAP_CONFIG to the JSON text itself"
        );
    }

    #[test]
    fn a_file_that_cannot_be_used_is_not_replaced_by_the_text() {
        // B-3
        let good = minimal("from-text").to_string();
        let vars = [("GRPC_XDS_BOOTSTRAP", "/b.json"), ("GRPC_XDS_BOOTSTRAP_CONFIG", &*good)];
        let unreadable = from_vars(&vars, |_| Err("no such file")).unwrap_err();
        let path = PathBuf::from("/b.json");
        assert_eq!(unreadable, BootstrapError::Unreadable { path: path.clone(), cause: "no such file".to_owned() });
        assert!(unreadable.to_string().contains("\"/b.json\", which GRPC_XDS_BOOTSTRAP names: no such file;"));

        let invalid = from_vars(&vars, |_| Ok("{}".to_owned())).unwrap_err();
        assert!(
            matches!(&invalid, BootstrapError::Invalid { found_in: BootstrapSource::File(found), .. } if *found == path)
        );
        assert_eq!(
            invalid.to_string(),
            "the xDS bootstrap in file \"/b.json\" is invalid; correct it there: xds_servers: must be set"
        );
    }

    #[test]
    fn an_invalid_text_names_its_variable() {
        // B-46
        let error = from_vars(&[("GRPC_XDS_BOOTSTRAP_CONFIG", "{}")], |_| Ok(String::new())).unwrap_err();
        assert!(error.to_string().contains("in variable GRPC_XDS_BOOTSTRAP_CONFIG is invalid"), "{error}");
    }

    #[test]
    fn the_environment_also_holds_the_guards() {
        let text = two_servers().to_string();
        let vars = [("GRPC_XDS_BOOTSTRAP_CONFIG", &*text), ("GRPC_EXPERIMENTAL_XDS_FALLBACK", "false")];
        assert_eq!(from_vars(&vars, |_| Ok(String::new())).unwrap().servers.len(), 1);
    }

    fn from_vars(
        vars: &[(&str, &str)],
        read_file: impl FnOnce(&Path) -> Result<String, &'static str>,
    ) -> Result<Bootstrap, BootstrapError> {
        let var = |name: &str| vars.iter().find(|(var, _)| *var == name).map(|(_, value)| (*value).to_owned());
        Bootstrap::from_vars(var, read_file)
    }
}
