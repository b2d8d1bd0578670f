//! The memory of all send rings and of datagrams that wait to leave: one pool, and how much of it
//! each program holds.
//!
//! Where programs share the pool, none may hold more than twice what is left for all others, so
//! that a newcomer always finds some (Choudhury and Hahne's dynamic threshold). A program that
//! holds half of what it may is *pressed*: each of its sockets may queue one small block at a time,
//! so its writers wait, as Linux's do.

use crate::memory::Owner;
use crate::memory::pool::{LOG2_MIN, Pool};

/// The send queue of a socket whose program is pressed, in bytes.
pub const PRESSED_LIMIT: u32 = 1 << LOG2_MIN;

#[derive(Clone, Copy, Debug, Default)]
struct Account {
    /// Bytes that the program holds.
    used: u64,
    pressed: bool,
}

/// The pool and its accounts.
pub struct SendMemory {
    pool: Pool,
    limit: u64,
    shared: bool,
    /// By owner.
    accounts: Vec<Account>,
}

impl SendMemory {
    /// At most `limit` bytes; `shared`: between programs that must not be able to harm each other.
    pub fn new(limit: u64, shared: bool) -> SendMemory {
        SendMemory {
            pool: Pool::new(limit),
            limit,
            shared,
            accounts: Vec::new(),
        }
    }

    /// The number of bytes that a program may hold now.
    #[inline]
    fn allowed(&self) -> u64 {
        (self.limit - self.pool.in_use().min(self.limit)) * 2
    }

    #[inline]
    fn account(&mut self, owner: Owner) -> &mut Account {
        let index = owner.0 as usize;
        if index >= self.accounts.len() {
            self.open(index);
        }
        &mut self.accounts[index]
    }

    #[cold]
    fn open(&mut self, index: usize) {
        self.accounts.resize_with(index + 1, Account::default);
    }

    /// A block of 2^`log2` bytes with arbitrary content, or `None` if there is none for this
    /// program.
    #[inline]
    pub fn allocate(&mut self, owner: Owner, log2: u8) -> Option<Box<[u8]>> {
        if !self.shared {
            return self.pool.allocate(log2);
        }
        let size = 1 << log2;
        let allowed = self.allowed();
        let account = self.account(owner);
        if account.used + size > allowed {
            return None;
        }
        account.used += size;
        let block = self.pool.allocate(log2);
        if block.is_none() {
            self.account(owner).used -= size;
        }
        block
    }

    /// Takes a block back.
    #[inline(always)]
    pub fn free(&mut self, owner: Owner, block: Box<[u8]>) {
        if self.shared {
            self.account(owner).used -= block.len() as u64;
        }
        self.pool.free(block);
    }

    /// So many bytes that were handed out are another pool's from now on.
    pub fn let_go(&mut self, owner: Owner, bytes: usize) {
        if self.shared {
            self.account(owner).used -= bytes as u64;
        }
        self.pool.let_go(bytes);
    }

    /// So many bytes that another pool has handed out are this one's. They are in use already, so
    /// no limit refuses them.
    pub fn adopt(&mut self, owner: Owner, bytes: usize) {
        if self.shared {
            self.account(owner).used += bytes as u64;
        }
        self.pool.adopt(bytes);
    }

    /// Whether little is left for a program: less than an eighth of what there is, or of what it
    /// may hold.
    pub fn is_short(&self, owner: Owner) -> bool {
        match self.shared {
            true => self.used(owner) > self.allowed() / 8 * 7,
            false => self.pool.is_short(),
        }
    }

    fn used(&self, owner: Owner) -> u64 {
        let account = self.accounts.get(owner.0 as usize);
        account.map_or(0, |account| account.used)
    }

    /// Looks whether a program is pressed. It is from half of what it may hold on, and until it
    /// holds three eighths. Returns whether that has changed: its sockets have another limit then.
    pub fn review(&mut self, owner: Owner) -> bool {
        let allowed = self.allowed();
        let Some(account) = self.accounts.get_mut(owner.0 as usize) else {
            return false;
        };
        let pressed = match account.pressed {
            false => account.used > allowed / 2,
            true => account.used > allowed / 8 * 3,
        };
        let changed = pressed != account.pressed;
        account.pressed = pressed;
        changed
    }

    /// How much a socket of a program may have queued at most, in bytes.
    #[inline]
    pub fn socket_limit(&self, owner: Owner) -> u32 {
        if !self.shared {
            return u32::MAX;
        }
        match self.accounts.get(owner.0 as usize) {
            Some(account) if account.pressed => PRESSED_LIMIT,
            _ => u32::MAX,
        }
    }

    /// The pool, to give memory back.
    pub fn pool_mut(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Whether there is more free than is kept in any case.
    #[inline]
    pub fn has_spare(&self) -> bool {
        self.pool.has_spare()
    }

    /// Bytes handed out.
    pub fn in_use(&self) -> u64 {
        self.pool.in_use()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 1 << LOG2_MIN;

    fn take_all(memory: &mut SendMemory, owner: Owner) -> Vec<Box<[u8]>> {
        std::iter::from_fn(|| memory.allocate(owner, LOG2_MIN)).collect()
    }

    #[test]
    fn a_program_that_takes_all_it_can_leaves_a_third() {
        let mut memory = SendMemory::new(300 * BLOCK, true);
        let hog = take_all(&mut memory, Owner(0));
        assert_eq!(hog.len(), 200);
        let next = take_all(&mut memory, Owner(7));
        assert_eq!(next.len(), 67);
        assert!(!take_all(&mut memory, Owner(3)).is_empty());
        assert!(memory.is_short(Owner(0)) && !memory.is_short(Owner(1)));
    }

    #[test]
    fn alone_a_program_may_hold_everything() {
        let mut memory = SendMemory::new(300 * BLOCK, false);
        assert_eq!(take_all(&mut memory, Owner(0)).len(), 300);
        assert!(!memory.review(Owner(0)));
        assert_eq!(memory.socket_limit(Owner(0)), u32::MAX);
    }

    #[test]
    fn writers_are_held_up_long_before_the_limit_and_until_there_is_room_again() {
        let mut memory = SendMemory::new(300 * BLOCK, true);
        let owner = Owner(1);
        let mut blocks = Vec::new();
        while !memory.review(owner) {
            blocks.push(memory.allocate(owner, LOG2_MIN).unwrap());
        }
        assert_eq!(blocks.len(), 151, "half of what it may hold is half of all");
        assert_eq!(memory.socket_limit(owner), PRESSED_LIMIT);
        assert_eq!(memory.socket_limit(Owner(0)), u32::MAX);
        while !memory.review(owner) {
            memory.free(owner, blocks.pop().unwrap());
        }
        assert_eq!(blocks.len(), 128);
        assert_eq!(memory.socket_limit(owner), u32::MAX);
        for block in blocks {
            memory.free(owner, block);
        }
        assert_eq!(memory.in_use(), 0);
    }
}
