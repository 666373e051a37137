//! Error numbers as option values: `EPERM`, `1` or, as system calls return it, `-1`.

use super::OptionType;
use crate::config::{ConfigError, Value};

/// An error number (errno(3)), positive; 0 selects none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Errno(pub u32);

impl Errno {
    /// Highest error number that a system call can return (MAX_ERRNO in the kernel's include/linux/err.h).
    const MOST: u32 = 4095;

    /// Second names of error numbers.
    const OTHER: [(&'static str, nix::errno::Errno); 3] = [
        ("EWOULDBLOCK", nix::errno::Errno::EAGAIN),
        ("EDEADLOCK", nix::errno::Errno::EDEADLK),
        ("ENOTSUP", nix::errno::Errno::EOPNOTSUPP),
    ];

    /// Returns the number of an error by its name.
    pub(super) fn named(name: &str) -> Option<u32> {
        if let Some((_, errno)) = Errno::OTHER.iter().find(|(other, _)| *other == name) {
            return u32::try_from(*errno as i32).ok();
        }
        (1..Errno::MOST).find(|&number| Errno(number).name().as_deref() == Some(name))
    }

    fn name(self) -> Option<String> {
        let errno = nix::errno::Errno::from_raw(i32::try_from(self.0).ok()?);
        (errno != nix::errno::Errno::UnknownErrno).then(|| format!("{errno:?}"))
    }
}

impl OptionType for Errno {
    const EXPECTED: &'static str = "an error number up to 4095 or the name of one, such as EPERM; 0: none";
    fn read(value: &Value<'_>) -> Result<Self, ConfigError> {
        let text = value.text().trim();
        let number = text.strip_prefix('-').unwrap_or(text).parse().ok().or_else(|| Errno::named(text));
        let number =
            number.filter(|&number| i32::try_from(number).is_ok()).ok_or_else(|| value.error(Errno::EXPECTED))?;
        if number > Errno::MOST {
            value.warn(format_args!("nothing counts: no error has a number above {}", Errno::MOST));
        }
        Ok(Errno(number))
    }
    fn show(&self) -> String {
        match self.0 {
            0 => String::new(),
            number => self.name().unwrap_or_else(|| number.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    fn errno(text: &str) -> Result<Errno, ConfigError> {
        let config = Config::parse("f.conf", format!("[s]\nk = {text}\n").as_bytes()).unwrap();
        let value = config.section("s").unwrap().get("k").unwrap().unwrap();
        Errno::read(&value)
    }

    #[test]
    fn names_and_numbers_of_either_sign_are_errors() {
        for text in ["EPERM", "1", "-1"] {
            assert_eq!(errno(text).unwrap(), Errno(1), "{text}");
        }
        assert_eq!(errno("EWOULDBLOCK").unwrap(), errno("EAGAIN").unwrap());
        assert_eq!(errno("EHWPOISON").unwrap(), Errno(133));
        assert_eq!(errno("-512").unwrap().show(), "512");
        assert_eq!(Errno(2).show(), "ENOENT");
    }

    #[test]
    fn errno_0_asks_for_nothing_and_4096_never_comes() {
        assert_eq!(errno("0").unwrap(), Errno::default());
        assert_eq!(errno("4096").unwrap(), Errno(4096));
    }

    #[test]
    fn what_is_no_error_is_refused() {
        for text in ["EPREM", "UnknownErrno", "--1", "1.5", "9999999999"] {
            let error = errno(text).unwrap_err().to_string();
            assert!(error.contains("f.conf:2: [s] k: expected an error number"), "{error}");
        }
    }
}
