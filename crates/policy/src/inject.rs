//! Options of MPTCP put into subflows at any moment, in packets that neither end has sent.
//!
//! Actors add options to acknowledgments that pass. Where none does, as on an idle subflow, one is made up here: a
//! repetition of the last that the subflow's packets said, with the option. Who gets it acknowledges nothing new, and
//! takes the option. What goes out is sent by a raw socket, so that the kernel finds the way as for any packet; what
//! comes in is handed to this host as though its interface had received it.
//!
//! The packet is lost as easily as any other, and nobody sends it again: MP_PRIO is not confirmed, ADD_ADDR by an
//! echo. It takes root, a subflow that is remembered (of a loaded policy with one of the actors `set_backup`,
//! `clear_backup`, `block_subflow`, `add_subflow` or `record`), and for what comes in a kernel of version 5.18.
//!
//! What comes in passes XDP unseen, but not TC; what goes out passes all chains. `block_subflow` knows announcements
//! from here and lets them pass, but not at XDP in its generic form.

mod acknowledgment;
mod receive;
mod send;

use std::io;
use std::net::IpAddr;

use plait_linux::connections::{self, Connection};
use plait_linux::mptcp;
use plait_wire::BuildError;
use plait_wire::mptcp::{AddAddress, AddAddressForm, AddressId, Key, MptcpOption, Priority};
use plait_wire::tcp::{Options, TcpOption};

use crate::bindings::plait_flow;
use crate::engine::{self, Ends, Engine};
use crate::specification::{Announcement, Hook};
use receive::Receiver;

/// Why nothing was put into a subflow.
#[derive(Debug, thiserror::Error)]
pub enum InjectError {
    /// It is not remembered.
    #[error(
        "no packet of the subflow {} - {} was seen since a policy was loaded that remembers subflows",
        .0.local, .0.remote
    )]
    Unknown(Ends),
    /// Not all that a packet needs is known yet.
    #[error(
        "expected packets of the subflow {} - {} in both directions after its handshake, and a policy that records \
         them; found too few",
        .0.local, .0.remote
    )]
    TooEarly(Ends),
    /// FIN or RST was seen.
    #[error("the subflow {} - {} has ended", .0.local, .0.remote)]
    Ended(Ends),
    /// The keys are at its ends, which this host is none of.
    #[error(
        "expected the keys of the connection of {} - {}, found no such connection of this host: an announcement \
         takes its HMAC",
        .0.local, .0.remote
    )]
    NoKeys(Ends),
    /// There is nothing to be announced again.
    #[error("no announcement was withheld on the subflow {} - {} in this direction", .0.local, .0.remote)]
    NothingWithheld(Ends),
    /// The option has no place in a TCP header.
    #[error("the option does not fit into a packet: {0}")]
    Option(BuildError),
    /// The engine failed.
    #[error("{0}")]
    Engine(engine::Error),
    /// The connections of this host cannot be listed.
    #[error("{0}")]
    Connections(connections::Error),
    /// The packet could not be sent.
    #[error("cannot send a packet from {} to {}: {reason}; it takes root", .ends.local, .ends.remote)]
    Send {
        /// The subflow.
        ends: Ends,
        /// Why not.
        reason: io::Error,
    },
    /// The packet could not be handed to this host.
    #[error(
        "cannot hand a packet to this host as from {}: {reason}; it takes root and a kernel of version 5.18",
        .ends.remote
    )]
    Receive {
        /// The subflow.
        ends: Ends,
        /// Why not.
        reason: libbpf_rs::Error,
    },
}

/// Puts options into the subflows that an engine remembers.
#[derive(Debug)]
pub struct Injector<'a> {
    engine: &'a Engine,
    receiver: Receiver,
}

