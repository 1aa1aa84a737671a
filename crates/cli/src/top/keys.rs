//! What keys do.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::list::{List, Order};

/// The keys, for the help.
pub(super) const HELP: [(&str, &str); 11] = [
    ("q, Esc, Ctrl-C", "quit"),
    ("space", "pause; the next sample after it covers the pause"),
    ("/", "filter by any text in a row; Enter keeps it, Esc drops it"),
    ("s", "next order"),
    ("r", "order by rate"),
    ("t", "order by round-trip time"),
    ("x", "order by retransmissions"),
    ("b", "order by bytes carried"),
    ("c", "order by connection"),
    ("R", "reverse the order"),
    ("arrows, page, home, end", "scroll"),
];

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Continue,
    Quit,
}

/// Does what a key says; `page` is the number of rows on the screen.
pub(super) fn press(list: &mut List, key: KeyEvent, page: usize) -> Next {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return if key.code == KeyCode::Char('c') { Next::Quit } else { Next::Continue };
    }
    if list.typing {
        type_filter(list, key.code);
        return Next::Continue;
    }
    if list.help {
        list.help = false;
        return Next::Continue;
    }
    match key.code {
        KeyCode::Char('q') => return Next::Quit,
        KeyCode::Esc if list.filter.is_empty() => return Next::Quit,
        KeyCode::Esc => list.filter.clear(),
        KeyCode::Char(' ') => list.paused = !list.paused,
        KeyCode::Char('?' | 'h') => list.help = true,
        KeyCode::Char('/') => list.typing = true,
        KeyCode::Char('R') => list.reversed = !list.reversed,
        KeyCode::Char('s') => {
            let orders = Order::ALL.iter().map(|(order, ..)| *order);
            let mut following = orders.cycle().skip_while(|order| *order != list.order).skip(1);
            list.order = following.next().unwrap_or(list.order);
        }
        KeyCode::Char(key) => {
            if let Some((order, ..)) = Order::ALL.iter().find(|(_, own, _)| *own == key) {
                list.order = *order;
            }
        }
        code => scroll(list, code, page),
    }
    Next::Continue
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
    use super::super::list::Row;
    use super::super::sample::list;
    use super::*;

    fn press_all(list: &mut List, keys: &str) -> Next {
        keys.chars().map(|key| press(list, KeyCode::Char(key).into(), 2)).last().unwrap_or(Next::Continue)
    }

    #[test]
    fn a_filter_is_typed_kept_and_dropped() {
        let mut list = list();
        assert_eq!(press_all(&mut list, "/q"), Next::Continue);
        press(&mut list, KeyCode::Backspace.into(), 2);
        press_all(&mut list, "WLAN");
        press(&mut list, KeyCode::Enter.into(), 2);
        assert_eq!((list.filter.as_str(), list.typing), ("WLAN", false));
        assert_eq!(list.rows().len(), 2, "the connection and its subflow");
        assert_eq!(press(&mut list, KeyCode::Esc.into(), 2), Next::Continue);
        assert_eq!(list.rows().len(), 5);
        assert_eq!(press(&mut list, KeyCode::Esc.into(), 2), Next::Quit);
    }

    #[test]
    fn orders_follow_their_keys() {
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
        assert_eq!(list.order, Order::Rate, "after the last comes the first");
    }

    #[test]
    fn scrolling_ends_at_the_ends() {
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
            press(&mut list, code.into(), 2);
            assert_eq!(list.offset, offset, "{code:?}");
        }
    }

    #[test]
    fn pause_help_and_quitting() {
        let mut list = list();
        press_all(&mut list, " ");
        assert!(list.paused);
        press_all(&mut list, "?");
        assert!(list.help);
        assert_eq!(press_all(&mut list, "q"), Next::Continue, "any key leaves the help");
        assert!(!list.help);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(press(&mut list, interrupt, 2), Next::Quit);
        assert_eq!(press_all(&mut list, "q"), Next::Quit);
    }
}
