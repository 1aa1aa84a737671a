//! Reads the text of a selector.
//!
//! ```text
//! expression = conjunction { "or" conjunction }
//! conjunction = negation { "and" negation }
//! negation = "not" negation | "(" expression ")" | NAME [ "(" [ argument { "," argument } ] ")" ]
//! argument = [ KEY "=" ] VALUE
//! ```

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use plait_config::Size;

use super::{Kind, Mark, Ports, Prefix, PrefixError, Selector, Subflow};
use crate::specification::{Interface, is_word_of_own};

/// How many parentheses and `not`s of an expression may be inside each other.
pub(crate) const DEEPEST: usize = 128;

/// Of a subflow or connection, as a size is written.
const MAX_BYTES: u64 = 1_000_000_000_000;

/// A text that is no selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorError {
    /// The character at which what is wrong begins, from 1.
    pub column: usize,
    /// What was expected there.
    pub expected: String,
    /// What was found there.
    pub found: String,
    /// What is wrong, in bytes of the text.
    pub(crate) place: Range<usize>,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: expected {}, found {}", self.column, self.expected, self.found)
    }
}

impl std::error::Error for SelectorError {}

impl FromStr for Selector {
    type Err = SelectorError;

    /// Reads a selector; any name that has no meaning yet is one of the user's own.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        parse(text, None)
    }
}

/// Reads a selector in which only these names are the user's own; any, if `None`.
pub(crate) fn parse(text: &str, own: Option<&[&str]>) -> Result<Selector, SelectorError> {
    let mut parser = Parser { text, own, next: Token::End, place: 0..0, depth: 0 };
    parser.advance();
    let selector = parser.expression()?;
    match parser.next {
        Token::End => Ok(selector),
        _ => parser.refuse("`and`, `or` or the end"),
    }
}

/// The names of selectors.
pub(super) const SELECTORS: &[&str] = &[
    "any",
    "subflow",
    "ip_pair",
    "src",
    "dst",
    "sequence",
    "packet",
    "connection",
    "path",
    "size",
    "connection_size",
    "mark",
    "cgroup",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    /// What stands between blanks and punctuation.
    Word(&'t str),
    Punctuation(char),
    End,
}

struct Parser<'t> {
    text: &'t str,
    own: Option<&'t [&'t str]>,
    next: Token<'t>,
    /// Where `next` stands.
    place: Range<usize>,
    depth: usize,
}

type Parsed<T> = Result<T, SelectorError>;

impl<'t> Parser<'t> {
    fn expression(&mut self) -> Parsed<Selector> {
        self.operands("or", Self::conjunction, Selector::Or)
    }

    fn conjunction(&mut self) -> Parsed<Selector> {
        self.operands("and", Self::negation, Selector::And)
    }

    /// One operand, or several with this word between them.
    fn operands(
        &mut self,
        word: &str,
        operand: fn(&mut Self) -> Parsed<Selector>,
        join: fn(Vec<Selector>) -> Selector,
    ) -> Parsed<Selector> {
        let first = operand(self)?;
        if self.next != Token::Word(word) {
            return Ok(first);
        }
        let mut operands = vec![first];
        while self.take(Token::Word(word)) {
            operands.push(operand(self)?);
        }
        Ok(join(operands))
    }

    fn negation(&mut self) -> Parsed<Selector> {
        let place = self.place.clone();
        if self.take(Token::Word("not")) {
            return self.deeper(place, |parser| Ok(Selector::Not(Box::new(parser.negation()?))));
        }
        if self.take(Token::Punctuation('(')) {
            return self.deeper(place, |parser| {
                let inner = parser.expression()?;
                parser.expect(')', "`and`, `or` or \")\"")?;
                Ok(inner)
            });
        }
        self.selector()
    }

    /// What would be too deep is refused, as the stack ends somewhere.
    fn deeper(
        &mut self,
        place: Range<usize>,
        inner: impl FnOnce(&mut Self) -> Parsed<Selector>,
    ) -> Parsed<Selector> {
        if self.depth == DEEPEST {
            return Err(self.error(
                place,
                format!("at most {DEEPEST} parentheses and `not`s inside each other"),
                "one more",
            ));
        }
        self.depth += 1;
        let selector = inner(self);
        self.depth -= 1;
        selector
    }

