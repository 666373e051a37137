//! Percent references as `configparser.BasicInterpolation` resolves them: `%(other)s` is another option of the section
//! or of `[DEFAULT]`, `%%` a percent sign, and nothing else may follow a percent sign.

use thiserror::Error;

/// Largest depth of references, `configparser.MAX_INTERPOLATION_DEPTH`.
const MAX_DEPTH: usize = 10;

/// Largest number of bytes and of references of a value. Python has no such limit; ten levels of references that double would be very
/// long. References count so that those to empty options end as well.
const MAX_WORK: usize = 1 << 20;

/// An error in a value's references.
#[derive(Debug, Error)]
pub(super) enum InterpolationError {
    #[error("`%(...)s` references are nested more than {} deep; does one refer to itself?", MAX_DEPTH)]
    TooDeep,
    #[error("the value is longer than {} bytes", MAX_WORK)]
    TooLong,
    #[error("expected `%(option)s` after `%(`; write `%%` for a percent sign")]
    Unfinished,
    #[error("`%({name})s` names no option of [{section}] or [DEFAULT]; write `%%` for a percent sign")]
    Unknown { name: String, section: String },
    #[error("expected `%(option)s` or `%%` at a percent sign; write `%%` for the sign itself")]
    Alone,
}

/// Resolves the references in `raw`; `find` looks up names (in lower case). The error is a sentence without its place, in which
/// `section` is named.
pub(super) fn interpolate<'a>(
    raw: &'a str,
    section: &str,
    find: impl Fn(&str) -> Option<&'a str>,
) -> Result<String, InterpolationError> {
    let mut out = String::new();
    let mut work = MAX_WORK;
    expand(raw, section, &find, 1, &mut work, &mut out)?;
    Ok(out)
}

fn expand<'a>(
    raw: &str,
    section: &str,
    find: &impl Fn(&str) -> Option<&'a str>,
    depth: usize,
    work: &mut usize,
    out: &mut String,
) -> Result<(), InterpolationError> {
    if depth > MAX_DEPTH {
        return Err(InterpolationError::TooDeep);
    }
    let mut rest = raw;
    while let Some(at) = rest.find('%') {
        put(&rest[..at], work, out)?;
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix('%') {
            put("%", work, out)?;
            rest = after;
        } else if let Some(after) = after.strip_prefix('(') {
            let (name, after) = after
                .split_once(')')
                .and_then(|(name, after)| Some((name, after.strip_prefix('s')?)))
                .filter(|(name, _)| !name.is_empty())
                .ok_or(InterpolationError::Unfinished)?;
            let value = find(&name.to_lowercase())
                .ok_or_else(|| InterpolationError::Unknown { name: name.into(), section: section.into() })?;
            expand(value, section, find, depth + 1, work, out)?;
            rest = after;
        } else {
            return Err(InterpolationError::Alone);
        }
    }
    put(rest, work, out)
}

fn put(text: &str, work: &mut usize, out: &mut String) -> Result<(), InterpolationError> {
    let cost = text.len() + 1;
    *work = work.checked_sub(cost).ok_or(InterpolationError::TooLong)?;
    out.push_str(text);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::config::Config;
    use std::fmt::Write;

    fn get(file: &str, key: &str) -> Result<String, String> {
        let config = Config::parse("f.conf", file.as_bytes()).unwrap();
        let value = config.section("s").unwrap().get(key).map_err(|error| error.to_string())?;
        Ok(value.unwrap().text().to_owned())
    }

    #[test]
    fn references_reach_the_section_first_and_then_the_defaults() {
        let file = "[DEFAULT]\na = d\nb = <%(A)s>\n[s]\na = o\nc = %(b)s%%%(a)s\n";
        assert_eq!(get(file, "c").as_deref(), Ok("<o>%o"));
        assert_eq!(get(file, "b").as_deref(), Ok("<o>"));
    }

    #[test]
    fn a_bad_percent_sign_is_an_error_only_when_the_value_is_read() {
        let file = "[s]\nok = 1\na = 5%\nb = x%(ok)\nc = %(none)s\nd = %()s\n";
        assert_eq!(get(file, "ok").as_deref(), Ok("1"));
        assert!(get(file, "a").unwrap_err().starts_with("f.conf:3: [s] a: expected `%(option)s` or `%%`"));
        assert!(get(file, "b").unwrap_err().starts_with("f.conf:4: [s] b: expected `%(option)s` after `%(`"));
        assert!(get(file, "c").unwrap_err().contains("`%(none)s` names no option of [s] or [DEFAULT]"));
        assert!(get(file, "d").unwrap_err().contains("expected `%(option)s` after"));
    }

    #[test]
    fn nesting_ends_after_ten_levels() {
        let chain = |levels: usize| {
            let mut file = String::from("[s]\nk0 = end\n");
            for level in 1..=levels {
                writeln!(file, "k{level} = %(k{})s", level - 1).unwrap();
            }
            get(&file, &format!("k{levels}"))
        };
        assert_eq!(chain(9).as_deref(), Ok("end"));
        assert!(chain(11).unwrap_err().contains("more than 10 deep"));
        assert!(get("[s]\na = %(a)s", "a").unwrap_err().contains("does one refer to itself"));
    }

    #[test]
    fn growth_by_references_is_bounded() {
        let mut file = String::from("[s]\nk0 =\n");
        for level in 1..=8 {
            writeln!(file, "k{level} = {}", format!("%(k{})s", level - 1).repeat(100)).unwrap();
        }
        assert!(get(&file, "k8").unwrap_err().contains("longer than"));
    }
}
