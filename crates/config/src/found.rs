//! What stands where a value was expected in a file that serde reads, so that what does not fit is told in our words.
//!
//! Errors are raised while the value is read, which keeps the position that formats such as TOML give them.

use std::fmt;
use std::marker::PhantomData;

use serde::de::value::MapAccessDeserializer;
use serde::de::{
    Deserialize, DeserializeOwned, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor,
};

use crate::TextError;

/// A value; a table is read as `T`, which `()` stands for where none belongs.
pub enum Found<T> {
    /// A text.
    Text(String),
    /// A number, whole or not.
    Number(f64),
    /// True or false.
    Boolean(bool),
    /// A list, whatever is in it.
    List,
    /// A table, read.
    Table(T),
}

/// What a table is read as.
pub trait Table: DeserializeOwned {
    /// Reads it.
    ///
    /// # Errors
    /// It cannot be that.
    fn read<'de, A: MapAccess<'de>>(map: A) -> Result<Self, A::Error> {
        Self::deserialize(MapAccessDeserializer::new(map))
    }
}

/// A text that means something.
pub(crate) fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    expected: &str,
    read: impl FnOnce(&str) -> Result<T, TextError>,
) -> Result<T, D::Error> {
    let text = Found::<()>::deserialize(deserializer)?.text::<D::Error>(expected)?;
    read(&text).map_err(D::Error::custom)
}

impl<T> Found<T> {
    /// The text.
    ///
    /// # Errors
    /// It is something else than what was expected, such as "a time such as 2ms".
    pub fn text<E: Error>(self, expected: &str) -> Result<String, E> {
        match self {
            Self::Text(text) => Ok(text),
            other => Err(other.unexpected(expected)),
        }
    }

    /// The error that something else was expected, such as "a time such as 2ms".
    pub fn unexpected<E: Error>(self, expected: &str) -> E {
        let found = match self {
            Self::Text(text) => format!("{text:?}"),
            Self::Number(number) => format!("the number {number}"),
            Self::Boolean(value) => value.to_string(),
            Self::List => "a list".into(),
            Self::Table(_) => "a table".into(),
        };
        E::custom(format_args!("expected {expected}, found {found}"))
    }
}

impl Table for () {
    fn read<'de, A: MapAccess<'de>>(mut map: A) -> Result<Self, A::Error> {
        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(())
    }
}

impl<'de, T: Table> Deserialize<'de> for Found<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Look(PhantomData))
    }
}

struct Look<T>(PhantomData<T>);

impl<'de, T: Table> Visitor<'de> for Look<T> {
    type Value = Found<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number or a table")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Found<T>, E> {
        Ok(Found::Text(text.into()))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Found<T>, E> {
        Ok(Found::Number(number as f64))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Found<T>, E> {
        Ok(Found::Number(number as f64))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Found<T>, E> {
        Ok(Found::Number(number))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Found<T>, E> {
        Ok(Found::Boolean(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Found<T>, A::Error> {
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(Found::List)
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Found<T>, A::Error> {
        T::read(map).map(Found::Table)
    }
}
