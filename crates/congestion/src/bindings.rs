pub const PLAIT_MAX_SUBFLOWS: u32 = 12;
pub const PLAIT_FRACTION_BITS: u32 = 32;
pub const PLAIT_ALGORITHM_NAME_LENGTH: u32 = 16;
pub type __u8 = ::std::os::raw::c_uchar;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __u32 = ::std::os::raw::c_uint;
pub type __s64 = ::std::os::raw::c_longlong;
pub type __u64 = ::std::os::raw::c_ulonglong;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_path {
    pub transmitted: __u64,
    pub window: __u32,
    pub rtt: __u32,
}
pub const PLAIT_STEP_INCREASE: plait_step_kind = 1;
pub const PLAIT_STEP_LOSS: plait_step_kind = 2;
pub type plait_step_kind = ::std::os::raw::c_uint;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_step {
    pub socket: __u64,
    pub fraction: __u64,
    pub window_after: __u32,
    pub acked: __u32,
    pub kind: __u32,
    pub path_count: __u32,
    pub paths: [plait_path; 12usize],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_calculation {
    pub paths: [plait_path; 12usize],
    pub increase: __s64,
    pub path_count: __u32,
    pub padding: __u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_cc_socket {
    pub transmitted: __u64,
    pub local_address: [__u8; 16usize],
    pub remote_address: [__u8; 16usize],
    pub algorithm: [__u8; 16usize],
    pub token: __u32,
    pub window: __u32,
    pub threshold: __u32,
    pub rtt: __u32,
    pub family: __u16,
    pub local_port: __u16,
    pub remote_port: __u16,
    pub state: __u8,
    pub padding: __u8,
}
