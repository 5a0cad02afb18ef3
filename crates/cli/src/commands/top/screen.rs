//! What a person looks at, and what their keys do.

use crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::picture::RuleOrder;

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

/// Which clients come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ClientOrder {
    #[default]
    Traffic,
    Denials,
}

/// What is shown of a picture.
#[derive(Clone, Debug, Default)]
pub(crate) struct Screen {
    pub(crate) page: Page,
    pub(crate) rules: RuleOrder,
    pub(crate) clients: ClientOrder,
    /// How many lines of the page are above what is shown.
    pub(crate) scroll: usize,
    pub(crate) is_paused: bool,
    pub(crate) shows_help: bool,
}

/// What a key asks for beyond the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wish {
    Nothing,
    /// To pause, or to go on.
    Pause,
    Leave,
}

const LEAP: usize = 10;

impl Screen {
    pub(crate) fn press(&mut self, key: KeyEvent) -> Wish {
        if key.kind == KeyEventKind::Release {
            return Wish::Nothing;
        }
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c' | 'd') if control => return Wish::Leave,
            _ if control => {}
            KeyCode::Char('q') => return Wish::Leave,
            // Help goes away by itself.
            _ if std::mem::take(&mut self.shows_help) => {}
            KeyCode::Esc => return Wish::Leave,
            KeyCode::Char('?' | 'h') => self.shows_help = true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused = !self.is_paused;
                return Wish::Pause;
            }
            KeyCode::Char('s') => self.sort(),
            KeyCode::Tab | KeyCode::Right => self.turn_to(self.page.next()),
            KeyCode::BackTab | KeyCode::Left => self.turn_to(self.page.previous()),
            KeyCode::Char('1') => self.turn_to(Page::Overview),
            KeyCode::Char('2') => self.turn_to(Page::Clients),
            KeyCode::Char('3') => self.turn_to(Page::Fleet),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(LEAP),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(LEAP),
            KeyCode::Home | KeyCode::Char('g') => self.scroll = 0,
            KeyCode::End | KeyCode::Char('G') => self.scroll = usize::MAX,
            _ => {}
        }
        Wish::Nothing
    }

    fn turn_to(&mut self, page: Page) {
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

    fn pressed(screen: &mut Screen, code: KeyCode) -> Wish {
        screen.press(KeyEvent::new(code, KeyModifiers::NONE))
    }

    #[test]
    fn keys_do_what_the_help_says() {
        let mut screen = Screen::default();
        for page in [Page::Clients, Page::Fleet, Page::Overview] {
            assert_eq!(pressed(&mut screen, KeyCode::Tab), Wish::Nothing);
            assert_eq!(screen.page, page);
        }
        pressed(&mut screen, KeyCode::BackTab);
        assert_eq!(screen.page, Page::Fleet);
        pressed(&mut screen, KeyCode::Char('1'));
        pressed(&mut screen, KeyCode::Char('s'));
        assert_eq!((screen.page, screen.rules), (Page::Overview, RuleOrder::Allowed));
        pressed(&mut screen, KeyCode::Char('j'));
        pressed(&mut screen, KeyCode::Down);
        pressed(&mut screen, KeyCode::Char('k'));
        assert_eq!(screen.scroll, 1);
        assert_eq!(pressed(&mut screen, KeyCode::Char('p')), Wish::Pause);
        assert!(screen.is_paused);
        assert_eq!(pressed(&mut screen, KeyCode::Char('q')), Wish::Leave);
        let interrupt = KeyEvent::new(KeyCode::Char('c'), KeyModifiers::CONTROL);
        assert_eq!(screen.press(interrupt), Wish::Leave);
    }

    #[test]
    fn any_key_closes_the_help_and_does_nothing_else() {
        let mut screen = Screen::default();
        pressed(&mut screen, KeyCode::Char('?'));
        assert!(screen.shows_help);
        pressed(&mut screen, KeyCode::Tab);
        assert!(!screen.shows_help && screen.page == Page::Overview);
    }
}
