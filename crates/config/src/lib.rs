//! How people write things in files and on command lines, and how what is wrong is told.
//!
//! - [`Rate`], [`Size`], [`delay`] and [`time`] read `54mbit`, `30kB`, `21.5ms` and `16s`; what is none of that is a
//!   [`TextError`], which says what was expected, with an example, and what was found.
//! - [`grouped`] writes long numbers for people.
//! - [`Found`] lets serde say the same of values that are no texts.
//! - [`Source`] and [`Mistake`] tell where in a file something is wrong, and show the line.
//!
//! Nothing here panics on any text, nor asks anything of the host.

mod duration;
mod error;
mod found;
mod mistake;
mod number;
mod rate;
mod size;

pub use duration::{delay, deserialize_delay, deserialize_time, time};
pub use error::TextError;
pub use found::{Found, Table};
pub use mistake::{Mistake, Place, Source};
pub use number::{decimal, grouped, pluralize};
pub use rate::Rate;
pub use size::{Bytes, Size};
