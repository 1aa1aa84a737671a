//! Configuration files and the units in them: parsing, and diagnostics that show the line.
//!
//! # Units
//! [`Rate`], [`Size`], [`parse_delay`], [`parse_time`] and [`parse_duration`] parse `54mbit`, `30kB`, `21.5ms` and
//! `16s`, in files and on command lines. Invalid text is a [`TextError`]: expected X, got Y. [`grouped`],
//! [`pluralize`], [`format_size`] and [`format_duration`] format numbers for people.
//!
//! # Files
//! [`Source`] is the name and text of a file. [`Source::parse`] deserializes it. Every error in the file, whether
//! found by the TOML parser, by serde or by a later check, is a [`Diagnostic`] that points at a [`Span`] and renders
//! as
//!
//! ```text
//! expected one of the hosts client, server, got "servr"
//!   --> lab.toml:10:5
//!    |
//! 10 | b = "servr"
//!    |     ^^^^^^^
//! ```
//!
//! Deserialize into structs that mirror the file (by convention in a module `raw`), wrap every value that a check may
//! reject in [`Spanned`], and check afterwards:
//!
//! ```
//! use plait_config::{Diagnostic, Rate, Source, Spanned};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct RawLink {
//!     name: Spanned<String>,
//!     rate: Option<Rate>,
//! }
//!
//! fn link(source: &Source) -> Result<RawLink, Diagnostic> {
//!     let link: RawLink = source.parse()?;
//!     if link.name.get_ref().is_empty() {
//!         let diagnostic = source.diagnostic(link.name.span(), "expected a name for the link, got an empty one");
//!         return Err(diagnostic.with_help("name it after what it emulates, such as \"lte\""));
//!     }
//!     Ok(link)
//! }
//!
//! let error = link(&Source::new("lab.toml", "name = 'lte'\nrate = 'fast'")).err().expect("not a rate");
//! assert_eq!((error.line, error.column), (2, 8));
//! assert!(error.message.starts_with("expected a rate"));
//! ```
//!
//! [`load`] reads and parses a file that needs no checks. `#[serde(expecting = "...")]` on a struct or enum states
//! the expected form, for values of another type; [`deserialize_text`] and [`Shorthand`] do the same for hand-written
//! `Deserialize` implementations. These must not do I/O: deserialize a path, and resolve it against
//! [`Source::directory`] afterwards.
//!
//! # Paths
//! [`Role`] is a path's role, in the files and on the command lines that declare it.
//!
//! # JSON documents
//! [`Versioned`] adds the version of the schemas to a document.
//!
//! [`AtomicFile`] writes a file that appears only when it is complete.
//!
//! No function here panics, whatever the text.

mod atomic_file;
mod diagnostic;
mod display;
mod duration;
mod error;
mod number;
mod rate;
mod role;
mod schema_version;
mod shorthand;
mod size;

pub use atomic_file::{AtomicFile, with_path};
pub use diagnostic::{Diagnostic, LoadError, Source, Span, load};
pub use display::{format_duration, format_size};
pub use duration::{
    deserialize_delay, deserialize_time, parse_delay, parse_duration, parse_duration_or_seconds, parse_time,
};
pub use error::TextError;
pub use number::{decimal, grouped, pluralize};
pub use rate::Rate;
pub use role::Role;
pub use schema_version::{SCHEMA_VERSION, Versioned};
pub use shorthand::{Shorthand, deserialize_shorthand, deserialize_text};
pub use size::{Bytes, Size};
pub use toml::Spanned;
