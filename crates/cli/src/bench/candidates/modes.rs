//! plait's modes that encrypt.

use std::cell::RefCell;
use std::rc::Rc;

use plait_proto::sealed::{
    self, KEY_LEN, LENGTH, MAX_PLAINTEXT, MAX_RECORD, OVERHEAD, Opened, Opener, Sealer,
};
use plait_proto::stream::{self, Keystream, RANDOM_LEN, Secret};

use super::{Buffers, Candidate, Direction, Wire};

pub(super) fn all() -> impl Iterator<Item = Candidate> {
    let streams = stream::Cipher::ALL.into_iter().flat_map(stream);
    streams.chain(sealed::Cipher::ALL.into_iter().flat_map(sealed))
}

/// A keystream as `stream` has it.
pub(super) fn keystream(cipher: stream::Cipher) -> Keystream {
    Secret::new(&[1; 8], &[2; 8], &[3; RANDOM_LEN]).keystream(cipher, stream::Direction::Forth)
}

fn stream(cipher: stream::Cipher) -> [Candidate; 2] {
    const WIRE: Wire =
        Wire { bytes: |size| size, one_path_of_two: "nothing; on the trusted path, all that it carries" };
    [Direction::Encode, Direction::Decode].map(|direction| {
        let mut keystream = keystream(cipher);
        Candidate::new(format!("stream-{cipher}"), direction, WIRE, move |buf| keystream.apply(buf))
    })
}

fn sealed(cipher: sealed::Cipher) -> [Candidate; 2] {
    const WIRE: Wire = Wire { bytes: wire_bytes, one_path_of_two: "nothing" };
    const KEY: [u8; KEY_LEN] = [7; KEY_LEN];
    let name = format!("sealed-{cipher}");

    let mut sealer = Sealer::new(cipher, &KEY);
    let records = Rc::new(RefCell::new(Records::default()));
    let to_seal = Rc::clone(&records);
    let seal = Candidate {
        name: name.clone(),
        direction: Direction::Encode,
        wire: WIRE,
        prepare: Box::new(move |buffers| records.borrow_mut().lay_out(buffers)),
        pass: Box::new(move |_| to_seal.borrow_mut().each().for_each(|record| sealer.seal(record))),
    };

    let mut sealer = Sealer::new(cipher, &KEY);
    let mut opener = Opener::new(cipher, &KEY);
    let records = Rc::new(RefCell::new(Records::default()));
    let to_open = Rc::clone(&records);
    let open = Candidate {
        name,
        direction: Direction::Decode,
        wire: WIRE,
        prepare: Box::new(move |buffers| {
            let mut records = records.borrow_mut();
            records.lay_out(buffers);
            records.each().for_each(|record| sealer.seal(record));
        }),
        pass: Box::new(move |_| {
            for record in to_open.borrow_mut().each() {
                let opened = opener.open(record);
                assert!(matches!(opened, Ok(Opened::Data { .. })), "what was sealed with the same key opens");
            }
        }),
    };
    [seal, open]
}

fn wire_bytes(size: usize) -> usize {
    size + size.div_ceil(MAX_PLAINTEXT) * OVERHEAD
}

/// The buffers' content as it stands when a gateway has just read it, with room for lengths and tags around, which
/// the buffers do not have: so sealing works in place.
#[derive(Default)]
struct Records {
    memory: Vec<u8>,
    /// What one buffer becomes: one record or several.
    of_a_buffer: usize,
}

impl Records {
    fn lay_out(&mut self, buffers: &mut Buffers) {
        self.of_a_buffer = wire_bytes(buffers.size);
        self.memory.resize(buffers.total() / buffers.size * self.of_a_buffer, 0);
        let plain = buffers.each().flat_map(|buf| buf.chunks(MAX_PLAINTEXT));
        for (record, plain) in self.each().zip(plain) {
            record[LENGTH..LENGTH + plain.len()].copy_from_slice(plain);
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.memory.chunks_exact_mut(self.of_a_buffer).flat_map(|records| records.chunks_mut(MAX_RECORD))
    }
}
