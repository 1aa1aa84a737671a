//! Tests on captures that are generated segment by segment.

mod corpus;
mod exposure;
mod failover;
mod generate;
mod scene;
mod tally;
mod transfer;
