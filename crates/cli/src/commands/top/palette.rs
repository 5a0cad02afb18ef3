//! Colours, unless `NO_COLOR` turns them off.

use ratatui::style::{Color, Modifier, Style};

/// Styles of the interface. Without colours, emphasis is bold or reversed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Palette {
    has_colours: bool,
}

impl Palette {
    pub(crate) const fn new(has_colours: bool) -> Self {
        Self { has_colours }
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(crate) fn allowed(self) -> Style {
        self.colour(Color::Green)
    }

    pub(crate) fn denied(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub(crate) fn failed(self) -> Style {
        self.colour(Color::Magenta)
    }

    pub(crate) fn latency(self) -> Style {
        self.colour(Color::Cyan)
    }

    pub(crate) fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(crate) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(crate) fn selected(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(crate) fn dimmed(self) -> Style {
        self.colour(Color::DarkGray)
    }

    pub(crate) fn plain(self) -> Style {
        Style::new()
    }
}
