//! The verdict on a path: what an eavesdropper on it learns, in plain sentences.

use plait_config::{grouped, pluralize};

use crate::document::{Attack, PathView};
use crate::mode::Mode;

/// Two or three sentences.
pub(crate) fn verdict(view: &PathView) -> String {
    let Some(mode) = view.mode else { return "Nothing crossed this path.".into() };
    let read = format!(
        "An eavesdropper reads {} of the bytes that crossed this path",
        percent(view.recovered_fraction)
    );
    let mut sentences = vec![match mode {
        Mode::Off if view.recovered_bytes == 0 => {
            "The connection is not protected by plait, but its content is encrypted.".into()
        }
        Mode::Off => format!("{read}: the connection is not protected."),
        Mode::Xor64 => xor64(view, &read),
        Mode::Stream if view.recovered_bytes > 0 => {
            format!("{read}: the secrets from which mode stream derives its keys crossed this path too.")
        }
        Mode::Stream | Mode::Sealed => format!("An eavesdropper reads nothing. {}", control(view)),
        Mode::Unknown if view.recovered_bytes > 0 => read + ".",
        Mode::Unknown => format!(
            "An eavesdropper reads nothing: the bytes look random, so they are encrypted or compressed. {}",
            control(view)
        ),
        Mode::Mixed => format!("{read}. The connections use different modes."),
    }];
    if view.recovered_bytes < view.exposure.bytes && mode == Mode::Off {
        sentences.push("The rest is encrypted by the application or was not captured.".into());
    }
    if let Some(Attack { runs, skipped, .. }) = &view.attack
        && skipped.runs > 0
        && matches!(mode, Mode::Xor64 | Mode::Mixed)
    {
        sentences.push(format!(
            "Only the longest {} attacked; skipped: {} with {} bytes.",
            if *runs == 1 { "run was".into() } else { format!("{runs} runs were") },
            pluralize(skipped.runs, "run"),
            grouped(skipped.bytes)
        ));
    }
    if matches!(mode, Mode::Stream | Mode::Sealed | Mode::Unknown) && view.recovered_bytes == 0 {
        let identified = view.connections.iter().any(|connection| !connection.identifiers.is_empty());
        let identifiers = if identified { " and the identifiers in the handshake" } else { "" };
        sentences.push(format!(
            "Still visible: addresses, packet sizes, packet times, total volume{identifiers}."
        ));
    }
    sentences.join(" ")
}

fn xor64(view: &PathView, read: &str) -> String {
    let attack = view.attack.clone().unwrap_or_default();
    let Attack { runs, broken, structured, .. } = attack;
    if runs == 0 {
        return "No run was long enough to attack: an eavesdropper reads nothing.".into();
    }
    if view.recovered_bytes == 0 {
        return match structured {
            0 => {
                format!(
                    "The attack does no better than chance on {}: nothing is recovered.",
                    pluralize(runs, "run")
                )
            }
            _ => format!(
                "Of {}, {structured} contain structured data but no language known to the attack: nothing is recovered.",
                pluralize(runs, "run")
            ),
        };
    }
    format!("{read}: the attack broke {broken} of {}.", pluralize(runs, "run"))
}

/// The outcome of the attack on a mode that resists it.
fn control(view: &PathView) -> String {
    match &view.attack {
        Some(Attack { runs: 0, .. }) | None => "No run was long enough to try the attack on xor64.".into(),
        Some(Attack { runs, structured: 0, .. }) => {
            format!("The attack on xor64, tried on {}, does no better than chance.", pluralize(*runs, "run"))
        }
        Some(Attack { runs, .. }) => {
            format!("The attack on xor64, tried on {}, recovers nothing.", pluralize(*runs, "run"))
        }
    }
}

fn percent(fraction: f64) -> String {
    // Rounding must turn neither a part into all nor into nothing.
    let percent = (fraction * 1000.0).round() / 10.0;
    match percent {
        100.0 if fraction < 1.0 => "more than 99.9 %".into(),
        0.0 if fraction > 0.0 => "less than 0.1 %".into(),
        _ => format!("{percent} %"),
    }
}
