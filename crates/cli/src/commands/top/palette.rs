//! Colours, for who wants any.

use ratatui::style::{Color, Modifier, Style};

/// What things look like. Without colours, what matters is bold or turned around.
#[derive(Clone, Copy, Debug)]
pub(super) struct Palette {
    has_colours: bool,
}

impl Palette {
    pub(super) const fn new(has_colours: bool) -> Self {
        Self { has_colours }
    }

    fn colour(self, colour: Color) -> Style {
        if self.has_colours { Style::new().fg(colour) } else { Style::new() }
    }

    pub(super) fn allowed(self) -> Style {
        self.colour(Color::Green)
    }

    pub(super) fn denied(self) -> Style {
        self.colour(Color::Yellow)
    }

    pub(super) fn failed(self) -> Style {
        self.colour(Color::Magenta)
    }

    pub(super) fn latency(self) -> Style {
        self.colour(Color::Cyan)
    }

    pub(super) fn alarm(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }

    pub(super) fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    pub(super) fn chosen(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub(super) fn quiet(self) -> Style {
        self.colour(Color::DarkGray)
    }

    pub(super) fn plain(self) -> Style {
        Style::new()
    }
}
