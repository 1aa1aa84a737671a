//! The messages of libbpf.

use libbpf_rs::PrintLevel;

/// Logs libbpf's messages at debug level from now on, in the whole process: of a rejected program they include the verifier's
/// long log, and libbpf would write them to stderr.
pub fn log_messages() {
    libbpf_rs::set_print(Some((
        PrintLevel::Debug,
        |_, text| tracing::debug!(target: "libbpf", "{}", text.trim_end()),
    )));
}