    fn selector(&mut self) -> Parsed<Selector> {
        let Token::Word(name) = self.next else { return self.refuse("a selector") };
        let read: fn(&mut Self) -> Parsed<Selector> = match name {
            "any" => {
                self.advance();
                return Ok(Selector::Any);
            }
            "subflow" => Self::subflow,
            "ip_pair" => Self::ip_pair,
            "src" => |parser| parser.end(Selector::Source),
            "dst" => |parser| parser.end(Selector::Destination),
            "sequence" => Self::sequence,
            "packet" => Self::packet,
            "connection" => Self::connection,
            "path" => Self::path,
            "size" => |parser| parser.sizes(|from, to| Selector::Size { from, to }),
            "connection_size" => |parser| parser.sizes(|from, to| Selector::ConnectionSize { from, to }),
            "mark" => Self::mark,
            "cgroup" => Self::cgroup,
            name if self.is_own(name) => {
                self.advance();
                return Ok(Selector::Own(name.into()));
            }
            _ => {
                let own = self.own.unwrap_or_default().iter();
                let known: Vec<_> = SELECTORS.iter().chain(own).copied().collect();
                return self.refuse(&format!("a selector: {}", known.join(", ")));
            }
        };
        self.advance();
        self.expect('(', "\"(\"")?;
        let selector = read(self)?;
        self.expect(')', "\")\"")?;
        Ok(selector)
    }

    fn is_own(&self, name: &str) -> bool {
        match self.own {
            Some(own) => own.contains(&name),
            None => is_word_of_own(name),
        }
    }

    fn subflow(&mut self) -> Parsed<Selector> {
        let mut subflow = Subflow::default();
        let mut given = Vec::new();
        while self.next != Token::Punctuation(')') {
            if !given.is_empty() {
                self.expect(',', "\",\" or \")\"")?;
            }
            let key = match self.next {
                Token::Word(key) if !given.contains(&key) => key,
                Token::Word(_) => return self.refuse("each key once"),
                _ => return self.refuse("one of the keys src, dst, sport, dport"),
            };
            match key {
                "src" => subflow.source = Some(self.assigned(Self::prefix)?),
                "dst" => subflow.destination = Some(self.assigned(Self::prefix)?),
                "sport" => subflow.source_ports = Some(self.assigned(Self::ports)?),
                "dport" => subflow.destination_ports = Some(self.assigned(Self::ports)?),
                _ => return self.refuse("one of the keys src, dst, sport, dport"),
            }
            given.push(key);
        }
        Ok(Selector::Subflow(subflow))
    }

