//! DNS messages (RFC 1035, section 4), as far as forwarding takes: their ids, and cutting answers to what a datagram may have.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use tokio::net::UdpSocket;

use crate::outbound::datagrams::TransparentAsker;

const HEADER_LEN: usize = 12;

/// The longest answer to a query without EDNS.
const PLAIN_LEN: usize = 512;

/// The longest answer to one with EDNS: what resolver libraries have room for.
const EDNS_LEN: usize = 1200;

/// Bits of the third byte of a message: it is a response; it is truncated.
const RESPONSE: u8 = 0x80;
const TRUNCATED: u8 = 0x02;

/// RCODE of the fourth byte: server failure.
const SERVER_FAILURE: u8 = 2;

/// Who gets the answer to a query.
pub(in crate::outbound) enum Asker {
    /// A program, at this address, by the socket that it was redirected to.
    Program(Arc<UdpSocket>, SocketAddr),
    /// Who has asked another resolver.
    Transparent(TransparentAsker),
}

impl Asker {
    /// An asker that does not wait any longer does not matter.
    async fn send(&self, answer: &[u8]) {
        match self {
            Asker::Program(socket, to) => {
                let _ = socket.send_to(answer, to).await;
            }
            Asker::Transparent(asker) => asker.send(answer),
        }
    }
}

/// A query.
pub(in crate::outbound) struct Query {
    message: Vec<u8>,
    asker: Asker,
    pub(super) since: Instant,
    is_retry: bool,
}

impl Query {
    /// `None` if the message is no query.
    pub(in crate::outbound) fn read(message: &[u8], asker: Asker) -> Option<Query> {
        let is_query = message.len() >= HEADER_LEN && message[2] & RESPONSE == 0;
        is_query.then(|| Query { message: message.to_vec(), asker, since: Instant::now(), is_retry: false })
    }

    /// The message under another id.
    pub(super) fn with_id(&self, id: u16) -> Vec<u8> {
        let mut message = self.message.clone();
        message[..2].copy_from_slice(&id.to_be_bytes());
        message
    }

    /// The same, to be sent again, if it was not yet.
    pub(super) fn retried(self) -> Option<Query> {
        (!self.is_retry).then_some(Query { is_retry: true, ..self })
    }

    /// Sends the program this answer.
    pub(super) async fn answer(&self, answer: &[u8]) {
        if let Some(answer) = fitted(answer, &self.message) {
            self.asker.send(&answer).await;
        }
    }

    /// Tells the program that its query cannot be answered.
    pub(super) async fn fail(&self) {
        let mut answer = question_of(&self.message);
        answer[2] |= RESPONSE;
        answer[3] = SERVER_FAILURE;
        self.asker.send(&answer).await;
    }
}

/// A message as TCP carries it (RFC 1035, section 4.2.2).
pub(super) fn frame(message: &[u8]) -> Vec<u8> {
    // It was a datagram.
    [&(message.len() as u16).to_be_bytes(), message].concat()
}

/// The first message that TCP has carried, and its length with the prefix; `None` if it is incomplete.
pub(super) fn split_frame(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = usize::from(u16::from_be_bytes(*length));
    rest.get(..length).map(|message| (message, 2 + length))
}

/// An answer under the id of its query, truncated to what the program has room for; `None` if it is none.
fn fitted(answer: &[u8], query: &[u8]) -> Option<Vec<u8>> {
    if answer.len() < HEADER_LEN {
        return None;
    }
    // The OPT record of EDNS is in the additional section.
    let limit = if query[10..HEADER_LEN] == [0, 0] { PLAIN_LEN } else { EDNS_LEN };
    let mut fitted = answer.to_vec();
    if answer.len() > limit {
        fitted = question_of(answer);
        fitted[2] |= TRUNCATED;
    }
    fitted[..2].copy_from_slice(&query[..2]);
    Some(fitted)
}

/// A message's header and question, without any further records.
fn question_of(message: &[u8]) -> Vec<u8> {
    let end = question_end(message);
    let mut cut = message[..end.unwrap_or(HEADER_LEN)].to_vec();
    let questions = u16::from(end.is_some()).to_be_bytes();
    cut[4..6].copy_from_slice(&questions);
    cut[6..HEADER_LEN].fill(0);
    cut
}

/// Where a message's only question ends; `None` if it has another number of them, or is malformed.
fn question_end(message: &[u8]) -> Option<usize> {
    if message.get(4..6)? != [0, 1] {
        return None;
    }
    let mut at = HEADER_LEN;
    loop {
        match *message.get(at)? {
            0 => break,
            label @ 1..=63 => at += 1 + usize::from(label),
            // A compressed name, which a first question cannot be.
            _ => return None,
        }
    }
    // The end of the name, type and class.
    let end = at + 5;
    (end <= message.len()).then_some(end)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A message with a question for `a.example`, these numbers of further records, and their bytes.
    fn message(id: u16, flags: u8, additional: u8, records: usize) -> Vec<u8> {
        let mut message = id.to_be_bytes().to_vec();
        message.extend([flags, 0, 0, 1, 0, 9, 0, 0, 0, additional]);
        message.extend(b"\x01a\x07example\0\0\x01\0\x01");
        message.extend(vec![7; records]);
        message
    }

    #[test]
    fn answers_have_the_id_of_their_query_and_fit_a_datagram() {
        let (plain, edns) = (message(1, 0, 0, 0), message(2, 0, 1, 11));
        let short = message(99, RESPONSE, 0, 100);
        let fits = fitted(&short, &plain).expect("an answer");
        assert_eq!((&fits[..2], &fits[2..]), (&[0, 1][..], &short[2..]));
        let long = message(99, RESPONSE, 0, 600);
        assert_eq!(fitted(&long, &edns).map(|answer| answer.len()), Some(long.len()));
        let cut = fitted(&long, &plain).expect("an answer");
        assert_eq!(cut.len(), 12 + 15, "header and question");
        assert_eq!((cut[2], &cut[4..12]), (RESPONSE | TRUNCATED, &[0, 1, 0, 0, 0, 0, 0, 0][..]));
        assert!(fitted(&short[..11], &plain).is_none());
    }

    #[test]
    fn frames_are_split_as_they_were_made() {
        let bytes = [frame(b"one"), frame(b""), frame(b"three")].concat();
        assert_eq!(split_frame(&bytes), Some((&b"one"[..], 5)));
        assert_eq!(split_frame(&bytes[5..]), Some((&b""[..], 2)));
        assert_eq!(split_frame(&bytes[7..13]), None);
        assert_eq!(split_frame(&bytes[..1]), None);
    }

    proptest! {
        #[test]
        fn no_message_panics(answer: Vec<u8>, query in prop::collection::vec(any::<u8>(), 12..2000)) {
            let _ = fitted(&answer, &query);
            prop_assert!(question_of(&query).len() <= query.len());
        }

        #[test]
        fn no_answer_is_longer_than_a_program_has_room_for(records in 0..3000_usize, additional in 0..2_u8) {
            let query = message(1, 0, additional, 0);
            let answer = fitted(&message(2, RESPONSE, 0, records), &query).expect("an answer");
            let limit = if additional == 0 { PLAIN_LEN } else { EDNS_LEN };
            prop_assert!(answer.len() <= limit);
        }
    }
}
