//! How the connections of a command are secured.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use mainstay::{Credentials, certificates::Identity};

use crate::failure::Failure;

// The flags for it. Not a doc comment: clap would show it as the help of the command.
#[derive(Args, Debug)]
pub(crate) struct CredentialFlags {
    /// How connections to endpoints are secured: insecure; as the control plane says (xds), in plaintext where it says
    /// nothing; or tls, where endpoints must have the name of the target
    #[arg(long, value_enum, value_name = "KIND", default_value = "insecure", hide_possible_values = true)]
    credentials: Kind,

    /// With --credentials tls: the certificates of the authorities to trust, in PEM [default: those of the system]
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// With --credentials tls: our certificate, for endpoints that ask for one (mTLS)
    #[arg(long, value_name = "FILE", requires = "key")]
    cert: Option<PathBuf>,

    /// With --credentials tls: the private key of --cert
    #[arg(long, value_name = "FILE", requires = "cert")]
    key: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Kind {
    Insecure,
    Xds,
    Tls,
}

impl CredentialFlags {
    pub(crate) fn resolve(&self) -> Result<Credentials, Failure> {
        let identity = self.cert.as_deref().zip(self.key.as_deref());
        let has_files = self.ca.is_some() || identity.is_some();
        match self.credentials {
            Kind::Insecure | Kind::Xds if has_files => {
                Err(Failure::usage("--ca, --cert and --key are for --credentials tls only")
                    .tip("with --credentials xds, certificates come from the certificate_providers of the bootstrap"))
            }
            Kind::Insecure => Ok(Credentials::insecure()),
            Kind::Xds => Ok(Credentials::xds(Credentials::insecure())),
            Kind::Tls => self.tls(identity),
        }
    }

    fn tls(&self, identity: Option<(&Path, &Path)>) -> Result<Credentials, Failure> {
        let identity = identity.map(|(cert, key)| {
            let identity = Identity::from_pem(&read("--cert", cert)?, &read("--key", key)?);
            identity.map_err(|error| Failure::failed(format!("--cert {}: {error}", cert.display())))
        });
        let identity = identity.transpose()?;
        let credentials = match (&self.ca, identity) {
            (None, None) => Credentials::tls(),
            (None, Some(_)) => {
                return Err(Failure::usage("--cert needs --ca")
                    .tip("name the file with the authority that vouches for the endpoints"));
            }
            (Some(ca), identity) => Credentials::tls_from_pem(&read("--ca", ca)?, identity),
        };
        credentials.map_err(|error| match &self.ca {
            Some(ca) => Failure::failed(format!("--ca {}: {error}", ca.display())),
            None => Failure::failed(error.to_string()).tip("name a file with certificates in --ca"),
        })
    }
}

fn read(flag: &str, path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).map_err(|error| Failure::failed(format!("{flag} {}: {error}", path.display())))
}
