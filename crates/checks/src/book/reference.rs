//! Pages of reference, written from the sources of the code that they are about.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::written_from;

/// The page of events, from the enum that has them.
pub fn events(source: &str) -> String {
    let mut page = format!(
        "# Events\n\n{}\n`Channel::events()` and `Running::events()` give out a stream of them; each prints itself in one line. What needs a person is in the \
         logs, too, at level `warn`. A `server` is the URI of an xDS server, as in the bootstrap.\n\n| event | when | what it says |\n|---|---|---|\n",
        written_from("`crates/mainstay/src/event.rs`")
    );
    for event in variants(source, "pub enum Event {") {
        let fields: Vec<String> =
            event.fields.iter().map(|(name, says)| format!("`{name}`: {}", first_sentence(says))).collect();
        let _ = writeln!(page, "| `{}` | {} | {} |", event.name, cell(&event.says), fields.join("<br>"));
    }
    page
}

/// The page of metrics of channels and servers, from the table of instruments.
pub fn metrics(source: &str) -> String {
    let mut page = format!(
        "# Metrics\n\n{}\nOf channels and servers, through OpenTelemetry (feature `opentelemetry`): [how to turn them on](../use/client.md#metrics-and-traces). \
         Those of `mainstay serve` are [elsewhere](control-plane-metrics.md).\n",
        written_from("the table in `crates/mainstay/src/telemetry/on/instruments.rs`")
    );
    let table = source.split_once("\nmetrics! {").map_or("", |(_, rest)| rest);
    let table = table.split_once("\n}").map_or(table, |(table, _)| table);
    for line in table.lines().map(str::trim) {
        if let Some(section) = line.strip_prefix("// ") {
            let section = section.split(". ").next().unwrap_or(section).trim_end_matches('.');
            let _ = write!(page, "\n## {section}\n{METRICS_HEAD}");
        } else if line == "gauges {" {
            let _ = write!(page, "\n## Gauges\n{METRICS_HEAD}");
        } else if line.ends_with("\";") {
            let texts: Vec<&str> = line.split('"').skip(1).step_by(2).collect();
            let [name, unit, says] = texts[..] else { continue };
            let before = line.split('"').next().unwrap_or("");
            let default = if before.contains(" on,") { "on" } else { "off" };
            let kind = ["Counter", "Histogram", "UpDownCounter"].into_iter().rfind(|kind| before.contains(kind));
            let kind = kind.map_or("gauge".to_owned(), str::to_lowercase);
            let _ = writeln!(page, "| `{name}` | {kind} | `{unit}` | {default} | {says} |");
        }
    }
    page
}

/// The page of the bootstrap. Which fields there are and which must be set is read from the parser; what they are for is said here, and a
/// field of which nothing is said is an error, as is one of which something is said that is not there. So is one that
/// `check`, the source of `mainstay check`, takes for a spelling mistake.
///
/// # Errors
/// What does not fit.
pub fn bootstrap(parser: &str, guards: &str, check: &str) -> Result<String, Vec<String>> {
    let mut page = format!(
        "# Bootstrap\n\n{}\nA JSON object: who is asked, and who asks. It comes from the file that `GRPC_XDS_BOOTSTRAP` names, from \
         `GRPC_XDS_BOOTSTRAP_CONFIG`, or from a value (`ChannelBuilder::bootstrap`). A wrong one is refused with the path of every faulty field; \
         unknown fields are ignored, and `mainstay check FILE` finds them.\n",
        written_from("the parser, `crates/xds/src/bootstrap/parse.rs`")
    );
    let mut wrong = Vec::new();
    let parsed = parsed_fields(parser);
    let mut described = BTreeSet::new();
    for (title, object, fields) in FIELDS {
        let _ = write!(page, "\n## {title}\n\n| field | | what it is |\n|---|---|---|\n");
        for (name, says) in *fields {
            described.insert((*object, *name));
            let Some((.., required)) = parsed.iter().find(|(of, field, _)| of == object && field == name) else {
                wrong.push(format!("nobody reads {name} of {object}"));
                continue;
            };
            let must = if *required { "must be set" } else { "" };
            let _ = writeln!(page, "| `{name}` | {must} | {says} |");
        }
    }
    for (object, name, _) in &parsed {
        if !described.contains(&(object.as_str(), name.as_str())) {
            wrong.push(format!("nothing is said of {name} of {object}"));
        }
        if !check.contains(&format!("\"{name}\"")) {
            wrong.push(format!("mainstay check does not know {name}"));
        }
    }
    let _ = write!(page, "\n## Server features\n\n| in `server_features` | what it does |\n|---|---|\n");
    let features: Vec<&str> = quoted_after(parser, "has(\"");
    for feature in &features {
        match FEATURES.iter().find(|(name, _)| name == feature) {
            Some((name, says)) => {
                let _ = writeln!(page, "| `{name}` | {says} |");
            }
            None => wrong.push(format!("nothing is said of the server feature {feature}")),
        }
    }
    let _ = write!(page, "\n## Environment variables that turn something off\n\nWith the value `false`.\n\n");
    let variables: BTreeSet<&str> = quoted_after(guards, "on(\"").into_iter().collect();
    for variable in &variables {
        let _ = writeln!(page, "- `{variable}`");
    }
    if features.is_empty() || variables.is_empty() || parsed.len() < 20 {
        wrong.push("the parser is not written as it was: teach this test to read it".to_owned());
    }
    if wrong.is_empty() { Ok(page) } else { Err(wrong) }
}

