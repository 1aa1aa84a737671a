//! The HMACs that prove knowledge of both keys of a connection: those of a join's handshake (RFC 8684 3.2, RFC 6824
//! 3.2), and that of an announced address (RFC 8684 3.4.1).
//!
//! Comparisons take constant time.

use std::net::IpAddr;

use hmac::digest::KeyInit;
use hmac::{Hmac, Mac};
use sha1::Sha1;
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

use super::{AddAddress, AddAddressForm, Key, Nonce, Version};

/// The HMAC that one side of a join sends: the listener in its SYN/ACK, the joining side in its ACK.
#[derive(Clone)]
pub struct JoinHmac([u8; 20]);

impl JoinHmac {
    /// The HMAC that the sender of these keys and nonces sends: HMAC-SHA256 in version 1, HMAC-SHA1 in version 0,
    /// with the sender's key before the receiver's as key, and the sender's nonce before the receiver's as message.
    pub fn of(
        version: Version,
        sender: &Key,
        receiver: &Key,
        sender_nonce: Nonce,
        receiver_nonce: Nonce,
    ) -> Self {
        let key = both(sender, receiver);
        let message = [sender_nonce.0.to_be_bytes(), receiver_nonce.0.to_be_bytes()];
        let mut leftmost = [0; 20];
        match version {
            Version::V0 => {
                let mac = keyed::<Hmac<Sha1>>(&key).chain_update(message.as_flattened());
                leftmost.copy_from_slice(&mac.finalize().into_bytes());
            }
            Version::V1 => {
                let mac = keyed::<Hmac<Sha256>>(&key).chain_update(message.as_flattened());
                leftmost.copy_from_slice(&mac.finalize().into_bytes()[..20]);
            }
        }
        Self(leftmost)
    }

    /// The HMAC in the listener's SYN/ACK: the leftmost 64 bits.
    pub fn syn_ack(&self) -> [u8; 8] {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        [a, b, c, d, e, f, g, h]
    }

    /// The HMAC in the joining side's ACK: the leftmost 160 bits.
    pub fn ack(&self) -> [u8; 20] {
        self.0
    }

    /// Whether the sender of a SYN/ACK with `hmac` knows the keys.
    pub fn matches_syn_ack(&self, hmac: &[u8; 8]) -> bool {
        self.syn_ack().ct_eq(hmac).into()
    }

    /// Whether the sender of an ACK with `hmac` knows the keys.
    pub fn matches_ack(&self, hmac: &[u8; 20]) -> bool {
        self.ack().ct_eq(hmac).into()
    }
}

impl AddAddress {
    /// The HMAC of this identifier, address and port in version 1: the rightmost 64 bits of their HMAC-SHA256, with the
    /// announcer's key before its peer's as key. A missing port counts as 0.
    fn expected_hmac(&self, announcer: &Key, peer: &Key) -> [u8; 8] {
        let mac = keyed::<Hmac<Sha256>>(&both(announcer, peer)).chain_update([self.id.0]);
        let mac = match self.address {
            IpAddr::V4(address) => mac.chain_update(address.octets()),
            IpAddr::V6(address) => mac.chain_update(address.octets()),
        };
        let mac = mac.chain_update(self.port.unwrap_or(0).to_be_bytes());
        let mut rightmost = [0; 8];
        rightmost.copy_from_slice(&mac.finalize().into_bytes()[24..]);
        rightmost
    }

    /// Whether the sender of this announcement knows the keys. Only an [`AddAddressForm::Announce`] can be authentic:
    /// the other forms have no HMAC.
    pub fn is_authentic(&self, announcer: &Key, peer: &Key) -> bool {
        match &self.form {
            AddAddressForm::Announce { hmac } => self.expected_hmac(announcer, peer).ct_eq(hmac).into(),
            AddAddressForm::V0 | AddAddressForm::Echo => false,
        }
    }
}

fn both(first: &Key, second: &Key) -> Zeroizing<[u8; 16]> {
    let mut both = Zeroizing::new([0; 16]);
    both[..8].copy_from_slice(first.as_bytes());
    both[8..].copy_from_slice(second.as_bytes());
    both
}

