//! Tests on captures that are generated segment by segment.

mod authentic;
mod corpus;
mod exposure;
mod failover;
mod generate;
mod numbers;
mod scene;
mod several;
mod streaming;
mod tally;
mod transfer;
