//! Why an end ends a connection, of which it tells the other: in a record of mode `sealed`, where it is authenticated, or
//! else in a TCP option on the reset, where it is only what the peer claims, if it is the peer's at all.

/// Why an end ends a connection, as the other end reports it: what is wrong, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CloseReason {
    /// The responder's service cannot be reached.
    #[error("the service behind it cannot be reached: start it, or correct `plait serve --to` there")]
    Service,
    /// An end's static key is not accepted, or missing.
    #[error(
        "it does not accept this end's key, or got none: add what `plait identity` prints here to `clients` of [identity] \
         or to [peers] there; for an exit, `plait exit join URL` with what `plait exit invite` prints there"
    )]
    Identity,
    /// Another mode is required.
    #[error("it requires another mode: use the same --mode on both ends")]
    Mode,
    /// More paths are required than took part.
    #[error(
        "it requires more paths than took part: `plait paths` shows those of a client; or require fewer, as in \
         --require=paths:2"
    )]
    Paths,
    /// The ends speak different versions of the protocol.
    #[error("it speaks another version of the protocol: run the same version of plait on both ends")]
    Version,
    /// The initiator asked for a service that the responder does not have.
    #[error(
        "it does not serve the port or name that was asked for: connect to the port of its --listen, or name the service \
         by `plait serve --service`, or in [[services]], there"
    )]
    OtherService,
    /// Too many connections or half-open handshakes.
    #[error(
        "it has too many connections or half-open handshakes, or carried as much as an exit carries for one client: try \
         again, or raise --max-connections-per-peer or the limits of [exit] there"
    )]
    Limit,
    /// A message or a record failed authentication.
    #[error("what it received failed authentication: somebody on a path may be modifying the traffic")]
    Authentication,
    /// The handshake took too long.
    #[error("it waited too long for the handshake: a path loses or blocks messages")]
    Timeout,
    /// Options of the TCP handshake did not arrive.
    #[error("TCP options did not reach it: a middlebox between the ends strips them")]
    StrippedOptions,
    /// A further subflow was opened before the first flight had arrived.
    #[error("it received a second subflow before the first flight: somebody on a path may be injecting")]
    EarlySubflow,
    /// A message was malformed, or occurred twice.
    #[error(
        "it received a message that it did not expect: run the same version of plait on both ends, or somebody on a path \
         may be injecting"
    )]
    Message,
    /// No path worked any longer.
    #[error("it lost every path of the connection: check the links between the ends")]
    NoPath,
    /// It is being stopped.
    #[error("it is being stopped: try again when it runs")]
    Stopped,
    /// A fault of the host.
    #[error("its host has a fault, which its log tells")]
    Internal,
    /// One that this version does not know.
    #[error("reason {0}, which this version does not know: run the same version of plait on both ends")]
    Unknown(u8),
}

impl CloseReason {
    /// Those that this version knows; their codes count from 1.
    const KNOWN: [CloseReason; 15] = [
        CloseReason::Service,
        CloseReason::Identity,
        CloseReason::Mode,
        CloseReason::Paths,
        CloseReason::Version,
        CloseReason::OtherService,
        CloseReason::Limit,
        CloseReason::Authentication,
        CloseReason::Timeout,
        CloseReason::StrippedOptions,
        CloseReason::EarlySubflow,
        CloseReason::Message,
        CloseReason::NoPath,
        CloseReason::Stopped,
        CloseReason::Internal,
    ];

    /// The reason with this code.
    #[must_use]
    pub fn from_code(code: u8) -> CloseReason {
        let index = usize::from(code).checked_sub(1);
        index.and_then(|index| CloseReason::KNOWN.get(index)).copied().unwrap_or(CloseReason::Unknown(code))
    }

    /// Its code in a record and in the option, which is not 0 for those that are known.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            CloseReason::Unknown(code) => code,
            known => {
                let index = CloseReason::KNOWN.iter().position(|other| *other == known);
                index.map_or(0, |index| index as u8 + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_that_of_its_reason() {
        for code in 0..=u8::MAX {
            assert_eq!(CloseReason::from_code(code).code(), code);
        }
        assert_eq!(CloseReason::from_code(1), CloseReason::Service);
        assert_eq!(CloseReason::from_code(15), CloseReason::Internal);
        assert_eq!(CloseReason::from_code(16), CloseReason::Unknown(16));
    }
}
