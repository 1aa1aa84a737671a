//! Tests on capture files of all formats.

mod any;
mod blocks;
mod corpus;
mod pcap;
mod pcapng;
mod sections;

use plait_wire::capture::CaptureError;

/// The records that `next` returns, up to the end or an error.
fn read_all<T>(mut next: impl FnMut() -> Result<Option<T>, CaptureError>) -> (Vec<T>, Option<CaptureError>) {
    let mut records = Vec::new();
    loop {
        match next() {
            Ok(Some(record)) => records.push(record),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}
