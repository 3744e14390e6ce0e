//! YAML and JSON as a tree that remembers its lines, so that an error can say where it is.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};
use serde_saphyr::Spanned;

use crate::type_url::TypeUrl;

/// A value and the line on which it begins.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    /// Counted from 1; absent where the parser does not tell.
    pub(super) line: Option<u64>,
    pub(super) value: Value,
}

/// What JSON can say.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    String(String),
    List(Vec<Tree>),
    Map(Vec<(String, Tree)>),
}

impl Tree {
    /// The value under a key, if this is a map that has it.
    pub(super) fn get(&self, key: &str) -> Option<&Tree> {
        let Value::Map(entries) = &self.value else { return None };
        entries.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The text, if this is one.
    pub(super) fn as_str(&self) -> Option<&str> {
        if let Value::String(text) = &self.value { Some(text) } else { None }
    }

    /// What this is, for people.
    pub(super) fn describe(&self) -> String {
        match &self.value {
            Value::Null => "nothing".to_owned(),
            Value::Bool(value) => format!("the boolean {value}"),
            Value::Signed(value) => format!("the number {value}"),
            Value::Unsigned(value) => format!("the number {value}"),
            Value::Float(value) => format!("the number {value}"),
            Value::String(value) => format!("the text {value:?}"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Value>::deserialize(deserializer)?;
        let line = Some(spanned.referenced.line()).filter(|line| *line > 0);
        Ok(Self { line, value: spanned.value })
    }
}

impl<'de> Deserialize<'de> for Value {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ValueVisitor)
    }
}

struct ValueVisitor;

impl<'de> Visitor<'de> for ValueVisitor {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        Value::deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Signed(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Unsigned(value))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Value::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Value::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut entries = Vec::new();
        while let Some((key, mut value)) = map.next_entry::<String, Tree>()? {
            if key != TYPE_KEY {
                entries.push((key, value));
                continue;
            }
            if let Value::String(url) = &mut value.value {
                // The name of a message will do.
                *url = if url.contains('/') { url.clone() } else { TypeUrl::from(url.as_str()).to_string() };
            }
            // The type of a message must be known before its fields can be read.
            entries.insert(0, (key, value));
        }
        Ok(Value::Map(entries))
    }
}

/// An error inside a tree: what is wrong, in which field and on which line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) line: Option<u64>,
    /// From the inside to the outside.
    path: Vec<String>,
    pub(super) problem: String,
}

impl FieldError {
    pub(super) fn new(tree: &Tree, problem: impl Into<String>) -> Self {
        Self { line: tree.line, path: Vec::new(), problem: problem.into() }
    }

    /// Says in which part of its surroundings the error is.
    pub(super) fn inside(mut self, part: impl Into<String>, line: Option<u64>) -> Self {
        self.path.push(part.into());
        self.on(line)
    }

    /// The path of the field, such as `virtual_hosts[0].name`.
    pub(super) fn field(&self) -> String {
        let mut field = String::new();
        for part in self.path.iter().rev() {
            if !field.is_empty() && !part.starts_with('[') {
                field.push('.');
            }
            field.push_str(part);
        }
        field
    }

    /// The innermost line is the best one.
    fn on(mut self, line: Option<u64>) -> Self {
        self.line = self.line.or(line);
        self
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.problem)
    }
}

impl std::error::Error for FieldError {}

impl serde::de::Error for FieldError {
    fn custom<T: fmt::Display>(problem: T) -> Self {
        Self { line: None, path: Vec::new(), problem: problem.to_string() }
    }
}

impl<'de> Deserializer<'de> for &'de Tree {
    type Error = FieldError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        let line = self.line;
        match &self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(value) => visitor.visit_bool(*value),
            Value::Signed(value) => visitor.visit_i64(*value),
            Value::Unsigned(value) => visitor.visit_u64(*value),
            Value::Float(value) => visitor.visit_f64(*value),
            Value::String(value) => visitor.visit_borrowed_str(value),
            Value::List(items) => visitor.visit_seq(Items { items: items.iter(), index: 0 }),
            Value::Map(entries) => {
                let mut entries = Entries { entries: entries.iter(), current: None };
                // An error about a key itself, such as an unknown field, belongs on the line of its value.
                let result = visitor.visit_map(&mut entries);
                let line = entries.current.and_then(|(_, value)| value.line);
                return result.map_err(|error| error.on(line));
            }
        }
        .map_err(|error| error.on(line))
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, FieldError> {
        if matches!(self.value, Value::Null) { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

struct Items<'de> {
    items: std::slice::Iter<'de, Tree>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'de> {
    type Error = FieldError;

    fn next_element_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, FieldError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let index = self.index;
        self.index += 1;
        seed.deserialize(item).map(Some).map_err(|error| error.inside(format!("[{index}]"), item.line))
    }
}

struct Entries<'de> {
    entries: std::slice::Iter<'de, (String, Tree)>,
    current: Option<(&'de str, &'de Tree)>,
}

impl<'de> MapAccess<'de> for Entries<'de> {
    type Error = FieldError;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, FieldError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.current = Some((key, value));
        seed.deserialize(key.as_str().into_deserializer()).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, FieldError> {
        let Some((key, value)) = self.current else {
            return Err(serde::de::Error::custom("a value was read before its key"));
        };
        seed.deserialize(value).map_err(|error| error.inside(key, value.line))
    }
}

/// The key that says which message a map is.
pub(super) const TYPE_KEY: &str = "@type";
