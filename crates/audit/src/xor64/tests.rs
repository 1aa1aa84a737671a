use super::*;
use plait_proto::stream::{Cipher, Direction, Secret};
use plait_proto::xor64::{Encoder, Seed};
use proptest::collection::vec;
use proptest::prelude::*;

/// English prose that the model has not learnt from.
const PROSE: &[u8] = include_bytes!("../../../../tests/data/prose.txt");

const SEED: [u8; 32] = *b"\x91\x02\xf3kN\x88\xa0Q7\x1e\xcc\x05dW\xbe\x0f\x1a\x2b\x3c\x4d\x5e\x6f\x70\x81\x92\xa3\xb4\xc5\xd6\xe7\xf8\x09";

fn scrambled(plain: &[u8]) -> Vec<u8> {
    let mut wire = plain.to_vec();
    Encoder::new(&Seed::new(&SEED).expect("a seed of 32 bytes")).encode_in_place(&mut wire);
    wire
}

/// The share of a run that is recovered, and recovered right.
struct Score {
    claimed: f64,
    right: f64,
}

fn score(attempt: &Attempt, wire: &[u8], plain: &[u8]) -> Score {
    let mut found = Vec::new();
    let mut plaintext = Plaintext::new(&attempt.keys);
    // In pieces, as captures have them.
    wire.chunks(97).for_each(|piece| plaintext.next(piece, &mut found));
    assert_eq!(found.len(), plain.len());
    let share = |count: usize| count as f64 / plain.len() as f64;
    let right = found.iter().zip(plain).filter(|(found, plain)| **found == Some(**plain)).count();
    Score { claimed: share(found.iter().flatten().count()), right: share(right) }
}

/// Attacks runs of a length at many places of a scrambled text.
fn attack_runs(plain: &[u8], length: usize, runs: usize) -> Vec<(Attempt, Score)> {
    let wire = scrambled(plain);
    let step = (plain.len() - length - 64) / runs;
    (0..runs)
        .map(|run| {
            let at = 64 + run * step..64 + run * step + length;
            let attempt = attack(Model::shipped(), &wire[at.clone()], &Before::UNKNOWN);
            let score = score(&attempt, &wire[at.clone()], &plain[at]);
            (attempt, score)
        })
        .collect()
}

fn mean(scores: &[(Attempt, Score)], of: impl Fn(&Score) -> f64) -> f64 {
    scores.iter().map(|(_, score)| of(score)).sum::<f64>() / scores.len() as f64
}

#[test]
fn reads_english_that_it_has_not_learnt() {
    for (length, runs, least_right, least_of_claimed) in
        [(130, 12, 0.75, 0.9), (350, 12, 0.97, 0.99), (1400, 8, 0.995, 0.998)]
    {
        let scores = attack_runs(PROSE, length, runs);
        let (claimed, right) = (mean(&scores, |score| score.claimed), mean(&scores, |score| score.right));
        println!("{length} bytes: {claimed:.4} claimed, {right:.4} right");
        assert!(right > least_right, "{length} bytes: {right:.3} right");
        assert!(
            right > least_of_claimed * claimed,
            "{length} bytes: {right:.3} right of {claimed:.3} claimed"
        );
    }
}

#[test]
fn a_long_run_is_undone_by_any_readable_part() {
    let mut plain = random(20_000);
    plain[9_000..12_000].copy_from_slice(&PROSE[..3_000]);
    let wire = scrambled(&plain);
    let attempt = attack(Model::shipped(), &wire[100..], &Before::UNKNOWN);
    assert_eq!(attempt.by, Some(Means::Language));
    assert!(score(&attempt, &wire[100..], &plain[100..]).right > 0.999, "the random bytes around it too");
}

/// Content that nobody can read from 65 wire bytes apart: nothing may be claimed of any run.
#[test]
fn claims_nothing_of_what_cannot_be_read() {
    let mut shuffled = PROSE.to_vec();
    let mut next = generator();
    for at in (1..shuffled.len()).rev() {
        shuffled.swap(at, next() as usize % (at + 1));
    }
    let printable: Vec<u8> = random(20_000).iter().map(|byte| b' ' + byte % 95).collect();
    for (what, plain) in [
        ("random", random(20_000)),
        ("AES-CTR of English", aes_ctr(PROSE)),
        ("shuffled English", shuffled),
        ("random printable", printable),
    ] {
        for length in [100, 130, 350, 1400, 4000] {
            let scores = attack_runs(&plain, length, 4);
            let best = scores.iter().filter_map(|(attempt, _)| attempt.evidence).fold(f32::MIN, f32::max);
            println!("{what}, {length} bytes: evidence {best:.0}");
            assert_eq!(mean(&scores, |score| score.claimed), 0.0, "{what}, {length} bytes");
            if what == "random" || what.starts_with("AES") {
                assert!(scores.iter().all(|(attempt, _)| !attempt.structured), "{what}, {length} bytes");
            }
        }
    }
}

