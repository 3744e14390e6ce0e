//! What the repository demands of itself. The checks are in `tests/`; here is how they read the tree.

use std::path::{Path, PathBuf};
use std::{fs, io};

pub mod book;
pub mod breaking;
pub mod modules;
pub mod packages;
pub mod public_api;
pub mod rules;

/// The root of the repository.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A text file of the repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// From the root of the repository, with slashes.
    pub path: String,
    /// What is in it.
    pub text: String,
}

/// Every file below `directory` that people write: code, scripts and prose, in the order of their paths.
///
/// # Errors
/// What the file system says.
pub fn sources(directory: &Path) -> io::Result<Vec<Source>> {
    let mut found = Vec::new();
    collect(directory, "", &mut found)?;
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(directory: &Path, prefix: &str, found: &mut Vec<Source>) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = format!("{prefix}{name}");
        if entry.file_type()?.is_dir() {
            if !is_made(prefix, &name) {
                collect(&entry.path(), &format!("{path}/"), found)?;
            }
        } else if is_written(&name)
            && let Ok(text) = fs::read_to_string(entry.path())
        {
            found.push(Source { path, text });
        }
    }
    Ok(())
}

/// Whether a directory holds what tools make: builds, caches, other people's packages. Below `src`, `target` is a module.
fn is_made(prefix: &str, name: &str) -> bool {
    matches!(name, "node_modules" | "corpus" | "artifacts" | "__pycache__")
        || (name == "target" && !prefix.ends_with("src/"))
        || (name.starts_with('.') && name != ".ci")
}

fn is_written(name: &str) -> bool {
    let extension = name.rsplit_once('.').map_or("", |(_, extension)| extension);
    matches!(extension, "rs" | "md" | "toml" | "py" | "go" | "java" | "js" | "sh" | "txt" | "yaml" | "proto")
        || name == "run"
}
