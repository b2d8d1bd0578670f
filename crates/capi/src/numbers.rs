//! Descriptors: numbers that name something of one thread, once.
//!
//! A number is, from its low bits up, a place in a chunk of 1,024 ([`PLACE_BITS`]), the chunk
//! ([`CHUNK_BITS`]), and which of those that were there it is ([`GENERATION_BITS`]). Chunks are
//! handed out to threads, so that no number of one thread means anything in another. Generations
//! begin at 1: a number is at least 4,194,304, which no descriptor of the kernel's is by default,
//! and the two cannot be taken for each other.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Mutex, PoisonError};

/// Places in a chunk, as a power of two.
const PLACE_BITS: u32 = 10;
/// Chunks of a process, likewise: 4,194,304 descriptors at once.
const CHUNK_BITS: u32 = 12;
/// A place names as many things, likewise, before a number comes again. [`SPARE`] places are used
/// in turn, and so are the chunks of threads that come and go, so that takes 250,000 others at
/// least, of all threads, as long as no more than 3,500,000 are open.
const GENERATION_BITS: u32 = 31 - CHUNK_BITS - PLACE_BITS;

const PLACES: usize = 1 << PLACE_BITS;
/// Places that name nothing, at least, as long as the process has chunks.
const SPARE: usize = PLACES / 2;
const CHUNKS: usize = 1 << CHUNK_BITS;
const GENERATIONS: u32 = 1 << GENERATION_BITS;

/// Chunks that threads which have ended had, with the generation to go on with, the one returned
/// longest ago first; and how many there ever were.
static POOL: Mutex<Pool> = Mutex::new(Pool {
    returned: VecDeque::new(),
    made: 0,
});

struct Pool {
    returned: VecDeque<(usize, u32)>,
    made: usize,
}

struct Chunk<T> {
    number: usize,
    places: Vec<Place<T>>,
}

struct Place<T> {
    generation: u32,
    content: Option<T>,
}

/// The descriptors of one thread.
pub struct Numbers<T> {
    /// Where a chunk of the process is here, by its number.
    own: Vec<Option<u16>>,
    chunks: Vec<Chunk<T>>,
    /// Places that name nothing now, the one used longest ago first.
    vacant: VecDeque<u32>,
}

impl<T> Default for Numbers<T> {
    fn default() -> Numbers<T> {
        Numbers {
            own: Vec::new(),
            chunks: Vec::new(),
            vacant: VecDeque::new(),
        }
    }
}

impl<T> Numbers<T> {
    /// Names something. None when all numbers of the process are in use.
    pub fn insert(&mut self, content: T) -> Option<c_int> {
        if self.vacant.len() <= SPARE {
            // Without another chunk numbers come again sooner.
            let _ = self.grow();
        }
        let at = self.vacant.pop_front()?;
        let (chunk, place) = (at as usize >> PLACE_BITS, at as usize & (PLACES - 1));
        let number = self.chunks[chunk].number;
        let place = &mut self.chunks[chunk].places[place];
        place.content = Some(content);
        let high = place.generation << CHUNK_BITS | number as u32;
        Some((high << PLACE_BITS | at & (PLACES as u32 - 1)) as c_int)
    }

    fn grow(&mut self) -> Option<()> {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody had first, so that a number takes long to come again.
        let (number, generation) = if pool.made < CHUNKS {
            pool.made += 1;
            (pool.made - 1, 1)
        } else {
            pool.returned.pop_front()?
        };
        drop(pool);
        let places = || Place {
            generation,
            content: None,
        };
        let at = self.chunks.len();
        self.chunks.push(Chunk {
            number,
            places: std::iter::repeat_with(places).take(PLACES).collect(),
        });
        if self.own.len() <= number {
            self.own.resize(number + 1, None);
        }
        self.own[number] = Some(at as u16);
        self.vacant
            .extend((0..PLACES).map(|place| (at << PLACE_BITS | place) as u32));
        Some(())
    }

