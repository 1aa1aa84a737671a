//! The block ciphers that the papers compare with, in ECB and CBC, and the AEADs in common use today.

use aes::cipher::{
    Block, BlockCipherDecrypt, BlockCipherEncrypt, BlockModeDecrypt, BlockModeEncrypt, InOutBuf, InnerIvInit,
    Key, KeyInit,
};
use ring::aead::{Aad, Algorithm, LessSafeKey, NONCE_LEN, Nonce, Tag, UnboundKey};

use super::bytewise_aes::{BLOCK, BytewiseAes};
use super::transform::{Buffers, Direction, Transform, Wire};

const ECB: Wire = Wire { bytes: |size| size, one_path_of_two: "which blocks are equal" };
const CBC: Wire = Wire { bytes: |size| size, one_path_of_two: "nothing" };
const AEAD: Wire = Wire { bytes: |size| size + 16, one_path_of_two: "nothing" };

/// ECB and CBC in both directions. Whole blocks only: all measured sizes are multiples of a block.
pub(super) fn block_modes<C>(name: &str) -> [Transform; 4]
where
    C: BlockCipherEncrypt + BlockCipherDecrypt + KeyInit + 'static,
{
    let (ecb, cbc) = (format!("{name}-ecb"), format!("{name}-cbc"));
    let cipher = || {
        let mut key = Key::<C>::default();
        key.iter_mut().zip(1..).for_each(|(byte, i)| *byte = i);
        C::new(&key)
    };
    let iv = Block::<C>::default();
    let (ecb_encrypt, ecb_decrypt) = (cipher(), cipher());
    let mut cbc_encrypt = cbc::Encryptor::inner_iv_init(cipher(), &iv);
    let mut cbc_decrypt = cbc::Decryptor::inner_iv_init(cipher(), &iv);
    [
        Transform::new(ecb.clone(), Direction::Encode, ECB, move |buf| {
            ecb_encrypt.encrypt_blocks_inout(InOutBuf::from(buf).into_chunks().0);
        }),
        Transform::new(ecb, Direction::Decode, ECB, move |buf| {
            ecb_decrypt.decrypt_blocks_inout(InOutBuf::from(buf).into_chunks().0);
        }),
        Transform::new(cbc.clone(), Direction::Encode, CBC, move |buf| {
            cbc_encrypt.encrypt_blocks_inout(InOutBuf::from(buf).into_chunks().0);
        }),
        Transform::new(cbc, Direction::Decode, CBC, move |buf| {
            cbc_decrypt.decrypt_blocks_inout(InOutBuf::from(buf).into_chunks().0);
        }),
    ]
}

/// AES without tables or instructions, in ECB.
pub(super) fn bytewise(bits: usize) -> [Transform; 2] {
    let name = format!("aes-{bits}-bytewise-ecb");
    let cipher = || BytewiseAes::new(&[7; 32][..bits / 8]);
    let (encryptor, decryptor) = (cipher(), cipher());
    [
        Transform::new(name.clone(), Direction::Encode, ECB, move |buf| {
            buf.as_chunks_mut::<BLOCK>().0.iter_mut().for_each(|block| encryptor.encrypt(block));
        }),
        Transform::new(name, Direction::Decode, ECB, move |buf| {
            buf.as_chunks_mut::<BLOCK>().0.iter_mut().for_each(|block| decryptor.decrypt(block));
        }),
    ]
}

/// Sealing, and opening what the preparation sealed.
pub(super) fn aead(name: &str, algorithm: &'static Algorithm) -> [Transform; 2] {
    let mut sealer = Aead::new(algorithm);
    let seal = Transform::new(name, Direction::Encode, AEAD, move |buf| {
        let _tag = std::hint::black_box(sealer.seal(buf).1);
    });

    let mut sealer = Aead::new(algorithm);
    let opener = Aead::new(algorithm);
    let seal_all = move |sealed: &mut Vec<_>, buffers: &mut Buffers| {
        sealed.clear();
        sealed.extend(buffers.each().map(|buf| sealer.seal(buf)));
    };
    let open = Transform::prepared(name, Direction::Decode, AEAD, seal_all, move |sealed, buffers| {
        for (buf, (nonce, tag)) in buffers.each().zip(sealed.drain(..)) {
            opener.open(nonce, tag, buf);
        }
    });
    [seal, open]
}

struct Aead {
    key: LessSafeKey,
    sealed: u64,
}

impl Aead {
    fn new(algorithm: &'static Algorithm) -> Self {
        let key = UnboundKey::new(algorithm, &[7; 32][..algorithm.key_len()])
            .expect("a key of the algorithm's length");
        Self { key: LessSafeKey::new(key), sealed: 0 }
    }

    /// Seals `buf` with a fresh nonce, and returns its number and the tag.
    fn seal(&mut self, buf: &mut [u8]) -> (u64, Tag) {
        self.sealed += 1;
        let sealed = self.key.seal_in_place_separate_tag(nonce(self.sealed), Aad::empty(), buf);
        (self.sealed, sealed.expect("far from the algorithm's limit"))
    }

    fn open(&self, number: u64, tag: Tag, buf: &mut [u8]) {
        let opened = self.key.open_in_place_separate_tag(nonce(number), Aad::empty(), tag, buf, 0..);
        assert!(opened.is_ok(), "sealed with the same key and nonce");
    }
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(nonce)
}
