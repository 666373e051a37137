//! The comparison that makes a function's return a failure, as an option value.

use super::{Errno, OptionType};
use crate::config::{ConfigError, Value};

/// Operators as in C, those of two characters first, with their numbers in bpf/kprobe_hits.bpf.c, see
/// [`ReturnCheck::code`].
const OPERATORS: [(&str, u8); 6] = [("==", 0), ("!=", 1), ("<=", 3), (">=", 5), ("<", 2), (">", 4)];

/// A comparison that tells a failure: `!= 0`, `< 0`, `== -ENOENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnCheck {
    operator: (&'static str, u8),
    /// Right-hand value, signed.
    pub value: i64,
}

impl ReturnCheck {
    /// Returns the operator's number (`KP_EQ`, ... in bpf/kprobe_hits.bpf.c).
    pub fn code(&self) -> u8 {
        self.operator.1
    }

    fn parse(text: &str) -> Option<ReturnCheck> {
        let text = text.trim();
        let operator = *OPERATORS.iter().find(|(operator, _)| text.starts_with(operator))?;
        Some(ReturnCheck { operator, value: integer(text[operator.0.len()..].trim())? })
    }
}

impl Default for ReturnCheck {
    /// Returns `!= 0`.
    fn default() -> ReturnCheck {
        ReturnCheck { operator: OPERATORS[1], value: 0 }
    }
}

impl OptionType for ReturnCheck {
    const EXPECTED: &'static str = "an operator (== != < <= > >=) and a whole number or the name of an error";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        ReturnCheck::parse(value.text()).ok_or_else(|| value.error(Self::EXPECTED))
    }
    fn show(&self) -> String {
        format!("{} {}", self.operator.0, self.value)
    }
}

/// Parses a signed integer in C notation, or the name of an error.
fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => i128::from_str_radix(hex, 16).ok()?,
        Some(_) => return None,
        None if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<i128>().ok()?,
        None => i128::from(Errno::named(digits)?),
    };
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_an_operator_and_a_signed_number() {
        let check = |text: &str| ReturnCheck::parse(text).map(|check| (check.operator.0, check.code(), check.value));
        assert_eq!(check("!= 0"), Some(("!=", 1, 0)));
        assert_eq!(check("<0"), Some(("<", 2, 0)));
        assert_eq!(check("<= -22"), Some(("<=", 3, -22)));
        assert_eq!(check("== -ENOENT"), Some(("==", 0, -2)));
        assert_eq!(check(">= 0xff"), Some((">=", 5, 255)));
        assert_eq!(check("> -9223372036854775808"), Some((">", 4, i64::MIN)));
        for bad in
            ["", "0", "= 0", "!= 0; return", "!=", "< 0x", "< 1e3", "<> 0", "== ENOSUCH", "< 9223372036854775808"]
        {
            assert_eq!(check(bad), None, "{bad}");
        }
        assert_eq!(ReturnCheck::parse(&ReturnCheck::default().show()), Some(ReturnCheck::default()));
    }
}