    /// Where a number is: the chunk here and the place in it.
    fn find(&self, number: c_int) -> Option<(usize, usize)> {
        let number = u32::try_from(number).ok()?;
        let chunk = number >> PLACE_BITS & (CHUNKS as u32 - 1);
        let here = usize::from((*self.own.get(chunk as usize)?)?);
        let place = number as usize & (PLACES - 1);
        let generation = number >> (PLACE_BITS + CHUNK_BITS);
        (self.chunks[here].places[place].generation == generation).then_some((here, place))
    }

    /// What a number names.
    pub fn get(&self, number: c_int) -> Option<&T> {
        let (chunk, place) = self.find(number)?;
        self.chunks[chunk].places[place].content.as_ref()
    }

    /// Takes a number back; it names nothing any more.
    pub fn remove(&mut self, number: c_int) -> Option<T> {
        let (chunk, at) = self.find(number)?;
        let place = &mut self.chunks[chunk].places[at];
        let content = place.content.take()?;
        place.generation = after(place.generation);
        self.vacant.push_back((chunk << PLACE_BITS | at) as u32);
        Some(content)
    }

    /// Takes back the numbers of all that `is` says.
    pub fn remove_all(&mut self, is: impl Fn(&T) -> bool) {
        for (chunk, content) in self.chunks.iter_mut().enumerate() {
            for (at, place) in content.places.iter_mut().enumerate() {
                if place.content.as_ref().is_some_and(&is) {
                    place.content = None;
                    place.generation = after(place.generation);
                    self.vacant.push_back((chunk << PLACE_BITS | at) as u32);
                }
            }
        }
    }
}

fn after(generation: u32) -> u32 {
    (generation % (GENERATIONS - 1)) + 1
}

impl<T> Drop for Numbers<T> {
    fn drop(&mut self) {
        let mut pool = POOL.lock().unwrap_or_else(PoisonError::into_inner);
        for chunk in &self.chunks {
            let latest = chunk.places.iter().map(|place| place.generation).max();
            pool.returned
                .push_back((chunk.number, after(latest.unwrap_or(1))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_names_one_thing_once() {
        let mut numbers = Numbers::default();
        let first = numbers.insert('a').expect("room");
        assert!(first >= 1 << 22);
        assert_eq!(numbers.get(first), Some(&'a'));
        assert_eq!(numbers.remove(first), Some('a'));
        let mut seen = std::collections::HashSet::from([first]);
        // Nearly all places are taken: the others come again and again, each time with another
        // number.
        for _ in 0..PLACES - 1 {
            seen.insert(numbers.insert('c').expect("room"));
        }
        for _ in 0..100_000 {
            let number = numbers.insert('b').expect("room");
            assert!(seen.insert(number), "{number} came again");
            assert_eq!(numbers.get(first), None);
            numbers.remove(number).expect("there");
        }
        assert_eq!(numbers.remove(first), None);
    }

    #[test]
    fn numbers_of_another_thread_are_none() {
        let mut here = Numbers::default();
        let own: Vec<c_int> = (0..3000).map(|n| here.insert(n).expect("room")).collect();
        let theirs = std::thread::spawn(move || {
            let mut there = Numbers::default();
            let theirs: Vec<c_int> = (0..3000).map(|n| there.insert(n).expect("room")).collect();
            assert!(own.iter().all(|number| there.get(*number).is_none()));
            theirs
        });
        let theirs = theirs.join().expect("it does not panic");
        assert!(theirs.iter().all(|number| here.get(*number).is_none()));
        // Those that are given back are given out with other generations.
        let mut more = Numbers::default();
        for n in 0..3000 {
            let number = more.insert(n).expect("room");
            assert!(!theirs.contains(&number));
        }
    }

    #[test]
    fn numbers_of_threads_that_come_and_go_do_not_come_again_soon() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..10_000 {
            // As a thread has them that makes one socket, and ends.
            let number = Numbers::default().insert(()).expect("room");
            assert!(seen.insert(number), "{number} came again");
        }
    }

    #[test]
    fn what_was_never_a_number_is_none() {
        let numbers = Numbers::<()>::default();
        for number in [-1, 0, 1, 2, 3, 1 << 22, c_int::MAX, c_int::MIN] {
            assert!(numbers.get(number).is_none());
        }
    }
}
