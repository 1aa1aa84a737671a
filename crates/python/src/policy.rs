//! `plait.policy`: the policy engine, and the native side of the controller loop. Documents are passed as JSON, policies as
//! TOML; `python/plait` converts both to data classes.

use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

use plait_linux::interfaces;
use plait_linux::mptcp::Token;
use plait_linux::pm::Local;
use plait_policy::controller::{self, Action, default_expiry};
use plait_policy::engine::{self, Event, EventKind, FourTuple};
use plait_policy::{Engine, Policy, Rate};
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;
use serde_json::json;

create_exception!(plait.policy, Error, PyException, "The host rejected an operation on policies.");
create_exception!(
    plait.policy,
    InvalidPolicy,
    PyValueError,
    "A policy is invalid: where, what was expected, and what it has."
);
create_exception!(
    plait.policy,
    Replaced,
    Error,
    "Another controller of the same name has replaced this one."
);

/// How often Python's signals are checked while waiting for events.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(100);

pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("PolicyError", py.get_type::<Error>())?;
    module.add("InvalidPolicy", py.get_type::<InvalidPolicy>())?;
    module.add("PolicyReplaced", py.get_type::<Replaced>())?;
    module.add_class::<Control>()?;
    module.add_class::<Events>()?;
    module.add_function(wrap_pyfunction!(check_policy, module)?)?;
    module.add_function(wrap_pyfunction!(load_policy, module)?)?;
    module.add_function(wrap_pyfunction!(unload_policy, module)?)?;
    module.add_function(wrap_pyfunction!(loaded_policies, module)?)?;
    module.add_function(wrap_pyfunction!(policy_statistics, module)?)?;
    module.add_function(wrap_pyfunction!(policy_flows, module)?)?;
    module.add_function(wrap_pyfunction!(guard_policy, module)?)
}

/// Raises an exception if a policy's text is invalid; `name` is its file, for the message.
#[pyfunction]
fn check_policy(text: &str, name: &str) -> PyResult<()> {
    parse(text, name).map(|_| ())
}

/// Loads a policy from its text.
#[pyfunction]
fn load_policy(py: Python<'_>, text: &str, name: &str, replace: bool) -> PyResult<()> {
    let policy = parse(text, name)?;
    py.detach(|| {
        let engine = Engine::current()?;
        if replace { engine.replace(std::slice::from_ref(&policy)) } else { engine.load(&policy) }
    })
    .map_err(engine_error)
}

/// Unloads a policy.
#[pyfunction]
fn unload_policy(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| Engine::current()?.unload(name)).map(|_| ()).map_err(engine_error)
}

/// The loaded policies: `[{"name", "text", "remaining", "absent"}]`.
#[pyfunction]
fn loaded_policies(py: Python<'_>) -> PyResult<String> {
    let loaded = py.detach(|| Engine::current()?.policies()).map_err(engine_error)?;
    let documents = loaded.iter().map(|loaded| {
        let remaining = loaded.remaining.map(|time| time.as_secs_f64());
        let (name, text) = (&loaded.policy.name, loaded.policy.to_string());
        json!({ "name": name, "text": text, "remaining": remaining, "absent": loaded.absent })
    });
    Ok(documents.collect::<serde_json::Value>().to_string())
}

/// The counters of the loaded policies.
#[pyfunction]
fn policy_statistics(py: Python<'_>) -> PyResult<String> {
    document(&py.detach(|| Engine::current()?.statistics()).map_err(engine_error)?)
}

/// The recorded subflows.
#[pyfunction]
fn policy_flows(py: Python<'_>) -> PyResult<String> {
    document(&py.detach(|| Engine::current()?.flows()).map_err(engine_error)?)
}

/// Waits until the policy of a controller has expired, and cleans up what it left.
#[pyfunction]
fn guard_policy(py: Python<'_>, name: &str) -> PyResult<()> {
    py.detach(|| controller::guard(name)).map_err(controller_error)
}

/// Events of loaded policies.
#[pyclass(unsendable)]
struct Events(Option<engine::Events>);

#[pymethods]
impl Events {
    /// With `trace`, every matched packet is an event.
    #[new]
    fn new(trace: bool) -> PyResult<Events> {
        let engine = Engine::current().map_err(engine_error)?;
        let events = if trace { engine.trace() } else { engine.events() };
        events.map(Events).map_err(engine_error)
    }

    /// The next event, and the keys in it, of initiator and responder; `None` after `timeout` seconds.
    fn next(&mut self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Option<EventAndKeys>> {
        let Some(events) = &mut self.0 else { return Ok(None) };
        let mut left = timeout.map(seconds).transpose()?;
        loop {
            let step = left.map_or(SIGNAL_INTERVAL, |left| left.min(SIGNAL_INTERVAL));
            if let Some(event) = events.next(step).map_err(engine_error)? {
                return Ok(Some((document(&event)?, keys(&event))));
            }
            py.check_signals()?;
            left = left.map(|left| left - step);
            if left == Some(Duration::ZERO) {
                return Ok(None);
            }
        }
    }

    /// Stops receiving events.
    fn close(&mut self) {
        self.0 = None;
    }
}

/// An event as JSON, and the keys in it.
type EventAndKeys = (String, Option<(Vec<u8>, Option<Vec<u8>>)>);

fn keys(event: &Event) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
    let EventKind::Connection { keys: Some(keys) } = &event.kind else { return None };
    let responder = keys.responder.as_ref().map(|key| key.as_bytes().to_vec());
    Some((keys.initiator.as_bytes().to_vec(), responder))
}

