//! Options about the values that functions return.

use super::OptionType;
use crate::config::{ConfigError, Value};
use nix::errno::Errno;

/// The operators, as C writes them; those of two characters first. Their places are the numbers that
/// bpf/kprobe_hits.bpf.c gives them, see [`ReturnCheck::code`].
const OPERATORS: [(&str, u8); 6] = [("==", 0), ("!=", 1), ("<=", 3), (">=", 5), ("<", 2), (">", 4)];

/// A comparison that tells a failure: `!= 0`, `< 0`, `== -ENOENT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReturnCheck {
    operator: (&'static str, u8),
    /// What is compared with, signed.
    pub value: i64,
}

impl ReturnCheck {
    /// The operator's number (`KP_EQ`, ... in bpf/kprobe_hits.bpf.c).
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
    /// `!= 0`.
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

/// A signed whole number as C writes it, or the name of an error.
fn integer(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(rest) => (true, rest.trim_start()),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let magnitude = match digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")) {
        Some(hex) if hex.bytes().all(|byte| byte.is_ascii_hexdigit()) => i128::from_str_radix(hex, 16).ok()?,
        Some(_) => return None,
        None if digits.bytes().all(|byte| byte.is_ascii_digit()) => digits.parse::<i128>().ok()?,
        None => i128::from(error_number(digits)?),
    };
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// The number of an error by its name (errno(3)).
fn error_number(name: &str) -> Option<i32> {
    let name = match name {
        "EWOULDBLOCK" => "EAGAIN",
        "ENOTSUP" => "EOPNOTSUPP",
        "EDEADLOCK" => "EDEADLK",
        name => name,
    };
    let known = |number: &i32| !matches!(Errno::from_raw(*number), Errno::UnknownErrno);
    (1..=133).filter(known).find(|&number| name == format!("{:?}", Errno::from_raw(number)))
}

/// An error, by number or name; the sign does not matter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorNumber(pub Option<i32>);

impl OptionType for ErrorNumber {
    const EXPECTED: &'static str = "the number or name of an error, such as 2 or ENOENT";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let text = value.text().trim();
        if text.is_empty() {
            return Ok(ErrorNumber(None));
        }
        // MAX_ERRNO of the kernel (include/linux/err.h).
        let number = integer(text).map(i64::unsigned_abs).filter(|number| (1..=4095).contains(number));
        number.map(|number| ErrorNumber(Some(number as i32))).ok_or_else(|| value.error(Self::EXPECTED))
    }
    fn show(&self) -> String {
        self.0.map(|number| number.to_string()).unwrap_or_default()
    }
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

    #[test]
    fn errors_have_names() {
        assert_eq!(error_number("EPERM"), Some(1));
        assert_eq!(error_number("EHWPOISON"), Some(133));
        assert_eq!(error_number("EWOULDBLOCK"), error_number("EAGAIN"));
        assert_eq!(error_number("EDEADLOCK"), Some(35));
        assert_eq!(error_number("UnknownErrno"), None);
    }
}
