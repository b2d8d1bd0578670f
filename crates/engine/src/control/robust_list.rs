//! Wakes sleeping programs when the engine ends, even if it is killed.
//!
//! A blocked call sleeps on a futex. The kernel wakes it when the engine is killed: when a thread
//! ends, the kernel walks the thread's list of robust futexes (`set_robust_list(2)`), sets
//! `FUTEX_OWNER_DIED` in each word that has the thread's id, and wakes a sleeper. The word is in
//! the header of each region ([`millrace_context::layout::Header::life`]).
//!
//! The kernel expects a word at a fixed distance from its list entry. A program could overwrite an
//! entry in shared memory. So each word is mapped a second time, behind a private page that holds
//! the entry.

use std::io;
use std::mem::offset_of;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use millrace_context::layout::{Header, LIFE_SLEEPERS, PAGE};
use rustix::mm::{MapFlags, ProtFlags};

/// Words that the kernel looks at in one list (`ROBUST_LIST_LIMIT`), less the head.
const ENTRIES_MAX: usize = 2047;
/// The page of the word in the region's file, and the offset of the word in that page.
const WORD_PAGE: usize = offset_of!(Header, life) / PAGE * PAGE;
const WORD_AT: usize = offset_of!(Header, life) % PAGE;

/// `struct robust_list_head`.
#[repr(C)]
struct Head {
    next: AtomicUsize,
    /// Distance from an entry to its word.
    offset: usize,
    pending: AtomicUsize,
}

/// The list of the thread that made it. It is never freed: the kernel reads it after the thread has
/// ended.
pub(crate) struct RobustList {
    head: &'static Head,
    /// Addresses of the entries with their programs, the latest first.
    entries: Vec<(usize, u32)>,
}

impl std::fmt::Debug for RobustList {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RobustList of {}", self.entries.len())
    }
}

impl RobustList {
    /// An empty list for the calling thread. It replaces the list of the C library, which serves
    /// robust mutexes.
    pub(crate) fn new() -> io::Result<RobustList> {
        let head: &'static Head = Box::leak(Box::new(Head {
            next: AtomicUsize::new(0),
            offset: PAGE,
            pending: AtomicUsize::new(0),
        }));
        head.next
            .store(std::ptr::from_ref(head) as usize, Ordering::Relaxed);
        // SAFETY: the head is never freed, and its entries stay mapped while they are in the list.
        let result = unsafe { libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(RobustList {
            head,
            entries: Vec::new(),
        })
    }

    /// Adds the word of the region of `program`. After an error the word stays 0, and the program's
    /// sleepers check from time to time.
    pub(crate) fn add(&mut self, region: BorrowedFd<'_>, program: u32) -> io::Result<()> {
        if self.entries.len() >= ENTRIES_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let entry = map(region)?;
        // SAFETY: `map` mapped both pages: the entry is in the private one, the word in the
        // region's.
        let (entry, word) = unsafe {
            (
                &*(entry as *const AtomicUsize),
                &*((entry + PAGE) as *const AtomicU32),
            )
        };
        word.store(
            rustix::thread::gettid().as_raw_nonzero().get() as u32 | LIFE_SLEEPERS,
            Ordering::Relaxed,
        );
        entry.store(self.head.next.load(Ordering::Relaxed), Ordering::Relaxed);
        let at = std::ptr::from_ref(entry) as usize;
        self.head.next.store(at, Ordering::Release);
        self.entries.insert(0, (at, program));
        Ok(())
    }

    /// Removes the word of a program that has ended.
    pub(crate) fn remove(&mut self, program: u32) {
        let Some(place) = self.entries.iter().position(|(_, own)| *own == program) else {
            return;
        };
        let (at, _) = self.entries.remove(place);
        let next = match self.entries.get(place) {
            Some((next, _)) => *next,
            None => std::ptr::from_ref(self.head) as usize,
        };
        let before = match place.checked_sub(1) {
            // SAFETY: an entry of the list stays mapped while it is in the list.
            Some(before) => unsafe { &*(self.entries[before].0 as *const AtomicUsize) },
            None => &self.head.next,
        };
        before.store(next, Ordering::Release);
        // SAFETY: `map` mapped it, and it has left the list.
        let _ = unsafe { rustix::mm::munmap((at - WORD_AT) as *mut _, 2 * PAGE) };
    }
}

/// Maps a private page, and behind it the page of the region with the word. Returns the address of
/// the entry, one page before the word.
fn map(region: BorrowedFd<'_>) -> io::Result<usize> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses a range that overlaps nothing. The file replaces its second page;
    // the file is sealed and has that page.
    unsafe {
        let at =
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), 2 * PAGE, rights, MapFlags::PRIVATE)?;
        let second = at.cast::<u8>().add(PAGE).cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        if let Err(errno) = rustix::mm::mmap(second, PAGE, rights, flags, region, WORD_PAGE as u64)
        {
            let _ = rustix::mm::munmap(at, 2 * PAGE);
            return Err(errno.into());
        }
        Ok(at as usize + WORD_AT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::sync::Arc;

    use millrace_context::layout::{Geometry, LIFE_OVER};
    use millrace_context::{Region, futex, region};

    fn new_region() -> (std::os::fd::OwnedFd, Arc<Region>) {
        let geometry = Geometry {
            slots: 1,
            contexts: 1,
            pollers: 1,
            shards: 1,
            arena: 1 << 20,
        };
        let file = region::create(&geometry).unwrap();
        let region = Region::map(file.as_fd(), geometry).unwrap();
        (file, Arc::new(region))
    }

    #[test]
    fn sleepers_of_every_program_are_woken_when_the_thread_ends() {
        let regions: Vec<_> = (0..5).map(|_| new_region()).collect();
        let sleeping: Vec<_> = regions
            .iter()
            .map(|(_, region)| region.clone())
            .map(|region| {
                std::thread::spawn(move || {
                    let word = &region.header().life.0;
                    loop {
                        match word.load(Ordering::Acquire) {
                            0 => std::thread::yield_now(),
                            over if over & LIFE_OVER != 0 => return,
                            alive => drop(futex::wait(word, alive, None)),
                        }
                    }
                })
            })
            .collect();
        let files = regions.iter().map(|(file, _)| file.try_clone().unwrap());
        let files: Vec<_> = files.collect();
        std::thread::spawn(move || {
            let mut list = RobustList::new().unwrap();
            for (program, file) in files.iter().enumerate() {
                list.add(file.as_fd(), program as u32).unwrap();
            }
        })
        .join()
        .unwrap();
        for thread in sleeping {
            thread.join().unwrap();
        }
    }

    #[test]
    fn programs_that_have_gone_are_in_the_list_no_more() {
        let regions: Vec<_> = (0..4).map(|_| new_region()).collect();
        let files: Vec<_> = regions
            .iter()
            .map(|(file, _)| file.try_clone().unwrap())
            .collect();
        std::thread::spawn(move || {
            let mut list = RobustList::new().unwrap();
            for (program, file) in files.iter().enumerate() {
                list.add(file.as_fd(), program as u32).unwrap();
            }
            for gone in [3, 1, 7] {
                list.remove(gone);
            }
        })
        .join()
        .unwrap();
        let over = |at: usize| regions[at].1.header().life.0.load(Ordering::Acquire) & LIFE_OVER;
        let ended: Vec<bool> = (0..4).map(|at| over(at) != 0).collect();
        assert_eq!(ended, [true, false, true, false]);
    }
}
