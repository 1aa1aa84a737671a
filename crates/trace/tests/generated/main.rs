//! Tests on captures that are generated segment by segment.

mod corpus;
mod exposure;
mod generate;
mod tally;
