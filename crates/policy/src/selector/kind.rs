//! What a packet is and carries, by name.

use std::fmt;

use crate::bindings;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $bit:ident),+ $(,)?) => {
        /// What a packet is or carries.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Kind {
            $($(#[$doc])* $kind),+
        }

        impl Kind {
            /// All there are.
            pub const ALL: &[Kind] = &[$(Kind::$kind),+];

            /// Its name in a policy.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name),+
                }
            }

            /// The one of this name.
            pub(crate) fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            /// Its bit of `plait_packet.kinds`.
            pub(crate) fn bit(self) -> u32 {
                match self {
                    $(Self::$kind => bindings::$bit),+
                }
            }
        }
    };
}

kinds! {
    /// `syn`: has TCP's flag SYN.
    Syn "syn" PLAIT_IS_SYN,
    /// `fin`: has TCP's flag FIN.
    Fin "fin" PLAIT_IS_FIN,
    /// `rst`: has TCP's flag RST.
    Rst "rst" PLAIT_IS_RST,
    /// `ack`: has TCP's flag ACK.
    Ack "ack" PLAIT_IS_ACK,
    /// `data`: has payload.
    Data "data" PLAIT_IS_DATA,
    /// `pure_ack`: acknowledges and does nothing else: no payload, SYN, FIN or RST. It may carry options.
    PureAck "pure_ack" PLAIT_IS_PURE_ACK,
    /// `mp_capable`: has the option MP_CAPABLE.
    MpCapable "mp_capable" PLAIT_HAS_MP_CAPABLE,
    /// `mp_join`: has the option MP_JOIN.
    MpJoin "mp_join" PLAIT_HAS_MP_JOIN,
    /// `dss`: has the option DSS.
    Dss "dss" PLAIT_HAS_DSS,
    /// `mapping`: has a DSS option with a mapping of data.
    Mapping "mapping" PLAIT_HAS_MAPPING,
    /// `data_ack`: has a DSS option with a data acknowledgment.
    DataAck "data_ack" PLAIT_HAS_DATA_ACK,
    /// `data_fin`: has a DSS option with DATA_FIN.
    DataFin "data_fin" PLAIT_HAS_DATA_FIN,
    /// `add_addr`: has the option ADD_ADDR.
    AddAddr "add_addr" PLAIT_HAS_ADD_ADDR,
    /// `add_addr_echo`: has the option ADD_ADDR as an echo.
    AddAddrEcho "add_addr_echo" PLAIT_HAS_ADD_ADDR_ECHO,
    /// `remove_addr`: has the option REMOVE_ADDR.
    RemoveAddr "remove_addr" PLAIT_HAS_REMOVE_ADDR,
    /// `mp_prio`: has the option MP_PRIO.
    MpPrio "mp_prio" PLAIT_HAS_MP_PRIO,
    /// `mp_fail`: has the option MP_FAIL.
    MpFail "mp_fail" PLAIT_HAS_MP_FAIL,
    /// `mp_fastclose`: has the option MP_FASTCLOSE.
    MpFastclose "mp_fastclose" PLAIT_HAS_MP_FASTCLOSE,
    /// `mp_tcprst`: has the option MP_TCPRST.
    MpTcprst "mp_tcprst" PLAIT_HAS_MP_TCPRST,
    /// `mptcp`: has an option of MPTCP, or belongs to a subflow that is known.
    Mptcp "mptcp" PLAIT_IS_MPTCP,
    /// `ipv6`: is a packet of IPv6.
    Ipv6 "ipv6" PLAIT_IS_IPV6,
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
