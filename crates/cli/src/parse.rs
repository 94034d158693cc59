//! Values as they are written on the command line.

use std::str::FromStr;

/// [`sizes`], as one argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes(pub Vec<usize>);

impl FromStr for Sizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Sizes, String> {
        sizes(text).map(Sizes)
    }
}

/// A number for links inside a host and one for links between hosts: `87.7,19.3`, or one for both.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerLink {
    pub inside: f64,
    pub between: f64,
}

impl FromStr for PerLink {
    type Err = String;

    fn from_str(text: &str) -> Result<PerLink, String> {
        let (inside, between) = text.split_once(',').unwrap_or((text, text));
        Ok(PerLink { inside: positive(inside)?, between: positive(between)? })
    }
}

/// Sizes: `13,8`, `13x8`, `[13, 8]` or `(13, 8)`. `[]` and `()` are those of a scalar.
pub fn sizes(text: &str) -> Result<Vec<usize>, String> {
    let trimmed = text.trim();
    let bracketed = [('[', ']'), ('(', ')')]
        .into_iter()
        .find_map(|(open, close)| trimmed.strip_prefix(open)?.strip_suffix(close));
    let inner = match bracketed {
        // Python writes a tuple of one with a comma at its end.
        Some(inner) => inner.trim().trim_end_matches(',').trim(),
        None if trimmed.is_empty() => return Err("no sizes; a scalar is written []".to_string()),
        None => trimmed,
    };
    if inner.is_empty() {
        return Ok(Vec::new());
    }
    let size = |part: &str| {
        part.trim()
            .parse()
            .map_err(|_| format!("`{}` is not a size; write for example 13,8", part.trim()))
    };
    inner.split([',', 'x']).map(size).collect()
}

/// A number of bytes: `4096`, `64KiB`, `64MiB`, `1.5GiB`, `64MB`. A bare `K`, `M`, `G` is binary.
pub fn bytes(text: &str) -> Result<usize, String> {
    let trimmed = text.trim();
    let bad = |why: &str| format!("`{trimmed}` is not a number of bytes: {why}");
    let unit_start =
        trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(unit_start);
    let unit_bytes: u64 = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "ki" | "kib" => 1 << 10,
        "m" | "mi" | "mib" => 1 << 20,
        "g" | "gi" | "gib" => 1 << 30,
        "t" | "ti" | "tib" => 1 << 40,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "tb" => 1_000_000_000_000,
        _ => return Err(bad("the unit is B, KiB, MiB, GiB, TiB, kB, MB, GB or TB")),
    };
    let too_many = || bad("that is more than this machine can count");
    if let Ok(whole) = number.parse::<u64>() {
        let bytes = whole.checked_mul(unit_bytes).ok_or_else(too_many)?;
        return usize::try_from(bytes).map_err(|_| too_many());
    }
    let fraction: f64 = number.parse().map_err(|_| bad("write for example 64MiB"))?;
    let bytes = fraction * unit_bytes as f64;
    // Beyond 2^53 not every integer is an f64: nobody means such a number by a fraction.
    match bytes.fract() == 0.0 && bytes < (1u64 << 53) as f64 {
        true => Ok(bytes as usize),
        false => Err(bad("that is not a whole number of bytes")),
    }
}

/// A number above zero that may have a fraction, for bandwidths and latencies.
pub fn positive(text: &str) -> Result<f64, String> {
    match text.trim().parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err(format!("`{text}` is not a number above zero")),
    }
}

/// Splits a list at the commas outside of brackets: `[S(0), _S(1, 2)]` has two parts.
pub fn split_list(text: &str) -> Vec<String> {
    let trimmed = text.trim();
    let inner = trimmed.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let inner = inner.unwrap_or(trimmed);
    let mut depth = 0usize;
    let parts = inner.split(|c| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        c == ',' && depth == 0
    });
    parts.map(|part| part.trim().to_string()).filter(|part| !part.is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_many_ways() {
        for text in ["13,8", "13x8", "[13, 8]", "(13, 8)", " 13 , 8 ", "[13,8,]"] {
            assert_eq!(sizes(text), Ok(vec![13, 8]), "{text}");
        }
        assert_eq!(sizes("(5,)"), Ok(vec![5]));
        assert_eq!(sizes("0"), Ok(vec![0]));
        for scalar in ["[]", "()", "[ ]"] {
            assert_eq!(sizes(scalar), Ok(vec![]), "{scalar}");
        }
    }

    #[test]
    fn what_is_not_a_list_of_sizes_says_so() {
        for text in ["", "13,", "13,,8", "-1", "13;8", "[13,8", "a", "1.5", "99999999999999999999"]
        {
            assert!(sizes(text).is_err(), "{text}");
        }
        assert_eq!(sizes("13,eight").unwrap_err(), "`eight` is not a size; write for example 13,8");
    }

    #[test]
    fn bytes_have_units() {
        for (text, want) in [
            ("0", 0),
            ("4096", 4096),
            ("8B", 8),
            ("64KiB", 65_536),
            ("64MiB", 64 << 20),
            ("64 MiB", 64 << 20),
            ("64M", 64 << 20),
            ("64mb", 64_000_000),
            ("1.5GiB", 3 << 29),
            ("2TiB", 2 << 40),
        ] {
            assert_eq!(bytes(text), Ok(want), "{text}");
        }
    }

    #[test]
    fn what_is_not_a_number_of_bytes_says_so() {
        for text in ["", "MiB", "64XB", "-1", "1.2.3", "0.3B", "99999999TiB", "1e3"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn only_positive_numbers_are_rates() {
        assert_eq!(positive("1.5"), Ok(1.5));
        for text in ["0", "-1", "inf", "nan", "x"] {
            assert!(positive(text).is_err(), "{text}");
        }
        assert_eq!("2".parse(), Ok(PerLink { inside: 2.0, between: 2.0 }));
        assert_eq!("2, 1.5".parse(), Ok(PerLink { inside: 2.0, between: 1.5 }));
        assert!("2,1,1".parse::<PerLink>().is_err());
    }

    #[test]
    fn lists_split_at_their_own_commas_only() {
        assert_eq!(split_list("S(0),S(1)"), ["S(0)", "S(1)"]);
        assert_eq!(split_list("[_S(0, 2), S(0)[1]]"), ["_S(0, 2)", "S(0)[1]"]);
        assert!(split_list("[]").is_empty());
    }
}
