//! Findings for programs: lines of JSON, SARIF, annotations of GitHub.

use serde_json::{Value, json};

use crate::catalog::Id;
use crate::finding::{Finding, Level};

/// One object, for one line.
pub fn json(finding: &Finding) -> Value {
    json!({
        "id": finding.id.name(),
        "level": finding.level().name(),
        "file": finding.file,
        "line": finding.line,
        "resource": finding.resource,
        "path": finding.path,
        "message": finding.message,
    })
}

/// A log of SARIF 2.1.0 with one run.
pub fn sarif(findings: &[Finding], version: &str) -> Value {
    let rules: Vec<Value> = Id::ALL.into_iter().map(rule).collect();
    let results: Vec<Value> = findings.iter().map(result).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": { "name": "mainstay check", "version": version, "rules": rules } },
            "results": results,
        }],
    })
}

fn rule(id: Id) -> Value {
    json!({
        "id": id.name(),
        "shortDescription": { "text": id.title() },
        "fullDescription": { "text": id.explanation() },
        "defaultConfiguration": { "level": id.level().name() },
    })
}

fn result(finding: &Finding) -> Value {
    let index = Id::ALL.iter().position(|id| *id == finding.id);
    let mut location = json!({ "physicalLocation": { "artifactLocation": { "uri": uri(&finding.file) } } });
    if let Some(line) = finding.line {
        location["physicalLocation"]["region"] = json!({ "startLine": line });
    }
    if !finding.resource.is_empty() {
        let name = [finding.resource.as_str(), finding.path.as_str()].join(" ");
        location["logicalLocations"] = json!([{ "fullyQualifiedName": name.trim() }]);
    }
    json!({
        "ruleId": finding.id.name(),
        "ruleIndex": index,
        "level": finding.level().name(),
        "message": { "text": finding.message },
        "locations": [location],
    })
}

/// What a URI cannot hold, in percent-encoding.
fn uri(file: &str) -> String {
    let mut uri = String::new();
    for byte in file.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'/' | b'-' | b'_' | b'.' | b'~' | b':' => uri.push(byte.into()),
            _ => uri.push_str(&format!("%{byte:02X}")),
        }
    }
    uri
}

/// A line that GitHub's runners show beside the file.
pub fn github(finding: &Finding) -> String {
    let command = match finding.level() {
        Level::Error => "error",
        Level::Warning => "warning",
        Level::Note => "notice",
    };
    let property = |text: &str| data(text).replace(':', "%3A").replace(',', "%2C");
    let line = finding.line.map_or_else(String::new, |line| format!(",line={line}"));
    let about = [finding.resource.as_str(), finding.path.as_str()].join(" ");
    let about = if about.trim().is_empty() { String::new() } else { format!("{}: ", about.trim()) };
    let (file, title) = (property(&finding.file), property(finding.id.name()));
    format!("::{command} file={file}{line},title={title}::{}", data(&format!("{about}{}", finding.message)))
}

fn data(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}
