//! Tests on captures that are generated segment by segment.

mod authentic;
mod captures;
mod corpus;
mod details;
mod exposure;
mod failover;
mod files;
mod generate;
mod multiple_captures;
mod reassemble;
mod rtt;
mod sender_stats;
mod streaming;
mod transfer;
