//! A bounds-checked reader of big-endian fields.

use crate::error::ParseError;

/// Takes big-endian fields from the front of a byte string; beyond its end every field is a [`ParseError::Truncated`].
pub(crate) struct Fields<'a> {
    what: &'static str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(what: &'static str, bytes: &'a [u8]) -> Self {
        Self { what, rest: bytes }
    }

    #[inline]
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], ParseError> {
        let Some((field, rest)) = self.rest.split_first_chunk::<N>() else {
            return Err(ParseError::Truncated { what: self.what, expected: N, got: self.rest.len() });
        };
        self.rest = rest;
        Ok(*field)
    }

    #[inline]
    pub(crate) fn u8(&mut self) -> Result<u8, ParseError> {
        self.array().map(u8::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u16(&mut self) -> Result<u16, ParseError> {
        self.array().map(u16::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u32(&mut self) -> Result<u32, ParseError> {
        self.array().map(u32::from_be_bytes)
    }

    #[inline]
    pub(crate) fn u64(&mut self) -> Result<u64, ParseError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(crate) fn remaining(&self) -> &'a [u8] {
        self.rest
    }
}
