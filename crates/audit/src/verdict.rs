//! What a listener on a path learnt, in plain sentences.

use plait_config::pluralize;

use crate::document::{Attack, PathView};
use crate::mode::Mode;

/// Two or three sentences.
pub(crate) fn verdict(view: &PathView) -> String {
    let Some(mode) = view.mode else { return "Nothing crossed this path.".into() };
    let read = format!("The listener reads {} of what crossed", percent(view.recovered_fraction));
    let mut sentences = vec![match mode {
        Mode::Off if view.recovered_bytes == 0 => {
            "The connection is not protected, but its content is not readable.".into()
        }
        Mode::Off => format!("{read}: it is not protected."),
        Mode::Xor64 => xor64(view, &read),
        Mode::Stream if view.recovered_bytes > 0 => {
            format!("{read}: all that the mode's keys are made of crossed this path too.")
        }
        Mode::Stream | Mode::Sealed => format!("The listener reads nothing. {}", tried(view)),
        Mode::Unknown if view.recovered_bytes > 0 => read + ".",
        Mode::Unknown => format!(
            "The listener reads nothing: the bytes look random, thus encrypted or compressed. {}",
            tried(view)
        ),
        Mode::Mixed => format!("{read}, over connections of several modes."),
    }];
    if view.recovered_bytes < view.exposure.bytes && mode == Mode::Off {
        sentences.push("The rest is encrypted by the application, or was not captured.".into());
    }
    if let Some(Attack { runs, left_out, .. }) = &view.attack
        && left_out.runs > 0
        && matches!(mode, Mode::Xor64 | Mode::Mixed)
    {
        sentences.push(format!(
            "The longest {} attacked; {} with {} bytes were left out.",
            if *runs == 1 { "run was".into() } else { format!("{runs} runs were") },
            left_out.runs,
            left_out.bytes
        ));
    }
    if matches!(mode, Mode::Stream | Mode::Sealed | Mode::Unknown) && view.recovered_bytes == 0 {
        let names = view.connections.iter().flat_map(|connection| &connection.names).next().is_some();
        let names = if names { ", and what is named in the handshake" } else { "" };
        sentences.push(format!("What remains is who speaks to whom, how much and when{names}."));
    }
    sentences.join(" ")
}

fn xor64(view: &PathView, read: &str) -> String {
    let attack = view.attack.clone().unwrap_or_default();
    let Attack { runs, broken, structured, .. } = attack;
    if runs == 0 {
        return "No run was long enough to attack: the listener reads nothing.".into();
    }
    if view.recovered_bytes == 0 {
        return match structured {
            0 => format!(
                "The attack does no better than chance on {}: nothing is recovered.",
                pluralize(runs, "run")
            ),
            _ => format!(
                "Of {}, {structured} not random but of no language that the attack knows: nothing is recovered.",
                pluralize(runs, "run")
            ),
        };
    }
    format!("{read}: the scrambling of {broken} of {} is undone.", pluralize(runs, "run"))
}

fn tried(view: &PathView) -> String {
    match &view.attack {
        Some(Attack { runs: 0, .. }) | None => "There was nothing long enough to try.".into(),
        Some(Attack { runs, structured: 0, .. }) => {
            format!("The attack on xor64, tried on {}, does no better than chance.", pluralize(*runs, "run"))
        }
        Some(Attack { runs, .. }) => {
            format!("The attack on xor64, tried on {}, finds nothing.", pluralize(*runs, "run"))
        }
    }
}

fn percent(fraction: f64) -> String {
    // What is not all is not shown as all, and what is not nothing not as nothing.
    let percent = (fraction * 1000.0).round() / 10.0;
    match percent {
        100.0 if fraction < 1.0 => "more than 99.9 %".into(),
        0.0 if fraction > 0.0 => "less than 0.1 %".into(),
        _ => format!("{percent} %"),
    }
}
