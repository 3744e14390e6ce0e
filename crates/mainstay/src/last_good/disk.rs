//! Files that are there as a whole or not at all, and that nobody else may write (FB-6, FB-7).

use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use super::LastGoodError;
use crate::process;

/// What writing does to a disk. Tests have one that fails.
pub(super) trait Disk: Send + Sync {
    /// Makes a new file with these bytes that survive a loss of power.
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes renames survive a loss of power.
    fn sync_directory(&self, directory: &Path) -> io::Result<()>;
}

/// The one of the system.
pub(super) struct SystemDisk;

impl Disk for SystemDisk {
    fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        File::open(directory)?.sync_all()
    }
}

/// Puts `bytes` in the place of a file. Whatever happens on the way, there is one that is whole: the new one, the one
/// before, or that under the name of the one before.
pub(super) fn replace(disk: &dyn Disk, directory: &Path, name: &str, bytes: &[u8]) -> Result<(), LastGoodError> {
    make_private(directory)?;
    let current = directory.join(name);
    // Another process may write the same file: the last one wins, as a whole.
    let temporary = directory.join(format!(".{name}.{}.{}{TEMPORARY}", std::process::id(), process::new_id()));
    let written = disk.write(&temporary, bytes).and_then(|()| {
        match disk.rename(&current, &previous(&current)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            Ok(()) | Err(_) => {}
        }
        disk.rename(&temporary, &current)?;
        disk.sync_directory(directory)
    });
    written.map_err(|error| {
        // It takes room on a disk that may be full, and is of no use.
        let _ = fs::remove_file(&temporary);
        LastGoodError::new(&current, format!("cannot be written: {error}"))
    })
}

/// The file that a file was before.
pub(super) fn previous(current: &Path) -> PathBuf {
    current.with_extension(PREVIOUS.trim_start_matches('.'))
}

/// The bytes of a file that only this user can have written.
pub(super) fn read(path: &Path) -> Result<Vec<u8>, LastGoodError> {
    let refused = |reason: String| LastGoodError::new(path, reason);
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => refused("there is no such file".to_owned()),
        _ => refused(format!("cannot be read: {error}")),
    };
    if let Some(directory) = path.parent() {
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
        check_directory(directory)?;
    }
    let link = fs::symlink_metadata(path).map_err(unreadable)?;
    if !link.is_file() {
        return Err(refused("is not a file of its own".to_owned()));
    }
    let mut file = File::open(path).map_err(unreadable)?;
    // Of what is open, not of what may have the name by now.
    let metadata = file.metadata().map_err(unreadable)?;
    check_private(path, &metadata)?;
    if metadata.len() > MAX_SIZE {
        return Err(refused(format!("has {} bytes, more than any configuration", metadata.len())));
    }
    let mut bytes = Vec::new();
    Read::by_ref(&mut file).take(MAX_SIZE).read_to_end(&mut bytes).map_err(unreadable)?;
    Ok(bytes)
}

/// The last-good files of a directory, in order.
pub(super) fn list(directory: &Path) -> Result<Vec<PathBuf>, LastGoodError> {
    let unreadable = |error: io::Error| LastGoodError::new(directory, format!("cannot be read: {error}"));
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.starts_with('.') && [CURRENT, PREVIOUS].iter().any(|end| name.ends_with(end)) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

/// Makes a directory for this user only, if it is not there.
fn make_private(directory: &Path) -> Result<(), LastGoodError> {
    if !directory.is_dir() {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        let made = builder.create(directory);
        made.map_err(|error| LastGoodError::new(directory, format!("cannot be made: {error}")))?;
    }
    check_directory(directory)
}

fn check_directory(directory: &Path) -> Result<(), LastGoodError> {
    let metadata = fs::metadata(directory).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => LastGoodError::new(directory, "there is no such directory"),
        _ => LastGoodError::new(directory, format!("cannot be read: {error}")),
    })?;
    check_private(directory, &metadata)
}

/// A file that others can write is a way to send traffic elsewhere.
#[cfg(unix)]
fn check_private(path: &Path, metadata: &Metadata) -> Result<(), LastGoodError> {
    use std::os::unix::fs::MetadataExt;

    let us = rustix::process::geteuid().as_raw();
    match why_not_private(metadata.uid(), metadata.mode(), us) {
        Some(reason) => Err(LastGoodError::new(path, reason)),
        None => Ok(()),
    }
}

#[cfg(not(unix))]
fn check_private(_: &Path, _: &Metadata) -> Result<(), LastGoodError> {
    Ok(())
}

#[cfg(unix)]
fn why_not_private(owner: u32, mode: u32, us: u32) -> Option<String> {
    if owner != us {
        return Some(format!("belongs to the user {owner} and not to {us}, and is not used"));
    }
    let mode = mode & 0o777;
    (mode & 0o022 != 0).then(|| format!("can be written by others (mode {mode:03o}), and is not used"))
}

/// How the names of files end.
pub(super) const CURRENT: &str = ".lastgood";
pub(super) const PREVIOUS: &str = ".lastgood-before";
const TEMPORARY: &str = ".tmp";

