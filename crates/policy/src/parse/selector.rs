//! Parses the text of a selector.
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

use crate::model::{
    Interface, MAX_SELECTOR_DEPTH, Mark, PacketKind, Ports, Prefix, PrefixError, SELECTOR_NAMES, Selector,
    SubflowPattern, is_custom_name, is_delimiter,
};

/// The largest size of a subflow or connection that can be written.
const MAX_BYTES: u64 = 1_000_000_000_000;

/// A syntax error in the text of a selector.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SelectorError {
    /// The character at which the error starts, from 1.
    pub column: usize,
    /// What was expected there.
    pub expected: String,
    /// What was found there.
    pub found: String,
    /// The range of the error, in bytes of the text.
    pub(super) span: Range<usize>,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: expected {}, got {}", self.column, self.expected, self.found)
    }
}

impl std::error::Error for SelectorError {}

impl FromStr for Selector {
    type Err = SelectorError;

    /// Parses a selector; any unknown name is taken for a custom selector.
    fn from_str(text: &str) -> Result<Self, SelectorError> {
        parse(text, None)
    }
}

/// Parses a selector in which these are the names of custom selectors; `None`: any unknown name is.
pub(super) fn parse(text: &str, custom: Option<&[&str]>) -> Result<Selector, SelectorError> {
    let mut parser = Parser { text, custom, next: Token::End, span: 0..0, depth: 0 };
    parser.advance();
    let selector = parser.expression()?;
    match parser.next {
        Token::End => Ok(selector),
        _ => parser.refuse("`and`, `or` or the end"),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token<'t> {
    /// A run of characters without whitespace and punctuation.
    Word(&'t str),
    Punctuation(char),
    End,
}

struct Parser<'t> {
    text: &'t str,
    custom: Option<&'t [&'t str]>,
    next: Token<'t>,
    /// The position of `next`.
    span: Range<usize>,
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

    /// One operand, or several joined by this word.
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
        let span = self.span.clone();
        if self.take(Token::Word("not")) {
            return self.nested(span, |parser| Ok(Selector::Not(Box::new(parser.negation()?))));
        }
        if self.take(Token::Punctuation('(')) {
            return self.nested(span, |parser| {
                let inner = parser.expression()?;
                parser.expect(')', "`and`, `or` or \")\"")?;
                Ok(inner)
            });
        }
        self.selector()
    }

    /// Parses one level deeper, up to the limit that keeps the stack bounded.
    fn nested(
        &mut self,
        span: Range<usize>,
        inner: impl FnOnce(&mut Self) -> Parsed<Selector>,
    ) -> Parsed<Selector> {
        if self.depth == MAX_SELECTOR_DEPTH {
            return Err(self.error(
                span,
                format!("at most {MAX_SELECTOR_DEPTH} nested parentheses and `not`s"),
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
            "src" => |parser| parser.endpoint(Selector::Source),
            "dst" => |parser| parser.endpoint(Selector::Destination),
            "sequence" => Self::sequence,
            "packet" => Self::packet,
            "connection" => Self::connection,
            "path" => Self::path,
            "size" => |parser| parser.sizes(|from, to| Selector::Size { from, to }),
            "connection_size" => |parser| parser.sizes(|from, to| Selector::ConnectionSize { from, to }),
            "mark" => Self::mark,
            "cgroup" => Self::cgroup,
            name if self.is_custom(name) => {
                self.advance();
                return Ok(Selector::Custom(name.into()));
            }
            _ => {
                let custom = self.custom.unwrap_or_default().iter();
                let known: Vec<_> = SELECTOR_NAMES.iter().chain(custom).copied().collect();
                return self.refuse(&format!("a selector: {}", known.join(", ")));
            }
        };
        self.advance();
        self.expect('(', "\"(\"")?;
        let selector = read(self)?;
        self.expect(')', "\")\"")?;
        Ok(selector)
    }

    fn is_custom(&self, name: &str) -> bool {
        match self.custom {
            Some(custom) => custom.contains(&name),
            None => is_custom_name(name),
        }
    }

    fn subflow(&mut self) -> Parsed<Selector> {
        let mut subflow = SubflowPattern::default();
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

    /// Skips a key and "=", and reads its value.
    fn assigned<T>(&mut self, value: fn(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.advance();
        self.expect('=', "\"=\"")?;
        value(self)
    }

    fn ip_pair(&mut self) -> Parsed<Selector> {
        let from = self.prefix()?;
        self.expect(',', "\",\" and a destination prefix")?;
        Ok(Selector::IpPair(from, self.prefix()?))
    }

    fn endpoint(&mut self, selector: fn(Prefix, Option<Ports>) -> Selector) -> Parsed<Selector> {
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
        let names: Vec<_> = PacketKind::ALL.iter().map(|kind| kind.name()).collect();
        let expected = format!("a kind of packet: {}", names.join(", "));
        let mut kinds = Vec::new();
        loop {
            kinds.push(self.value(&expected, PacketKind::from_name)?);
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
        self.value("an interface name, trusted or untrusted", |text| {
            Interface::parse(text).map(Selector::Path)
        })
    }

    fn sizes(&mut self, selector: fn(u64, Option<u64>) -> Selector) -> Parsed<Selector> {
        self.value("a size range with the smaller size first, such as 0-100kB or 100kB-", |text| {
            let (from, to) = text.split_once('-')?;
            let bytes = |text: &str| text.parse::<Size<MAX_BYTES>>().ok().map(Size::bytes);
            let from = if from == "0" { 0 } else { bytes(from)? };
            let to = if to.is_empty() { None } else { Some(bytes(to).filter(|to| *to > from)?) };
            Some(selector(from, to))
        })
    }

    fn mark(&mut self) -> Parsed<Selector> {
        self.value(EXPECTED_MARK, |text| parse_mark(text).map(Selector::Mark))
    }

    fn cgroup(&mut self) -> Parsed<Selector> {
        self.value("an absolute control group path, such as /user.slice", |text| {
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
        self.value("a port or a port range with the lower port first, such as 1024-65535", |text| {
            let one = |text: &str| u16::try_from(number(text)?).ok();
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let ports = Ports { first: one(first)?, last: one(last)? };
            (ports.first <= ports.last).then_some(ports)
        })
    }

    /// The next word, if `read` accepts it.
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
        let rest = &self.text[self.span.end..];
        let token = rest.trim_start();
        let start = self.text.len() - token.len();
        let length = match token.find(is_delimiter) {
            Some(0) => token.chars().next().map_or(0, char::len_utf8),
            Some(length) => length,
            None => token.len(),
        };
        self.span = start..start + length;
        self.next = match &token[..length] {
            "" => Token::End,
            found => match found.chars().next().filter(|first| is_delimiter(*first)) {
                Some(punctuation) => Token::Punctuation(punctuation),
                None => Token::Word(found),
            },
        };
    }

    /// The error that the next token is not what was expected.
    fn refuse<T>(&self, expected: &str) -> Parsed<T> {
        let found = match self.next {
            Token::Word(word) => format!("{word:?}"),
            Token::Punctuation(punctuation) => format!("\"{punctuation}\""),
            Token::End => "the end".into(),
        };
        Err(self.error(self.span.clone(), expected.into(), &found))
    }

    fn error(&self, span: Range<usize>, expected: String, found: &str) -> SelectorError {
        let column = self.text[..span.start].chars().count() + 1;
        SelectorError { column, expected, found: found.into(), span }
    }
}

/// Decimal, or hexadecimal after `0x`.
fn number(text: &str) -> Option<u64> {
    let (digits, radix) = match text.strip_prefix("0x") {
        Some(digits) => (digits, 16),
        None => (text, 10),
    };
    // `from_str_radix` also accepts a sign.
    u64::from_str_radix(digits, radix).ok().filter(|_| !digits.starts_with('+'))
}

pub(super) const EXPECTED_MARK: &str = "a 32-bit mark such as 0x10, or a mark and a mask such as 0x10/0xff";

/// Reads `VALUE` or `VALUE/MASK`.
pub(super) fn parse_mark(text: &str) -> Option<Mark> {
    let one = |text: &str| u32::try_from(number(text)?).ok();
    let (value, mask) = match text.split_once('/') {
        Some((value, mask)) => (one(value)?, one(mask)?),
        None => (one(text)?, u32::MAX),
    };
    (value & !mask == 0).then_some(Mark { value, mask })
}

#[cfg(test)]
mod tests;
