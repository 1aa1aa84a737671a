//! The verdict on a path: what an eavesdropper on it learns, in plain sentences.

use plait_config::pluralize;

use crate::document::{Attack, Conclusion, PathView};
use crate::evidence::percent;
use crate::mode::{Mode, ModeSource};

/// A few sentences, the conclusion first.
pub(crate) fn verdict(view: &PathView) -> String {
    let missing = view.missing_evidence.join("; ");
    let mut sentences = match (view.conclusion, view.mode) {
        (Conclusion::NothingCrossed, _) | (Conclusion::NothingRead, None) => {
            return "Nothing crossed this path.".into();
        }
        (Conclusion::CannotJudge, None) => return format!("Cannot judge: {missing}."),
        (Conclusion::CannotJudge, Some(mode)) => {
            let mut sentences = vec![format!("Cannot judge: {missing}.")];
            sentences.extend(control(view).filter(|_| mode != Mode::Off));
            sentences
        }
        (Conclusion::NothingRead, Some(mode)) => nothing_read(view, mode),
        (Conclusion::Read, mode) => read(view, mode, &missing),
    };
    let estimated =
        view.connections.iter().filter(|connection| connection.mode_source == ModeSource::Bytes).count();
    if estimated > 0 {
        let connections = pluralize(estimated, "connection");
        sentences.push(format!(
            "The mode of {connections} is estimated from the bytes: no handshake was captured."
        ));
    }
    if matches!(view.mode, Some(Mode::Stream | Mode::Sealed | Mode::Unknown)) && view.recovered_bytes == 0 {
        let identified = view.connections.iter().any(|connection| !connection.identifiers.is_empty());
        let identifiers = if identified { " and the identifiers in the handshake" } else { "" };
        sentences.push(format!(
            "Still visible: addresses, packet sizes, packet times, total volume{identifiers}."
        ));
    }
    sentences.join(" ")
}

fn read(view: &PathView, mode: Option<Mode>, missing: &str) -> Vec<String> {
    let at_least = if missing.is_empty() { "" } else { "at least " };
    let share = percent(view.recovered_fraction);
    let read = format!("An eavesdropper reads {at_least}{share} of the bytes that crossed this path");
    let mut sentences = vec![match mode {
        Some(Mode::Off) => format!("{read}: the connection is not protected."),
        Some(Mode::Xor64) => match &view.attack {
            Some(Attack { runs, broken, .. }) => {
                format!("{read}: the attack broke {broken} of {}.", pluralize(*runs, "run"))
            }
            None => format!("{read}."),
        },
        Some(Mode::Stream) => {
            format!("{read}: the secrets from which mode stream derives its keys crossed this path too.")
        }
        Some(Mode::Mixed) => format!("{read}. The connections use different modes."),
        Some(Mode::Sealed | Mode::Unknown) | None => format!("{read}."),
    }];
    if !missing.is_empty() {
        sentences.push(format!("Cannot judge the rest: {missing}."));
    } else if mode == Some(Mode::Off) && view.recovered_bytes < view.exposure.bytes {
        sentences.push("The rest is encrypted by the application.".into());
    }
    sentences
}

fn nothing_read(view: &PathView, mode: Mode) -> Vec<String> {
    let mut sentences = vec![match mode {
        Mode::Off => "The connection is not protected by plait, but its content is encrypted.".into(),
        _ => "An eavesdropper reads nothing.".into(),
    }];
    sentences.extend(control(view).filter(|_| mode != Mode::Off));
    sentences
}

/// The outcome of attacks that recovered nothing.
fn control(view: &PathView) -> Option<String> {
    let Attack { runs, structured, .. } = view.attack.as_ref().filter(|attack| attack.runs > 0)?;
    let runs = pluralize(*runs, "run");
    Some(match structured {
        0 => format!("The attack on xor64, tried on {runs}, does no better than chance."),
        _ => format!("The attack on xor64, tried on {runs}, recovers nothing."),
    })
}
