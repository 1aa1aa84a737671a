pub type __u8 = ::std::os::raw::c_uchar;
pub type __u16 = ::std::os::raw::c_ushort;
pub type __u32 = ::std::os::raw::c_uint;
pub type __u64 = ::std::os::raw::c_ulonglong;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct plait_closed_subflow {
    pub cookie: __u64,
    pub bytes_sent: __u64,
    pub bytes_acked: __u64,
    pub bytes_received: __u64,
    pub bytes_retransmitted: __u64,
    pub local_address: [__u8; 16usize],
    pub remote_address: [__u8; 16usize],
    pub token: __u32,
    pub retransmissions: __u32,
    pub rtt_us: __u32,
    pub rtt_variance_us: __u32,
    pub cwnd: __u32,
    pub mss: __u32,
    pub segments_sent: __u32,
    pub segments_received: __u32,
    pub family: __u16,
    pub local_port: __u16,
    pub remote_port: __u16,
    pub joined: __u8,
    pub padding: [__u8; 1usize],
}
