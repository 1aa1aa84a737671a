//! Features of the programs that are enabled only while a process requests them, as they cost time: tracing and
//! timing.
//!
//! A request is stored with its process ID, so that the next command disables a feature whose process was killed.

use std::sync::Arc;

use rustix::process::Pid;

use super::error::EngineError;
use super::namespace::Namespace;
use super::objects::Objects;
use crate::bindings::plait_settings;

/// A feature.
#[derive(Clone, Copy, Debug)]
pub(super) enum Feature {
    Tracing,
    Timing,
}

/// Enables a feature until it is dropped.
#[derive(Debug)]
pub(super) struct FeatureRequest {
    feature: Feature,
    namespace: Arc<Namespace>,
    objects: Objects,
}

/// Measures the time that chains and actors take until it is dropped. Measuring takes time itself.
#[derive(Debug)]
#[must_use = "dropping it ends the measurement"]
pub struct Timing(#[expect(dead_code, reason = "kept to be dropped")] pub(super) FeatureRequest);

impl FeatureRequest {
    pub(super) fn start(
        feature: Feature,
        namespace: Arc<Namespace>,
        objects: Objects,
    ) -> Result<FeatureRequest, EngineError> {
        namespace.lock().and_then(|_lock| set(&objects, feature, std::process::id()))?;
        Ok(FeatureRequest { feature, namespace, objects })
    }
}

impl Drop for FeatureRequest {
    fn drop(&mut self) {
        let disable = || {
            let _lock = self.namespace.lock()?;
            let mine = self.feature.of(&mut self.objects.settings()?) == &std::process::id();
            if mine { set(&self.objects, self.feature, 0) } else { Ok(()) }
        };
        // If it cannot be disabled, everything was unloaded, or the next command disables it.
        let _: Result<(), EngineError> = disable();
    }
}

/// Disables features whose process has ended.
pub(super) fn disable_abandoned(namespace: &Namespace, objects: &Objects) -> Result<(), EngineError> {
    for feature in [Feature::Tracing, Feature::Timing] {
        let is_abandoned = || Ok::<_, EngineError>(is_dead(*feature.of(&mut objects.settings()?)));
        if is_abandoned()? {
            let _lock = namespace.lock()?;
            if is_abandoned()? {
                set(objects, feature, 0)?;
            }
        }
    }
    Ok(())
}

impl Feature {
    fn of(self, settings: &mut plait_settings) -> &mut u32 {
        match self {
            Feature::Tracing => &mut settings.tracing,
            Feature::Timing => &mut settings.timing,
        }
    }
}

fn set(objects: &Objects, feature: Feature, pid: u32) -> Result<(), EngineError> {
    let mut settings = objects.settings()?;
    *feature.of(&mut settings) = pid;
    objects.set_settings(&settings)
}

fn is_dead(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(plait_linux::has_ended)
}
