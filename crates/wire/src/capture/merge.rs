use std::io::Read;

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
    next: Next,
    last: Timestamp,
    steps_back: u64,
}

/// What a source gives next.
#[derive(Clone, Copy, Debug)]
enum Next {
    Unknown,
    At(Timestamp),
    Nothing,
}

impl<R: Read> MergedReader<R> {
    /// Merges these captures, each of which is a source known by its place here.
    pub fn new(readers: Vec<CaptureReader<R>>) -> Self {
        let source = |reader| Source { reader, next: Next::Unknown, last: Timestamp(0), steps_back: 0 };
        Self { sources: readers.into_iter().map(source).collect() }
    }

    /// The earliest of the next records, and its source; `None` when all captures are at their ends.
    ///
    /// # Errors
    /// A capture cannot be read further: its source and why. The call after it goes on with the others.
    pub fn next_record(&mut self) -> Result<Option<(usize, Record<'_>)>, (usize, CaptureError)> {
        let mut earliest: Option<(Timestamp, usize)> = None;
        for (index, source) in self.sources.iter_mut().enumerate() {
            if let Some(time) = source.peek().map_err(|error| (index, error))?
                && earliest.is_none_or(|(first, _)| time < first)
            {
                earliest = Some((time, index));
            }
        }
        let Some((time, index)) = earliest else {
            return Ok(None);
        };
        let source = &mut self.sources[index];
        source.next = Next::Unknown;
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

impl<R: Read> Source<R> {
    fn peek(&mut self) -> Result<Option<Timestamp>, CaptureError> {
        if let Next::Unknown = self.next {
            self.next = Next::Nothing;
            if let Some(time) = self.reader.peek_time()? {
                self.next = Next::At(time);
            }
        }
        Ok(match self.next {
            Next::At(time) => Some(time),
            Next::Unknown | Next::Nothing => None,
        })
    }
}
