//! Suggestions for misspelt names.

/// Longest name that is compared: comparing takes the product of the lengths, and longer names are hardly misspelt.
const LONGEST: usize = 40;

/// Returns the end of a sentence that suggests the most similar candidate, or an empty text if none differs by at most three
/// characters.
pub fn did_you_mean<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    let most = (name.chars().count() / 3).min(3);
    if name.len() > LONGEST || most == 0 {
        return String::new();
    }
    let candidates = candidates.into_iter().filter(|candidate| candidate.len() <= LONGEST);
    let nearest = candidates.map(|other| (strsim::damerau_levenshtein(&name, &other.to_lowercase()), other)).min();
    nearest
        .filter(|(slips, _)| *slips <= most)
        .map_or_else(String::new, |(_, other)| format!("; did you mean `{other}`?"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_meant_if_it_is_near() {
        let known = ["biolatency", "bioperpid", "runqlat", "queued", "pmda", "a"];
        let meant = |name: &str| did_you_mean(name, known);
        assert_eq!(meant("biolatancy"), "; did you mean `biolatency`?");
        assert_eq!(meant("queud"), "; did you mean `queued`?");
        assert_eq!(meant("PMDA"), "; did you mean `pmda`?");
        assert_eq!(meant("runqlta"), "; did you mean `runqlat`?");
        for none in ["nothing", "b", "", "aa", &"biolatency".repeat(5), "frob"] {
            assert_eq!(meant(none), "", "{none}");
        }
    }
}
