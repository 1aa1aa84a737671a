//! The files of an analysis, written while captures are still being read: the JSON document, CSV tables and the Parquet
//! series.
//!
//! An [`Exporter`] receives the results piece by piece as [`document`] structs and keeps none of them, so that the memory
//! of an analysis does not grow with its captures.

pub(crate) mod csv;
mod describe;
pub mod document;
mod exporter;
mod json;
pub(crate) mod parquet;
#[cfg(test)]
pub(crate) mod sample;
pub mod table;

pub use exporter::Exporter;
pub use json::JsonWriter;
