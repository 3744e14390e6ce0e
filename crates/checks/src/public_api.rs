//! The public API of a crate, read from rustdoc's JSON: one line per item, and what of other crates is in it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use serde_json::Value;

/// The public API of a crate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PublicApi {
    /// One line per item, sorted: signatures with the public paths of our types.
    pub lines: BTreeSet<String>,
    /// The other crates whose items are named in it, each with the lines that name them. The standard library is none.
    pub foreign: BTreeMap<String, BTreeSet<String>>,
    /// Types of this crate that signatures name and nobody outside can.
    pub unnameable: BTreeSet<String>,
    /// Enums, and structs without private fields, to which nothing can be added without breaking users.
    pub exhaustive: BTreeSet<String>,
    /// What the documentation of each item says.
    pub docs: BTreeMap<String, String>,
}

impl PublicApi {
    /// Reads the JSON that rustdoc writes for a crate.
    ///
    /// # Panics
    /// If the JSON is of a form that this reader does not know.
    pub fn read(json: &Value) -> Self {
        let mut paths = BTreeMap::new();
        let root = id(&json["root"]);
        let name = text(&json["index"][&root]["name"]);
        name_items(json, &root, &name, &mut paths);
        let mut reader = Reader { json, paths: &paths, api: Self::default(), mentioned: BTreeSet::new() };
        reader.docs(&root, &name);
        for (item, path) in &paths {
            reader.item(item, path);
        }
        reader.reexports(&root);
        reader.api
    }

    /// The names of the crates in the list that the documentation of the crate has under `heading`: its items begin with
    /// a name in backticks.
    pub fn documented(&self, name: &str, heading: &str) -> BTreeSet<String> {
        let docs = self.docs.get(name).map_or("", String::as_str);
        let section =
            docs.lines().skip_while(|line| *line != heading).skip(1).take_while(|line| !line.starts_with("# "));
        section.filter_map(|line| Some(line.strip_prefix("- `")?.split('`').next()?.to_owned())).collect()
    }

    /// The text that is committed.
    pub fn page(&self) -> String {
        let mut page = String::new();
        for line in &self.lines {
            let _ = writeln!(page, "{line}");
        }
        page
    }
}

/// Gives every item that can be named from outside its path there. The shortest of several counts.
fn name_items(json: &Value, module: &str, path: &str, paths: &mut BTreeMap<String, String>) {
    for child in list(&json["index"][module]["inner"]["module"]["items"]) {
        let item = &json["index"][&id(child)];
        let (kind, inner) = kind(item);
        let (target, name) = match kind {
            "use" if inner["id"].is_null() => continue,
            "use" => (id(&inner["id"]), text(&inner["name"])),
            _ => (id(child), text(&item["name"])),
        };
        let found = &json["index"][&target];
        if found["crate_id"] != 0 || (kind != "use" && found["visibility"] != "public") {
            continue;
        }
        let is_glob = kind == "use" && inner["is_glob"] == true;
        let path = if is_glob { path.to_owned() } else { format!("{path}::{name}") };
        let is_shorter = paths.get(&target).is_none_or(|known| known.len() > path.len());
        if is_shorter && !is_glob {
            paths.insert(target.clone(), path.clone());
        }
        if found["inner"].get("module").is_some() && (is_shorter || is_glob) {
            name_items(json, &target, &path, paths);
        }
    }
}

struct Reader<'a> {
    json: &'a Value,
    paths: &'a BTreeMap<String, String>,
    api: PublicApi,
    /// What the line that is being written names.
    mentioned: BTreeSet<String>,
}

