//! Keys for other protocols, from the keys of a session: what both ends compute, and nobody else, as RFC 5705 defines for TLS.
//!
//! ```text
//! key = HKDF-Expand(root 0, "plait sealed 3 exporter" || length of the label (1 byte) || label || context, length)
//! ```
//!
//! HKDF is RFC 5869's with SHA-256; [root 0](super::root) follows from the handshake. Neither the keys of records nor later
//! roots can be computed from it.

use std::fmt;
use std::sync::Arc;

use ring::hkdf;
use zeroize::Zeroizing;

use super::root::Root;

const EXPORTER: &[u8] = b"plait sealed 3 exporter";

/// Exports keys of a session. It stays valid as long as it is kept, also after the records have changed their keys.
#[derive(Clone)]
pub struct Exporter(Arc<hkdf::Prk>);

/// A label or a length that is out of range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExportError {
    /// The label is empty or longer than a byte can tell.
    #[error("expected a label of 1 to 255 bytes, got {0}")]
    Label(usize),
    /// HKDF has no key of this length.
    #[error("expected a length of 1 to {max}, got {0}", max = Exporter::MAX_LEN)]
    Length(usize),
}

impl Exporter {
    /// Maximum length of a key in bytes (RFC 5869, section 2.3).
    pub const MAX_LEN: usize = 255 * 32;

    pub(super) fn new(root: &Root) -> Exporter {
        Exporter(Arc::new(root.prk()))
    }

    /// The key of `length` bytes for a label, which says what it is for, and a context, which may be empty.
    ///
    /// # Errors
    /// The label or the length is out of range.
    pub fn export(
        &self,
        label: &str,
        context: &[u8],
        length: usize,
    ) -> Result<Zeroizing<Vec<u8>>, ExportError> {
        let label_length = u8::try_from(label.len()).ok().filter(|length| *length > 0);
        let label_length = label_length.ok_or(ExportError::Label(label.len()))?;
        if !(1..=Exporter::MAX_LEN).contains(&length) {
            return Err(ExportError::Length(length));
        }
        let info = [EXPORTER, &[label_length], label.as_bytes(), context];
        let mut key = Zeroizing::new(vec![0; length]);
        let expanded = self.0.expand(&info, KeyLength(length)).and_then(|okm| okm.fill(&mut key));
        expanded.map_err(|_| ExportError::Length(length))?;
        Ok(key)
    }
}

struct KeyLength(usize);

impl hkdf::KeyType for KeyLength {
    fn len(&self) -> usize {
        self.0
    }
}

impl fmt::Debug for Exporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Exporter(..)")
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::tests::mac;
    use super::super::noise::Split;
    use super::*;
    use crate::secret::Secret;

    fn exporter(hash: [u8; 32]) -> Exporter {
        let [to_responder, to_initiator] = [[1; 32], [2; 32]].map(|key| Secret::copy_of(&key));
        Exporter::new(&Root::of_handshake(&Split { hash, to_responder, to_initiator }))
    }

    #[test]
    fn keys_are_those_of_another_implementation_of_hkdf() {
        let secret = mac(&[7; 32], &[&[1; 32], &[2; 32]]);
        let info = [b"plait sealed 3 exporter\x05label".as_slice(), b"context"].concat();
        let first = mac(&secret, &[&info, &[1]]);
        let second = mac(&secret, &[&first, &info, &[2]]);
        let key = exporter([7; 32]).export("label", b"context", 40).expect("valid");
        assert_eq!(key[..], [&first[..], &second[..8]].concat());
    }

    #[test]
    fn keys_depend_on_label_context_and_handshake() {
        let export =
            |hash, label: &str, context: &[u8]| exporter(hash).export(label, context, 32).expect("valid");
        let key = export([7; 32], "label", b"context");
        assert_eq!(key, export([7; 32], "label", b"context"));
        assert_ne!(key, export([8; 32], "label", b"context"));
        assert_ne!(key, export([7; 32], "labels", b"context"));
        assert_ne!(key, export([7; 32], "label", b""));
        assert_ne!(export([7; 32], "a", b"bc"), export([7; 32], "ab", b"c"));
    }

    #[test]
    fn labels_and_lengths_out_of_range_are_errors() {
        let exporter = exporter([7; 32]);
        assert_eq!(exporter.export("", b"", 32), Err(ExportError::Label(0)));
        assert_eq!(exporter.export(&"l".repeat(256), b"", 32), Err(ExportError::Label(256)));
        assert_eq!(exporter.export("label", b"", 0), Err(ExportError::Length(0)));
        assert_eq!(exporter.export("label", b"", 8161), Err(ExportError::Length(8161)));
        assert_eq!(exporter.export("label", b"", 8160).map(|key| key.len()), Ok(8160));
        assert_eq!(format!("{exporter:?}"), "Exporter(..)");
    }
}
