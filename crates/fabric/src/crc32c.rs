//! CRC-32C (Castagnoli; RFC 3720 B.4), eight bytes a step.

/// The polynomial, reflected.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[k][b]`: what byte `b` with `k` zero bytes behind it adds.
static TABLES: [[u32; 256]; 8] = tables();

const fn tables() -> [[u32; 256]; 8] {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut value = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            value = (value >> 1) ^ (POLYNOMIAL & (value & 1).wrapping_neg());
            bit += 1;
        }
        tables[0][byte] = value;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = (before >> 8) ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
}

/// The CRC of some parts in a row.
pub fn crc32c<const N: usize>(parts: [&[u8]; N]) -> u32 {
    !parts.iter().fold(!0, |crc, part| update(crc, part))
}

fn update(mut crc: u32, bytes: &[u8]) -> u32 {
    let (chunks, rest) = bytes.as_chunks::<8>();
    for chunk in chunks {
        let word = u64::from_le_bytes(*chunk) ^ u64::from(crc);
        crc = 0;
        for (k, table) in TABLES.iter().rev().enumerate() {
            crc ^= table[(word >> (8 * k)) as usize & 0xff];
        }
    }
    for &byte in rest {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(byte)) & 0xff) as usize];
    }
    crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_rfc_3720_b_4() {
        let ascending: Vec<u8> = (0..32).collect();
        assert_eq!(crc32c([&[0; 32]]), 0x8a91_36aa);
        assert_eq!(crc32c([&[0xff; 32]]), 0x62a8_ab43);
        assert_eq!(crc32c([&ascending]), 0x46dd_794e);
        assert_eq!(crc32c([b"123456789"]), 0xe306_9283);
        assert_eq!(crc32c([&ascending[..5], &ascending[5..]]), 0x46dd_794e);
    }
}
