//! How others behave, from what was measured with them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::Value;

use super::written_from;

/// The page of differences: who passes which script (`matrix`, `istio`), why others differ in it (`reasons`: "scenario | client | why"), and
/// what each rejects (`verdicts`, as `mainstay check --for` has them).
///
/// # Errors
/// What cannot be read.
pub fn differences(matrix: &str, istio: &str, reasons: &str, verdicts: &str) -> Result<String, String> {
    let mut page = format!(
        "# Differences from other implementations\n\n{}\nEvery table of clients was measured with the real ones, by the same scripts for all of \
         them; what must be known about single runs stands in `interop/MATRIX.md`. `mainstay` is a channel of ours; grpcio is gRPC for Python, on C-core, as for C++ and Ruby.\n",
        written_from("what `interop/run` and `interop/istio/run` wrote")
    );
    scripts(&mut page, &[("interop/run", matrix), ("interop/istio/run", istio)])?;
    why(&mut page, reasons)?;
    rejections(&mut page, verdicts)?;
    page.push_str(TONIC);
    Ok(page)
}

/// How many steps of each script each client passes.
fn scripts(page: &mut String, files: &[(&str, &str)]) -> Result<(), String> {
    let heading = "\n## Who passes what\n\nSteps of each script that are passed, of all that were played with that client. A step that differs has its reason below.\n";
    page.push_str(heading);
    for (name, text) in files {
        let mut title = "";
        let mut rows: Vec<(String, Row)> = Vec::new();
        let mut clients: Vec<String> = Vec::new();
        let _ = write!(page, "\n### `{name}`\n\n");
        if let Some(line) = text.lines().find(|line| line.starts_with("Written by")) {
            let versions = line.split_once(", with ").map_or(line, |(_, versions)| versions);
            let _ = write!(page, "With {versions}\n\n");
        }
        let mut columns: Vec<usize> = Vec::new();
        for line in text.lines() {
            if let Some(new) = line.strip_prefix("## ") {
                title = new;
                continue;
            }
            let Some(cells) = line.strip_prefix("| ").and_then(|line| line.strip_suffix(" |")) else { continue };
            let cells: Vec<&str> = cells.split(" | ").collect();
            if cells[0] == "scenario" {
                columns = cells[1..]
                    .iter()
                    .map(|client| {
                        clients.iter().position(|known| known == client).unwrap_or_else(|| {
                            clients.push((*client).to_owned());
                            clients.len() - 1
                        })
                    })
                    .collect();
                rows.push((title.to_owned(), BTreeMap::new()));
                continue;
            }
            // Where cells say what RPCs see, and not whether that is right, there is nothing to count.
            let Some((_, row)) = rows.last_mut() else { continue };
            for (cell, column) in cells[1..].iter().zip(&columns) {
                let (passed, all) = row.entry(*column).or_default();
                *passed += usize::from(cell.starts_with("pass"));
                *all += 1;
            }
        }
        rows.retain(|(_, row)| row.values().any(|(passed, _)| *passed > 0));
        if rows.is_empty() {
            return Err(format!("no table of {name} could be read"));
        }
        let _ = writeln!(page, "| script | {} |\n|---|{}", clients.join(" | "), "---|".repeat(clients.len()));
        for (title, row) in &rows {
            let cells = (0..clients.len()).map(|client| match row.get(&client) {
                Some((passed, all)) => format!("{passed} of {all}"),
                None => String::new(),
            });
            let _ = writeln!(page, "| {title} | {} |", cells.collect::<Vec<_>>().join(" | "));
        }
    }
    Ok(())
}

/// By column of a client: how many steps it passes, of how many.
type Row = BTreeMap<usize, (usize, usize)>;

/// Reasons, by client.
fn why(page: &mut String, reasons: &str) -> Result<(), String> {
    page.push_str("\n## Where they differ from us, and why\n\nLetters with numbers are [rules](rules/README.md).\n");
    let mut by_client: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for line in reasons.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let mut parts = line.splitn(3, " | ");
        let (Some(scenario), Some(client), Some(why)) = (parts.next(), parts.next(), parts.next()) else {
            return Err(format!("not \"scenario | client | why\": {line}"));
        };
        by_client.entry(client).or_default().push((scenario, why));
    }
    for (client, reasons) in by_client {
        let _ = write!(page, "\n### {client}\n\n| in | what is different |\n|---|---|\n");
        for (scenario, why) in reasons {
            let _ = writeln!(page, "| {scenario} | {} |", why.replace('|', "\\|"));
        }
    }
    Ok(())
}

/// The cases of the corpus on which the verdicts are not all the same.
fn rejections(page: &mut String, verdicts: &str) -> Result<(), String> {
    let corpus: Value = serde_json::from_str(verdicts).map_err(|error| error.to_string())?;
    let cases = corpus["cases"].as_object().ok_or("no cases")?;
    let clients = ["mainstay", "go", "cpp", "java"];
    let word = |case: &Value, client: &str| match case["verdicts"][client]["ack"].as_bool() {
        Some(true) => "takes it",
        Some(false) => "**rejects**",
        None => "",
    };
    let split: Vec<(&String, &Value)> = cases
        .iter()
        .filter(|(_, case)| {
            let words: Vec<&str> =
                clients.iter().map(|client| word(case, client)).filter(|word| !word.is_empty()).collect();
            words.iter().any(|word| *word != words[0])
        })
        .collect();
    let versions: Vec<String> = corpus["versions"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or("?")))
        .collect();
    let _ = write!(
        page,
        "\n## What each rejects\n\n{} resources, each with one peculiarity, were served to all of them on {} ({}). On {} of them they do not agree; `cpp` is C-core. `mainstay check \
         --for go,cpp,java` finds these in your resources.\n\n| case | what it is | mainstay | go | cpp | java |\n|---|---|---|---|---|---|\n",
        cases.len(),
        corpus["date"].as_str().unwrap_or("?"),
        versions.join(", "),
        split.len(),
    );
    for (name, case) in split {
        let about = case["about"].as_str().unwrap_or("").replace('|', "\\|");
        let words = clients.map(|client| word(case, client)).join(" | ");
        let _ = writeln!(page, "| `{name}` | {about} | {words} |");
    }
    Ok(())
}

const TONIC: &str = "
## tonic's own channel, and tonic-xds

| | tonic's `Channel` | Mainstay |
|---|---|---|
| an RPC whose time is up | CANCELLED | DEADLINE_EXCEEDED, as in gRPC |
| a request that its codec refuses | INTERNAL | the status of the codec |
| everything else that tonic users do with a channel | | the same: `crates/mainstay/tests/drop-in` runs the same tests on both |

`tonic-xds` (0.1.0-alpha.1 when we read it) is being built in tonic's own project. We have not measured it: these two are what its source
showed, and what ours is tested for. Its ADS worker and its watchers wait for each other, so that a route table that names more than 64
clusters stops; here the core waits for nobody. A NACK drops the last good value of a resource there; here it stays in use.
";
