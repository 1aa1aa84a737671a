//! The version of the JSON documents that plait writes.

use schemars::JsonSchema;
use serde::Serialize;

/// The version of all documents. docs/reference/json.md says which changes raise it.
pub const SCHEMA_VERSION: u32 = 1;

/// A JSON document, which must be an object, with its version as the first member.
#[derive(Clone, Debug, JsonSchema, Serialize)]
pub struct Versioned<T> {
    /// Raised when a field is removed or renamed, or its type, unit or meaning changes; not when one is added.
    #[schemars(range(min = 1))]
    schema_version: u32,
    #[serde(flatten)]
    document: T,
}

impl<T> Versioned<T> {
    /// Adds [`SCHEMA_VERSION`].
    pub fn new(document: T) -> Self {
        Self { schema_version: SCHEMA_VERSION, document }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_comes_first() {
        #[derive(Serialize)]
        struct Document {
            loaded: &'static str,
            path: Option<u64>,
        }
        let document = Versioned::new(Document { loaded: "lia", path: None });
        let text = serde_json::to_string(&document).expect("JSON");
        assert_eq!(text, format!(r#"{{"schema_version":{SCHEMA_VERSION},"loaded":"lia","path":null}}"#));
    }

    #[test]
    fn values_are_documents() {
        let document =
            Versioned::new(serde_json::json!({ "rules": [{ "cap": 18_446_744_073_709_551_615_u64 }] }));
        let text = serde_json::to_string(&document).expect("JSON");
        assert!(text.ends_with(r#""rules":[{"cap":18446744073709551615}]}"#), "{text}");
    }
}
