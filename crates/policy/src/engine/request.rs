//! What programs do only as long as somebody asks for it, as it takes time: telling of every packet, and timing.
//!
//! Who asks is on record by its process number, so that the next command switches off what a killed one asked for.

use std::sync::Arc;

use rustix::process::Pid;

use super::Error;
use super::objects::Objects;
use super::place::Place;
use crate::bindings::plait_settings;

/// What can be asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    Tracing,
    Timing,
}

/// As long as this lives, programs do it.
#[derive(Debug)]
pub(super) struct Request {
    wanted: Wanted,
    place: Arc<Place>,
    objects: Objects,
}

/// As long as this lives, the time that chains and actors take is measured, which takes time itself.
#[derive(Debug)]
#[must_use = "when it is dropped, nothing is measured any more"]
pub struct Timing(#[expect(dead_code, reason = "kept to be dropped")] pub(super) Request);

impl Request {
    pub(super) fn start(wanted: Wanted, place: Arc<Place>, objects: Objects) -> Result<Request, Error> {
        place.lock().and_then(|_lock| set(&objects, wanted, std::process::id()))?;
        Ok(Request { wanted, place, objects })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        let end = || {
            let _lock = self.place.lock()?;
            let mine = self.wanted.of(&mut self.objects.settings()?) == &std::process::id();
            if mine { set(&self.objects, self.wanted, 0) } else { Ok(()) }
        };
        // Where it cannot be switched off there is nothing any more, or the next command will do it.
        let _: Result<(), Error> = end();
    }
}

/// Switches off what processes have asked for that are dead.
pub(super) fn end_abandoned(place: &Place, objects: &Objects) -> Result<(), Error> {
    for wanted in [Wanted::Tracing, Wanted::Timing] {
        let is_abandoned = || Ok::<_, Error>(is_dead(*wanted.of(&mut objects.settings()?)));
        if is_abandoned()? {
            let _lock = place.lock()?;
            if is_abandoned()? {
                set(objects, wanted, 0)?;
            }
        }
    }
    Ok(())
}

impl Wanted {
    fn of(self, settings: &mut plait_settings) -> &mut u32 {
        match self {
            Wanted::Tracing => &mut settings.tracing,
            Wanted::Timing => &mut settings.timing,
        }
    }
}

fn set(objects: &Objects, wanted: Wanted, pid: u32) -> Result<(), Error> {
    let mut settings = objects.settings()?;
    *wanted.of(&mut settings) = pid;
    objects.set_settings(&settings)
}

fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(plait_linux::has_ended)
}
