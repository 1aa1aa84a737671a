//! plait's own encrypting modes, `stream` and `sealed`.

use plait_proto::codec::records::{
    AeadCipher, KEY_LEN, LENGTH, MAX_CONTENT, MAX_RECORD, OVERHEAD, Opened, Opener, Sealer,
};
use plait_proto::codec::stream::{self, Keystream, RANDOM_LEN, StreamCipher, StreamSecret};

use super::transform::{Buffers, Direction, Transform, Wire};

pub(super) fn all() -> impl Iterator<Item = Transform> {
    let streams = StreamCipher::ALL.into_iter().flat_map(stream);
    streams.chain(AeadCipher::ALL.into_iter().flat_map(sealed))
}

/// A keystream of mode `stream`.
pub(super) fn keystream(cipher: StreamCipher) -> Keystream {
    StreamSecret::new(&[1; 8], &[2; 8], &[3; RANDOM_LEN]).keystream(cipher, stream::Direction::ToResponder)
}

fn stream(cipher: StreamCipher) -> [Transform; 2] {
    const WIRE: Wire =
        Wire { bytes: |size| size, one_path_of_two: "nothing; on the trusted path, all that it carries" };
    [Direction::Encode, Direction::Decode].map(|direction| {
        let mut keystream = keystream(cipher);
        Transform::new(format!("stream-{cipher}"), direction, WIRE, move |buf| keystream.apply(buf))
    })
}

fn sealed(cipher: AeadCipher) -> [Transform; 2] {
    const WIRE: Wire = Wire { bytes: wire_bytes, one_path_of_two: "nothing" };
    const KEY: [u8; KEY_LEN] = [7; KEY_LEN];
    let name = format!("sealed-{cipher}");

    let mut sealer = Sealer::new(cipher, &KEY);
    let seal =
        Transform::prepared(name.clone(), Direction::Encode, WIRE, Records::lay_out, move |records, _| {
            records.each().for_each(|record| seal_whole(&mut sealer, record));
        });

    let mut sealer = Sealer::new(cipher, &KEY);
    let mut opener = Opener::new(cipher, &KEY);
    let seal_all = move |records: &mut Records, buffers: &mut Buffers| {
        records.lay_out(buffers);
        records.each().for_each(|record| seal_whole(&mut sealer, record));
    };
    let open = Transform::prepared(name, Direction::Decode, WIRE, seal_all, move |records, _| {
        for record in records.each() {
            let opened = opener.open(record);
            assert!(matches!(opened, Ok(Opened::Data { .. })), "sealed with the same key");
        }
    });
    [seal, open]
}

/// Seals a record without padding.
fn seal_whole(sealer: &mut Sealer, record: &mut [u8]) {
    sealer.seal(record, record.len() - OVERHEAD);
}

fn wire_bytes(size: usize) -> usize {
    size + size.div_ceil(MAX_CONTENT) * OVERHEAD
}

/// The buffers' content laid out as a gateway reads it: with space for lengths and tags, so that sealing works in place.
#[derive(Default)]
struct Records {
    memory: Vec<u8>,
    /// The records of one buffer, in bytes.
    bytes_per_buffer: usize,
}

impl Records {
    fn lay_out(&mut self, buffers: &mut Buffers) {
        self.bytes_per_buffer = wire_bytes(buffers.size());
        self.memory.resize(buffers.total() / buffers.size() * self.bytes_per_buffer, 0);
        let plain = buffers.each().flat_map(|buf| buf.chunks(MAX_CONTENT));
        for (record, plain) in self.each().zip(plain) {
            record[LENGTH..LENGTH + plain.len()].copy_from_slice(plain);
        }
    }

    fn each(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.memory.chunks_exact_mut(self.bytes_per_buffer).flat_map(|records| records.chunks_mut(MAX_RECORD))
    }
}
