//! From a connected socket to the transforms of its bytes.
//!
//! | step | module |
//! |---|---|
//! | the TCP handshake negotiates a mode in the kernel | `negotiator`, with `capable_flag` by a flag |
//! | the policy judges the outcome, once per connection | `negotiation` |
//! | modes `xor64` and `stream`: the ends derive their transforms | `establish` |
//! | mode `sealed`: the initiator's and the responder's handshake over a connection and its witnesses | `initiate`, `respond` |
//! | a witness comes after the handshake of its session, which the responder finds in a table | `late_witness`, `running_sessions` |
//! | copies of records come on a side connection | `side_connection` |
//! | the next process takes over the listening sockets | `shared` |
//! | any step fails: the reason is counted and logged | `failure` |

mod capable_flag;
mod establish;
mod failure;
mod initiate;
mod late_witness;
mod message_io;
mod negotiation;
mod negotiator;
mod respond;
mod running_sessions;
mod shared;
mod side_connection;
#[cfg(test)]
mod tests;

pub(crate) use establish::{EstablishError, Established, FirstFlight, Side, establish, sealed_params};
pub use failure::FailureReason;
pub(crate) use initiate::{Witnesses, initiate};
pub(crate) use late_witness::add_late_witness;
pub(crate) use message_io::{HANDSHAKE_TIMEOUT, SealedError};
pub(crate) use negotiation::{Negotiation, ResetAtStart};
pub(crate) use negotiator::Negotiator;
pub(crate) use respond::{Accepted, PendingHandshakes};
pub(crate) use running_sessions::Registration;
pub use shared::SharedNegotiation;
pub(crate) use side_connection::begin_side;
#[cfg(test)]
pub(crate) use tests::pair;
