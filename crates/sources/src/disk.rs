//! What a replica served last, on its own disk, for a start without the engine (FB-28).
//!
//! As last-good files of clients (FB-5, FB-6, FB-7): one file, replaced by rename, refused as a whole if a single byte is not as it
//! was written, or if another user could have written it. Not in their format, as a control plane also serves types that clients
//! do not know, sets of single nodes, and errors.
//!
//! ```text
//! magic       8 bytes, "MSTAYVW\n"
//! format      4 bytes
//! source      length and bytes: what was followed
//! position    length and bytes: where in it this was
//! entries     their number, then for each, by key: length and bytes of the key, length and bytes of the value
//! checksum    32 bytes: SHA-256 of everything before it
//! ```
//!
//! Numbers are big-endian and have 4 bytes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use ring::digest::{SHA256, digest};

use crate::entries::Entries;

/// What a replica served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    /// What was followed; a view of something else is refused.
    pub source: String,
    /// Where in it this was, in the words of the source.
    pub position: String,
    /// The resources.
    pub entries: Entries,
}

/// Why a view cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unusable {
    /// It cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(#[from] io::Error),
    /// Another user could have written it.
    #[error("it belongs to another user, or others may write to it")]
    NotOurs,
    /// Not one of ours, or not whole.
    #[error("it is not a view of this release, or it is damaged")]
    Damaged,
    /// It is of something else.
    #[error("it is of {0:?}")]
    OtherSource(String),
}

impl View {
    /// The bytes of the file.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(FORMAT.to_be_bytes());
        put(&mut out, self.source.as_bytes());
        put(&mut out, self.position.as_bytes());
        out.extend(length(self.entries.len()));
        for (key, value) in self.entries.iter() {
            put(&mut out, key.as_bytes());
            put(&mut out, value);
        }
        let checksum = digest(&SHA256, &out);
        out.extend(checksum.as_ref());
        out
    }

    /// Reads a file; nothing of one that is not exactly as it was written.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let (content, checksum) = bytes.split_at_checked(bytes.len().checked_sub(CHECKSUM)?)?;
        if digest(&SHA256, content).as_ref() != checksum {
            return None;
        }
        let mut reader = Reader(content.strip_prefix(&MAGIC)?.strip_prefix(&FORMAT.to_be_bytes())?);
        let (source, position) = (reader.text()?, reader.text()?);
        let entries = (0..reader.number()?).map(|_| Some((reader.text()?, Bytes::copy_from_slice(reader.bytes()?))));
        let entries = entries.collect::<Option<Entries>>()?;
        reader.0.is_empty().then_some(Self { source, position, entries })
    }

    /// Writes it in place of the one before: to a file beside it, which is then renamed.
    ///
    /// # Errors
    /// If the disk does not take it; the one before stays.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        let directory = directory_of(file);
        make_directory(&directory)?;
        let beside = file.with_extension("new");
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut out = options.open(&beside)?;
        out.write_all(&self.encode())?;
        out.sync_all()?;
        fs::rename(&beside, file)?;
        // The name must last, too. Where directories cannot be opened there is nothing to sync.
        File::open(&directory)
            .and_then(|directory| directory.sync_all())
            .or_else(|error| if cfg!(unix) { Err(error) } else { Ok(()) })
    }

    /// The view of this source in a file, if there is a file.
    ///
    /// # Errors
    /// If there is something else.
    pub fn read(file: &Path, source: &str) -> Result<Option<Self>, Unusable> {
        let mut opened = match File::open(file) {
            Ok(opened) => opened,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        if !is_ours(&opened.metadata()?) || !is_ours(&fs::metadata(directory_of(file))?) {
            return Err(Unusable::NotOurs);
        }
        let mut bytes = Vec::new();
        opened.read_to_end(&mut bytes)?;
        let view = Self::decode(&bytes).ok_or(Unusable::Damaged)?;
        if view.source == source { Ok(Some(view)) } else { Err(Unusable::OtherSource(view.source)) }
    }
}

fn directory_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

fn make_directory(directory: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(directory)
}

/// Whether nobody but this user, or the superuser, can have put it there.
#[cfg(unix)]
fn is_ours(metadata: &fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = metadata.uid();
    (owner == rustix::process::geteuid().as_raw() || owner == 0) && metadata.mode() & 0o022 == 0
}

#[cfg(not(unix))]
fn is_ours(_metadata: &fs::Metadata) -> bool {
    true
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Option<u32> {
        let (taken, rest) = self.0.split_at_checked(size_of::<u32>())?;
        self.0 = rest;
        Some(u32::from_be_bytes(taken.try_into().ok()?))
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let count = usize::try_from(self.number()?).ok()?;
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(length(bytes.len()));
    out.extend(bytes);
}

/// What is longer could not be read, and is refused then; no engine holds values of 4 GiB.
fn length(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

const MAGIC: [u8; 8] = *b"MSTAYVW\n";
const FORMAT: u32 = 1;
const CHECKSUM: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_fb28() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("sub/view");
        assert!(matches!(View::read(&file, "etcd a"), Ok(None)));
        view().write(&file).expect("a writable directory");
        view().write(&file).expect("once more");
        assert_eq!(View::read(&file, "etcd a").expect("usable"), Some(view()));
        assert!(matches!(View::read(&file, "etcd b"), Err(Unusable::OtherSource(source)) if source == "etcd a"));
    }

    #[test]
    fn a_byte_too_few_or_another_one_refuses_all_of_it_fb28() {
        let bytes = view().encode();
        assert_eq!(View::decode(&bytes), Some(view()));
        for cut in 0..bytes.len() {
            assert_eq!(View::decode(&bytes[..cut]), None, "cut at {cut}");
        }
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_eq!(View::decode(&other), None, "flipped at {at}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn what_others_may_write_is_refused_fb28() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("view");
        view().write(&file).expect("a writable directory");
        let mode = |path: &Path| fs::metadata(path).expect("there").permissions().mode() & 0o777;
        assert_eq!(mode(&file), 0o600);
        for path in [file.as_path(), directory.path()] {
            let before = fs::metadata(path).expect("there").permissions();
            fs::set_permissions(path, PermissionsExt::from_mode(0o722)).expect("ours");
            assert!(matches!(View::read(&file, "etcd a"), Err(Unusable::NotOurs)));
            fs::set_permissions(path, before).expect("ours");
        }
        assert!(View::read(&file, "etcd a").is_ok());
    }

    fn view() -> View {
        let entries = [("envoy.config.cluster.v3.Cluster/a".to_owned(), Bytes::from_static(b"value"))];
        View { source: "etcd a".to_owned(), position: "7".to_owned(), entries: entries.into_iter().collect() }
    }
}