/// Object, name and whether it must be set, of every field that the parser reads.
fn parsed_fields(parser: &str) -> Vec<(String, String, bool)> {
    let mut fields: Vec<(String, String, bool)> = Vec::new();
    for (call, required) in [("required(", true), ("optional(", false), ("owned_string(", false)] {
        for (at, _) in parser.match_indices(call) {
            let rest = parser[at + call.len()..].trim_start();
            let Some((object, rest)) = rest.split_once(',') else { continue };
            let Some(name) = rest.trim_start().strip_prefix('"').and_then(|rest| rest.split('"').next()) else {
                continue;
            };
            let field = (object.to_owned(), name.to_owned(), required);
            let is_field = object.chars().all(|c| c.is_ascii_lowercase()) && !name.is_empty();
            if is_field && !fields.contains(&field) {
                fields.push(field);
            }
        }
    }
    fields
}

fn quoted_after<'a>(text: &'a str, call: &str) -> Vec<&'a str> {
    text.match_indices(call).filter_map(|(at, _)| text[at + call.len()..].split('"').next()).collect()
}

/// A variant of an enum with named fields.
struct Variant {
    name: String,
    says: String,
    fields: Vec<(String, String)>,
}

/// The variants of an enum in rustfmt's layout.
fn variants(source: &str, opening: &str) -> Vec<Variant> {
    let body = source.split_once(opening).map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let (mut found, mut says): (Vec<Variant>, String) = (Vec::new(), String::new());
    for line in body.lines() {
        let text = line.trim();
        if let Some(doc) = text.strip_prefix("///") {
            says = format!("{says} {}", doc.trim()).trim().to_owned();
        } else if let Some(name) =
            text.strip_suffix('{').filter(|_| line.starts_with("    ") && !line.starts_with("     "))
        {
            found.push(Variant { name: name.trim().to_owned(), says: std::mem::take(&mut says), fields: Vec::new() });
        } else if let (Some((name, _)), Some(variant)) = (text.split_once(':'), found.last_mut())
            && line.starts_with("        ")
        {
            variant.fields.push((name.to_owned(), std::mem::take(&mut says)));
        }
    }
    found
}

/// A doc comment as a cell of a table: links of rustdoc become their names.
fn cell(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, link)) = rest.split_once("[`") {
        let Some((name, after)) = link.split_once("`]") else { break };
        let after = after.strip_prefix('(').and_then(|after| after.split_once(')')).map_or(after, |(_, after)| after);
        let _ = write!(out, "{before}`{name}`");
        rest = after;
    }
    out.push_str(rest);
    out.replace('|', "\\|")
}

fn first_sentence(text: &str) -> String {
    let sentence = text.split(". ").next().unwrap_or(text).trim_end_matches('.');
    let mut letters = sentence.chars();
    let small = letters.next().map(|c| c.to_lowercase().collect::<String>()).unwrap_or_default();
    cell(&format!("{small}{}", letters.as_str()))
}

const METRICS_HEAD: &str = "\n| metric | kind | unit | unless told | what it says |\n|---|---|---|---|---|\n";

