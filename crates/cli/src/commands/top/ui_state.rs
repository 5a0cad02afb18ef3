//! The page that is shown, and the effect of each key.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::view_model::RuleOrder;

/// A page of the interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Page {
    #[default]
    Overview,
    Clients,
    Fleet,
}

impl Page {
    pub(crate) const ALL: [Self; 3] = [Self::Overview, Self::Clients, Self::Fleet];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Overview => "overview",
            Self::Clients => "clients",
            Self::Fleet => "fleet",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Overview => Self::Clients,
            Self::Clients => Self::Fleet,
            Self::Fleet => Self::Overview,
        }
    }

    fn previous(self) -> Self {
        self.next().next()
    }
}

/// Sort order of clients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientOrder {
    #[default]
    Traffic,
    Denials,
}

/// The page, its order and its scroll position.
#[derive(Clone, Debug, Default)]
pub(crate) struct UiState {
    pub(crate) page: Page,
    pub(crate) rules: RuleOrder,
    pub(crate) clients: ClientOrder,
    /// Lines of the page above the first visible one.
    pub(crate) scroll: usize,
    pub(crate) is_paused: bool,
    pub(crate) shows_help: bool,
}

/// The effect of a key on the main loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyAction {
    /// Draws the next frame.
    Redraw,
    /// Pauses or resumes.
    TogglePause,
    Quit,
}

/// Lines that page up and page down scroll.
const PAGE_LINES: usize = 10;

impl UiState {
    /// Applies a key to the state.
    pub(crate) fn on_key(&mut self, key: KeyEvent) -> KeyAction {
        if key.kind == KeyEventKind::Release {
            return KeyAction::Redraw;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return KeyAction::Quit,
            _ if control => {}
            KeyCode::Char('q') => return KeyAction::Quit,
            // Any other key closes the help, and has no further effect.
            _ if std::mem::take(&mut self.shows_help) => {}
            KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return KeyAction::TogglePause;
            }
            KeyCode::Char('s') => self.sort(),
            KeyCode::Tab | KeyCode::Right => self.show_page(self.page.next()),
            KeyCode::BackTab | KeyCode::Left => self.show_page(self.page.previous()),
            KeyCode::Char('1') => self.show_page(Page::Overview),
            KeyCode::Char('2') => self.show_page(Page::Clients),
            KeyCode::Char('3') => self.show_page(Page::Fleet),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(PAGE_LINES),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(PAGE_LINES),
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = usize::MAX,
            _ => {}
        }
        KeyAction::Redraw
    }

    fn show_page(&mut self, page: Page) {
        self.page = page;
        self.scroll = 0;
    }

    fn sort(&mut self) {
        match self.page {
            Page::Overview => self.rules = self.rules.next(),
            Page::Clients => {
                self.clients = match self.clients {
                    ClientOrder::Traffic => ClientOrder::Denials,
                    ClientOrder::Denials => ClientOrder::Traffic,
                }
            }
            Page::Fleet => return,
        }
        self.scroll = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn press(state: &mut UiState, code: KeyCode) -> KeyAction {
        state.on_key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_have_the_effect_that_the_help_lists() {
        let mut state = UiState::default();
        for page in [Page::Clients, Page::Fleet, Page::Overview] {
            assert_eq!(press(&mut state, KeyCode::Tab), KeyAction::Redraw);
            assert_eq!(state.page, page);
        }
        press(&mut state, KeyCode::BackTab);
        assert_eq!(state.page, Page::Fleet);
        press(&mut state, KeyCode::Char('1'));
        press(&mut state, KeyCode::Char('s'));
        assert_eq!((state.page, state.rules), (Page::Overview, RuleOrder::Allowed));
        press(&mut state, KeyCode::Char('j'));
        press(&mut state, KeyCode::Down);
        press(&mut state, KeyCode::Char('k'));
        assert_eq!(state.scroll, 1);
        assert_eq!(press(&mut state, KeyCode::Char('p')), KeyAction::TogglePause);
        assert!(state.is_paused);
        assert_eq!(press(&mut state, KeyCode::Char('q')), KeyAction::Quit);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(state.on_key(interrupt), KeyAction::Quit);
    }

    #[test]
    fn any_key_closes_the_help_and_has_no_other_effect() {
        let mut state = UiState::default();
        press(&mut state, KeyCode::Char('?'));
        assert!(state.shows_help);
        press(&mut state, KeyCode::Tab);
        assert!(!state.shows_help && state.page == Page::Overview);
    }
}
