//! The modes of protection, and the bits by which the TCP option negotiates them.
//!
//! The option is the experimental kind 254 with ExID `PLAI` (RFC 6994): on SYN its last byte has a bit for every
//! [`Variant`] that the initiator offers, on SYN-ACK the one bit that the responder chose, or if there is none in common, its own. The kernel writes and reads
//! it (`negotiate.bpf.c`); this module is what user space needs to know of it.

use serde::{Deserialize, Serialize};

use crate::codec::records::AeadCipher;
use crate::codec::stream::StreamCipher;
use crate::derive::named;

/// How a connection's bytes are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Not at all: plain MPTCP.
    Off,
    /// The byte scrambling of Kato et al. Obfuscation against casual listening, not secrecy.
    Xor64,
    /// A keystream from secrets that crossed only the trusted path. Secrecy from everybody who did not listen there;
    /// no integrity.
    Stream,
    /// Authenticated encryption, with keys that only an attacker active on every path could know.
    Sealed,
}

impl Mode {
    /// The mode whose variants these bits are; `None` for those of several or of none.
    #[must_use]
    pub fn of_bits(bits: u8) -> Option<Mode> {
        let of_mode = |mode: Mode| {
            let variants = Variant::ALL.into_iter().filter(|variant| variant.mode() == mode);
            variants.fold(0, |all, variant| all | variant.bit())
        };
        let modes = [Mode::Xor64, Mode::Stream, Mode::Sealed];
        modes.into_iter().find(|mode| bits != 0 && bits & !of_mode(*mode) == 0)
    }

    /// The option bits of the variants that an end in this mode offers and accepts. Variants of one mode only: a
    /// middlebox that clears bits could otherwise turn the offer into one of a weaker mode.
    #[must_use]
    pub fn offer(self) -> u8 {
        // AES in software is slow and leaks keys through cache timing: such a host offers ChaCha20 alone.
        let aes = StreamCipher::aes_is_fast();
        let variants = Variant::ALL.into_iter().filter(|variant| variant.mode() == self);
        variants.filter(|variant| aes || !variant.uses_aes()).fold(0, |bits, variant| bits | variant.bit())
    }
}

named! {
    Mode, "a mode" {
        Off = "off",
        Xor64 = "xor64",
        Stream = "stream",
        Sealed = "sealed",
    }
}

/// A mode with all its parameters: one bit of the option. `enum plait_mode` of `intf.h` is the same list.
///
/// The kernel module's own `stream`, keyed by the MPTCP keys alone, is none of them: no gateway offers or accepts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// `xor64` seeded with the MPTCP keys as they are, as published.
    Xor64Key = 1 << 0,
    /// `xor64` seeded with an HMAC of the MPTCP keys.
    Xor64Hmac = 1 << 1,
    /// `stream` with ChaCha20.
    StreamChaCha20 = 1 << 2,
    /// `stream` with AES-256 in counter mode.
    StreamAes256 = 1 << 3,
    /// `sealed` with ChaCha20-Poly1305.
    SealedChaChaPoly = 1 << 4,
    /// `sealed` with AES-256-GCM.
    SealedAesGcm = 1 << 5,
}

impl Variant {
    /// All variants, the least preferred first: a responder chooses the highest bit that both ends know.
    pub const ALL: [Variant; 6] = [
        Variant::Xor64Key,
        Variant::Xor64Hmac,
        Variant::StreamChaCha20,
        Variant::StreamAes256,
        Variant::SealedChaChaPoly,
        Variant::SealedAesGcm,
    ];

    /// Its bit in the option.
    #[must_use]
    pub fn bit(self) -> u8 {
        self as u8
    }

    /// The variant with this bit; `None` for any other byte.
    #[must_use]
    pub fn from_bit(bit: u8) -> Option<Variant> {
        Variant::ALL.into_iter().find(|variant| variant.bit() == bit)
    }

    /// The mode that it is a variant of.
    #[must_use]
    pub fn mode(self) -> Mode {
        match self {
            Variant::Xor64Key | Variant::Xor64Hmac => Mode::Xor64,
            Variant::StreamChaCha20 | Variant::StreamAes256 => Mode::Stream,
            Variant::SealedChaChaPoly | Variant::SealedAesGcm => Mode::Sealed,
        }
    }

    /// What encrypts records, in mode `sealed`.
    #[must_use]
    pub fn aead_cipher(self) -> Option<AeadCipher> {
        match self {
            Variant::SealedChaChaPoly => Some(AeadCipher::ChaCha20Poly1305),
            Variant::SealedAesGcm => Some(AeadCipher::Aes256Gcm),
            _ => None,
        }
    }

    fn uses_aes(self) -> bool {
        matches!(self, Variant::StreamAes256 | Variant::SealedAesGcm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offers_contain_variants_of_one_mode_only() {
        assert_eq!((Mode::Off.offer(), Mode::Xor64.offer()), (0, 3));
        for mode in [Mode::Xor64, Mode::Stream, Mode::Sealed] {
            for variant in Variant::ALL {
                let offered = mode.offer() & variant.bit() != 0;
                let expected = variant.mode() == mode && (StreamCipher::aes_is_fast() || !variant.uses_aes());
                assert_eq!(offered, expected, "{mode}: {variant:?}");
            }
        }
    }

    #[test]
    fn bits_of_one_mode_name_it() {
        assert_eq!([0x01, 0x02, 0x03].map(Mode::of_bits), [Some(Mode::Xor64); 3]);
        assert_eq!([0x04, 0x08, 0x0c].map(Mode::of_bits), [Some(Mode::Stream); 3]);
        assert_eq!([0x10, 0x20, 0x30].map(Mode::of_bits), [Some(Mode::Sealed); 3]);
        assert_eq!([0, 0x05, 0x31, 0x40, 0x81].map(Mode::of_bits), [None; 5]);
    }

    #[test]
    fn variants_are_single_bits() {
        for variant in Variant::ALL {
            assert_eq!(variant.bit().count_ones(), 1);
            assert_eq!(Variant::from_bit(variant.bit()), Some(variant));
        }
        assert_eq!([0, 3, 0x40, 0x80].map(Variant::from_bit), [None; 4]);
    }
}
