//! A secret number that keys hashes of foreign input, such as names of programs, so that nobody can construct two names
//! with the same hash.

use siphasher::sip::SipHasher13;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// A key for hashes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret([u64; 2]);

static SECRET: OnceLock<Secret> = OnceLock::new();

/// Returns the secret of this process: the one given to [`keep_secret`], else a random one.
pub fn secret() -> Secret {
    *SECRET.get_or_init(Secret::random)
}

/// Makes [`secret`] return one that outlives the process. To be called before its first use.
pub fn keep_secret(secret: Secret) {
    SECRET.get_or_init(|| secret);
}

impl Secret {
    /// Makes a random secret.
    pub fn random() -> Secret {
        // The standard library has these keys from the kernel, and shows no more than hashes with them.
        let random = RandomState::new();
        Secret([0_u64, 1].map(|number| random.hash_one(number)))
    }

    /// Parses a text made by [`Secret::text`].
    pub fn read(text: &[u8]) -> Option<Secret> {
        let digits = std::str::from_utf8(text).ok()?.strip_suffix('\n')?;
        let is_one = digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(digits, 16).ok().filter(|_| is_one)?;
        Some(Secret([(number >> 64) as u64, number as u64]))
    }

    /// Returns a line of 32 hexadecimal digits.
    pub fn text(self) -> String {
        format!("{:016x}{:016x}\n", self.0[0], self.0[1])
    }

    /// Returns the SipHash-1-3 of bytes.
    pub fn hash(self, bytes: &[u8]) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.0[0], self.0[1]);
        hasher.write(bytes);
        hasher.finish()
    }

    /// Derives the key of the programs (`hash_key` of bpf/shared/siphash.bpf.h), so that hashes seen by clients reveal
    /// nothing of it.
    pub fn of_programs(self) -> [u64; 2] {
        [&b"programs, first word"[..], b"programs, second word"].map(|of| self.hash(of))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_is_that_of_the_secret_and_a_secret_that_of_its_text() {
        let [one, other] = [Secret::random(), Secret::random()];
        assert!(one.hash(b"a") != other.hash(b"a") && one.of_programs() != other.of_programs());
        let again = Secret::read(one.text().as_bytes()).expect("as it was written");
        assert!(again == one && again.hash(b"a") == one.hash(b"a"));
        // The first words of SipHash-1-3 with the key 00 01 ... 0f, as of its authors' program.
        let known = Secret([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(known.hash(b""), 0xabac_0158_050f_c4dc);
        for wrong in ["", "\n", "+0000000000000000000000000000001\n", &one.text()[1..], &format!("0{}", one.text())] {
            assert!(Secret::read(wrong.as_bytes()).is_none(), "{wrong:?}");
        }
    }
}
