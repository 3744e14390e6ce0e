//! The format of a last-good file, and why one is refused (FB-5).
//!
//! ```text
//! magic           8 bytes, "MSTAYLG\n"
//! format          4 bytes
//! key             length and bytes: the target of the channel, or "#server"
//! authority       length and bytes: empty for names without one, else "xdstp://" and its name
//! node id         length and bytes
//! servers         32 bytes: SHA-256 of the list of servers in the bootstrap
//! created at      8 bytes of seconds since 1970, 4 bytes of nanoseconds
//! resources       their number, then for each of them, by type and name:
//!   resource      length and bytes of an envoy.service.discovery.v3.Resource
//!   source        length and bytes: the URI of the server that sent it
//!   received at   as above
//! checksum        32 bytes: SHA-256 of everything before it
//! ```
//!
//! Numbers are big-endian; lengths and the format have 4 bytes. Reading is strict: a file that is not exactly this says why
//! not, and nothing of it is used.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envoy_types::pb::envoy::service::discovery::v3::Resource;
use envoy_types::pb::google::protobuf::Any;
use prost::Message;
use ring::digest::{Context, SHA256};

use crate::bootstrap::ServerConfig;
use crate::name::{AuthorityKey, ResourceKey};
use crate::resource_type::ResourceType;

/// What a client had last of one authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LastGoodFile {
    /// Whose it is: the target of a channel, or `#server`.
    pub key: String,
    /// Of which authority; see [`LastGoodFile::authority_text`].
    pub authority: String,
    /// Of which node.
    pub node_id: String,
    /// The list of servers that the bootstrap had.
    pub servers: [u8; 32],
    /// When this was last known to be what the servers say, since 1970.
    pub created_at: Duration,
    /// The resources, by type and name.
    pub resources: Vec<Stored>,
}

/// One resource of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which one. Of a glob collection each member is one.
    pub resource: ResourceKey,
    /// Its version.
    pub version: Arc<str>,
    /// Its bytes.
    pub value: Bytes,
    /// The URI of the server that sent it.
    pub source: Arc<str>,
    /// When it came, since 1970.
    pub received_at: Duration,
}

/// What a file must be of to be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// See [`LastGoodFile::key`].
    pub key: String,
    /// See [`LastGoodFile::authority`].
    pub authority: String,
    /// See [`LastGoodFile::node_id`].
    pub node_id: String,
    /// See [`LastGoodFile::servers`].
    pub servers: [u8; 32],
}

/// How old a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// This old.
    Known(Duration),
    /// It was made this far in the future: the clock was set back since, and nobody knows how old it is.
    ClockSetBack(Duration),
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something else.
    #[error("it is not a last-good file")]
    NotLastGood,
    /// Its format is of another release.
    #[error("it has format {0}, and this release reads format {FORMAT}")]
    Format(u32),
    /// It ends too early to have a checksum.
    #[error("it is cut off after {0} bytes")]
    CutOff(usize),
    /// Its checksum is that of something else.
    #[error("it is damaged: the checksum does not match")]
    Damaged,
    /// The checksum is right and the rest is not: not written by us.
    #[error("it is malformed: {0}")]
    Malformed(&'static str),
    /// It is of another target.
    #[error("it is of {found:?} and not of {expected:?}")]
    OtherKey {
        /// What it is of.
        found: String,
        /// What was looked for.
        expected: String,
    },
    /// It is of another node.
    #[error("it is of the node {found:?} and not of {expected:?}")]
    OtherNode {
        /// Its node id.
        found: String,
        /// Ours.
        expected: String,
    },
    /// The bootstrap names other servers than it did then.
    #[error("it was written for another list of xds_servers than that of the bootstrap")]
    OtherServers,
    /// It is too old.
    #[error("it is {} old, and max_age is {}", Span(*.age), Span(*.max_age))]
    Expired {
        /// How old.
        age: Duration,
        /// The limit.
        max_age: Duration,
    },
}

