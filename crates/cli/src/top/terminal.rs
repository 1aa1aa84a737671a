//! The full-screen view: the loop that samples, draws and handles keys until the user quits.
//!
//! The terminal is restored on exit, also after a panic (by ratatui's hook) and on a stop signal.

use std::env;
use std::io;
use std::time::{Duration, Instant};

use anyhow::Context;
use plait_linux::signal::StopSignal;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};

use super::draw::{Theme, draw, page};
use super::keyboard::{KeyAction, handle_key};
use super::list::List;
use crate::snapshot::Snapshots;

pub(super) fn run(interval: Duration) -> anyhow::Result<()> {
    let stop = StopSignal::listen().context("cannot listen for signals")?;
    // Everything that can fail does so before the screen is taken over.
    let mut snapshots = Snapshots::start()?;
    let list = List::new(snapshots.take()?);
    let shown = ratatui::try_init()
        .context("cannot draw on this terminal")
        .and_then(|mut terminal| show(&mut terminal, list, snapshots, interval, &stop));
    let restored = ratatui::try_restore().context("cannot restore the terminal");
    shown.and(restored)
}

fn show(
    terminal: &mut DefaultTerminal,
    mut list: List,
    mut snapshots: Snapshots,
    interval: Duration,
    stop: &StopSignal,
) -> anyhow::Result<()> {
    let theme = Theme { colour: env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) };
    let mut due = Instant::now() + interval;
    let mut changed = true;
    while !stop.is_requested() {
        if std::mem::take(&mut changed) {
            terminal.draw(|frame| draw(frame, &list, theme)).context("cannot draw on the terminal")?;
        }
        let wait = due.saturating_duration_since(Instant::now()).min(POLL_INTERVAL);
        if poll(wait).context("cannot read from the terminal")? {
            changed = true;
            match event::read().context("cannot read from the terminal")? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    let page = page(terminal.size().map_or(0, |size| size.height));
                    if handle_key(&mut list, key, page) == KeyAction::Quit {
                        break;
                    }
                }
                // Other events, such as a resize, only need a redraw.
                _ => {}
            }
        }
        if Instant::now() >= due && !list.paused {
            list.update(snapshots.take()?);
            changed = true;
            due = Instant::now() + interval;
        }
    }
    Ok(())
}

/// Waits this long for an event; a signal ends the wait.
fn poll(wait: Duration) -> io::Result<bool> {
    match event::poll(wait) {
        Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
        other => other,
    }
}

/// How often the stop signal is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
