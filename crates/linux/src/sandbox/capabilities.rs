//! Gives up capabilities, and the user.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_keep_capabilities, set_no_new_privs,
};

use super::{MissingFeature, SandboxError, refused};
use crate::user::User;

/// Reduces the calling thread's capabilities to those in `keep`, in every set, and makes it that user's.
pub(super) fn reduce(
    keep: CapabilitySet,
    user: Option<&User>,
) -> Result<Option<MissingFeature>, SandboxError> {
    let own = capabilities(None).map_err(refused("read the capabilities"))?;
    let keep_bounding = own.permitted.contains(CapabilitySet::SETPCAP).then_some(keep);
    if let Some(keep) = keep_bounding {
        bound(keep)?;
    }
    let mut missing = None;
    if let Some(user) = user {
        set_keep_capabilities(true).map_err(refused("keep capabilities"))?;
        missing = match user.become_user_in_thread() {
            Ok(()) => None,
            // Not permitted, or not in this user namespace.
            Err(Errno::PERM | Errno::INVAL) => Some(MissingFeature::User),
            Err(error) => return Err(refused("change the user")(error)),
        };
        set_keep_capabilities(false).map_err(refused("keep capabilities"))?;
    }
    // Kernels before 4.3 have no such set.
    let _ = clear_ambient_capability_set();
    let kept = own.permitted & keep;
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).map_err(refused("give up capabilities"))?;
    set_no_new_privs(true).map_err(refused("set no_new_privs"))?;
    Ok(missing)
}

/// Removes all other capabilities from the bounding set. Without the capability for that, `no_new_privs` has the same effect.
fn bound(keep: CapabilitySet) -> Result<(), SandboxError> {
    for bit in 0..u64::BITS {
        let capability = CapabilitySet::from_bits_retain(1 << bit);
        if keep.contains(capability) {
            continue;
        }
        match remove_capability_from_bounding_set(capability) {
            Ok(()) => {}
            // Beyond this kernel's last one.
            Err(Errno::INVAL) => break,
            Err(error) => return Err(refused("reduce the bounding set")(error)),
        }
    }
    Ok(())
}
