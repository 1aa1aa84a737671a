//! A scheduler of one process, which ends with it.

use std::fmt;
use std::process;
use std::sync::Mutex;

use libbpf_rs::{Link, MapCore as _, MapType};
use plait_congestion::Error;

use crate::{Scheduler, object};

/// A scheduler that sockets can select by its name (`TCP_CONGESTION`) until this is dropped or the process ends, however it
/// ends. Connections that use it then keep it until they are closed.
pub struct Registered {
    name: String,
    _link: Mutex<Link>,
}

impl Registered {
    /// Registers a scheduler under a name of this process.
    ///
    /// # Errors
    /// [`Error::Missing`], or [`Error::Kernel`], also if this process has registered it already.
    pub fn new(scheduler: Scheduler) -> Result<Registered, Error> {
        let name = format!("plait_{}{}", &scheduler.name()[..1], process::id());
        let mut loaded = object::load(scheduler, &name)?;
        let mut map = loaded
            .maps_mut()
            .find(|map| map.map_type() == MapType::StructOps)
            .ok_or_else(object::not_found)?;
        let link = map.attach_struct_ops().map_err(Error::kernel("register the scheduler"))?;
        Ok(Registered { name, _link: Mutex::new(link) })
    }

    /// Its name in the kernel.
    pub fn name(&self) -> &str {
        &self.name
    }
}

impl fmt::Debug for Registered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Registered").field(&self.name).finish()
    }
}
