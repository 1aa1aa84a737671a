//! Writes pcapng files block by block, in either byte order, as the draft specifies.

use plait_wire::capture::ByteOrder;

const SECTION_HEADER: u32 = 0x0a0d_0d0a;

/// A file that is being written. All blocks after a section header are in that section's byte order.
pub(crate) struct Blocks {
    order: ByteOrder,
    pub(crate) bytes: Vec<u8>,
}

/// An option of a block: its code and value.
pub(crate) type BlockOption = (u16, Vec<u8>);

impl Blocks {
    /// An empty file, without even the mandatory section header.
    pub(crate) fn new() -> Self {
        Self { order: ByteOrder::Little, bytes: Vec::new() }
    }

    pub(crate) fn section(&mut self, order: ByteOrder) {
        self.order = order;
        // Byte-order magic, version 1.0, unspecified length.
        let version = match order {
            ByteOrder::Little => 0x0000_0001,
            ByteOrder::Big => 0x0001_0000,
        };
        let body = self.words(&[0x1a2b_3c4d, version, u32::MAX, u32::MAX]);
        self.block(SECTION_HEADER, &body);
    }

    pub(crate) fn interface(&mut self, link_type: u16, snap_len: u32, options: &[BlockOption]) {
        let mut body = self.half(link_type).to_vec();
        body.extend([0; 2]);
        body.extend(self.words(&[snap_len]));
        body.extend(self.options(options));
        self.block(1, &body);
    }

    pub(crate) fn enhanced(&mut self, interface: u32, ticks: u64, wire_len: u32, data: &[u8]) {
        let mut body = self.words(&[interface, (ticks >> 32) as u32, ticks as u32]);
        body.extend(self.words(&[data.len() as u32, wire_len]));
        body.extend(padded(data));
        // A comment, which readers ignore.
        body.extend(self.options(&[(1, b"seen".to_vec())]));
        self.block(6, &body);
    }

    /// An obsolete packet block.
    pub(crate) fn obsolete(&mut self, interface: u16, ticks: u64, wire_len: u32, data: &[u8]) {
        let mut body = self.half(interface).to_vec();
        body.extend([0xff; 2]);
        body.extend(self.words(&[(ticks >> 32) as u32, ticks as u32, data.len() as u32, wire_len]));
        body.extend(padded(data));
        self.block(2, &body);
    }

    pub(crate) fn simple(&mut self, wire_len: u32, data: &[u8]) {
        let mut body = self.words(&[wire_len]);
        body.extend(padded(data));
        self.block(3, &body);
    }

    pub(crate) fn block(&mut self, kind: u32, body: &[u8]) {
        let body = padded(body);
        let len = body.len() as u32 + 12;
        self.bytes.extend(self.words(&[kind, len]));
        self.bytes.extend(body);
        self.bytes.extend(self.words(&[len]));
    }

    fn options(&self, options: &[BlockOption]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (code, value) in options {
            bytes.extend(self.half(*code));
            bytes.extend(self.half(value.len() as u16));
            bytes.extend(padded(value));
        }
        if !options.is_empty() {
            bytes.extend([0; 4]);
        }
        bytes
    }

    fn half(&self, value: u16) -> [u8; 2] {
        match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
    }

    pub(crate) fn words(&self, words: &[u32]) -> Vec<u8> {
        let bytes = |word: &u32| match self.order {
            ByteOrder::Little => word.to_le_bytes(),
            ByteOrder::Big => word.to_be_bytes(),
        };
        words.iter().flat_map(bytes).collect()
    }

    pub(crate) fn long(&self, value: i64) -> Vec<u8> {
        match self.order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        }
        .to_vec()
    }
}

fn padded(bytes: &[u8]) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(bytes.len().next_multiple_of(4), 0);
    padded
}