impl LastGoodFile {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(FORMAT.to_be_bytes());
        for text in [&self.key, &self.authority, &self.node_id] {
            put(&mut out, text.as_bytes());
        }
        out.extend(self.servers);
        put_time(&mut out, self.created_at);
        out.extend(length(self.resources.len()));
        for stored in &self.resources {
            let any =
                Any { type_url: stored.resource.resource_type.type_url().to_owned(), value: stored.value.to_vec() };
            let resource = Resource {
                name: stored.resource.name.to_string(),
                version: stored.version.to_string(),
                resource: Some(any),
                ..Resource::default()
            };
            put(&mut out, &resource.encode_to_vec());
            put(&mut out, stored.source.as_bytes());
            put_time(&mut out, stored.received_at);
        }
        let checksum = sha256(&out);
        out.extend(checksum);
        out
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If a single byte of it is not as it was written.
    pub fn decode(bytes: &[u8]) -> Result<Self, Refusal> {
        // One that is cut off in the magic is still one of ours.
        if !bytes.starts_with(&MAGIC[..MAGIC.len().min(bytes.len())]) {
            return Err(Refusal::NotLastGood);
        }
        let mut head = Reader(bytes.get(MAGIC.len()..).unwrap_or_default());
        let format = head.number().map_err(|_| Refusal::CutOff(bytes.len()))?;
        if format != FORMAT {
            return Err(Refusal::Format(format));
        }
        let Some((content, checksum)) = bytes.len().checked_sub(CHECKSUM).and_then(|at| bytes.split_at_checked(at))
        else {
            return Err(Refusal::CutOff(bytes.len()));
        };
        if sha256(content) != checksum {
            return Err(Refusal::Damaged);
        }
        let mut reader = Reader(content.get(MAGIC.len() + size_of::<u32>()..).unwrap_or_default());
        let mut file = Self {
            key: reader.text()?,
            authority: reader.text()?,
            node_id: reader.text()?,
            servers: reader.array()?,
            created_at: reader.time()?,
            resources: Vec::new(),
        };
        for _ in 0..reader.number()? {
            let stored = reader.stored()?;
            if file.resources.last().is_some_and(|before| before.resource >= stored.resource) {
                return Err(Refusal::Malformed("resources are not in order"));
            }
            file.resources.push(stored);
        }
        if !reader.0.is_empty() {
            return Err(Refusal::Malformed("there is more than the resources"));
        }
        Ok(file)
    }

    /// Whether a file that can be read may be used at this time, since 1970; with its age.
    ///
    /// # Errors
    /// If it is of somebody else, or too old.
    pub fn check(&self, expected: &Expected, now: Duration, max_age: Option<Duration>) -> Result<Age, Refusal> {
        for (found, expected) in [(&self.key, &expected.key), (&self.authority, &expected.authority)] {
            if found != expected {
                let (found, expected) = (found.clone(), expected.clone());
                return Err(Refusal::OtherKey { found, expected });
            }
        }
        if self.node_id != expected.node_id {
            let (found, expected) = (self.node_id.clone(), expected.node_id.clone());
            return Err(Refusal::OtherNode { found, expected });
        }
        if self.servers != expected.servers {
            return Err(Refusal::OtherServers);
        }
        let age = self.age(now);
        match (age, max_age) {
            (Age::Known(age), Some(max_age)) if age > max_age => Err(Refusal::Expired { age, max_age }),
            (Age::Known(_) | Age::ClockSetBack(_), _) => Ok(age),
        }
    }

    /// How old it is.
    pub fn age(&self, now: Duration) -> Age {
        match now.checked_sub(self.created_at) {
            Some(age) => Age::Known(age),
            None => Age::ClockSetBack(self.created_at.saturating_sub(now)),
        }
    }

    /// An authority, as files name it.
    pub fn authority_text(authority: &AuthorityKey) -> String {
        match authority {
            AuthorityKey::TopLevel => String::new(),
            AuthorityKey::Named(name) => format!("xdstp://{name}"),
        }
    }
}

