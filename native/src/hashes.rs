//! Hashes of keys in the index: the native form of `rocketpy_broker/store/index/index_hash.py`.

use pyo3::prelude::*;

/// Multiply-and-add hash of Java's `String.hashCode`, continued from `hash`.
fn extend(hash: u32, ascii: &[u8]) -> u32 {
    ascii.iter().fold(hash, |code, byte| code.wrapping_mul(31).wrapping_add(u32::from(*byte)))
}

#[pyfunction]
pub fn key_hashes(topic_hashes: Vec<i64>, keys: Vec<Vec<u8>>) -> Option<Vec<u32>> {
    if topic_hashes.len() != keys.len() || !keys.iter().all(|key| key.is_ascii()) {
        return None;
    }
    let hashes = topic_hashes.iter().zip(&keys).map(|(topic_hash, key)| {
        let code = extend(*topic_hash as u32, key) as i32;
        if code == i32::MIN { 0 } else { code.unsigned_abs() }
    });
    Some(hashes.collect())
}