    /// What `value` reads behind a key and "=".
    fn assigned<T>(&mut self, value: fn(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.advance();
        self.expect('=', "\"=\"")?;
        value(self)
    }

    fn ip_pair(&mut self) -> Parsed<Selector> {
        let from = self.prefix()?;
        self.expect(',', "\",\" and where it goes to")?;
        Ok(Selector::IpPair(from, self.prefix()?))
    }

    fn end(&mut self, selector: fn(Prefix, Option<Ports>) -> Selector) -> Parsed<Selector> {
        let prefix = self.prefix()?;
        let ports = if self.take(Token::Punctuation(',')) { Some(self.ports()?) } else { None };
        Ok(selector(prefix, ports))
    }

    fn sequence(&mut self) -> Parsed<Selector> {
        match self.next {
            Token::Word("data") => {
                let (first, last) = self.assigned(Self::range::<u64>)?;
                Ok(Selector::DataSequence(first, last))
            }
            Token::Word("subflow") => {
                let (first, last) = self.assigned(Self::range::<u32>)?;
                Ok(Selector::SubflowSequence(first, last))
            }
            _ => self.refuse("data = A-B or subflow = A-B"),
        }
    }

    fn range<T: TryFrom<u64> + Copy>(&mut self) -> Parsed<(T, T)> {
        let bits = size_of::<T>() * 8;
        self.value(&format!("a sequence number of {bits} bits or a range, such as 1000-2000"), |text| {
            let one = |text: &str| T::try_from(number(text)?).ok();
            match text.split_once('-') {
                Some((first, last)) => Some((one(first)?, one(last)?)),
                None => one(text).map(|number| (number, number)),
            }
        })
    }

    fn packet(&mut self) -> Parsed<Selector> {
        let names: Vec<_> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        let expected = format!("a kind of packet: {}", names.join(", "));
        let mut kinds = Vec::new();
        loop {
            kinds.push(self.value(&expected, Kind::named)?);
            if !self.take(Token::Punctuation(',')) {
                return Ok(Selector::Packet(kinds));
            }
        }
    }

    fn connection(&mut self) -> Parsed<Selector> {
        self.value("a token of 32 bits other than 0, such as 0x1a2b3c4d", |text| {
            u32::try_from(number(text)?).ok().filter(|token| *token != 0).map(Selector::Connection)
        })
    }

    fn path(&mut self) -> Parsed<Selector> {
        self.value("an interface's name, trusted or untrusted", |text| {
            Interface::read(text).map(Selector::Path)
        })
    }

    fn sizes(&mut self, selector: fn(u64, Option<u64>) -> Selector) -> Parsed<Selector> {
        self.value("a range of sizes from one to a greater one, such as 0-100kB or 100kB-", |text| {
            let (from, to) = text.split_once('-')?;
            let bytes = |text: &str| text.parse::<Size<MAX_BYTES>>().ok().map(Size::bytes);
            let from = if from == "0" { 0 } else { bytes(from)? };
            let to = if to.is_empty() { None } else { Some(bytes(to).filter(|to| *to > from)?) };
            Some(selector(from, to))
        })
    }

    fn mark(&mut self) -> Parsed<Selector> {
        self.value(Mark::EXPECTED, |text| Mark::read(text).map(Selector::Mark))
    }

    fn cgroup(&mut self) -> Parsed<Selector> {
        self.value("the path of a control group from its root on, such as /user.slice", |text| {
            let inside = text.strip_prefix('/')?;
            let named = |name: &str| !["", ".", ".."].contains(&name);
            (inside.is_empty() || inside.split('/').all(named)).then(|| Selector::Cgroup(text.into()))
        })
    }

    fn prefix(&mut self) -> Parsed<Prefix> {
        let Token::Word(text) = self.next else {
            return self.refuse("an address or a prefix, such as 10.0.0.0/8");
        };
        match text.parse() {
            Ok(prefix) => {
                self.advance();
                Ok(prefix)
            }
            Err(PrefixError { expected, .. }) => self.refuse(&expected),
        }
    }

    fn ports(&mut self) -> Parsed<Ports> {
        self.value("a port or a range from one to a higher one, such as 1024-65535", |text| {
            let one = |text: &str| u16::try_from(number(text)?).ok();
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let ports = Ports { first: one(first)?, last: one(last)? };
            (ports.first <= ports.last).then_some(ports)
        })
    }

    /// The next word, if it is something.
    fn value<T>(&mut self, expected: &str, read: impl FnOnce(&str) -> Option<T>) -> Parsed<T> {
        let Token::Word(text) = self.next else { return self.refuse(expected) };
        match read(text) {
            Some(value) => {
                self.advance();
                Ok(value)
            }
            None => self.refuse(expected),
        }
    }

    fn expect(&mut self, punctuation: char, expected: &str) -> Parsed<()> {
        if self.take(Token::Punctuation(punctuation)) { Ok(()) } else { self.refuse(expected) }
    }

    fn take(&mut self, token: Token<'_>) -> bool {
        let is_next = self.next == token;
        if is_next {
            self.advance();
        }
        is_next
    }

    fn advance(&mut self) {
        let rest = &self.text[self.place.end..];
        let token = rest.trim_start();
        let start = self.text.len() - token.len();
        let length = match token.find(ends_word) {
            Some(0) => token.chars().next().map_or(0, char::len_utf8),
            Some(length) => length,
            None => token.len(),
        };
        self.place = start..start + length;
        self.next = match &token[..length] {
            "" => Token::End,
            found => match found.chars().next().filter(|first| ends_word(*first)) {
                Some(punctuation) => Token::Punctuation(punctuation),
                None => Token::Word(found),
            },
        };
    }

    /// Something else than the next token was expected.
    fn refuse<T>(&self, expected: &str) -> Parsed<T> {
        let found = match self.next {
            Token::Word(word) => format!("{word:?}"),
            Token::Punctuation(punctuation) => format!("\"{punctuation}\""),
            Token::End => "the end".into(),
        };
        Err(self.error(self.place.clone(), expected.into(), &found))
    }

    fn error(&self, place: Range<usize>, expected: String, found: &str) -> SelectorError {
        let column = self.text[..place.start].chars().count() + 1;
        SelectorError { column, expected, found: found.into(), place }
    }
}

fn ends_word(character: char) -> bool {
    character.is_whitespace() || "(),=\"'".contains(character)
}

/// A word that can stand in a selector as it is.
pub(crate) fn is_word(text: &str) -> bool {
    !text.is_empty() && !text.contains(ends_word)
}

/// Decimal, or hexadecimal behind `0x`.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // What Rust reads beyond digits is a sign.
    u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

impl Mark {
    pub(crate) const EXPECTED: &str =
        "a mark of 32 bits such as 0x10, or a mark and a mask such as 0x10/0xff";

    /// Reads `VALUE` or `VALUE/MASK`.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let one = |text: &str| u32::try_from(number(text)?).ok();
        let (value, mask) = match text.split_once('/') {
            Some((value, mask)) => (one(value)?, one(mask)?),
            None => (one(text)?, u32::MAX),
        };
        (value & !mask == 0).then_some(Self { value, mask })
    }
}