/// A heading, the name of the object in the parser, and each field with what it is for.
type Section = (&'static str, &'static str, &'static [(&'static str, &'static str)]);

const FIELDS: &[Section] = &[
    (
        "At the top",
        "root",
        &[
            ("xds_servers", "The control planes in order of preference; the ones after the first are fallbacks (A71)."),
            ("node", "Who this client is, for the control plane."),
            ("authorities", "By name: where `xdstp:` names of an authority come from (A47)."),
            (
                "client_default_listener_resource_name_template",
                "Makes the name of a Listener from a target without authority; `%s` is the target. `%s` by default.",
            ),
            (
                "server_listener_resource_name_template",
                "Makes the name of the Listener of a server (A36); `%s` is its address. Servers need it.",
            ),
            ("certificate_providers", "By the name that resources use: where certificates come from (A29)."),
            (
                "last_good",
                "Keep what was complete in files, and start from them (ours; other implementations ignore it).",
            ),
        ],
    ),
    (
        "A server",
        "server",
        &[
            (
                "server_uri",
                "`host:port`, or with `dns:`, `ipv4:`, `ipv6:`, `unix:`; `file:///DIR` with the feature `file-servers`.",
            ),
            ("channel_creds", "How to connect: the first entry of a known type counts. `insecure`, or `tls` (A65)."),
            ("call_creds", "What to show with each stream: `jwt_token_file` (A97)."),
            ("server_features", "A list of words; see below."),
        ],
    ),
    (
        "An entry of channel_creds or call_creds",
        "entry",
        &[("type", "`insecure`, `tls`; `jwt_token_file`."), ("config", "What the type needs.")],
    ),
    (
        "Files of certificates: config of tls, file_watcher and jwt_token_file",
        "config",
        &[
            ("ca_certificate_file", "PEM: whom to trust; for `tls` the system's roots if it is absent."),
            (
                "certificate_file",
                "PEM: our certificate, with those of the authorities in between. With `private_key_file`, or neither.",
            ),
            ("private_key_file", "PEM: its key."),
            ("spiffe_trust_bundle_map_file", "JSON: roots by trust domain (A87), in place of `ca_certificate_file`."),
            ("spiffe_bundle_map_file", "Another name for it."),
            ("refresh_interval", "How often the files are read again, such as `\"60s\"`; 10 minutes by default."),
            ("jwt_token_file", "A file with a JWT, read again before it expires (A97)."),
        ],
    ),
    (
        "node",
        "node",
        &[
            ("id", "Any text; control planes tell clients apart by it."),
            ("cluster", "Any text."),
            ("locality", "Where this client runs."),
            ("metadata", "Any JSON object."),
        ],
    ),
    ("node.locality", "locality", &[("region", "Any text."), ("zone", "Any text."), ("sub_zone", "Any text.")]),
    (
        "An authority",
        "authority",
        &[
            ("client_listener_resource_name_template", "As at the top, for targets with this authority."),
            ("xds_servers", "Servers of this authority; those at the top if absent."),
            (
                "fallback_on_reachability_only",
                "Fall back as soon as a server is lost, even if nothing is missing (A95).",
            ),
        ],
    ),
    (
        "A certificate provider",
        "provider",
        &[("plugin_name", "`file_watcher`; others are left out."), ("config", "Files of certificates, see above.")],
    ),
    (
        "last_good",
        "fields",
        &[
            ("directory", "Where the files are; nobody else may write there."),
            ("max_age", "How old a file may be that is used, such as `\"168h\"`; 7 days by default."),
            ("allow_expired", "Use one that is older all the same."),
            ("eager", "Use the files at once at the start, until a server has answered."),
            ("exclude_types", "Types of resources of which nothing is written."),
        ],
    ),
];

const FEATURES: &[(&str, &str)] = &[
    (
        "ignore_resource_deletion",
        "A53: what the server deletes stays in use. With A88, which is on, that is so anyway.",
    ),
    (
        "fail_on_data_errors",
        "A88: a resource that is deleted or becomes invalid fails RPCs, in place of staying in use.",
    ),
    (
        "resource_timer_is_transient_error",
        "A88: a server that does not send a resource is given 30 s, and that is no proof of absence.",
    ),
    ("trusted_xds_server", "A81: the server may rewrite the authority of RPCs."),
    ("mainstay_delta", "Ours: speak the incremental variant, always."),
    ("mainstay_prefer_delta", "Ours: speak the incremental variant if the server does."),
];
