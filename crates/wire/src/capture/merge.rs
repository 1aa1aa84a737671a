use std::io::Read;

use super::ahead::Ahead;
use super::{CaptureError, CaptureReader, Record, Timestamp};

/// Merges the captures of one measurement by time.
///
/// Records of one capture keep their order, also where its clock went back, which is counted; of records with equal
/// times those of the capture given first come first. A capture that fails says so once, after its last record, and
/// the others go on.
#[derive(Debug)]
pub struct MergedReader<R: Read> {
    sources: Vec<Source<R>>,
}

#[derive(Debug)]
struct Source<R: Read> {
    reader: CaptureReader<R>,
    ahead: Ahead<Timestamp>,
    last: Timestamp,
    steps_back: u64,
}

impl<R: Read> MergedReader<R> {
    /// Merges these captures, each of which is a source known by its place here.
    pub fn new(readers: Vec<CaptureReader<R>>) -> Self {
        let source = |reader| Source { reader, ahead: Ahead::Unknown, last: Timestamp(0), steps_back: 0 };
        Self { sources: readers.into_iter().map(source).collect() }
    }

    /// The earliest of the next records, and its source; `None` when all captures are at their ends.
    ///
    /// # Errors
    /// A capture cannot be read further: its source and why. The call after it goes on with the others.
    pub fn next_record(&mut self) -> Result<Option<(usize, Record<'_>)>, (usize, CaptureError)> {
        let mut earliest: Option<(Timestamp, usize)> = None;
        for (index, source) in self.sources.iter_mut().enumerate() {
            let next = source.ahead.peek(|| source.reader.peek_time());
            if let Some(time) = next.map_err(|error| (index, error))?
                && earliest.is_none_or(|(first, _)| time < first)
            {
                earliest = Some((time, index));
            }
        }
        let Some((time, index)) = earliest else {
            return Ok(None);
        };
        let source = &mut self.sources[index];
        source.ahead = Ahead::Unknown;
        source.steps_back += u64::from(time < source.last);
        source.last = time;
        let record = source.reader.next_record().map_err(|error| (index, error))?;
        Ok(record.map(|record| (index, record)))
    }

    /// How many records of a source so far had an earlier time than the one before them in their capture.
    ///
    /// # Panics
    /// There is no such source.
    pub fn steps_back(&self, source: usize) -> u64 {
        self.sources[source].steps_back
    }
}
