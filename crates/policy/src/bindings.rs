pub type __u8 = ::std::os::raw::c_uchar;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __u32 = ::std::os::raw::c_uint;
pub type __u64 = ::std::os::raw::c_ulonglong;
pub const PLAIT_MAX_OPTIONS: plait_limit = 40;
pub const PLAIT_MAX_CHAINS: plait_limit = 64;
pub const PLAIT_MAX_ACTORS: plait_limit = 8;
pub const PLAIT_MAX_CUSTOM: plait_limit = 24;
pub const PLAIT_CHAIN_SLOTS: plait_limit = 4096;
pub const PLAIT_COUNTER_SLOTS: plait_limit = 8192;
pub const PLAIT_LEASES: plait_limit = 64;
pub const PLAIT_FLOWS: plait_limit = 65536;
pub const PLAIT_CONNECTIONS: plait_limit = 16384;
pub const PLAIT_EVENT_BYTES: plait_limit = 1048576;
pub type plait_limit = ::std::os::raw::c_uint;
pub const PLAIT_INGRESS: plait_hook = 0;
pub const PLAIT_EGRESS: plait_hook = 1;
pub type plait_hook = ::std::os::raw::c_uint;
pub const PLAIT_MATCH_INGRESS: plait_step = 0;
pub const PLAIT_MATCH_EGRESS: plait_step = 1;
pub const PLAIT_CUSTOM_SELECTORS: plait_step = 8;
pub const PLAIT_CUSTOM_ACTORS: plait_step = 32;
pub const PLAIT_STEPS: plait_step = 56;
pub type plait_step = ::std::os::raw::c_uint;
pub const PLAIT_IS_FIN: plait_kind = 1;
pub const PLAIT_IS_SYN: plait_kind = 2;
pub const PLAIT_IS_RST: plait_kind = 4;
pub const PLAIT_IS_ACK: plait_kind = 16;
pub const PLAIT_IS_DATA: plait_kind = 64;
pub const PLAIT_IS_PURE_ACK: plait_kind = 128;
pub const PLAIT_IS_IPV6: plait_kind = 256;
pub const PLAIT_IS_MPTCP: plait_kind = 512;
pub const PLAIT_HAS_MAPPING: plait_kind = 1024;
pub const PLAIT_HAS_DATA_ACK: plait_kind = 2048;
pub const PLAIT_HAS_DATA_FIN: plait_kind = 4096;
pub const PLAIT_HAS_ADD_ADDR_ECHO: plait_kind = 8192;
pub const PLAIT_HAS_MP_CAPABLE: plait_kind = 65536;
pub const PLAIT_HAS_MP_JOIN: plait_kind = 131072;
pub const PLAIT_HAS_DSS: plait_kind = 262144;
pub const PLAIT_HAS_ADD_ADDR: plait_kind = 524288;
pub const PLAIT_HAS_REMOVE_ADDR: plait_kind = 1048576;
pub const PLAIT_HAS_MP_PRIO: plait_kind = 2097152;
pub const PLAIT_HAS_MP_FAIL: plait_kind = 4194304;
pub const PLAIT_HAS_MP_FASTCLOSE: plait_kind = 8388608;
pub const PLAIT_HAS_MP_TCPRST: plait_kind = 16777216;
pub type plait_kind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_flow_key {
    pub local: [__u64; 2usize],
    pub remote: [__u64; 2usize],
    pub local_port: __u16,
    pub remote_port: __u16,
    pub padding: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_packet {
    pub source: [__u64; 2usize],
    pub destination: [__u64; 2usize],
    pub kinds: __u64,
    pub data_sequence: __u64,
    pub data_acknowledgment: __u64,
    pub flow_bytes: __u64,
    pub connection_bytes: __u64,
    pub custom_matched: __u64,
    pub nanoseconds: __u64,
    pub chains_hit: __u64,
    pub flow: plait_flow_key,
    pub sequence: __u32,
    pub acknowledgment: __u32,
    pub token: __u32,
    pub interface: __u32,
    pub mark: __u32,
    pub payload: __u32,
    pub ip_bytes: __u32,
    pub redirect_to: __u32,
    pub mapping_sequence: __u32,
    pub source_port: __u16,
    pub destination_port: __u16,
    pub window: __u16,
    pub data_length: __u16,
    pub ip_at: __u16,
    pub tcp_at: __u16,
    pub mss: __u16,
    pub options_length: __u8,
    pub window_scale: __u8,
    pub hook: __u8,
    pub at: __u8,
    pub flow_known: __u8,
    pub chain_count: __u8,
    pub verdict: __u8,
    pub checksum: __u8,
    pub changed: __u8,
    pub custom_result: __u8,
    pub seen_before: __u8,
    pub padding: [__u8; 3usize],
    pub option_at: [__u8; 16usize],
    pub option_length: [__u8; 16usize],
    pub options: [__u8; 72usize],
    pub chains: [__u16; 64usize],
}
pub const PLAIT_PASS: plait_verdict = 0;
pub const PLAIT_DROP: plait_verdict = 1;
pub const PLAIT_REDIRECT: plait_verdict = 2;
pub const PLAIT_REFLECT: plait_verdict = 3;
pub type plait_verdict = ::std::os::raw::c_uint;
pub const PLAIT_CHECKSUM_UNKNOWN: plait_checksum = 0;
pub const PLAIT_CHECKSUM_FULL: plait_checksum = 1;
pub const PLAIT_CHECKSUM_PARTIAL: plait_checksum = 2;
pub const PLAIT_CHECKSUM_WRONG: plait_checksum = 3;
pub type plait_checksum = ::std::os::raw::c_uint;
pub const PLAIT_ACTOR_NONE: plait_actor_kind = 0;
pub const PLAIT_ACTOR_DROP: plait_actor_kind = 1;
pub const PLAIT_ACTOR_MARK: plait_actor_kind = 2;
pub const PLAIT_ACTOR_REDIRECT: plait_actor_kind = 3;
pub const PLAIT_ACTOR_RATE_LIMIT: plait_actor_kind = 4;
pub const PLAIT_ACTOR_PACE: plait_actor_kind = 5;
pub const PLAIT_ACTOR_SET_BACKUP: plait_actor_kind = 6;
pub const PLAIT_ACTOR_CLEAR_BACKUP: plait_actor_kind = 7;
pub const PLAIT_ACTOR_BLOCK_SUBFLOW: plait_actor_kind = 8;
pub const PLAIT_ACTOR_ADD_SUBFLOW: plait_actor_kind = 9;
pub const PLAIT_ACTOR_DENY_JOIN: plait_actor_kind = 10;
pub const PLAIT_ACTOR_FALL_BACK: plait_actor_kind = 11;
pub const PLAIT_ACTOR_CAPABLE_FLAG: plait_actor_kind = 12;
pub const PLAIT_ACTOR_GET_CONNECTION: plait_actor_kind = 13;
pub const PLAIT_ACTOR_GET_SUBFLOW: plait_actor_kind = 14;
pub const PLAIT_ACTOR_RECORD: plait_actor_kind = 15;
pub const PLAIT_ACTOR_CUSTOM: plait_actor_kind = 16;
pub const PLAIT_ACTOR_KINDS: plait_actor_kind = 17;
pub type plait_actor_kind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_actor {
    pub kind: __u32,
    pub counter: __u32,
    pub parameters: [__u64; 4usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_chain {
    pub actor_count: __u32,
    pub counter: __u32,
    pub lease: __u32,
    pub padding: __u32,
    pub actors: [plait_actor; 8usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_counter {
    pub packets: __u64,
    pub bytes: __u64,
    pub hits: __u64,
    pub errors: __u64,
    pub nanoseconds: __u64,
}
pub const PLAIT_SKIPPED_FRAGMENT: plait_skip_reason = 0;
pub const PLAIT_SKIPPED_EXTENSION: plait_skip_reason = 1;
pub const PLAIT_SKIPPED_MALFORMED: plait_skip_reason = 2;
pub const PLAIT_SKIPPED_BAD_OPTIONS: plait_skip_reason = 3;
pub const PLAIT_SKIPPED_WRONG_CHECKSUM: plait_skip_reason = 4;
pub const PLAIT_SKIPPED_NO_MEMORY: plait_skip_reason = 5;
pub const PLAIT_LOST_EVENT: plait_skip_reason = 6;
pub const PLAIT_FLOWS_SEEN: plait_skip_reason = 7;
pub const PLAIT_CONNECTIONS_SEEN: plait_skip_reason = 8;
pub const PLAIT_SKIP_COUNTERS: plait_skip_reason = 9;
pub type plait_skip_reason = ::std::os::raw::c_uint;
pub const PLAIT_NEEDS_FLOW: plait_need = 1;
pub const PLAIT_NEEDS_TOKEN: plait_need = 2;
pub const PLAIT_NEEDS_RECORD: plait_need = 4;
pub const PLAIT_NEEDS_CONNECTION: plait_need = 8;
pub type plait_need = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_settings {
    pub needs: __u32,
    pub timing: __u32,
    pub tracing: __u32,
    pub custom_selectors: [__u32; 2usize],
    pub generation: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_flow_dir {
    pub packets: __u64,
    pub bytes: __u64,
    pub next_sequence: __u32,
    pub acknowledgment: __u32,
    pub last_interface: __u32,
    pub window: __u32,
    pub retransmitted_packets: __u64,
    pub retransmitted_bytes: __u64,
    pub reinjected_bytes: __u64,
    pub last_nanoseconds: __u64,
    pub initial_sequence: __u32,
    pub data_acknowledgment: __u32,
    pub timestamps: [__u32; 2usize],
    pub offered_window: __u16,
    pub offered_scale: __u8,
    pub syn_seen: __u8,
    pub address_id: __u8,
    pub padding: [__u8; 3usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_allowance {
    pub nanoseconds: __u64,
    pub rate: __u64,
    pub edge: __u32,
    pub acknowledgment: __u32,
    pub generation: __u32,
    pub padding: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_flow {
    pub dir: [plait_flow_dir; 2usize],
    pub sample_nanoseconds: __u64,
    pub sample_sequence: __u32,
    pub sample_pending: __u32,
    pub rtt: __u32,
    pub rtt_variance: __u32,
    pub rtt_min: __u32,
    pub token: __u32,
    pub interface: __u32,
    pub flags: __u32,
    pub allowance: [plait_allowance; 2usize],
    pub pace: __u64,
    pub pace_nanoseconds: __u64,
    pub withheld: [[__u8; 32usize]; 2usize],
    pub withheld_length: [__u8; 2usize],
    pub pending_length: [__u8; 2usize],
    pub mss: [__u16; 2usize],
    pub pending: [[__u8; 32usize]; 2usize],
    pub prioritized_nanoseconds: [__u64; 2usize],
    pub announced_nanoseconds: [__u64; 2usize],
    pub announced_ids: [[__u64; 4usize]; 2usize],
    pub prioritized: [__u8; 2usize],
    pub announced: [__u8; 2usize],
    pub redirected: __u8,
    pub padding: [__u8; 3usize],
}
pub const PLAIT_FLOW_INITIAL: plait_flow_flag = 1;
pub const PLAIT_FLOW_JOINED: plait_flow_flag = 2;
pub const PLAIT_FLOW_BACKUP_IN: plait_flow_flag = 4;
pub const PLAIT_FLOW_BACKUP_OUT: plait_flow_flag = 8;
pub const PLAIT_FLOW_PARTIAL_IN: plait_flow_flag = 16;
pub const PLAIT_FLOW_PARTIAL_OUT: plait_flow_flag = 32;
pub const PLAIT_FLOW_FIN_IN: plait_flow_flag = 64;
pub const PLAIT_FLOW_FIN_OUT: plait_flow_flag = 128;
pub const PLAIT_FLOW_CAPABLE_FLAG: plait_flow_flag = 256;
pub const PLAIT_FLOW_REPORTED: plait_flow_flag = 512;
pub const PLAIT_FLOW_REPORTED_KEYS: plait_flow_flag = 1024;
pub type plait_flow_flag = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_connection {
    pub bytes: [__u64; 2usize],
    pub next_data: [__u32; 2usize],
    pub is_known: [__u8; 2usize],
    pub padding: [__u8; 6usize],
}
pub const PLAIT_EVENT_PACKET: plait_event_kind = 1;
pub const PLAIT_EVENT_CONNECTION: plait_event_kind = 2;
pub const PLAIT_EVENT_SUBFLOW: plait_event_kind = 3;
pub const PLAIT_EVENT_WITHHELD: plait_event_kind = 4;
pub const PLAIT_EVENT_CUSTOM: plait_event_kind = 5;
pub type plait_event_kind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct plait_event {
    pub nanoseconds: __u64,
    pub kind: __u32,
    pub token: __u32,
    pub flow: plait_flow_key,
    pub kinds: __u64,
    pub data_sequence: __u64,
    pub keys: [__u64; 2usize],
    pub chains_hit: __u64,
    pub sequence: __u32,
    pub acknowledgment: __u32,
    pub payload: __u32,
    pub interface: __u32,
    pub values: [__u64; 2usize],
    pub hook: __u8,
    pub verdict: __u8,
    pub chain_count: __u8,
    pub changed: __u8,
    pub address_id: __u8,
    pub backup: __u8,
    pub padding: [__u8; 2usize],
    pub chains: [__u16; 16usize],
    pub option: [__u8; 32usize],
}
