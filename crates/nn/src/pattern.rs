//! Patterns of names.

use crate::{Error, Result};

/// That some name matches a pattern: one that none does is a mistake.
pub(crate) fn check(pattern: &str, names: &[String]) -> Result<()> {
    if pattern.is_empty() || names.iter().any(|name| matches(pattern, name)) {
        return Ok(());
    }
    let shown: Vec<&str> = names.iter().map(String::as_str).take(20).collect();
    let more = if names.len() > shown.len() { ", ..." } else { "" };
    let (pattern, modules) = (pattern.to_owned(), shown.join(", ") + more);
    Err(Error::UnmatchedPattern { pattern, modules })
}

/// Whether a dotted name matches a pattern, part by part. The empty name, of the outermost module, matches the empty pattern
/// alone: `*` is a module in it.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    if name.is_empty() {
        return pattern.is_empty();
    }
    let (mut patterns, mut names) = (pattern.split('.'), name.split('.'));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if part(pattern.as_bytes(), name.as_bytes()) => {}
            _ => return false,
        }
    }
}

/// As the shell does: `*`, `?`, `[abc]`, `[!abc]`, `[a-z]`.
fn part(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            part(rest, name) || name.split_first().is_some_and(|(_, name)| part(pattern, name))
        }
        (Some((b'?', rest)), Some((_, name))) => part(rest, name),
        (Some((b'[', rest)), Some((first, name))) => {
            match rest.iter().position(|character| *character == b']') {
                Some(end) if end > 0 => {
                    one_of(&rest[..end], *first) && part(&rest[end + 1..], name)
                }
                // Not closed: a bracket like any other character.
                _ => *first == b'[' && part(rest, name),
            }
        }
        (Some((character, rest)), Some((first, name))) => character == first && part(rest, name),
        _ => false,
    }
}

fn one_of(set: &[u8], character: u8) -> bool {
    let (negated, set) = match set.split_first() {
        Some((b'!', set)) => (true, set),
        _ => (false, set),
    };
    let (mut at, mut found) = (0, false);
    while at < set.len() {
        match set.get(at..at + 3) {
            Some([low, b'-', high]) => {
                found |= (*low..=*high).contains(&character);
                at += 3;
            }
            _ => {
                found |= set[at] == character;
                at += 1;
            }
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn names_match_part_by_part() {
        let cases = [
            ("layers.*.attn.w[qkv]", "layers.10.attn.wk", true),
            ("layers.*.attn.w[qkv]", "layers.10.attn.wo", false),
            ("layers.*", "layers.1.attn", false),
            ("*", "head", true),
            ("*", "layers.0", false),
            ("w?", "w12", false),
            ("w[!1]", "w2", true),
            ("w[1-3]x", "w2x", true),
            ("", "", true),
            ("", "head", false),
            ("*", "", false),
            ("h*d", "hd", true),
            ("[", "[", true),
        ];
        for (pattern, name, want) in cases {
            assert_eq!(matches(pattern, name), want, "{pattern} {name}");
        }
    }
}
