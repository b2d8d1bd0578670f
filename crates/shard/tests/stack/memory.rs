//! Memory of a host of several shards.

use std::cell::RefCell;
use std::rc::Rc;

use millrace_shard::{Block, HeapMemory, Memory, Owner};

/// Where the receive rings of a host's shards are: in one memory for all, where they stay when
/// their connection moves, or in one of each.
#[derive(Clone)]
pub struct HostMemory {
    heap: Rc<RefCell<HeapMemory>>,
    is_shared: bool,
}

impl HostMemory {
    pub fn new(limit: u64, is_shared: bool) -> HostMemory {
        let heap = Rc::new(RefCell::new(HeapMemory::new(limit)));
        HostMemory { heap, is_shared }
    }

    /// Another shard's.
    pub fn other(&self, limit: u64) -> HostMemory {
        match self.is_shared {
            true => self.clone(),
            false => HostMemory::new(limit, false),
        }
    }

    pub fn in_use(&self) -> u64 {
        self.heap.borrow().in_use()
    }
}

impl Memory for HostMemory {
    fn allocate(&mut self, owner: Owner, log2: u8) -> Option<Block> {
        self.heap.borrow_mut().allocate(owner, log2)
    }
    fn free(&mut self, owner: Owner, block: Block) {
        self.heap.borrow_mut().free(owner, block);
    }
    fn write(&mut self, owner: Owner, block: Block, at: usize, data: &[u8]) {
        self.heap.borrow_mut().write(owner, block, at, data);
    }
    fn copy(&mut self, owner: Owner, from: (Block, usize), to: (Block, usize), len: usize) {
        self.heap.borrow_mut().copy(owner, from, to, len);
    }
    fn is_plenty(&self, owner: Owner) -> bool {
        self.heap.borrow().is_plenty(owner)
    }
    fn read(&self, owner: Owner, block: Block, at: usize, out: &mut [u8]) {
        self.heap.borrow().read(owner, block, at, out);
    }
    fn hand_over(&mut self, _: Owner, _: Block) -> bool {
        self.is_shared
    }
    fn adopt(&mut self, _: Owner, _: Block) {
        assert!(self.is_shared);
    }
}
