//! From steps to instructions.
//!
//! Every test loads its operand again: keeping it in a register would make the verifier distinguish paths by what
//! they know about it, and their number is exponential.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;

use libbpf_rs::libbpf_sys::{BPF_FUNC_map_lookup_elem, BPF_FUNC_skb_ancestor_cgroup_id, XDP_PASS, bpf_insn};

use super::assembler::{Assembler, Condition, Label, Operation, Register, Width};
use super::steps::Step;
use super::test::{Compare, Field, Test};
use super::{CompileError, ProgramKind};
use crate::bindings::{PLAIT_MAX_CHAINS, plait_packet};

/// The packet record, and helper results; no helper is called between the lookup of the record and its last use.
const RECORD: Register = Register(0);
/// The operand of a test, and first arguments.
const NUMBER: Register = Register(1);
/// What it is compared with, and second arguments.
const OTHER: Register = Register(2);
/// The argument of the program.
const CONTEXT: Register = Register(6);
const STACK: Register = Register(10);

/// The offset of the map key on the stack.
const KEY_AT: i16 = -4;
/// The offset of the first control group ID on the stack, and the maximum number of them.
const ANCESTORS_AT: i16 = -16;
const MAX_LEVELS: usize = 62;

/// `TC_ACT_UNSPEC` and `TCX_NEXT`: continue with other programs and filters.
const TC_CONTINUE: i32 = -1;

/// Emits the program: finds the record and executes the steps.
pub(super) fn program(
    kind: ProgramKind,
    steps: &[Step],
    packets: BorrowedFd<'_>,
) -> Result<Vec<bpf_insn>, CompileError> {
    let mut emitter = Emitter { code: Assembler::default(), levels: levels(steps)? };
    let end = emitter.code.label();
    if !steps.is_empty() {
        emitter.find_ancestors();
        emitter.find_record(packets, end);
        emitter.steps(steps, end);
    }
    emitter.code.bind(end);
    let pass = match kind {
        ProgramKind::Xdp => XDP_PASS as i32,
        ProgramKind::Tc => TC_CONTINUE,
    };
    emitter.code.compute_constant(Width::Wide, Operation::Move, Register(0), pass);
    emitter.code.exit();
    emitter.code.finish()
}

/// The control group levels that tests refer to.
fn levels(steps: &[Step]) -> Result<Vec<u32>, CompileError> {
    let level = |step: &Step| match step {
        Step::Ask { test: Test { field: Field::Ancestor { level }, .. }, .. } => Some(*level),
        _ => None,
    };
    let levels: BTreeSet<_> = steps.iter().filter_map(level).collect();
    if levels.len() > MAX_LEVELS {
        return Err(CompileError::TooManyLevels { max: MAX_LEVELS });
    }
    Ok(levels.into_iter().collect())
}

struct Emitter {
    code: Assembler,
    levels: Vec<u32>,
}

impl Emitter {
    /// Stores the IDs of the control groups above the socket, once per level.
    fn find_ancestors(&mut self) {
        self.code.compute(Width::Wide, Operation::Move, CONTEXT, NUMBER);
        for level in self.levels.clone() {
            self.code.compute(Width::Wide, Operation::Move, NUMBER, CONTEXT);
            self.code.compute_constant(Width::Wide, Operation::Move, OTHER, level as i32);
            self.code.call(BPF_FUNC_skb_ancestor_cgroup_id);
            let at = self.ancestor_at(level);
            self.code.store(STACK, at, Register(0), 64);
        }
    }

    fn ancestor_at(&self, level: u32) -> i16 {
        let place = self.levels.iter().position(|other| *other == level).unwrap_or(0);
        ANCESTORS_AT - 8 * place as i16
    }

    fn find_record(&mut self, packets: BorrowedFd<'_>, otherwise: Label) {
        self.code.store_constant(STACK, KEY_AT, 0, 32);
        self.code.map(NUMBER, packets);
        self.code.compute(Width::Wide, Operation::Move, OTHER, STACK);
        self.code.compute_constant(Width::Wide, Operation::Add, OTHER, KEY_AT.into());
        self.code.call(BPF_FUNC_map_lookup_elem);
        self.code.jump_if_constant(Width::Wide, RECORD, Condition::Equal, 0, otherwise);
    }

