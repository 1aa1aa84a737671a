//! Tests on capture files of all formats.

mod any;
mod blocks;
mod corpus;
mod pcap;
mod pcapng;
mod sections;