impl Reader<'_> {
    /// Adds a line, and everything that it names.
    fn line(&mut self, line: String) {
        for crate_name in std::mem::take(&mut self.mentioned) {
            self.api.foreign.entry(crate_name).or_default().insert(line.clone());
        }
        self.api.lines.insert(line);
    }

    fn docs(&mut self, item: &str, path: &str) {
        if let Some(docs) = self.json["index"][item]["docs"].as_str() {
            self.api.docs.insert(path.to_owned(), docs.to_owned());
        }
    }

    /// What is re-exported from other crates, in any public module.
    fn reexports(&mut self, root: &str) {
        let json = self.json;
        let modules = self.paths.keys().map(String::as_str).chain([root]);
        for module in modules.filter(|module| json["index"][*module]["inner"].get("module").is_some()) {
            for child in list(&json["index"][module]["inner"]["module"]["items"]) {
                let (kind, inner) = kind(&json["index"][&id(child)]);
                let target = id(&inner["id"]);
                let is_ours = json["index"][&target]["crate_id"] == 0;
                if kind == "use" && !is_ours {
                    let source = text(&inner["source"]);
                    let from = self.crate_of(&target).unwrap_or_else(|| source.split("::").next().unwrap_or("").into());
                    self.mentioned.insert(from);
                    self.line(format!("pub use {source}"));
                }
            }
        }
    }

    fn item(&mut self, item_id: &str, path: &str) {
        let item = &self.json["index"][item_id];
        let (kind, inner) = kind(item);
        self.docs(item_id, path);
        match kind {
            "module" => self.line(format!("pub mod {path}")),
            "struct" | "union" => self.structure(item, kind, inner, path),
            "enum" => {
                let marks = self.marks(item);
                let generics = self.generics(&inner["generics"]);
                self.line(format!("{marks}pub enum {path}{generics}"));
                if !marks.contains(NON_EXHAUSTIVE) {
                    self.api.exhaustive.insert(path.to_owned());
                }
                for variant in list(&inner["variants"]) {
                    self.variant(&id(variant), path);
                }
                self.impls(inner, path);
            }
            "trait" => {
                let generics = self.generics(&inner["generics"]);
                let bounds = self.bounds(&inner["bounds"]);
                let bounds = if bounds.is_empty() { bounds } else { format!(": {bounds}") };
                self.line(format!("pub trait {path}{generics}{bounds}"));
                self.members(list(&inner["items"]), path, true);
            }
            "function" => self.function(item, inner, path),
            "constant" | "static" => {
                let found = self.ty(&inner["type"]);
                self.line(format!("pub const {path}: {found}"));
            }
            "type_alias" => {
                let generics = self.generics(&inner["generics"]);
                let found = self.ty(&inner["type"]);
                self.line(format!("pub type {path}{generics} = {found}"));
            }
            "macro" | "proc_macro" => self.line(format!("pub macro {path}!")),
            "trait_alias" | "primitive" | "keyword" | "extern_type" => panic!("{path}: no word for a {kind} yet"),
            other => panic!("{path}: rustdoc has a new kind of item, {other}"),
        }
    }

    fn structure(&mut self, item: &Value, kind: &str, inner: &Value, path: &str) {
        let marks = self.marks(item);
        let generics = self.generics(&inner["generics"]);
        let shape = &inner["kind"];
        let (fields, is_open) = match shape {
            Value::String(_) => (&[][..], true),
            _ if !shape["tuple"].is_null() => {
                let fields = list(&shape["tuple"]);
                (fields, fields.iter().all(|field| !field.is_null()))
            }
            _ if !shape["plain"].is_null() => {
                (list(&shape["plain"]["fields"]), shape["plain"]["has_stripped_fields"] == false)
            }
            _ => (list(&inner["fields"]), inner["has_stripped_fields"] == false),
        };
        self.line(format!("{marks}pub {kind} {path}{generics}"));
        if is_open && !marks.contains(NON_EXHAUSTIVE) {
            self.api.exhaustive.insert(path.to_owned());
        }
        self.fields(fields, path);
        self.impls(inner, path);
    }

    fn fields(&mut self, fields: &[Value], path: &str) {
        for (index, field) in fields.iter().enumerate().filter(|(_, field)| !field.is_null()) {
            let item = &self.json["index"][&id(field)];
            let path = format!("{path}::{}", item["name"].as_str().map_or_else(|| index.to_string(), str::to_owned));
            self.docs(&id(field), &path);
            let found = self.ty(&item["inner"]["struct_field"]);
            self.line(format!("pub {path}: {found}"));
        }
    }

    fn variant(&mut self, variant: &str, path: &str) {
        let item = &self.json["index"][variant];
        let path = format!("{path}::{}", text(&item["name"]));
        self.docs(variant, &path);
        let marks = self.marks(item);
        self.line(format!("{marks}pub {path}"));
        let shape = &item["inner"]["variant"]["kind"];
        if shape.is_object() {
            let fields = if shape["tuple"].is_null() { &shape["struct"]["fields"] } else { &shape["tuple"] };
            self.fields(list(fields), &path);
        }
    }

    /// What is written for a type: its own methods and the traits. What every type has is left out.
    fn impls(&mut self, inner: &Value, path: &str) {
        let json = self.json;
        for implementation in list(&inner["impls"]) {
            let implementation = &json["index"][&id(implementation)]["inner"]["impl"];
            let is_given = implementation["is_synthetic"] == true || !implementation["blanket_impl"].is_null();
            let of = &implementation["trait"];
            if is_given || text(&of["path"]).ends_with("StructuralPartialEq") {
                continue;
            }
            if of.is_null() {
                self.members(list(&implementation["items"]), path, false);
                continue;
            }
            let generics = self.generics(&implementation["generics"]);
            let of = self.path(of);
            let target = self.ty(&implementation["for"]);
            self.line(format!("impl{generics} {of} for {target}"));
            for member in list(&implementation["items"]) {
                let item = &json["index"][&id(member)];
                let (kind, inner) = kind(item);
                if kind == "assoc_type" {
                    let found = self.ty(&inner["type"]);
                    self.line(format!("type <{target} as {of}>::{} = {found}", text(&item["name"])));
                }
            }
        }
    }

    fn members(&mut self, members: &[Value], path: &str, of_trait: bool) {
        for member in members {
            let item = &self.json["index"][&id(member)];
            if !of_trait && item["visibility"] != "public" {
                continue;
            }
            let path = format!("{path}::{}", text(&item["name"]));
            self.docs(&id(member), &path);
            let (kind, inner) = kind(item);
            match kind {
                "function" => self.function(item, inner, &path),
                "assoc_const" => {
                    let found = self.ty(&inner["type"]);
                    self.line(format!("pub const {path}: {found}"));
                }
                "assoc_type" => {
                    let bounds = self.bounds(&inner["bounds"]);
                    self.line(format!("pub type {path}: {bounds}"));
                }
                other => panic!("{path}: rustdoc has a new kind of member, {other}"),
            }
        }
    }

    fn function(&mut self, item: &Value, inner: &Value, path: &str) {
        let marks = self.marks(item);
        let generics = self.generics(&inner["generics"]);
        let mut arguments = Vec::new();
        for input in list(&inner["sig"]["inputs"]) {
            let found = self.ty(&input[1]);
            arguments.push(match (text(&input[0]).as_str(), found.as_str()) {
                ("self", "Self") => "self".to_owned(),
                ("self", "&Self") => "&self".to_owned(),
                ("self", "&mut Self") => "&mut self".to_owned(),
                (name, found) => format!("{name}: {found}"),
            });
        }
        let output = &inner["sig"]["output"];
        let output = if output.is_null() { String::new() } else { format!(" -> {}", self.ty(output)) };
        let header = &inner["header"];
        let flag = |name: &str, word: &'static str| if header[name] == true { word } else { "" };
        let words = [flag("is_const", "const "), flag("is_async", "async "), flag("is_unsafe", "unsafe ")].concat();
        self.line(format!("{marks}pub {words}fn {path}{generics}({}){output}", arguments.join(", ")));
    }

    /// The attributes that are part of the contract.
    fn marks(&self, item: &Value) -> String {
        let attributes = item["attrs"].to_string();
        let mark = |word: &str, mark: &'static str| if attributes.contains(word) { mark } else { "" };
        [mark("non_exhaustive", "#[non_exhaustive] "), mark("must_use", "#[must_use] ")].concat()
    }

    fn generics(&mut self, generics: &Value) -> String {
        let mut parts = Vec::new();
        for parameter in list(&generics["params"]) {
            let (kind, inner) = only(&parameter["kind"]);
            if inner["is_synthetic"] == true {
                continue;
            }
            let name = text(&parameter["name"]);
            parts.push(match kind {
                "type" if !list(&inner["bounds"]).is_empty() => format!("{name}: {}", self.bounds(&inner["bounds"])),
                "const" => format!("const {name}: {}", self.ty(&inner["type"])),
                _ => name,
            });
        }
        let mut conditions = Vec::new();
        for predicate in list(&generics["where_predicates"]) {
            let predicate = &predicate["bound_predicate"];
            if !predicate.is_null() {
                let found = self.ty(&predicate["type"]);
                let bounds = self.bounds(&predicate["bounds"]);
                conditions.push(format!("{found}: {bounds}"));
            }
        }
        if !conditions.is_empty() {
            parts.push(format!("where {}", conditions.join(", ")));
        }
        if parts.is_empty() { String::new() } else { format!("<{}>", parts.join(", ")) }
    }

    fn bounds(&mut self, bounds: &Value) -> String {
        let mut parts = Vec::new();
        for bound in list(bounds) {
            if let Some(lifetime) = bound["outlives"].as_str() {
                parts.push(lifetime.to_owned());
            } else if !bound["trait_bound"].is_null() {
                let maybe = if bound["trait_bound"]["modifier"] == "maybe" { "?" } else { "" };
                parts.push(format!("{maybe}{}", self.path(&bound["trait_bound"]["trait"])));
            }
        }
        parts.join(" + ")
    }

    fn ty(&mut self, found: &Value) -> String {
        let (kind, inner) = only(found);
        match kind {
            "resolved_path" => self.path(inner),
            "generic" | "primitive" => text(inner),
            "tuple" => {
                let parts: Vec<_> = list(inner).iter().map(|part| self.ty(part)).collect();
                format!("({})", parts.join(", "))
            }
            "slice" => format!("[{}]", self.ty(inner)),
            "array" => format!("[{}; {}]", self.ty(&inner["type"]), text(&inner["len"])),
            "borrowed_ref" => {
                let lifetime = inner["lifetime"].as_str().map_or(String::new(), |lifetime| format!("{lifetime} "));
                let mutable = if inner["is_mutable"] == true { "mut " } else { "" };
                format!("&{lifetime}{mutable}{}", self.ty(&inner["type"]))
            }
            "raw_pointer" => format!("*{}", self.ty(&inner["type"])),
            "impl_trait" => format!("impl {}", self.bounds(inner)),
            "dyn_trait" => {
                let mut parts: Vec<_> = list(&inner["traits"]).iter().map(|part| self.path(&part["trait"])).collect();
                parts.extend(inner["lifetime"].as_str().map(str::to_owned));
                format!("dyn {}", parts.join(" + "))
            }
            "qualified_path" => {
                let own = self.ty(&inner["self_type"]);
                let of = if inner["trait"].is_null() { String::new() } else { self.path(&inner["trait"]) };
                let name = text(&inner["name"]);
                if of.is_empty() { format!("{own}::{name}") } else { format!("<{own} as {of}>::{name}") }
            }
            "function_pointer" => {
                let inputs: Vec<_> = list(&inner["sig"]["inputs"]).iter().map(|input| self.ty(&input[1])).collect();
                let output = &inner["sig"]["output"];
                let output = if output.is_null() { String::new() } else { format!(" -> {}", self.ty(output)) };
                format!("fn({}){output}", inputs.join(", "))
            }
            "infer" => "_".to_owned(),
            other => panic!("rustdoc has a new kind of type, {other}: {inner}"),
        }
    }

    /// A type or trait with its arguments, by its public path if it is ours and by its crate if it is not.
    fn path(&mut self, path: &Value) -> String {
        let target = id(&path["id"]);
        let written = text(&path["path"]);
        let last = written.rsplit("::").next().unwrap_or_default();
        let name = match (self.paths.get(&target), self.crate_of(&target)) {
            (Some(ours), _) => ours.clone(),
            (None, Some(foreign)) => {
                let full = list(&self.json["paths"][&target]["path"]);
                let last = full.last().and_then(Value::as_str).unwrap_or(last);
                if matches!(foreign.as_str(), "std" | "core" | "alloc") {
                    last.to_owned()
                } else {
                    self.mentioned.insert(foreign.clone());
                    format!("{foreign}::{last}")
                }
            }
            (None, None) => {
                self.api.unnameable.insert(written.clone());
                written
            }
        };
        format!("{name}{}", self.arguments(&path["args"]))
    }

    fn arguments(&mut self, arguments: &Value) -> String {
        if let Some(called) = arguments.get("parenthesized") {
            let inputs: Vec<_> = list(&called["inputs"]).iter().map(|input| self.ty(input)).collect();
            let output = &called["output"];
            let output = if output.is_null() { String::new() } else { format!(" -> {}", self.ty(output)) };
            return format!("({}){output}", inputs.join(", "));
        }
        let Some(bracketed) = arguments.get("angle_bracketed") else { return String::new() };
        let mut parts = Vec::new();
        for argument in list(&bracketed["args"]) {
            let (kind, inner) = only(argument);
            parts.push(match kind {
                "type" => self.ty(inner),
                "lifetime" => text(inner),
                "const" => text(&inner["expr"]),
                _ => "_".to_owned(),
            });
        }
        for constraint in list(&bracketed["constraints"]) {
            let name = text(&constraint["name"]);
            let equal = &constraint["binding"]["equality"]["type"];
            parts.push(if equal.is_null() {
                format!("{name}: {}", self.bounds(&constraint["binding"]["constraint"]))
            } else {
                format!("{name} = {}", self.ty(equal))
            });
        }
        if parts.is_empty() { String::new() } else { format!("<{}>", parts.join(", ")) }
    }

    /// The name of another crate that an item is from; `None` if it is from this one.
    fn crate_of(&self, item: &str) -> Option<String> {
        let number = &self.json["paths"][item]["crate_id"];
        let number = if number.is_null() { &self.json["index"][item]["crate_id"] } else { number };
        let number = number.as_u64().filter(|number| *number != 0)?;
        Some(text(&self.json["external_crates"][number.to_string()]["name"]))
    }
}

fn kind(item: &Value) -> (&str, &Value) {
    only(&item["inner"])
}

/// The only entry of an object: rustdoc's way to write an enum. A variant without a value is a string.
fn only(value: &Value) -> (&str, &Value) {
    match value {
        Value::Object(fields) if fields.len() == 1 => {
            fields.iter().next().map_or(("", value), |(kind, inner)| (kind.as_str(), inner))
        }
        Value::String(kind) => (kind, &Value::Null),
        _ => ("", value),
    }
}

fn id(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

const NON_EXHAUSTIVE: &str = "non_exhaustive";
