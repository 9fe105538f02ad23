//! Java's hash of strings: the native form of parts of `rocketpy/protocol/java.py`.

/// Returns Java's `String.hashCode` of a text that begins with characters of this hash and continues with
/// `utf8`. It runs over UTF-16 units. `None` if `utf8` is not valid UTF-8.
pub fn extend_hash(hash: u32, utf8: &[u8]) -> Option<u32> {
    if utf8.is_ascii() {
        let mut quads = utf8.chunks_exact(4);
        let start = quads.by_ref().fold(hash, |code, quad| {
            let [a, b, c, d] = [quad[0], quad[1], quad[2], quad[3]].map(u32::from);
            code.wrapping_mul(31 * 31 * 31 * 31).wrapping_add(a * (31 * 31 * 31) + b * (31 * 31) + c * 31 + d)
        });
        Some(quads.remainder().iter().fold(start, |code, byte| extend(code, u32::from(*byte))))
    } else {
        let text = std::str::from_utf8(utf8).ok()?;
        Some(text.encode_utf16().fold(hash, |code, unit| extend(code, u32::from(unit))))
    }
}

fn extend(hash: u32, unit: u32) -> u32 {
    hash.wrapping_mul(31).wrapping_add(unit)
}

/// Returns the absolute value of a hash as a signed number; 0 for the minimum, as in `positive_hash`.
pub fn positive(hash: u32) -> i32 {
    (hash as i32).checked_abs().unwrap_or(0)
}
