//! Keyboard input of the full-screen view.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::list::{List, SortKey};

/// The help: keys and what they do.
pub(super) const HELP: [(&str, &str); 11] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("space", "pause; the first sample after a pause covers all of it"),
    ("/", "filter rows by text; Enter keeps the filter, Esc clears it"),
    ("s", "next sort key"),
    ("r", "sort by rate"),
    ("t", "sort by round-trip time"),
    ("x", "sort by retransmissions"),
    ("b", "sort by bytes carried"),
    ("c", "sort by connection token"),
    ("R", "reverse the sort order"),
    ("arrows, page, home, end", "scroll"),
];

/// What the main loop does after a key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KeyAction {
    Continue,
    Quit,
}

/// Handles a key press. `page` is the number of rows on the screen.
pub(super) fn handle_key(list: &mut List, key: KeyEvent, page: usize) -> KeyAction {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { KeyAction::Quit } else { KeyAction::Continue };
    }
    if list.typing {
        type_filter(list, key.code);
        return KeyAction::Continue;
    }
    if list.help {
        list.help = false;
        return KeyAction::Continue;
    }
    match key.code {
        KeyCode::Char('q') => return KeyAction::Quit,
        KeyCode::Esc if list.filter.is_empty() => return KeyAction::Quit,
        KeyCode::Esc => list.filter.clear(),
        KeyCode::Char(' ') => list.paused = !list.paused,
        KeyCode::Char('?' | 'h') => list.help = true,
        KeyCode::Char('/') => list.typing = true,
        KeyCode::Char('R') => list.reversed = !list.reversed,
        KeyCode::Char('s') => {
            let sort_keys = SortKey::ALL.iter().map(|(sort_key, ..)| *sort_key);
            let mut following = sort_keys.cycle().skip_while(|sort_key| *sort_key != list.sort_key).skip(1);
            list.sort_key = following.next().unwrap_or(list.sort_key);
        }
        KeyCode::Char(key) => {
            if let Some((sort_key, ..)) = SortKey::ALL.iter().find(|(_, shortcut, _)| *shortcut == key) {
                list.sort_key = *sort_key;
            }
        }
        code => scroll(list, code, page),
    }
    KeyAction::Continue
}

fn type_filter(list: &mut List, code: KeyCode) {
    match code {
        KeyCode::Enter => list.typing = false,
        KeyCode::Esc => {
            list.filter.clear();
            list.typing = false;
        }
        KeyCode::Backspace => drop(list.filter.pop()),
        KeyCode::Char(letter) => list.filter.push(letter),
        _ => {}
    }
    list.offset = 0;
}

fn scroll(list: &mut List, code: KeyCode, page: usize) {
    let last = list.rows().len().saturating_sub(page);
    list.offset = match code {
        KeyCode::Down => list.offset + 1,
        KeyCode::Up => list.offset.saturating_sub(1),
        KeyCode::PageDown => list.offset + page,
        KeyCode::PageUp => list.offset.saturating_sub(page),
        KeyCode::Home => 0,
        KeyCode::End => last,
        _ => list.offset,
    }
    .min(last);
}

#[cfg(test)]
mod tests {
    use super::super::fixture::list;
    use super::super::list::Row;
    use super::*;

    fn press_all(list: &mut List, keys: &str) -> KeyAction {
        keys.chars()
            .map(|key| handle_key(list, KeyCode::Char(key).into(), 2))
            .last()
            .unwrap_or(KeyAction::Continue)
    }

    #[test]
    fn filter_is_typed_kept_and_cleared() {
        let mut list = list();
        assert_eq!(press_all(&mut list, "/q"), KeyAction::Continue);
        handle_key(&mut list, KeyCode::Backspace.into(), 2);
        press_all(&mut list, "WLAN");
        handle_key(&mut list, KeyCode::Enter.into(), 2);
        assert_eq!((list.filter.as_str(), list.typing), ("WLAN", false));
        assert_eq!(list.rows().len(), 2, "the connection and its subflow");
        assert_eq!(handle_key(&mut list, KeyCode::Esc.into(), 2), KeyAction::Continue);
        assert_eq!(list.rows().len(), 5);
        assert_eq!(handle_key(&mut list, KeyCode::Esc.into(), 2), KeyAction::Quit);
    }

    #[test]
    fn keys_select_the_sort_order() {
        let mut list = list();
        let first = |list: &List| match list.rows()[0] {
            Row::Connection(view) => view.token.to_string(),
            Row::Subflow(..) => "a subflow".into(),
        };
        assert_eq!(first(&list), "5f0c21aa");
        press_all(&mut list, "c");
        assert_eq!(first(&list), "0a0b0c0d");
        press_all(&mut list, "R");
        assert_eq!(first(&list), "5f0c21aa");
        press_all(&mut list, "s");
        assert_eq!(list.sort_key, SortKey::Rate, "wraps around");
    }

    #[test]
    fn scrolling_stops_at_both_ends() {
        let mut list = list();
        for (code, offset) in [
            (KeyCode::Up, 0),
            (KeyCode::Down, 1),
            (KeyCode::PageDown, 3),
            (KeyCode::Down, 3),
            (KeyCode::Home, 0),
            (KeyCode::End, 3),
            (KeyCode::PageUp, 1),
        ] {
            handle_key(&mut list, code.into(), 2);
            assert_eq!(list.offset, offset, "{code:?}");
        }
    }

    #[test]
    fn pause_help_and_quit() {
        let mut list = list();
        press_all(&mut list, " ");
        assert!(list.paused);
        press_all(&mut list, "?");
        assert!(list.help);
        assert_eq!(press_all(&mut list, "q"), KeyAction::Continue, "any key closes the help");
        assert!(!list.help);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(handle_key(&mut list, interrupt, 2), KeyAction::Quit);
        assert_eq!(press_all(&mut list, "q"), KeyAction::Quit);
    }
}
