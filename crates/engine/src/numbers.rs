//! Small numbers given out and taken back: contexts, pollers, process slots.

/// Small numbers given out, the lowest free first.
#[derive(Debug)]
pub(crate) struct Numbers {
    limit: u32,
    next: u32,
    free: Vec<u32>,
}

impl Numbers {
    pub(crate) fn new(limit: u32) -> Numbers {
        Numbers {
            limit,
            next: 0,
            free: Vec::new(),
        }
    }
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            (self.next < self.limit).then(|| {
                self.next += 1;
                self.next - 1
            })
        })
    }
    pub(crate) fn give(&mut self, number: u32) {
        self.free.push(number);
    }
}
