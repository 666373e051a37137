//! Decimal numbers without rounding: bounds of neighbouring buckets have to meet.

/// The number `digits * 10^exponent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decimal {
    digits: u128,
    exponent: i32,
}

impl Decimal {
    /// The number 1.
    pub const ONE: Decimal = Decimal { digits: 1, exponent: 0 };

    /// A whole number.
    pub const fn whole(number: u64) -> Decimal {
        Decimal { digits: number as u128, exponent: 0 }
    }

    /// Reads a number that is not negative and has at most 19 digits: `0.000001`, `1e-6`, `5`.
    pub fn parse(text: &str) -> Option<Decimal> {
        let text = text.trim().trim_start_matches('+');
        let (number, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{whole}{fraction}");
        let is_number = !number.trim_matches('.').is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let digits = digits.trim_start_matches('0');
        if !is_number || digits.len() > 19 || fraction.len() > 100 {
            return None;
        }
        let exponent: i32 = exponent.parse().ok().filter(|exponent: &i32| exponent.abs() <= 100)?;
        let digits = if digits.is_empty() { 0 } else { digits.parse().ok()? };
        Some(Decimal { digits, exponent: exponent - fraction.len() as i32 })
    }

    /// True if it is 0.
    pub fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Returns the product; `None` if it has too many digits.
    pub fn times(self, other: Decimal) -> Option<Decimal> {
        let digits = self.digits.checked_mul(other.digits)?;
        Some(Decimal { digits, exponent: self.exponent + other.exponent })
    }

    /// Returns the number in units of 10^-`places`, if it is whole and less than 2^64.
    pub fn in_places(self, places: i32) -> Option<u64> {
        let exponent = self.exponent + places;
        let power = 10_u128.checked_pow(exponent.unsigned_abs());
        let number = match (self.digits, exponent) {
            (0, _) => 0,
            (digits, 0..) => digits.checked_mul(power?)?,
            (digits, _) => power.filter(|power| digits % power == 0).map(|power| digits / power)?,
        };
        u64::try_from(number).ok()
    }

    /// Returns the nearest 64-bit float.
    pub fn float(self) -> f64 {
        format!("{}e{}", self.digits, self.exponent).parse().unwrap_or(f64::INFINITY)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_read_and_multiplied_without_rounding() {
        let number = |text: &str| Decimal::parse(text).unwrap();
        assert_eq!(number("0.000001").in_places(6), Some(1));
        assert_eq!(number("1e-7").times(Decimal::whole(1 << 24)).unwrap().in_places(9), Some((1 << 24) * 100));
        assert_eq!(number("0.000001").in_places(3), None);
        assert_eq!((number("50").in_places(0), number("1.50").in_places(1)), (Some(50), Some(15)));
        assert_eq!((number("0.1").float(), number("1e-06").float()), (0.1, 1e-6));
        assert!(number("0.0").is_zero());
        for none in ["", ".", "-1", "1e", "x", "1e999", "1_0", "99999999999999999999"] {
            assert_eq!(Decimal::parse(none), None, "{none}");
        }
    }
}
