//! The three algorithms on small integers: used tokens, and their refill over time.

/// The refill of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// One token per `every` ticks.
    TokenBucket {
        /// Ticks for one token.
        every: u8,
    },
    /// All tokens at the start of each window.
    FixedWindow {
        /// Ticks of a window.
        window: u8,
    },
    /// Gradually, as the weight of the previous window decreases.
    SlidingWindow {
        /// Ticks of a window.
        window: u8,
    },
}

/// A limit of tokens with its algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Tokens.
    pub amount: u8,
    /// The refill.
    pub algorithm: Algorithm,
}

/// Used tokens of a limit. A bucket counts parts of tokens in `current`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageGauge {
    /// Used in this window, or of the bucket.
    pub current: u8,
    /// Used in the window before, if it is sliding.
    pub previous: u8,
}

impl Limit {
    /// Returns the number of parts of a token in this algorithm.
    pub fn parts(&self) -> u16 {
        match self.algorithm {
            Algorithm::TokenBucket { every } => u16::from(every),
            Algorithm::FixedWindow { .. } => 1,
            Algorithm::SlidingWindow { window } => u16::from(window),
        }
    }

    /// Returns the limit, in parts of a token.
    pub fn capacity(&self) -> u16 {
        u16::from(self.amount) * self.parts()
    }

    /// Returns the ticks of a window; 0 for a bucket, which has none.
    pub fn window(&self) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => 0,
            Algorithm::FixedWindow { window } | Algorithm::SlidingWindow { window } => window,
        }
    }

    /// Returns the used parts of tokens, `window_tick` ticks into the window.
    pub fn weight(&self, gauge: &UsageGauge, window_tick: u8) -> u16 {
        let current = u16::from(gauge.current);
        match self.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::FixedWindow { .. } => current,
            Algorithm::SlidingWindow { window } => {
                current * self.parts() + u16::from(gauge.previous) * u16::from(window - window_tick)
            }
        }
    }

    /// Returns the ticks until all tokens are free, `window_tick` ticks into the window, without further use.
    pub fn ticks_left(&self, gauge: &UsageGauge, window_tick: u8) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => gauge.current,
            _ if *gauge == UsageGauge::default() => 0,
            Algorithm::SlidingWindow { window } if gauge.current > 0 => 2 * window - window_tick,
            Algorithm::FixedWindow { window } | Algorithm::SlidingWindow { window } => {
                window - window_tick
            }
        }
    }

    /// Returns the maximum number of ticks for which leased tokens count after their lease has ended.
    pub fn counts_for(&self, tokens: u8) -> u8 {
        match self.algorithm {
            Algorithm::TokenBucket { every } => tokens * every,
            Algorithm::FixedWindow { window } => window,
            Algorithm::SlidingWindow { window } => 2 * window,
        }
    }

    /// Counts tokens as spent now.
    pub fn spend(&self, gauge: &mut UsageGauge, tokens: u8) {
        gauge.current += match self.algorithm {
            Algorithm::TokenBucket { every } => tokens * every,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => tokens,
        };
    }

    /// Reverts a spend; only flawed protocols do that.
    pub fn unspend(&self, gauge: &mut UsageGauge, tokens: u8) {
        let mut back = UsageGauge::default();
        self.spend(&mut back, tokens);
        gauge.current = gauge.current.saturating_sub(back.current);
    }

    /// Advances by one tick; `rolls` is true if a window begins with it.
    pub fn tick(&self, gauge: &mut UsageGauge, rolls: bool) {
        match self.algorithm {
            Algorithm::TokenBucket { .. } => gauge.current = gauge.current.saturating_sub(1),
            Algorithm::FixedWindow { .. } if rolls => *gauge = UsageGauge::default(),
            Algorithm::SlidingWindow { .. } if rolls => {
                *gauge = UsageGauge { current: 0, previous: gauge.current };
            }
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => {}
        }
    }
}