impl<'a> Injector<'a> {
    /// For the subflows that this engine remembers.
    pub fn new(engine: &'a Engine) -> Injector<'a> {
        Injector { engine, receiver: Receiver::default() }
    }

    /// Puts an option into a packet of a subflow: with [`Hook::Egress`] the peer gets it, with [`Hook::Ingress`] this
    /// host, as though the peer had sent it.
    ///
    /// # Errors
    /// The subflow is not there or not known well enough, the option too long, or the kernel refuses.
    pub fn inject(&self, ends: Ends, hook: Hook, option: &MptcpOption<'_>) -> Result<(), InjectError> {
        let flow = self.flow(ends)?;
        self.put(ends, &flow, hook, option)
    }

    /// Asks by MP_PRIO (RFC 8684, section 3.3.8) who gets the packet to use the subflow as a backup, or no longer so.
    ///
    /// # Errors
    /// As [`inject`](Injector::inject).
    pub fn set_backup(&self, ends: Ends, hook: Hook, backup: bool) -> Result<(), InjectError> {
        self.inject(ends, hook, &MptcpOption::Priority(Priority { backup, address_id: None }))
    }

    /// Announces an address by ADD_ADDR (RFC 8684, section 3.4.1) on a subflow of a connection of this host: with
    /// [`Hook::Egress`] one of this host to the peer, with [`Hook::Ingress`] one of the peer to this host. Without an
    /// id, or with 0, it gets 128 and the last 7 bits of the address.
    ///
    /// # Errors
    /// As [`inject`](Injector::inject); or the connection is not one of this host.
    pub fn announce(&self, ends: Ends, hook: Hook, announcement: &Announcement) -> Result<(), InjectError> {
        let flow = self.flow(ends)?;
        let connections = self.engine.inside(connections::connections).map_err(InjectError::Engine)?;
        let connection = connections
            .map_err(InjectError::Connections)?
            .into_iter()
            .find(|connection| has_subflow(connection, ends))
            .ok_or(InjectError::NoKeys(ends))?;
        let option = authentic(announcement, &connection, hook).ok_or(InjectError::NoKeys(ends))?;
        self.put(ends, &flow, hook, &MptcpOption::AddAddress(option))
    }

    /// Announces again what `block_subflow` withheld last in this direction of a subflow.
    ///
    /// # Errors
    /// As [`inject`](Injector::inject); or nothing was withheld.
    pub fn announce_withheld(&self, ends: Ends, hook: Hook) -> Result<(), InjectError> {
        let flow = self.flow(ends)?;
        let option = withheld(&flow, hook).ok_or(InjectError::NothingWithheld(ends))?;
        self.put(ends, &flow, hook, &option)
    }

    fn flow(&self, ends: Ends) -> Result<plait_flow, InjectError> {
        self.engine.flow(ends).map_err(InjectError::Engine)?.ok_or(InjectError::Unknown(ends))
    }

    fn put(
        &self,
        ends: Ends,
        flow: &plait_flow,
        hook: Hook,
        option: &MptcpOption<'_>,
    ) -> Result<(), InjectError> {
        let packet = acknowledgment::craft(ends, flow, hook, option)?;
        let put = || match hook {
            Hook::Egress => {
                send::send(&packet, ends, flow.interface).map_err(|reason| InjectError::Send { ends, reason })
            }
            Hook::Ingress => self
                .receiver
                .receive(&packet, flow.interface)
                .map_err(|reason| InjectError::Receive { ends, reason }),
        };
        self.engine.inside(put).map_err(InjectError::Engine)?
    }
}

fn has_subflow(connection: &Connection, ends: Ends) -> bool {
    connection.subflows.iter().any(|subflow| subflow.local == ends.local && subflow.remote == ends.remote)
}

/// The announcement with the HMAC that only who knows both keys can make; `None` if the peer's is not known.
fn authentic(announcement: &Announcement, connection: &Connection, hook: Hook) -> Option<AddAddress> {
    let key = |key: &mptcp::Key| Key::new(*key.as_bytes());
    let (local, remote) = (key(&connection.local_key), key(connection.remote_key.as_ref()?));
    let (announcer, peer) = match hook {
        Hook::Egress => (&local, &remote),
        Hook::Ingress => (&remote, &local),
    };
    let id = announcement.id.filter(|id| *id != 0).unwrap_or(0x80 | last_octet(announcement.address));
    let mut option = AddAddress {
        id: AddressId(id),
        address: announcement.address,
        port: announcement.port,
        form: AddAddressForm::Echo,
    };
    option.form = AddAddressForm::Announce { hmac: option.expected_hmac(announcer, peer) };
    Some(option)
}

fn withheld(flow: &plait_flow, hook: Hook) -> Option<MptcpOption<'_>> {
    let direction = hook as usize;
    mptcp_option(flow.withheld[direction].get(..flow.withheld_length[direction].into())?)
}

fn mptcp_option(bytes: &[u8]) -> Option<MptcpOption<'_>> {
    match Options::new(bytes).next()?.ok()? {
        TcpOption::Mptcp(option) => Some(option),
        _ => None,
    }
}

fn last_octet(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(v4) => v4.octets()[3],
        IpAddr::V6(v6) => v6.octets()[15],
    }
}