fn keyed<M: Mac + KeyInit>(key: &[u8; 16]) -> M {
    <M as Mac>::new_from_slice(key).expect("an HMAC takes keys of all lengths")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mptcp::{AddressId, CapableKeys, Join, MptcpOption};

    fn option(body: &str) -> MptcpOption<'static> {
        let bytes = hex::decode(body).expect("hexadecimal digits").leak();
        MptcpOption::parse(bytes).expect("an MPTCP option")
    }

    /// The keys of client and server, from the client's ACK.
    fn keys(ack: &str) -> (Version, Key, Key) {
        match option(ack) {
            MptcpOption::Capable(capable) => match capable.keys {
                CapableKeys::Both { sender, receiver, .. } => (capable.version, sender, receiver),
                _ => panic!("no MP_CAPABLE with both keys"),
            },
            other => panic!("{other:?}"),
        }
    }

    /// Handshakes by Linux, as the bodies of their options: the client's MP_CAPABLE with both keys, and the client's
    /// MP_JOINs and the server's.
    const JOINS: [(&str, [&str; 3]); 3] = [
        // Version 0, by the MPTCP kernel of multipath-tcp.org, from tcpdump's test suite (mptcp.pcap).
        (
            "00819c9eabd1e46a33b2967d2770b6960552",
            [
                "1000e47f01421b665a18",
                "10015ab680c7884af03d33abe9d5",
                "1000cb7b87f5e5f0502f43b535fb70ef6607df2e6c7a",
            ],
        ),
        // Version 1, by Linux 6.18 between two network namespaces; over IPv4, then after a connection over IPv6.
        (
            "010121c7ebfbc57c75cb38160517f10b3f88",
            [
                "100114db018ee8de8a9d",
                "1001838bd45e3ca85f9bfd1aeadf",
                "1000efbb2e481eb86ce8cc9c44aa526a5bb0bad12bb3",
            ],
        ),
        (
            "0101c06100453af6fbb2d31f3b1aec795916",
            [
                "100171ac0a9d2742c891",
                "100171105ce783e17bf7cffbcb82",
                "10008905186e28d88d0a18e619526258b1706b3d2ee8",
            ],
        ),
    ];

    #[test]
    fn joins_made_by_linux_match_and_others_do_not() {
        for (capable, [syn, syn_ack, ack]) in JOINS {
            let (version, client, server) = keys(capable);
            let MptcpOption::Join(Join::Syn { token, nonce: client_nonce, .. }) = option(syn) else {
                panic!("{syn}");
            };
            let MptcpOption::Join(Join::SynAck { hmac: short, nonce: server_nonce, .. }) = option(syn_ack)
            else {
                panic!("{syn_ack}");
            };
            let MptcpOption::Join(Join::Ack { hmac: long }) = option(ack) else { panic!("{ack}") };
            assert_eq!(token, server.token(version));

            let by_server = JoinHmac::of(version, &server, &client, server_nonce, client_nonce);
            assert!(by_server.matches_syn_ack(&short));
            assert_eq!(by_server.syn_ack(), short);
            let by_client = JoinHmac::of(version, &client, &server, client_nonce, server_nonce);
            assert!(by_client.matches_ack(&long));
            assert_eq!(by_client.ack(), long);

            assert!(!by_client.matches_syn_ack(&short), "the other side's");
            assert!(!by_server.matches_ack(&long), "the other side's");
            for bit in 0..160 {
                let mut wrong = long;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!by_client.matches_ack(&wrong), "bit {bit}");
            }
            for bit in 0..64 {
                let mut wrong = short;
                wrong[bit / 8] ^= 1 << (bit % 8);
                assert!(!by_server.matches_syn_ack(&wrong), "bit {bit}");
            }
        }
    }

    /// Announcements by Linux 6.18 for the server of the second and third of [`JOINS`], as the bodies of their options:
    /// an IPv4 address with a port, an IPv6 address without.
    const ANNOUNCEMENTS: [(usize, [&str; 2]); 2] = [
        (1, ["30010a5802021b5a9c129241643bce9f", "3002fd88000200000000000000000000000260d9eda8e2b6d39e"]),
        (2, ["30010a5802021b5a422071c5f43884c3", "3002fd880002000000000000000000000002bf621e1117ec0fd7"]),
    ];

    #[test]
    fn addresses_announced_by_linux_are_authentic_and_others_are_not() {
        for (connection, bodies) in ANNOUNCEMENTS {
            let (_, client, server) = keys(JOINS[connection].0);
            for body in bodies {
                let MptcpOption::AddAddress(add) = option(body) else { panic!("{body}") };
                assert!(add.is_authentic(&server, &client), "{body}");
                let hmac = add.expected_hmac(&server, &client);
                assert_eq!(add.form, AddAddressForm::Announce { hmac }, "{body}");

                assert!(!add.is_authentic(&client, &server), "announced by the other side");
                for altered in [
                    AddAddress { id: AddressId(9), ..add },
                    AddAddress { address: [10, 88, 2, 3].into(), ..add },
                    AddAddress { port: Some(1), ..add },
                    AddAddress { form: AddAddressForm::Announce { hmac: [0; 8] }, ..add },
                    AddAddress { form: AddAddressForm::Echo, ..add },
                    AddAddress { form: AddAddressForm::V0, ..add },
                ] {
                    assert!(!altered.is_authentic(&server, &client), "{altered:?}");
                }
            }
        }
    }

    // Computed by Python's hmac module: the keys are 01 to 08 and 11 to 18 (hexadecimal), the nonces 21 to 24 and 31 to
    // 34, the address is 3, 192.0.2.1, no port. `hmac.new(keys, nonces, "sha1").digest()`; the same with "sha256",
    // [:20]; `hmac.new(keys, bytes([3, 192, 0, 2, 1, 0, 0]), "sha256").digest()[-8:]`.
    #[test]
    fn hmacs_are_those_of_another_implementation() {
        let sender = Key::new([1, 2, 3, 4, 5, 6, 7, 8]);
        let receiver = Key::new([0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18]);
        let join =
            |version| JoinHmac::of(version, &sender, &receiver, Nonce(0x2122_2324), Nonce(0x3132_3334)).ack();
        assert_eq!(hex::encode(join(Version::V0)), "eaddd7d44fb1be97a680f0e4c2fe896b332c1a95");
        assert_eq!(hex::encode(join(Version::V1)), "e19ad4ac22d51c2f064d49662431bc8f9d6b3a29");
        let (id, address) = (AddressId(3), [192, 0, 2, 1].into());
        let add = AddAddress { id, address, port: None, form: AddAddressForm::Echo };
        assert_eq!(hex::encode(add.expected_hmac(&sender, &receiver)), "485bedf7047526e4");
    }
}
