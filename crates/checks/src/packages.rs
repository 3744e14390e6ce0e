//! What the packages of the workspace must have before anybody can use them from outside of it.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

/// What is wrong with one package, in words. `metadata` is what `cargo metadata` says about it, `files` are those that would be
/// packed, `published` are the names of all packages of the workspace that are published, and `ours` of all that there are.
pub fn faults(
    metadata: &Value,
    files: &[String],
    published: &BTreeSet<String>,
    ours: &BTreeSet<String>,
) -> Vec<String> {
    let name = metadata["name"].as_str().unwrap_or("?");
    let mut faults = Vec::new();
    let mut fault = |what: String| faults.push(format!("{name}: {what}"));
    for field in ["description", "license", "readme", "rust_version"] {
        if metadata[field].as_str().is_none_or(str::is_empty) {
            fault(format!("has no {field}"));
        }
    }
    for (field, most) in [("keywords", 5), ("categories", 5)] {
        let count = metadata[field].as_array().map_or(0, Vec::len);
        if count == 0 || count > most {
            fault(format!("has {count} {field}: 1 to {most} are wanted"));
        }
    }
    if has_library(metadata) && metadata["metadata"]["docs"]["rs"]["all-features"] != Value::Bool(true) {
        fault("its documentation would not be built with all features".to_owned());
    }
    for file in ["README.md", "LICENSE", "Cargo.toml"] {
        if !files.iter().any(|packed| packed == file) {
            fault(format!("{file} would not be packed"));
        }
    }
    for dependency in metadata["dependencies"].as_array().into_iter().flatten() {
        let on = dependency["name"].as_str().unwrap_or("?");
        // Also of tests: cargo keeps a dev-dependency with a version in the packed manifest, and all of ours have one.
        if ours.contains(on) && !published.contains(on) {
            fault(format!("needs {on}, which is not published"));
        }
        if ours.contains(on) && dependency["req"] == "*" {
            fault(format!("needs {on} without saying which version"));
        }
    }
    faults
}

/// What a source file includes at compile time and would not be packed, as paths from the root of the package.
pub fn missing_includes(path: &str, text: &str, files: &[String]) -> Vec<String> {
    let mut missing = Vec::new();
    for call in ["include_str!(\"", "include_bytes!(\"", "include!(\""] {
        for (at, _) in text.match_indices(call) {
            let rest = &text[at + call.len()..];
            let Some((target, _)) = rest.split_once('"') else { continue };
            let included = joined(path, target);
            if !files.contains(&included) {
                missing.push(included);
            }
        }
    }
    missing
}

fn has_library(metadata: &Value) -> bool {
    let targets = metadata["targets"].as_array().into_iter().flatten();
    targets.flat_map(|target| target["kind"].as_array().into_iter().flatten()).any(|kind| kind == "lib")
}

/// `target` as seen from the directory of `path`, without `..`.
fn joined(path: &str, target: &str) -> String {
    let mut parts: Vec<&str> = Path::new(path).parent().and_then(Path::to_str).unwrap_or("").split('/').collect();
    for part in target.split('/') {
        match part {
            ".." => drop(parts.pop()),
            "." => {}
            part => parts.push(part),
        }
    }
    parts.retain(|part| !part.is_empty());
    parts.join("/")
}
