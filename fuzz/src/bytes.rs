//! Reading decisions off bytes: when they run out, everything is 0.

/// What is left of the input.
pub struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
    /// Whether there is nothing left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `len` bytes, or fewer.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (taken, left) = self.0.split_at(len.min(self.0.len()));
        self.0 = left;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let taken = self.take(N);
        array[..taken.len()].copy_from_slice(taken);
        array
    }

    /// The next byte.
    pub fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// The next two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// The next four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// The next eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A sequence number that is often near `base`, and sometimes anywhere.
    pub fn near(&mut self, base: u32) -> u32 {
        match self.u8() {
            0xff => self.u32(),
            0xf0..=0xfe => base.wrapping_add(u32::from(self.u16())),
            0xe0..=0xef => base.wrapping_sub(u32::from(self.u16())),
            small => base.wrapping_add(i32::from((small % 5) as i8 - 1) as u32),
        }
    }
}