/// A controller session.
#[pyclass(unsendable)]
struct Control(Option<controller::Session>);

#[pymethods]
impl Control {
    /// `guard` is the command line of a process that calls `guard_policy` with the name.
    #[new]
    fn new(name: &str, interval: f64, expiry: Option<f64>, guard: Vec<String>) -> PyResult<Control> {
        let expiry = expiry.map_or_else(|| seconds(interval).map(default_expiry), seconds)?;
        let mut control = controller::Session::start(name, expiry).map_err(controller_error)?;
        if let [program, words @ ..] = &guard[..] {
            let mut command = Command::new(program);
            command.args(words);
            control = control.with_guard(command);
        }
        Ok(Control(Some(control)))
    }

    /// The current view.
    fn view(&mut self) -> PyResult<String> {
        document(&self.open()?.view().map_err(controller_error)?)
    }

    /// Applies chains and other actions. Returns the errors of the path manager.
    fn apply(&mut self, chains: &str, others: &str) -> PyResult<Vec<String>> {
        let chains = parse(chains, "the controller's chains")?.chains;
        let others: Vec<OtherAction> =
            serde_json::from_str(others).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let mut actions: Vec<Action> = chains.into_iter().map(Action::Chain).collect();
        for other in others {
            actions.push(other.action()?);
        }
        let errors = self.open()?.apply(&actions).map_err(controller_error)?;
        Ok(errors.iter().map(ToString::to_string).collect())
    }

    /// Removes the controller's policy.
    fn close(&mut self) -> PyResult<()> {
        self.0.take().map_or(Ok(()), |control| control.finish().map_err(controller_error))
    }
}

impl Control {
    fn open(&mut self) -> PyResult<&mut controller::Session> {
        self.0.as_mut().ok_or_else(|| Error::new_err("the controller has stopped"))
    }
}

/// An action other than a chain.
#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum OtherAction {
    Pace { subflow: FourTuple, rate: String },
    Limit { subflow: FourTuple, rate: String },
    Backup { subflow: FourTuple },
    Create(NewSubflow),
    Remove { token: Token, subflow: FourTuple },
}

#[derive(Deserialize)]
struct NewSubflow {
    token: Token,
    local: IpAddr,
    remote: SocketAddr,
    id: u8,
    interface: Option<String>,
    backup: bool,
    remote_id: u8,
}

impl OtherAction {
    fn action(self) -> PyResult<Action> {
        let rate =
            |text: String| text.parse::<Rate>().map_err(|error| InvalidPolicy::new_err(error.to_string()));
        Ok(match self {
            OtherAction::Pace { subflow, rate: text } => Action::Pace { subflow, rate: rate(text)? },
            OtherAction::Limit { subflow, rate: text } => Action::Limit { subflow, rate: rate(text)? },
            OtherAction::Backup { subflow } => Action::Backup { subflow },
            OtherAction::Create(NewSubflow { token, local, remote, id, interface, backup, remote_id }) => {
                let if_index = interface.map_or(Ok(0), |name| index(&name))?;
                let local = Local { address: local, id, if_index, backup };
                Action::Create { token, local, remote, remote_id }
            }
            OtherAction::Remove { token, subflow } => Action::Remove { token, subflow },
        })
    }
}

fn index(name: &str) -> PyResult<u32> {
    let interfaces = interfaces::interfaces().map_err(|error| Error::new_err(error.to_string()))?;
    let found = interfaces.iter().find(|interface| interface.name == name);
    let names = || interfaces.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    found
        .map(|interface| interface.index)
        .ok_or_else(|| Error::new_err(format!("expected one of the interfaces {}, got '{name}'", names())))
}

fn parse(text: &str, name: &str) -> PyResult<Policy> {
    Policy::parse(text, name).map_err(|error| invalid_policy(&error))
}

fn invalid_policy(error: &impl std::fmt::Display) -> PyErr {
    InvalidPolicy::new_err(error.to_string())
}

fn engine_error(error: engine::EngineError) -> PyErr {
    match error {
        engine::EngineError::StoredPolicy(error) => invalid_policy(&error),
        engine::EngineError::InvalidPolicy(error) => invalid_policy(&error),
        error => Error::new_err(error.to_string()),
    }
}

fn controller_error(error: controller::ControllerError) -> PyErr {
    match error {
        controller::ControllerError::Policy(error) => invalid_policy(&error),
        controller::ControllerError::Engine(error) => engine_error(error),
        controller::ControllerError::Replaced(_) => Replaced::new_err(error.to_string()),
        error => Error::new_err(error.to_string()),
    }
}

fn seconds(seconds: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(seconds)
        .map_err(|_| PyValueError::new_err(format!("expected a number of seconds, got {seconds}")))
}

fn document(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyValueError::new_err(error.to_string()))
}