    fn steps(&mut self, steps: &[Step], end: Label) {
        let mut labels: Vec<_> = steps.iter().map(|_| self.code.label()).collect();
        labels.push(end);
        for (index, step) in steps.iter().enumerate() {
            self.code.bind(labels[index]);
            let next = index + 1;
            match *step {
                Step::Ask { yes, no, .. } if yes == no => self.continue_at(yes, next, &labels),
                Step::Ask { test, yes, no } if yes == next => self.jump_by(&test, false, labels[no]),
                Step::Ask { test, yes, no } => {
                    self.jump_by(&test, true, labels[yes]);
                    self.continue_at(no, next, &labels);
                }
                Step::Append { slot, next: to } => {
                    self.append(slot, end);
                    self.continue_at(to, next, &labels);
                }
            }
        }
    }

    fn continue_at(&mut self, to: usize, next: usize, labels: &[Label]) {
        if to != next {
            self.code.jump(labels[to]);
        }
    }

    /// Jumps if the test has this result.
    fn jump_by(&mut self, test: &Test, answer: bool, to: Label) {
        let (from, offset) = match test.field {
            Field::Record { offset, .. } => (RECORD, offset as i16),
            Field::Ancestor { level } => (STACK, self.ancestor_at(level)),
        };
        let bits = test.field.bits();
        let width = if bits == 64 { Width::Wide } else { Width::Narrow };
        self.code.load(NUMBER, from, offset, bits);
        match test.compare {
            Compare::AnyOf(mask) if answer => self.jump_if(width, Condition::SomeBitSet, mask, to),
            Compare::AnyOf(mask) => {
                self.compute(width, Operation::And, mask);
                self.jump_if(width, Condition::Equal, 0, to);
            }
            Compare::Masked { mask, value } => {
                let is = if answer { Condition::Equal } else { Condition::NotEqual };
                let behind = mask.trailing_zeros();
                if mask == test.field.max() {
                    self.jump_if(width, is, value, to);
                } else if mask == test.field.max() >> behind << behind {
                    self.compute(width, Operation::ShiftRight, behind.into());
                    self.jump_if(width, is, value >> behind, to);
                } else {
                    self.compute(width, Operation::And, mask);
                    self.jump_if(width, is, value, to);
                }
            }
            Compare::Within { first, span } => {
                if first != 0 {
                    self.compute(width, Operation::Subtract, first);
                }
                let is = if answer { Condition::NotGreater } else { Condition::Greater };
                self.jump_if(width, is, span, to);
            }
        }
    }

    fn compute(&mut self, width: Width, operation: Operation, by: u64) {
        match immediate(width, by) {
            Some(by) => self.code.compute_constant(width, operation, NUMBER, by),
            None => {
                self.code.constant(OTHER, by);
                self.code.compute(width, operation, NUMBER, OTHER);
            }
        }
    }

    fn jump_if(&mut self, width: Width, is: Condition, number: u64, to: Label) {
        match immediate(width, number) {
            Some(number) => self.code.jump_if_constant(width, NUMBER, is, number, to),
            None => {
                self.code.constant(OTHER, number);
                self.code.jump_if(width, NUMBER, is, OTHER, to);
            }
        }
    }

    /// `packet->chains[packet->chain_count++] = slot`. The bounds check never fails; the verifier needs it.
    fn append(&mut self, slot: u16, end: Label) {
        let count_at = offset_of!(plait_packet, chain_count) as i16;
        let chains_at = offset_of!(plait_packet, chains) as i16;
        self.code.load(NUMBER, RECORD, count_at, 8);
        self.code.jump_if_constant(Width::Wide, NUMBER, Condition::Greater, PLAIT_MAX_CHAINS as i32 - 1, end);
        self.code.compute(Width::Wide, Operation::Move, OTHER, NUMBER);
        self.code.compute_constant(Width::Wide, Operation::ShiftLeft, OTHER, 1);
        self.code.compute(Width::Wide, Operation::Add, OTHER, RECORD);
        self.code.store_constant(OTHER, chains_at, slot.into(), 16);
        self.code.compute_constant(Width::Wide, Operation::Add, NUMBER, 1);
        self.code.store(RECORD, count_at, NUMBER, 8);
    }
}

/// The number as an immediate operand, if it fits.
fn immediate(width: Width, number: u64) -> Option<i32> {
    match width {
        Width::Narrow => u32::try_from(number).ok().map(|number| number as i32),
        Width::Wide => i32::try_from(number as i64).ok(),
    }
}