#[test]
fn zeros_before_a_stream_give_half_of_anything() {
    let plain = random(3000);
    let wire = scrambled(&plain);
    let attempt = attack(Model::shipped(), &wire, &Before::at(0, &[None; 32]));
    assert_eq!(attempt.by, Some(Means::Beginning));
    let score = score(&attempt, &wire, &plain);
    assert!((score.claimed - 32.0 / 65.0).abs() < 0.01);
    assert_eq!(score.claimed, score.right);
}

#[test]
fn a_known_seed_gives_everything() {
    let plain = random(3000);
    let wire = scrambled(&plain);
    for start in [0, 1, 40, 63] {
        // The bytes between the stream's beginning and the run were not captured.
        let before = Before::at(start as u64, &SEED.map(Some));
        let attempt = attack(Model::shipped(), &wire[start..], &before);
        let score = score(&attempt, &wire[start..], &plain[start..]);
        assert_eq!(score.claimed, score.right, "from byte {start}");
        assert!(start > 0 || (attempt.by == Some(Means::Seed) && score.right == 1.0));
    }
}

#[test]
fn a_stream_that_begins_with_text_is_read_from_its_first_byte() {
    let header = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\n\r\n";
    let plain = [header.as_slice(), &PROSE[..1400]].concat();
    let wire = scrambled(&plain);
    let attempt = attack(Model::shipped(), &wire, &Before::at(0, &[None; 32]));
    assert!(score(&attempt, &wire, &plain).right > 0.999);
}

#[test]
fn known_parts_of_files_undo_all_around_them() {
    let tables = b"\xff\xc4\x00\x1f\x00\x00\x01\x05\x01\x01\x01\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\
        \x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\xff\xc4\x00\xb5\x10\x00\x02\x01\x03\x03\x02\x04\x03\x05\
        \x05\x04\x04\x00\x00\x01\x7d\x01\x02\x03\x00\x04\x11\x05\x12\x21\x31\x41\x06\x13\x51\x61\x07\x22q\x142\x81\
        \x91\xa1\x08#B\xb1\xc1\x15R\xd1\xf0$3br\x82";
    for known in [tables.as_slice(), &[0; 140]] {
        let mut plain = random(2000);
        plain[700..700 + known.len()].copy_from_slice(known);
        let wire = scrambled(&plain);
        let attempt = attack(Model::shipped(), &wire[64..], &Before::UNKNOWN);
        assert!(matches!(attempt.by, Some(Means::KnownText(_))), "{:?}", attempt.by);
        assert_eq!(score(&attempt, &wire[64..], &plain[64..]).right, 1.0);
    }
}

#[test]
fn a_known_beginning_adds_what_the_zeros_leave_open() {
    let header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";
    let plain = [header.as_slice(), &random(3000)].concat();
    let wire = scrambled(&plain);
    let attempt = attack(Model::shipped(), &wire, &Before::at(0, &[None; 32]));
    assert_eq!(attempt.by, Some(Means::KnownText("ELF")));
    let score = score(&attempt, &wire, &plain);
    assert!(score.claimed > 33.0 / 65.0 - 0.01, "the first byte is no longer open");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Whatever the wire bytes are, few or many, at whatever place: an answer, and of random bytes no claim but what
    /// the zeros before a stream give.
    #[test]
    fn no_bytes_are_too_strange(wire in vec(any::<u8>(), 0..300), position in 0..80u64, seed in vec(any::<Option<u8>>(), 1..64)) {
        let anywhere = attack(Model::shipped(), &wire, &Before::UNKNOWN);
        prop_assert!(anywhere.by.is_none());
        let attempt = attack(Model::shipped(), &wire, &Before::at(position, &seed));
        let mut plain = Vec::new();
        Plaintext::new(&attempt.keys).next(&wire, &mut plain);
        prop_assert_eq!(plain.len(), wire.len());
    }

    /// The algebra, with the codec as the judge: 64 known bytes anywhere give the whole run.
    #[test]
    fn sixty_four_known_bytes_give_all(plain in vec(any::<u8>(), 200..500), from in 0..300usize) {
        let wire = scrambled(&plain);
        let run = &wire[64..];
        let chain = Chain::new(run, 0);
        let from = from % (plain.len() - 64);
        let keys = chain.keys_from(from, plain[from..from + 64].iter().copied());
        let mut found = Vec::new();
        Plaintext::new(&keys).next(run, &mut found);
        let found: Option<Vec<u8>> = found.into_iter().collect();
        prop_assert_eq!(found.as_deref(), Some(&plain[64..]));
    }
}

/// Numbers that pass for random, always the same.
fn generator() -> impl FnMut() -> u64 {
    let mut state = 0x853c_49e6_748f_ea9b_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }
}

fn random(length: usize) -> Vec<u8> {
    let mut next = generator();
    (0..length).map(|_| next() as u8).collect()
}

fn aes_ctr(plain: &[u8]) -> Vec<u8> {
    let mut wire = plain.to_vec();
    Secret::new(&[1; 8], &[2; 8], &[3; 32]).keystream(Cipher::Aes256Ctr, Direction::Forth).apply(&mut wire);
    wire
}
