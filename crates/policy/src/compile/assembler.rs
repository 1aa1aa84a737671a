//! Emits BPF instructions (RFC 9669), with forward jumps to labels.
//!
//! All instructions are of version 3 (Linux 5.1).

use std::os::fd::{AsRawFd, BorrowedFd};

use libbpf_rs::libbpf_sys::{
    BPF_ADD, BPF_ALU, BPF_ALU64, BPF_AND, BPF_B, BPF_CALL, BPF_DW, BPF_EXIT, BPF_H, BPF_IMM, BPF_JA, BPF_JEQ,
    BPF_JGT, BPF_JLE, BPF_JMP, BPF_JMP32, BPF_JNE, BPF_JSET, BPF_K, BPF_LD, BPF_LDX, BPF_LSH, BPF_MEM,
    BPF_MOV, BPF_PSEUDO_MAP_FD, BPF_RSH, BPF_ST, BPF_STX, BPF_SUB, BPF_W, BPF_X, bpf_insn,
};

use super::CompileError;

/// A register: 0 holds results, 1 to 5 arguments, 6 to 9 are callee-saved, 10 is the frame pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Register(pub(super) u8);

/// The operand size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Width {
    /// 32 bits; the upper half of the result is zero.
    Narrow,
    Wide,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Add,
    Subtract,
    And,
    ShiftLeft,
    ShiftRight,
    Move,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Condition {
    Equal,
    NotEqual,
    /// Unsigned.
    Greater,
    /// Unsigned.
    NotGreater,
    SomeBitSet,
}

/// A jump target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label(usize);

/// The range of a jump.
const MAX_INSTRUCTIONS: usize = i16::MAX as usize;

#[derive(Default)]
pub(super) struct Assembler {
    instructions: Vec<bpf_insn>,
    places: Vec<Option<usize>>,
    jumps: Vec<(usize, Label)>,
}

impl Assembler {
    /// Creates a label, to be bound later.
    pub(super) fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Binds a label to the current position.
    pub(super) fn bind(&mut self, label: Label) {
        self.places[label.0] = Some(self.instructions.len());
    }

    /// Loads 8, 16, 32 or 64 bits from memory.
    pub(super) fn load(&mut self, to: Register, from: Register, offset: i16, bits: u32) {
        self.push(BPF_LDX | BPF_MEM | size(bits), to, from, offset, 0);
    }

    pub(super) fn store(&mut self, to: Register, offset: i16, from: Register, bits: u32) {
        self.push(BPF_STX | BPF_MEM | size(bits), to, from, offset, 0);
    }

    pub(super) fn store_constant(&mut self, to: Register, offset: i16, number: i32, bits: u32) {
        self.push(BPF_ST | BPF_MEM | size(bits), to, Register(0), offset, number);
    }

    pub(super) fn compute(&mut self, width: Width, operation: Operation, to: Register, by: Register) {
        self.push(width.arithmetic() | operation.code() | BPF_X, to, by, 0, 0);
    }

    /// For 64-bit operations, the constant is sign-extended.
    pub(super) fn compute_constant(&mut self, width: Width, operation: Operation, to: Register, by: i32) {
        self.push(width.arithmetic() | operation.code() | BPF_K, to, Register(0), 0, by);
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.branch(BPF_JMP | BPF_JA, Register(0), Register(0), 0, to);
    }

    pub(super) fn jump_if(
        &mut self,
        width: Width,
        left: Register,
        is: Condition,
        right: Register,
        to: Label,
    ) {
        self.branch(width.jump() | is.code() | BPF_X, left, right, 0, to);
    }

    /// For 64-bit comparisons, the constant is sign-extended.
    pub(super) fn jump_if_constant(
        &mut self,
        width: Width,
        left: Register,
        is: Condition,
        right: i32,
        to: Label,
    ) {
        self.branch(width.jump() | is.code() | BPF_K, left, Register(0), right, to);
    }

    pub(super) fn constant(&mut self, to: Register, number: u64) {
        self.push_long(to, 0, number);
    }

    pub(super) fn map(&mut self, to: Register, map: BorrowedFd<'_>) {
        self.push_long(to, BPF_PSEUDO_MAP_FD as u8, map.as_raw_fd() as u64);
    }

    /// Calls a kernel helper: arguments in registers 1 to 5, which are clobbered; result in 0.
    pub(super) fn call(&mut self, helper: u32) {
        self.push(BPF_JMP | BPF_CALL, Register(0), Register(0), 0, helper as i32);
    }

    pub(super) fn exit(&mut self) {
        self.push(BPF_JMP | BPF_EXIT, Register(0), Register(0), 0, 0);
    }

    /// Resolves all jumps and returns the program.
    ///
    /// # Errors
    /// It is too long for the range of jumps.
    pub(super) fn finish(mut self) -> Result<Vec<bpf_insn>, CompileError> {
        if self.instructions.len() > MAX_INSTRUCTIONS {
            return Err(CompileError::TooLong { max: MAX_INSTRUCTIONS });
        }
        for (at, label) in self.jumps {
            let to = self.places[label.0].expect("every label that is jumped to is bound");
            let distance = i16::try_from(to as i64 - at as i64 - 1).expect("the program is shorter");
            self.instructions[at].off = distance;
        }
        Ok(self.instructions)
    }

    fn branch(&mut self, code: u32, left: Register, right: Register, constant: i32, to: Label) {
        self.jumps.push((self.instructions.len(), to));
        self.push(code, left, right, 0, constant);
    }

    /// What takes two instructions: a number of 64 bits, lower half first.
    fn push_long(&mut self, to: Register, meaning: u8, number: u64) {
        self.push(BPF_LD | BPF_IMM | BPF_DW, to, Register(meaning), 0, number as i32);
        self.push(0, Register(0), Register(0), 0, (number >> 32) as i32);
    }

    fn push(&mut self, code: u32, destination: Register, source: Register, off: i16, imm: i32) {
        let mut instruction = bpf_insn { code: code as u8, off, imm, ..bpf_insn::default() };
        instruction.set_dst_reg(destination.0);
        instruction.set_src_reg(source.0);
        self.instructions.push(instruction);
    }
}

impl Width {
    fn arithmetic(self) -> u32 {
        if self == Self::Wide { BPF_ALU64 } else { BPF_ALU }
    }

    fn jump(self) -> u32 {
        if self == Self::Wide { BPF_JMP } else { BPF_JMP32 }
    }
}

impl Operation {
    fn code(self) -> u32 {
        match self {
            Self::Add => BPF_ADD,
            Self::Subtract => BPF_SUB,
            Self::And => BPF_AND,
            Self::ShiftLeft => BPF_LSH,
            Self::ShiftRight => BPF_RSH,
            Self::Move => BPF_MOV,
        }
    }
}

impl Condition {
    fn code(self) -> u32 {
        match self {
            Self::Equal => BPF_JEQ,
            Self::NotEqual => BPF_JNE,
            Self::Greater => BPF_JGT,
            Self::NotGreater => BPF_JLE,
            Self::SomeBitSet => BPF_JSET,
        }
    }
}

fn size(bits: u32) -> u32 {
    match bits {
        8 => BPF_B,
        16 => BPF_H,
        32 => BPF_W,
        _ => BPF_DW,
    }
}
