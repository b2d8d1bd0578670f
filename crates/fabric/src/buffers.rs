//! Registered buffers: who uses which, so that none is posted twice or freed in use.

use crate::types::{BufferId, Error, SYSTEM_MAX};

/// What a buffer is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Nothing: the program's.
    Idle,
    /// Posted on a normal channel, or being received into.
    Posted,
    /// The window of an open channel.
    Offered,
    /// So many requests send from it.
    Sending(u32),
    /// It is of the pool, and free.
    Pooled,
    /// It is of the pool, and has a message of the session with this key.
    Message(u64),
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    usage: Use,
    bytes: Box<[u8]>,
}

/// All buffers of a port.
#[derive(Debug, Default)]
pub struct Buffers {
    slots: Vec<Slot>,
    /// Slots without a buffer.
    vacant: Vec<u32>,
    /// Free buffers of the pool.
    pool: Vec<u32>,
    /// Buffers of the pool.
    pooled: usize,
    /// Buffers of the program's, and their bytes.
    registered: usize,
    memory: usize,
}

impl Buffers {
    /// A new buffer of the program's, zeroed, within the limits.
    pub fn register(&mut self, len: usize, most: usize, memory: usize) -> Result<BufferId, Error> {
        if self.registered >= most || len > memory.saturating_sub(self.memory) {
            return Err(Error::Memory(memory));
        }
        self.registered += 1;
        self.memory += len;
        Ok(self.add(vec![0; len].into_boxed_slice(), Use::Idle))
    }

    fn add(&mut self, bytes: Box<[u8]>, usage: Use) -> BufferId {
        let index = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 1,
                usage,
                bytes: Box::default(),
            });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[index as usize];
        (slot.usage, slot.bytes) = (usage, bytes);
        BufferId {
            index,
            generation: slot.generation,
        }
    }

    fn slot(&self, id: BufferId) -> Result<&Slot, Error> {
        self.slots
            .get(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.usage != Use::Pooled)
            .ok_or(Error::NoSuchBuffer)
    }

    fn slot_mut(&mut self, id: BufferId) -> Result<&mut Slot, Error> {
        self.slots
            .get_mut(id.index as usize)
            .filter(|slot| slot.generation == id.generation && slot.usage != Use::Pooled)
            .ok_or(Error::NoSuchBuffer)
    }

    /// What it is used for.
    pub fn usage(&self, id: BufferId) -> Result<Use, Error> {
        self.slot(id).map(|slot| slot.usage)
    }

    /// Uses it for something else.
    pub fn set_usage(&mut self, id: BufferId, usage: Use) {
        if let Ok(slot) = self.slot_mut(id) {
            slot.usage = usage;
        }
    }

    /// One request more sends from it.
    pub fn begin_send(&mut self, id: BufferId, len: usize) -> Result<(), Error> {
        let slot = self.slot_mut(id)?;
        if len > slot.bytes.len() {
            let size = slot.bytes.len();
            return Err(Error::OutOfRange { len, size });
        }
        slot.usage = match slot.usage {
            Use::Idle => Use::Sending(1),
            Use::Sending(count) => Use::Sending(count + 1),
            _ => return Err(Error::BufferInUse),
        };
        Ok(())
    }

    /// One of them has ended.
    pub fn end_send(&mut self, id: BufferId) {
        if let Ok(slot) = self.slot_mut(id)
            && let Use::Sending(count) = slot.usage
        {
            slot.usage = match count {
                0 | 1 => Use::Idle,
                _ => Use::Sending(count - 1),
            };
        }
    }

    /// What is in it.
    #[inline]
    pub fn bytes(&self, id: BufferId) -> Result<&[u8], Error> {
        self.slot(id).map(|slot| &slot.bytes[..])
    }

    /// The same, to be written: by the program when nothing uses it or it is a window, or by what
    /// receives into it.
    #[inline]
    pub fn bytes_mut(&mut self, id: BufferId) -> Result<&mut [u8], Error> {
        self.slot_mut(id).map(|slot| &mut slot.bytes[..])
    }

    /// Frees a buffer of the program's that nothing uses; returns the session's key if it is one of
    /// the pool.
    pub fn free(&mut self, id: BufferId) -> Result<Option<u64>, Error> {
        let slot = self.slot_mut(id)?;
        match slot.usage {
            Use::Idle => {
                slot.generation = slot.generation.wrapping_add(1);
                let bytes = std::mem::take(&mut slot.bytes);
                self.registered -= 1;
                self.memory -= bytes.len();
                self.vacant.push(id.index);
                Ok(None)
            }
            Use::Message(session) => {
                slot.usage = Use::Pooled;
                slot.generation = slot.generation.wrapping_add(1);
                self.pool.push(id.index);
                Ok(Some(session))
            }
            _ => Err(Error::BufferInUse),
        }
    }

    /// Has the pool have so many buffers at least.
    pub fn grow_pool(&mut self, count: usize) {
        while self.pooled < count {
            let id = self.add(vec![0; SYSTEM_MAX].into_boxed_slice(), Use::Pooled);
            self.pool.push(id.index);
            self.pooled += 1;
        }
    }

    /// A buffer of the pool, for a message of this session's; none if there is none.
    #[inline]
    pub fn take_pooled(&mut self, session: u64) -> Option<BufferId> {
        let index = self.pool.pop()?;
        let slot = &mut self.slots[index as usize];
        slot.usage = Use::Message(session);
        Some(BufferId {
            index,
            generation: slot.generation,
        })
    }
}
