//! The JSON schemas in docs/reference/schema, generated from the structs that plait serializes.
//!
//! `PLAIT_UPDATE=1 cargo test -p plait-cli --test schemas` writes them.

use std::path::Path;

use plait_config::Versioned;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema};

fn generate<T: JsonSchema>(title: &str) -> Schema {
    let generator = || SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator().into_root_schema_for::<Versioned<T>>();
    if let Some(description) = generator().into_root_schema_for::<T>().get("description") {
        schema.insert("description".into(), description.clone());
    }
    schema.insert("title".into(), title.into());
    schema
}

fn check(name: &str, schema: &Schema) {
    let file = format!("{}/../../docs/reference/schema/{name}.schema.json", env!("CARGO_MANIFEST_DIR"));
    let generated = serde_json::to_string_pretty(schema).expect("a schema is JSON") + "\n";
    if std::env::var_os("PLAIT_UPDATE").is_some() {
        std::fs::write(&file, &generated).expect("writable");
    }
    let committed = std::fs::read_to_string(Path::new(&file)).expect("readable");
    assert!(
        committed == generated,
        "{file} differs from the structs: PLAIT_UPDATE=1 cargo test -p plait-cli --test schemas"
    );
}

#[test]
fn analysis_schema_is_current() {
    check("analysis", &generate::<plait_trace::document::Analysis>("plait analyze --json"));
}

#[test]
fn audit_schema_is_current() {
    check("audit", &generate::<plait_audit::Audit>("plait audit --json"));
}

#[test]
fn doctor_schema_is_current() {
    check("doctor", &generate::<plait_doctor::Diagnosis>("plait doctor HOST --json"));
}

#[test]
fn probe_schema_is_current() {
    check("probe", &generate::<plait_doctor::Measurement>("plait probe HOST --json"));
}

#[test]
fn results_schema_is_current() {
    check("results", &generate::<plait_lab::experiment::Results>("plait lab run --json"));
}
