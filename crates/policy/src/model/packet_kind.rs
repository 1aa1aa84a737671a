//! The kinds of packets that selectors distinguish.

use std::fmt;

use crate::bindings;

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident $name:literal $bit:ident),+ $(,)?) => {
        /// A property of a packet: a TCP flag, an MPTCP option, or what it carries.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum PacketKind {
            $($(#[$doc])* $kind),+
        }

        impl PacketKind {
            /// All kinds.
            pub const ALL: &[PacketKind] = &[$(PacketKind::$kind),+];

            /// The name in a policy.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name),+
                }
            }

            /// The kind with this name.
            pub(crate) fn from_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            /// The bit in `plait_packet.kinds`.
            pub(crate) fn bit(self) -> u32 {
                match self {
                    $(Self::$kind => bindings::$bit),+
                }
            }
        }
    };
}

kinds! {
    /// `syn`: TCP flag SYN.
    Syn "syn" PLAIT_IS_SYN,
    /// `fin`: TCP flag FIN.
    Fin "fin" PLAIT_IS_FIN,
    /// `rst`: TCP flag RST.
    Rst "rst" PLAIT_IS_RST,
    /// `ack`: TCP flag ACK.
    Ack "ack" PLAIT_IS_ACK,
    /// `data`: payload.
    Data "data" PLAIT_IS_DATA,
    /// `pure_ack`: an ACK without payload, SYN, FIN or RST; it may carry options.
    PureAck "pure_ack" PLAIT_IS_PURE_ACK,
    /// `mp_capable`: option MP_CAPABLE.
    MpCapable "mp_capable" PLAIT_HAS_MP_CAPABLE,
    /// `mp_join`: option MP_JOIN.
    MpJoin "mp_join" PLAIT_HAS_MP_JOIN,
    /// `dss`: option DSS.
    Dss "dss" PLAIT_HAS_DSS,
    /// `mapping`: DSS with a data sequence mapping.
    Mapping "mapping" PLAIT_HAS_MAPPING,
    /// `data_ack`: DSS with a DATA_ACK.
    DataAck "data_ack" PLAIT_HAS_DATA_ACK,
    /// `data_fin`: DSS with DATA_FIN.
    DataFin "data_fin" PLAIT_HAS_DATA_FIN,
    /// `add_addr`: option ADD_ADDR.
    AddAddr "add_addr" PLAIT_HAS_ADD_ADDR,
    /// `add_addr_echo`: option ADD_ADDR with the echo flag.
    AddAddrEcho "add_addr_echo" PLAIT_HAS_ADD_ADDR_ECHO,
    /// `remove_addr`: option REMOVE_ADDR.
    RemoveAddr "remove_addr" PLAIT_HAS_REMOVE_ADDR,
    /// `mp_prio`: option MP_PRIO.
    MpPrio "mp_prio" PLAIT_HAS_MP_PRIO,
    /// `mp_fail`: option MP_FAIL.
    MpFail "mp_fail" PLAIT_HAS_MP_FAIL,
    /// `mp_fastclose`: option MP_FASTCLOSE.
    MpFastclose "mp_fastclose" PLAIT_HAS_MP_FASTCLOSE,
    /// `mp_tcprst`: option MP_TCPRST.
    MpTcprst "mp_tcprst" PLAIT_HAS_MP_TCPRST,
    /// `mptcp`: any MPTCP option, or a packet of a tracked subflow.
    Mptcp "mptcp" PLAIT_IS_MPTCP,
    /// `ipv6`: an IPv6 packet.
    Ipv6 "ipv6" PLAIT_IS_IPV6,
}

impl fmt::Display for PacketKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
