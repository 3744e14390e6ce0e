//! Copies the descriptor set of Envoy's messages, which envoy-types ships but does not export, to where the crate can
//! include it. With it files and dumps use the JSON that Envoy users know.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

fn main() {
    let manifest_dir = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR"));
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let package = beside(&manifest_dir).unwrap_or_else(|| from_metadata(&manifest_dir));
    let descriptors = package.join("src/generated/types.bin");
    fs::copy(&descriptors, out_dir.join("types.bin"))
        .unwrap_or_else(|error| panic!("cannot copy {}: {error}", descriptors.display()));
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", descriptors.display());
}

/// When this crate is itself a downloaded or vendored package, envoy-types lies next to it.
fn beside(manifest_dir: &Path) -> Option<PathBuf> {
    let packages = fs::read_dir(manifest_dir.parent()?).ok()?;
    let mut found: Vec<PathBuf> = packages
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("envoy-types")))
        .filter(|path| path.join("src/generated/types.bin").is_file())
        .collect();
    found.sort();
    found.pop()
}

/// Inside a workspace cargo knows where it is.
fn from_metadata(manifest_dir: &Path) -> PathBuf {
    let metadata = metadata(manifest_dir, &["--offline"]).or_else(|_| metadata(manifest_dir, &[]));
    let metadata = metadata.unwrap_or_else(|error| panic!("cargo metadata: {error}"));
    if let Some(root) = metadata["workspace_root"].as_str() {
        // Another version of envoy-types is another lock file.
        println!("cargo::rerun-if-changed={root}/Cargo.lock");
    }
    let packages = metadata["packages"].as_array().expect("cargo metadata lists packages");
    let package =
        packages.iter().find(|package| package["name"] == "envoy-types").expect("envoy-types is a dependency");
    let manifest = package["manifest_path"].as_str().expect("every package has a manifest");
    Path::new(manifest).parent().expect("a manifest lies in a directory").to_owned()
}

fn metadata(manifest_dir: &Path, flags: &[&str]) -> Result<serde_json::Value, String> {
    let cargo = env::var_os("CARGO").expect("cargo sets CARGO");
    let output = Command::new(cargo)
        .args(["metadata", "--format-version", "1", "--manifest-path"])
        .arg(manifest_dir.join("Cargo.toml"))
        .args(flags)
        .output()
        .map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|error| error.to_string())
}
