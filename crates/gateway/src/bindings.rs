pub type __u8 = ::std::os::raw::c_uchar;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __u32 = ::std::os::raw::c_uint;
pub type __u64 = ::std::os::raw::c_ulonglong;
pub const PLAIT_OPTION_KIND: plait_option_number = 254;
pub const PLAIT_OPTION_EXID: plait_option_number = 1347174729;
pub const PLAIT_OPTION_VERSION: plait_option_number = 1;
pub type plait_option_number = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_option {
    pub kind: __u8,
    pub length: __u8,
    pub exid: [__u8; 4usize],
    pub version: __u8,
    pub modes: __u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_confirmation {
    pub kind: __u8,
    pub length: __u8,
    pub exid: [__u8; 2usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_ports {
    pub first: __u16,
    pub last: __u16,
}
pub const PLAIT_MAX_PORTS: plait_selection_number = 16;
pub type plait_selection_number = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_selection {
    pub taken: __u32,
    pub mark: __u32,
    pub mask: __u32,
    pub ports_len: __u32,
    pub ports: [plait_ports; 16usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_negotiate_settings {
    pub modes: __u32,
    pub report_outcomes: __u32,
    pub selection: plait_selection,
}
pub const PLAIT_MODE_XOR64_KEY: plait_mode = 1;
pub const PLAIT_MODE_XOR64_HMAC: plait_mode = 2;
pub const PLAIT_MODE_STREAM_CHACHA20: plait_mode = 4;
pub const PLAIT_MODE_STREAM_AES256: plait_mode = 8;
pub const PLAIT_MODE_SEALED_CHACHAPOLY: plait_mode = 16;
pub const PLAIT_MODE_SEALED_AESGCM: plait_mode = 32;
pub const PLAIT_MODE_STREAM_KEYS: plait_mode = 64;
pub type plait_mode = ::std::os::raw::c_uint;
pub const PLAIT_OUTCOME_PLAIN: plait_outcome = 1;
pub const PLAIT_OUTCOME_NEGOTIATED: plait_outcome = 2;
pub const PLAIT_OUTCOME_NO_COMMON_MODE: plait_outcome = 3;
pub const PLAIT_OUTCOME_UNCONFIRMED: plait_outcome = 4;
pub const PLAIT_OUTCOME_FALLBACK: plait_outcome = 5;
pub type plait_outcome = ::std::os::raw::c_uint;
pub const PLAIT_JOINED: plait_joined = 1;
pub const PLAIT_JOINED_EARLY: plait_joined = 2;
pub type plait_joined = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Copy, Clone)]
pub struct plait_verdict {
    pub local_key: __u64,
    pub remote_key: __u64,
    pub token: __u32,
    pub outcome: __u8,
    pub mode: __u8,
    pub offered: __u8,
    pub joined: __u8,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_outcome_event {
    pub token: __u32,
    pub outcome: __u8,
    pub initiator: __u8,
    pub family: __u16,
    pub local_port: __u16,
    pub remote_port: __u16,
    pub local: [__u32; 4usize],
    pub remote: [__u32; 4usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_trusted_settings {
    pub interface: [::std::os::raw::c_char; 16usize],
    pub require: __u32,
    pub selection: plait_selection,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_redirect_settings {
    pub listener_v4: __u16,
    pub listener_v6: __u16,
    pub require: __u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_destination {
    pub address: [__u32; 4usize],
    pub port: __u16,
    pub family: __u16,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_client {
    pub address: [__u32; 4usize],
    pub port: __u16,
    pub ipv6: __u16,
}
