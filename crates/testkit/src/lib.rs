//! The real things that Tidegate's tests run against, on free loopback ports.
