use super::*;
use plait_proto::codec::stream::{Direction, StreamCipher, StreamSecret};
use plait_proto::codec::xor64::{Encoder, Seed};
use proptest::collection::vec;
use proptest::prelude::*;

/// English prose that is not in the model's training text.
const PROSE: &[u8] = include_bytes!("../../../../tests/data/prose.txt");

const SEED: [u8; 32] = *b"\x91\x02\xf3kN\x88\xa0Q7\x1e\xcc\x05dW\xbe\x0f\x1a\x2b\x3c\x4d\x5e\x6f\x70\x81\x92\xa3\xb4\xc5\xd6\xe7\xf8\x09";

fn scrambled(plain: &[u8]) -> Vec<u8> {
    let mut wire = plain.to_vec();
    Encoder::new(&Seed::new(&SEED).expect("a seed of 32 bytes")).encode_in_place(&mut wire);
    wire
}

/// The shares of a run that were recovered, and recovered correctly.
struct Score {
    recovered: f64,
    correct: f64,
}

fn score(result: &AttackResult, wire: &[u8], plain: &[u8]) -> Score {
    let mut found = Vec::new();
    let mut decoder = Decoder::new(&result.keys);
    // In pieces, as in captures.
    wire.chunks(97).for_each(|piece| decoder.decode(piece, &mut found));
    assert_eq!(found.len(), plain.len());
    let share = |count: usize| count as f64 / plain.len() as f64;
    let correct = found.iter().zip(plain).filter(|(found, plain)| **found == Some(**plain)).count();
    Score { recovered: share(found.iter().flatten().count()), correct: share(correct) }
}

/// Attacks runs of one length at many positions of a scrambled text.
fn attack_runs(plain: &[u8], length: usize, runs: usize) -> Vec<(AttackResult, Score)> {
    let wire = scrambled(plain);
    let step = (plain.len() - length - 64) / runs;
    (0..runs)
        .map(|run| {
            let at = 64 + run * step..64 + run * step + length;
            let result = attack(Model::bundled(), &wire[at.clone()], &Preceding::UNKNOWN);
            let score = score(&result, &wire[at.clone()], &plain[at]);
            (result, score)
        })
        .collect()
}

fn mean(scores: &[(AttackResult, Score)], of: impl Fn(&Score) -> f64) -> f64 {
    scores.iter().map(|(_, score)| of(score)).sum::<f64>() / scores.len() as f64
}

#[test]
fn reads_english_outside_the_training_text() {
    for (length, runs, min_correct, min_precision) in
        [(130, 12, 0.75, 0.9), (350, 12, 0.97, 0.99), (1400, 8, 0.995, 0.998)]
    {
        let scores = attack_runs(PROSE, length, runs);
        let (recovered, correct) =
            (mean(&scores, |score| score.recovered), mean(&scores, |score| score.correct));
        println!("{length} bytes: {recovered:.4} recovered, {correct:.4} correct");
        assert!(correct > min_correct, "{length} bytes: {correct:.3} correct");
        assert!(
            correct > min_precision * recovered,
            "{length} bytes: {correct:.3} correct of {recovered:.3} recovered"
        );
    }
}

#[test]
fn any_readable_part_breaks_a_long_run() {
    let mut plain = random(20_000);
    plain[9_000..12_000].copy_from_slice(&PROSE[..3_000]);
    let wire = scrambled(&plain);
    let result = attack(Model::bundled(), &wire[100..], &Preceding::UNKNOWN);
    assert_eq!(result.method, Some(Method::Language));
    assert!(
        score(&result, &wire[100..], &plain[100..]).correct > 0.999,
        "including the random bytes around it"
    );
}

/// For content without language statistics nothing may be claimed, whatever the length of the run.
#[test]
fn claims_nothing_for_content_without_language_statistics() {
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
            let best = scores.iter().filter_map(|(result, _)| result.evidence).fold(f32::MIN, f32::max);
            println!("{what}, {length} bytes: evidence {best:.0}");
            assert_eq!(mean(&scores, |score| score.recovered), 0.0, "{what}, {length} bytes");
            if what == "random" || what.starts_with("AES") {
                assert!(scores.iter().all(|(result, _)| !result.structured), "{what}, {length} bytes");
            }
        }
    }
}

#[test]
fn zeros_before_a_stream_reveal_half_of_any_content() {
    let plain = random(3000);
    let wire = scrambled(&plain);
    let result = attack(Model::bundled(), &wire, &Preceding::at(0, &[None; 32]));
    assert_eq!(result.method, Some(Method::StreamStart));
    let score = score(&result, &wire, &plain);
    assert!((score.recovered - 32.0 / 65.0).abs() < 0.01);
    assert_eq!(score.recovered, score.correct);
}

