//! Quantities for people.

/// `96 B`, `1.50 KiB`, `64.0 MiB`: three significant digits.
pub fn bytes(bytes: f64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut value = bytes;
    let mut unit = 0;
    // 1023.5 would print as 1024.
    while value >= 1023.5 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 if value.fract() == 0.0 => format!("{value:.0} B"),
        _ => format!("{} {}", three_digits(value), UNITS[unit]),
    }
}

/// `0.85 us`, `1.20 ms`, `3.4 s`.
pub fn microseconds(us: f64) -> String {
    match us {
        us if us < 999.5 => format!("{} us", three_digits(us)),
        us if us < 999_500.0 => format!("{} ms", three_digits(us / 1e3)),
        us => format!("{} s", three_digits(us / 1e6)),
    }
}

/// `262,144`.
pub fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 rank`, `4 ranks`.
pub fn count(number: usize, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(number))
}

fn three_digits(value: f64) -> String {
    match value {
        0.0 => "0".to_string(),
        value if value < 9.995 => format!("{value:.2}"),
        value if value < 99.95 => format!("{value:.1}"),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_have_three_digits_and_a_unit() {
        assert_eq!(bytes(0.0), "0 B");
        assert_eq!(bytes(96.0), "96 B");
        assert_eq!(bytes(1023.0), "1023 B");
        assert_eq!(bytes(1536.0), "1.50 KiB");
        assert_eq!(bytes(67_108_864.0), "64.0 MiB");
        assert_eq!(bytes(1_048_575.0), "1.00 MiB");
        assert_eq!(microseconds(0.854), "0.85 us");
        assert_eq!(microseconds(999.7), "1.00 ms");
        assert_eq!(microseconds(12_345_678.0), "12.3 s");
        assert_eq!(grouped(7), "7");
        assert_eq!(grouped(262_144), "262,144");
        assert_eq!(count(1, "rank"), "1 rank");
        assert_eq!(count(0, "rank"), "0 ranks");
    }
}
