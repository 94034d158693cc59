//! What the process uses.

/// Bytes of memory that the process has at present; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    bytes("VmRSS:")
}

/// The most that it has had.
pub fn peak_bytes() -> u64 {
    bytes("VmHWM:")
}

/// Forgets the most that it has had, where the system allows that: from now on it is what there is at present.
pub fn reset_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

fn bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let kilobytes = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
