//! Deserializes values that files write as strings, or as tables with a shorthand.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserialize as _, DeserializeOwned, Deserializer, Error, MapAccess, Unexpected, Visitor};

use crate::error::TextError;

/// Deserializes a string with `parse`; `expected` describes the form, for values of other types.
///
/// # Errors
/// The value is not a string, or `parse` rejects it.
pub fn deserialize_text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    parse: impl FnOnce(&str) -> Result<T, TextError>,
) -> Result<T, D::Error> {
    struct TextVisitor<'e, T, F>(&'e str, F, PhantomData<T>);
    impl<T, F: FnOnce(&str) -> Result<T, TextError>> Visitor<'_> for TextVisitor<'_, T, F> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str(self.0)
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
            (self.1)(text).map_err(E::custom)
        }
    }
    deserializer.deserialize_str(TextVisitor(expected, parse, PhantomData))
}

/// A value that files write as a table, or as a string or number for short.
pub trait Shorthand: Sized {
    /// The table form.
    type Table: DeserializeOwned + Into<Self>;
    /// All accepted forms, for error messages.
    const EXPECTED: &'static str;

    /// Parses the string form.
    ///
    /// # Errors
    /// The string does not have the expected form.
    fn from_text(text: &str) -> Result<Self, TextError>;

    /// Converts the number form; `None` if there is no such form, or the number is out of range.
    fn from_number(_: f64) -> Option<Self> {
        None
    }
}

/// Deserializes any form of a [`Shorthand`].
///
/// # Errors
/// The value has none of the forms.
pub fn deserialize_shorthand<'de, D: Deserializer<'de>, T: Shorthand>(
    deserializer: D,
) -> Result<T, D::Error> {
    deserializer.deserialize_any(ShorthandVisitor(PhantomData))
}

struct ShorthandVisitor<T>(PhantomData<T>);

impl<T: Shorthand> ShorthandVisitor<T> {
    fn number<E: Error>(self, number: f64, unexpected: Unexpected<'_>) -> Result<T, E> {
        T::from_number(number).ok_or_else(|| E::invalid_value(unexpected, &self))
    }
}

impl<'de, T: Shorthand> Visitor<'de> for ShorthandVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text).map_err(E::custom)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.number(number as f64, Unexpected::Signed(number))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        self.number(number, Unexpected::Float(number))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::Table::deserialize(MapAccessDeserializer::new(map)).map(Into::into)
    }
}