#[test]
fn a_known_seed_reveals_everything() {
    let plain = random(3000);
    let wire = scrambled(&plain);
    for start in [0, 1, 40, 63] {
        // The bytes between the start of the stream and the run were not captured.
        let preceding = Preceding::at(start as u64, &SEED.map(Some));
        let result = attack(Model::bundled(), &wire[start..], &preceding);
        let score = score(&result, &wire[start..], &plain[start..]);
        assert_eq!(score.recovered, score.correct, "from byte {start}");
        assert!(start > 0 || (result.method == Some(Method::Seed) && score.correct == 1.0));
    }
}

#[test]
fn reads_a_stream_that_starts_with_text_from_its_first_byte() {
    let header = b"HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\n\r\n";
    let plain = [header.as_slice(), &PROSE[..1400]].concat();
    let wire = scrambled(&plain);
    let result = attack(Model::bundled(), &wire, &Preceding::at(0, &[None; 32]));
    assert!(score(&result, &wire, &plain).correct > 0.999);
}

#[test]
fn cribs_reveal_the_content_around_them() {
    let tables = b"\xff\xc4\x00\x1f\x00\x00\x01\x05\x01\x01\x01\x01\x01\x01\x00\x00\x00\x00\x00\x00\x00\
        \x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\xff\xc4\x00\xb5\x10\x00\x02\x01\x03\x03\x02\x04\x03\x05\
        \x05\x04\x04\x00\x00\x01\x7d\x01\x02\x03\x00\x04\x11\x05\x12\x21\x31\x41\x06\x13\x51\x61\x07\x22q\x142\x81\
        \x91\xa1\x08#B\xb1\xc1\x15R\xd1\xf0$3br\x82";
    for known in [tables.as_slice(), &[0; 140]] {
        let mut plain = random(2000);
        plain[700..700 + known.len()].copy_from_slice(known);
        let wire = scrambled(&plain);
        let result = attack(Model::bundled(), &wire[64..], &Preceding::UNKNOWN);
        assert!(matches!(result.method, Some(Method::KnownText(_))), "{:?}", result.method);
        assert_eq!(score(&result, &wire[64..], &plain[64..]).correct, 1.0);
    }
}

#[test]
fn a_file_signature_reveals_more_than_the_zeros() {
    let header = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0\x01\0\0\0";
    let plain = [header.as_slice(), &random(3000)].concat();
    let wire = scrambled(&plain);
    let result = attack(Model::bundled(), &wire, &Preceding::at(0, &[None; 32]));
    assert_eq!(result.method, Some(Method::KnownText("ELF")));
    let score = score(&result, &wire, &plain);
    assert!(score.recovered > 33.0 / 65.0 - 0.01, "the signature reveals the class that the zeros do not");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Any wire bytes at any position give a result; for random bytes only the zeros before a stream reveal anything.
    #[test]
    fn attack_accepts_any_bytes_and_claims_nothing_of_random_ones(wire in vec(any::<u8>(), 0..300), position in 0..80u64, seed in vec(any::<Option<u8>>(), 1..64)) {
        let anywhere = attack(Model::bundled(), &wire, &Preceding::UNKNOWN);
        prop_assert!(anywhere.method.is_none());
        let result = attack(Model::bundled(), &wire, &Preceding::at(position, &seed));
        let mut plain = Vec::new();
        Decoder::new(&result.keys).decode(&wire, &mut plain);
        prop_assert_eq!(plain.len(), wire.len());
    }

    /// The algebra, checked against the codec: 64 known bytes anywhere reveal the whole run.
    #[test]
    fn sixty_four_known_bytes_reveal_the_run(plain in vec(any::<u8>(), 200..500), from in 0..300usize) {
        let wire = scrambled(&plain);
        let run = &wire[64..];
        let wire_run = WireRun::new(run, 0);
        let from = from % (plain.len() - 64);
        let keys = wire_run.keys_from(from, plain[from..from + 64].iter().copied());
        let mut found = Vec::new();
        Decoder::new(&keys).decode(run, &mut found);
        let found: Option<Vec<u8>> = found.into_iter().collect();
        prop_assert_eq!(found.as_deref(), Some(&plain[64..]));
    }
}

/// Deterministic pseudorandom numbers.
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
    StreamSecret::new(&[1; 8], &[2; 8], &[3; 32])
        .keystream(StreamCipher::Aes256Ctr, Direction::ToResponder)
        .apply(&mut wire);
    wire
}