impl Age {
    /// As far as it is known.
    pub fn duration(self) -> Duration {
        match self {
            Self::Known(age) => age,
            Self::ClockSetBack(_) => Duration::ZERO,
        }
    }
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(age) => write!(f, "{} old", Span(*age)),
            Self::ClockSetBack(ahead) => {
                write!(f, "of unknown age, as its time is {} ahead: the clock was set back", Span(*ahead))
            }
        }
    }
}

/// The name of the file of a key, an authority and a node.
pub fn file_name(expected: &Expected) -> String {
    let mut bytes = Vec::new();
    for text in [&expected.node_id, &expected.key, &expected.authority] {
        put(&mut bytes, text.as_bytes());
    }
    let name: String = sha256(&bytes).iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("{name}.lastgood")
}

/// Stands for a list of servers, without that of the files themselves.
pub fn servers_digest(servers: &[Arc<ServerConfig>]) -> [u8; 32] {
    let mut bytes = Vec::new();
    for server in servers.iter().filter(|server| !server.is_last_good()) {
        put(&mut bytes, server.server_uri.as_bytes());
    }
    sha256(&bytes)
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) =
            self.0.split_at_checked(count).ok_or(Refusal::Malformed("a field reaches beyond the end"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        self.take(N)?.try_into().map_err(|_| Refusal::Malformed("a field reaches beyond the end"))
    }

    fn number(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_be_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], Refusal> {
        let count = self.number()?;
        self.take(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn str(&mut self) -> Result<&'a str, Refusal> {
        std::str::from_utf8(self.bytes()?).map_err(|_| Refusal::Malformed("a text is not UTF-8"))
    }

    fn text(&mut self) -> Result<String, Refusal> {
        self.str().map(str::to_owned)
    }

    fn time(&mut self) -> Result<Duration, Refusal> {
        let seconds = self.array().map(u64::from_be_bytes)?;
        let nanos = self.number()?;
        if nanos >= 1_000_000_000 || seconds > MAX_SECONDS {
            return Err(Refusal::Malformed("a time is out of range"));
        }
        Ok(Duration::new(seconds, nanos))
    }

    fn stored(&mut self) -> Result<Stored, Refusal> {
        let resource =
            Resource::decode(self.bytes()?).map_err(|_| Refusal::Malformed("a resource cannot be decoded"))?;
        let any = resource.resource.ok_or(Refusal::Malformed("a resource has no value"))?;
        let resource_type =
            ResourceType::from_type_url(&any.type_url).ok_or(Refusal::Malformed("a resource is of an unknown type"))?;
        Ok(Stored {
            resource: ResourceKey { resource_type, name: resource.name.into() },
            version: resource.version.into(),
            value: any.value.into(),
            source: self.str()?.into(),
            received_at: self.time()?,
        })
    }
}

/// A duration for people.
struct Span(Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
        match seconds {
            0..120 => write!(f, "{seconds} s"),
            120..7200 => write!(f, "{minutes} min"),
            7200..172_800 => write!(f, "{hours} h"),
            _ => write!(f, "{days} days"),
        }
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(length(bytes.len()));
    out.extend(bytes);
}

fn put_time(out: &mut Vec<u8>, time: Duration) {
    out.extend(time.as_secs().to_be_bytes());
    out.extend(time.subsec_nanos().to_be_bytes());
}

/// Nothing that is written comes near this limit: a response is smaller. If it did, the file could not be read, and would
/// be refused.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

fn sha256(bytes: &[u8]) -> [u8; CHECKSUM] {
    let mut context = Context::new(&SHA256);
    context.update(bytes);
    let mut digest = [0; CHECKSUM];
    for (to, from) in digest.iter_mut().zip(context.finish().as_ref()) {
        *to = *from;
    }
    digest
}

const MAGIC: [u8; 8] = *b"MSTAYLG\n";
const FORMAT: u32 = 1;
const CHECKSUM: usize = 32;
/// The year 10,000: no clock is that wrong.
const MAX_SECONDS: u64 = 253_402_300_800;
