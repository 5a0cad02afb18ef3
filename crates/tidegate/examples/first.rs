//! Five requests a minute for each user, in this process.
//!
//! `cargo run -p tidegate --example first`
#![allow(clippy::print_stdout, reason = "the lines are the result")]

use tidegate::{Limiter, Quota};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let api = Limiter::per_key(Quota::per_minute(5))?;
    for number in 1..=6 {
        let answer = api.check("user_42");
        match answer.retry_after() {
            None => println!("request {number}: welcome, {} left", answer.remaining),
            Some(wait) => println!("request {number}: come back in {} s", wait.as_secs_ceil()),
        }
    }
    Ok(())
}
