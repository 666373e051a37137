//! JSON as PCP uses it: in labels, and in strings that are documents.

/// Encodes `text` as a JSON string with quotes. It is ASCII: pmproxy serves other bytes of labels in a form that makes
/// Prometheus reject the whole scrape.
pub fn json_string(text: &str) -> String {
    let mut json = String::with_capacity(text.len() + 2);
    json.push('"');
    for c in text.chars() {
        match c {
            '"' | '\\' => json.extend(['\\', c]),
            '\n' => json.push_str("\\n"),
            '\t' => json.push_str("\\t"),
            ' '..='~' => json.push(c),
            _ => c.encode_utf16(&mut [0; 2]).iter().for_each(|unit| json += &format!("\\u{unit:04x}")),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_ascii_with_quotes_and_backslashes_escaped() {
        let text = "a\"b\\c\nd\u{1}\u{e9}\u{1f600}";
        assert_eq!(json_string(text), r#""a\"b\\c\nd\u0001\u00e9\ud83d\ude00""#);
        assert_eq!(serde_json::from_str::<String>(&json_string(text)).unwrap(), text);
    }
}
