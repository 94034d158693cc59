//! What the process uses.

/// Bytes of memory that the process has at present; 0 where the system does not say.
pub fn resident_bytes() -> u64 {
    bytes("VmRSS:")
}

/// The most that it has had.
pub fn peak_bytes() -> u64 {
    bytes("VmHWM:")
}

fn bytes(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap_or_default();
    let kilobytes = line.split_whitespace().nth(1).and_then(|text| text.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
