//! A hot key is split and called in again.
