//! Arithmetic on numbers wider than 128 bits, for the one place that needs it.

/// `value` x `to` / `from`, rounded up. `value` is at most `from`, and both are below 2^127.
pub(crate) fn rescale_up(value: u128, from: u128, to: u128) -> u128 {
    if value >= from {
        return to;
    }
    // Long multiplication that divides as it goes: after each bit of `to` the invariant
    // value x (bits so far) = quotient x from + rest holds, with rest < from.
    let (mut quotient, mut rest) = (0u128, 0u128);
    for bit in (0..u128::BITS - to.leading_zeros()).rev() {
        quotient *= 2;
        rest *= 2;
        if rest >= from {
            rest -= from;
            quotient += 1;
        }
        if (to >> bit) & 1 == 1 {
            rest += value;
            if rest >= from {
                rest -= from;
                quotient += 1;
            }
        }
    }
    quotient + u128::from(rest > 0)
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rescaling_agrees_with_big_integers(
            a in 0u128..1 << 110, b in 1u128..1 << 110, to in 0u128..1 << 110,
        ) {
            let (value, from) = (a.min(b), a.max(b));
            let product = BigUint::from(value) * BigUint::from(to);
            let expected = (product + BigUint::from(from - 1)) / BigUint::from(from);
            prop_assert_eq!(BigUint::from(rescale_up(value, from, to)), expected);
        }
    }
}
