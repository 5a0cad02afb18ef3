//! The three algorithms, on small numbers: how much is used, and what time makes of it.

/// How tokens come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One token each so many ticks.
    TokenBucket {
        /// Ticks for one token.
        every: u8,
    },
    /// All of them at the start of each window.
    FixedWindow {
        /// Ticks of a window.
        window: u8,
    },
    /// As the share of the window before that still counts gets less.
    SlidingWindow {
        /// Ticks of a window.
        window: u8,
    },
}

/// A limit, and how it refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tokens.
    pub amount: u8,
    /// How they come back.
    pub algorithm: Algorithm,
}

/// What is used of a limit. A bucket counts parts of tokens in `current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gauge {
    /// Used in this window, or of the bucket.
    pub current: u8,
    /// Used in the window before, if it is sliding.
    pub previous: u8,
}

impl Limit {
    /// Parts of a token that are told apart.
    pub fn parts(&self) -> u16 {
        match self.algorithm {
            Algorithm::TokenBucket { every } => u16::from(every),
            Algorithm::FixedWindow { .. } => 1,
            Algorithm::SlidingWindow { window } => u16::from(window),
        }
    }

    /// The limit, in parts of a token.
    pub fn whole(&self) -> u16 {
        u16::from(self.amount) * self.parts()
    }

    /// Ticks of a window; 0 for a bucket, which has none.
    pub fn window(&self) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => 0,
            Algorithm::FixedWindow { window } | Algorithm::SlidingWindow { window } => window,
        }
    }

    /// Parts of a token in use, `place` ticks into the window.
    pub fn weight(&self, gauge: &Gauge, place: u8) -> u16 {
        let current = u16::from(gauge.current);
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::FixedWindow { .. } => current,
            Algorithm::SlidingWindow { window } => {
                current * self.parts() + u16::from(gauge.previous) * u16::from(window - place)
            }
        }
    }

    /// Ticks until nothing is in use, `place` ticks into the window, if nothing more is spent.
    pub fn ticks_left(&self, gauge: &Gauge, place: u8) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => gauge.current,
            _ if *gauge == Gauge::default() => 0,
            Algorithm::SlidingWindow { window } if gauge.current > 0 => 2 * window - place,
            Algorithm::FixedWindow { window } | Algorithm::SlidingWindow { window } => {
                window - place
            }
        }
    }

    /// The most ticks for which so many leased tokens count after their lease has ended.
    pub fn counts_for(&self, tokens: u8) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { every } => tokens * every,
            Algorithm::FixedWindow { window } => window,
            Algorithm::SlidingWindow { window } => 2 * window,
        }
    }

    /// Counts tokens as spent now.
    pub fn spend(&self, gauge: &mut Gauge, tokens: u8) {
        gauge.current += match self.algorithm {
            Algorithm::TokenBucket { every } => tokens * every,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => tokens,
        };
    }

    /// Counts tokens as not spent after all: only what is flawed does that.
    pub fn unspend(&self, gauge: &mut Gauge, tokens: u8) {
        let mut back = Gauge::default();
        self.spend(&mut back, tokens);
        gauge.current = gauge.current.saturating_sub(back.current);
    }

    /// One tick later. `rolls`: a window begins with it.
    pub fn tick(&self, gauge: &mut Gauge, rolls: bool) {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => gauge.current = gauge.current.saturating_sub(1),
            Algorithm::FixedWindow { .. } if rolls => *gauge = Gauge::default(),
            Algorithm::SlidingWindow { .. } if rolls => {
                *gauge = Gauge { current: 0, previous: gauge.current };
            }
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => {}
        }
    }
}
