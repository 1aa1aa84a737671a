//! Charts of measurements, as SVG and PNG, for reports and papers.
//!
//! Three kinds: a [`Chart`] shows series over time, [`Shares`] show how parts make up a whole, and a [`Sweep`] shows how a
//! figure depends on a parameter, with error bars and the values to compare with. Each gives its `svg()`; a [`Plot`] names
//! it and makes the PNG, with a font of its own, so that a chart looks the same on every host.
//!
//! Series are told apart by colour and by dash pattern or shape: charts are readable to colour-blind eyes and in grey.
//! Texts may come from anywhere: they are escaped. Nothing here reads or writes files.

#![forbid(unsafe_code)]

mod axis;
mod chart;
mod plot;
mod shares;
mod style;
mod svg;
mod sweep;

pub use chart::{Chart, Series, Shape};
pub use plot::Plot;
pub use shares::{Share, Shares};
pub use style::Style;
pub use sweep::{Curve, Over, Sweep, Value};
