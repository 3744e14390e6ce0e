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

/// When this crate is itself a downloaded or vendored package, envoy-types lies next to it, perhaps in several versions.
fn beside(manifest_dir: &Path) -> Option<PathBuf> {
    let packages = manifest_dir.parent()?;
    let vendored = packages.join("envoy-types");
    let exact = locked_version().map(|version| packages.join(format!("envoy-types-{version}")));
    [exact, Some(vendored)].into_iter().flatten().find(|package| package.join("src/generated/types.bin").is_file())
}

/// The version of envoy-types in the lock file of whoever builds: it lies above the directory we build into.
fn locked_version() -> Option<String> {
    let out_dir = PathBuf::from(env::var_os("OUT_DIR")?);
    let lock = out_dir.ancestors().map(|directory| directory.join("Cargo.lock")).find(|lock| lock.is_file())?;
    println!("cargo::rerun-if-changed={}", lock.display());
    let text = fs::read_to_string(lock).ok()?;
    let (_, package) = text.split_once("name = \"envoy-types\"")?;
    let (_, version) = package.split_once("version = \"")?;
    Some(version.split_once('"')?.0.to_owned())
}

/// Inside a workspace cargo knows where it is.
fn from_metadata(manifest_dir: &Path) -> PathBuf {
    let metadata = metadata(manifest_dir, &["--offline"]).or_else(|_| metadata(manifest_dir, &[]));
    let metadata = metadata.unwrap_or_else(|error| panic!("cargo metadata: {error}"));
    if let Some(root) = metadata["workspace_root"].as_str() {
        // Another version of envoy-types is another lock file.
        println!("cargo::rerun-if-changed={root}/Cargo.lock");
    }
    let list = |value: &serde_json::Value| value.as_array().cloned().unwrap_or_default();
    let packages = list(&metadata["packages"]);
    let id_of = |manifest: PathBuf| {
        let is_it = |package: &&serde_json::Value| package["manifest_path"].as_str().map(Path::new) == Some(&manifest);
        packages.iter().find(is_it).map(|package| package["id"].clone())
    };
    let this = id_of(manifest_dir.join("Cargo.toml"));
    let node = list(&metadata["resolve"]["nodes"]).into_iter().find(|node| Some(&node["id"]) == this.as_ref());
    let dependencies = node.map(|node| list(&node["deps"])).unwrap_or_default();
    // A dependency graph may hold several versions; ours is the one that this package was resolved to.
    let ours = dependencies.iter().find(|dependency| dependency["name"] == "envoy_types");
    let ours = ours.map(|dependency| &dependency["pkg"]).expect("envoy-types is a dependency");
    let package = packages.iter().find(|package| package["id"] == *ours).expect("every dependency is a package");
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
