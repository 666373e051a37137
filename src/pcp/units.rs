//! Units of a metric (`pmUnits`): the powers and scales of space, time and count, packed in one word.

/// `PM_SPACE_*`: powers of 1024 bytes.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Space {
    Byte,
    Kbyte,
    Mbyte,
    Gbyte,
    Tbyte,
    Pbyte,
    Ebyte,
    Zbyte,
    Ybyte,
}

/// `PM_TIME_*`.
#[allow(missing_docs)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Time {
    Nsec,
    Usec,
    Msec,
    Sec,
    Min,
    Hour,
}

/// The count scale: a power of ten (`PM_COUNT_ONE` is 0).
pub type CountScale = i8;

/// `pmUnits` as the word on the wire. The low byte stays zero: releases before 7.2 require it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Units(pub u32);

impl Units {
    /// No dimension.
    pub const NONE: Units = Units(0);
    /// Events.
    pub const COUNT: Units = Units::NONE.count(1, 0);
    /// Bytes.
    pub const BYTE: Units = Units::NONE.space(1, Space::Byte);
    /// Kilobytes (2^10 bytes).
    pub const KBYTE: Units = Units::NONE.space(1, Space::Kbyte);
    /// Megabytes (2^20 bytes).
    pub const MBYTE: Units = Units::NONE.space(1, Space::Mbyte);
    /// Nanoseconds.
    pub const NSEC: Units = Units::NONE.time(1, Time::Nsec);
    /// Seconds.
    pub const SEC: Units = Units::NONE.time(1, Time::Sec);
    /// Milliseconds.
    pub const MSEC: Units = Units::NONE.time(1, Time::Msec);
    /// Microseconds.
    pub const USEC: Units = Units::NONE.time(1, Time::Usec);

    /// Sets power (-8 to 7) and scale of space.
    pub const fn space(self, power: i8, scale: Space) -> Units {
        Units(self.0 & 0x0ff0_ffff | nibble(power) << 28 | (scale as u32) << 16)
    }

    /// Sets power (-8 to 7) and scale of time.
    pub const fn time(self, power: i8, scale: Time) -> Units {
        Units(self.0 & 0xf0ff_0fff | nibble(power) << 24 | (scale as u32) << 12)
    }

    /// Sets power (-8 to 7) and scale of count.
    pub const fn count(self, power: i8, scale: CountScale) -> Units {
        Units(self.0 & 0xff0f_f0ff | nibble(power) << 20 | nibble(scale) << 8)
    }
}

const fn nibble(v: i8) -> u32 {
    v as u32 & 15
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_equal_those_seen_on_the_wire() {
        assert_eq!(Units::COUNT.0, 0x0010_0000);
        assert_eq!(Units::USEC.0, 0x0100_1000);
        assert_eq!(Units::BYTE.0, 0x1000_0000);
        let mbyte_per_sec = Units::MBYTE.time(-1, Time::Sec);
        assert_eq!(mbyte_per_sec.0, 0x1f02_3000);
        let hour_per_million = Units::NONE.time(1, Time::Hour).count(-1, 6);
        assert_eq!(hour_per_million.0, 0x01f0_5600);
        assert_eq!(Units::NONE.count(1, -3).0, 0x0010_0d00);
    }
}