/// Larger than the largest response that is accepted.
const MAX_SIZE: u64 = 1 << 30;

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Fails after so many bytes, and at renames once there are none left.
    struct Torn {
        room: usize,
        renames: Mutex<usize>,
    }

    impl Disk for Torn {
        fn write(&self, path: &Path, bytes: &[u8]) -> io::Result<()> {
            if self.room >= bytes.len() {
                return SystemDisk.write(path, bytes);
            }
            SystemDisk.write(path, &bytes[..self.room])?;
            Err(io::Error::from(io::ErrorKind::StorageFull))
        }

        fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
            let mut left = self.renames.lock().unwrap();
            *left = left.checked_sub(1).ok_or(io::ErrorKind::ReadOnlyFilesystem)?;
            SystemDisk.rename(from, to)
        }

        fn sync_directory(&self, directory: &Path) -> io::Result<()> {
            SystemDisk.sync_directory(directory)
        }
    }

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_disk_that_is_full_after_any_byte_leaves_the_file_before_and_no_other() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("new");
        replace(&SystemDisk, &directory, "a.lastgood", b"first").unwrap();
        for room in 0..6 {
            let disk = Torn { room, renames: Mutex::new(9) };
            let error = replace(&disk, &directory, "a.lastgood", b"second").unwrap_err();
            assert!(error.reason.starts_with("cannot be written: "), "{error}");
            assert_eq!(names(&directory), ["a.lastgood"]);
            assert_eq!(read(&directory.join("a.lastgood")).unwrap(), b"first");
        }
        replace(&SystemDisk, &directory, "a.lastgood", b"second").unwrap();
        assert_eq!(names(&directory), ["a.lastgood", "a.lastgood-before"]);
        assert_eq!(read(&directory.join("a.lastgood")).unwrap(), b"second");
        assert_eq!(read(&previous(&directory.join("a.lastgood"))).unwrap(), b"first");
        assert_eq!(list(&directory).unwrap().len(), 2);
    }

    #[test]
    fn wherever_writing_stops_a_whole_file_is_left() {
        for renames in 0..2 {
            let home = tempfile::tempdir().unwrap();
            let directory = home.path().join("new");
            replace(&SystemDisk, &directory, "a.lastgood", b"first").unwrap();
            let disk = Torn { room: 99, renames: Mutex::new(renames) };
            replace(&disk, &directory, "a.lastgood", b"second").unwrap_err();
            let current = directory.join("a.lastgood");
            let found = read(&current).or_else(|_| read(&previous(&current))).unwrap();
            assert_eq!(found, b"first", "after {renames} renames");
        }
    }

    #[test]
    fn of_two_writers_the_last_one_wins_and_readers_see_whole_files() {
        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("new");
        replace(&SystemDisk, &directory, "a.lastgood", &[0; 4096]).unwrap();
        std::thread::scope(|scope| {
            for writer in [1, 2] {
                let directory = &directory;
                scope.spawn(move || {
                    for _ in 0..50 {
                        replace(&SystemDisk, directory, "a.lastgood", &[writer; 4096]).unwrap();
                    }
                });
            }
            let current = directory.join("a.lastgood");
            for _ in 0..200 {
                let found = [current.clone(), previous(&current)].iter().find_map(|path| read(path).ok());
                // Between two renames of each writer there may be none for a moment.
                let Some(found) = found else { continue };
                assert_eq!(found.len(), 4096);
                assert!(found.iter().all(|byte| *byte == found[0]), "a mixture");
            }
        });
        assert_eq!(names(&directory), ["a.lastgood", "a.lastgood-before"]);
    }

    #[test]
    #[cfg(unix)]
    fn what_others_own_or_may_write_is_refused_with_a_word_fb7() {
        use std::os::unix::fs::PermissionsExt;

        assert_eq!(why_not_private(7, 0o100_600, 7), None);
        assert_eq!(why_not_private(7, 0o100_644, 7), None);
        let refused = why_not_private(8, 0o100_600, 7).unwrap();
        assert_eq!(refused, "belongs to the user 8 and not to 7, and is not used");
        let refused = why_not_private(7, 0o100_620, 7).unwrap();
        assert_eq!(refused, "can be written by others (mode 620), and is not used");
        assert!(why_not_private(7, 0o100_602, 7).is_some());

        let home = tempfile::tempdir().unwrap();
        let directory = home.path().join("made/for/it");
        replace(&SystemDisk, &directory, "a.lastgood", b"x").unwrap();
        let path = directory.join("a.lastgood");
        assert_eq!(fs::metadata(&directory).unwrap().permissions().mode() & 0o777, 0o700);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        // A directory that others may write to is as bad, for reading and for writing.
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(read(&path).unwrap_err().reason.contains("mode 777"));
        assert!(replace(&SystemDisk, &directory, "a.lastgood", b"y").unwrap_err().reason.contains("mode 777"));
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).unwrap();
        // Neither is a link followed, which may lead anywhere.
        let link = directory.join("b.lastgood");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(read(&link).unwrap_err().reason, "is not a file of its own");
        assert_eq!(read(&directory.join("c.lastgood")).unwrap_err().reason, "there is no such file");
    }
}
