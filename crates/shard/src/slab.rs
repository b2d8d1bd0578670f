//! Values at small integer indices, recycled last in, first out, with a generation so that an old
//! name finds nothing new.

use std::num::NonZeroU32;

/// Values in chunks: growth moves nothing.
pub struct Slab<T> {
    chunks: Vec<Box<[Entry<T>; CHUNK]>>,
    vacant: u32,
    len: u32,
    limit: u32,
}

struct Entry<T> {
    generation: NonZeroU32,
    content: Content<T>,
}

enum Content<T> {
    Vacant { next: u32 },
    Occupied(T),
}

const CHUNK: usize = 64;
const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    /// Bytes that each value takes, used or not.
    pub const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    /// A slab of at most `limit` values.
    pub fn new(limit: u32) -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            vacant: NONE,
            len: 0,
            limit,
        }
    }

    /// Puts `value` somewhere and says where, or gives it back when the slab is full.
    pub fn insert(&mut self, value: T) -> Result<u32, T> {
        if self.is_full() {
            return Err(value);
        }
        Ok(self.place(|| value))
    }

    /// Has a value made where it will be, so that nothing is moved, and says where that is; `None`
    /// when the slab is full.
    #[inline(always)]
    pub fn insert_with(&mut self, make: impl FnOnce() -> T) -> Option<u32> {
        (!self.is_full()).then(|| self.place(make))
    }

    /// How many places there are, taken or not: every index is below.
    pub fn places(&self) -> u32 {
        (self.chunks.len() * CHUNK) as u32
    }

    /// Whether there is no room for another value.
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    #[inline(always)]
    fn place(&mut self, make: impl FnOnce() -> T) -> u32 {
        if self.vacant == NONE {
            self.grow();
        }
        self.len += 1;
        let index = self.vacant;
        let entry = &mut self.chunks[index as usize / CHUNK][index as usize % CHUNK];
        let Content::Vacant { next } = entry.content else {
            unreachable!("the free list holds vacant entries")
        };
        self.vacant = next;
        entry.content = Content::Occupied(make());
        index
    }

    /// Adds a chunk of vacant places, the first of which is taken first.
    #[cold]
    fn grow(&mut self) {
        let first = (self.chunks.len() * CHUNK) as u32;
        let places = first + 1..=first + CHUNK as u32;
        let entries: Vec<Entry<T>> = places
            .map(|next| Entry {
                generation: NonZeroU32::MIN,
                content: Content::Vacant {
                    next: if next % CHUNK as u32 == 0 { NONE } else { next },
                },
            })
            .collect();
        let Ok(chunk) = entries.try_into() else {
            unreachable!("as many were made as a chunk has")
        };
        self.chunks.push(chunk);
        self.vacant = first;
    }

    /// Takes the value at `index` out; the place gets a new generation.
    pub fn remove(&mut self, index: u32) -> Option<T> {
        let vacant = self.vacant;
        let place = self.vacate(index)?;
        match std::mem::replace(place, Content::Vacant { next: vacant }) {
            Content::Occupied(value) => Some(value),
            Content::Vacant { .. } => None,
        }
    }

    /// Drops the value at `index`, if there is one, where it is; the place gets a new generation.
    pub fn discard(&mut self, index: u32) {
        let next = self.vacant;
        if let Some(place) = self.vacate(index) {
            *place = Content::Vacant { next };
        }
    }

    /// The content of an occupied place, which is counted as vacant from now on.
    #[inline(always)]
    fn vacate(&mut self, index: u32) -> Option<&mut Content<T>> {
        let entry = &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK];
        if matches!(entry.content, Content::Vacant { .. }) {
            return None;
        }
        entry.generation = entry.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.vacant = index;
        self.len -= 1;
        Some(&mut entry.content)
    }

    /// The value at `index`.
    #[inline]
    pub fn get(&self, index: u32) -> Option<&T> {
        match &self.chunks.get(index as usize / CHUNK)?[index as usize % CHUNK].content {
            Content::Occupied(value) => Some(value),
            Content::Vacant { .. } => None,
        }
    }

    /// The value at `index`, to change.
    #[inline]
    pub fn get_mut(&mut self, index: u32) -> Option<&mut T> {
        self.get_mut_with_generation(index).map(|(value, _)| value)
    }

    /// The value at `index`, to change, with the generation of its place.
    #[inline]
    pub fn get_mut_with_generation(&mut self, index: u32) -> Option<(&mut T, NonZeroU32)> {
        let entry = &mut self.chunks.get_mut(index as usize / CHUNK)?[index as usize % CHUNK];
        match &mut entry.content {
            Content::Occupied(value) => Some((value, entry.generation)),
            Content::Vacant { .. } => None,
        }
    }

    /// The value at `index`, if its place has this generation.
    #[inline]
    pub fn get_of_generation(&self, index: u32, generation: NonZeroU32) -> Option<&T> {
        let entry = &self.chunks.get(index as usize / CHUNK)?[index as usize % CHUNK];
        match &entry.content {
            Content::Occupied(value) if entry.generation == generation => Some(value),
            _ => None,
        }
    }

    /// As [`Slab::get_of_generation`], to change the value.
    #[inline]
    pub fn get_of_generation_mut(&mut self, index: u32, generation: NonZeroU32) -> Option<&mut T> {
        self.get_mut_with_generation(index)
            .filter(|&(_, found)| found == generation)
            .map(|(value, _)| value)
    }

    /// The generation of the place `index`: it changes whenever a value is taken out.
    pub fn generation(&self, index: u32) -> NonZeroU32 {
        self.chunks
            .get(index as usize / CHUNK)
            .map_or(NonZeroU32::MIN, |chunk| {
                chunk[index as usize % CHUNK].generation
            })
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Every value with its index.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.chunks.iter().enumerate().flat_map(|(chunk, entries)| {
            entries
                .iter()
                .enumerate()
                .filter_map(move |(at, entry)| match &entry.content {
                    Content::Occupied(value) => Some(((chunk * CHUNK + at) as u32, value)),
                    Content::Vacant { .. } => None,
                })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t5_a_place_used_a_million_times_tells_its_tenants_apart() {
        let mut slab = Slab::new(1);
        let mut former = NonZeroU32::MAX;
        for tenant in (1..1_000_000u32).filter_map(NonZeroU32::new) {
            let index = slab.insert(tenant).unwrap();
            assert_eq!(slab.generation(index), tenant);
            assert_eq!(slab.get_of_generation_mut(index, former), None);
            assert_eq!(
                slab.get_of_generation_mut(index, tenant).copied(),
                Some(tenant)
            );
            slab.remove(index);
            former = tenant;
        }
    }

    #[test]
    fn recycles_places_with_a_new_generation() {
        let mut slab = Slab::new(100);
        let places: Vec<u32> = (0..100).map(|value| slab.insert(value).unwrap()).collect();
        assert_eq!(slab.insert(100), Err(100));
        assert_eq!(slab.remove(places[70]), Some(70));
        assert_eq!(slab.remove(places[70]), None);
        assert_eq!(slab.get(places[70]), None);
        assert_eq!(slab.insert(7), Ok(places[70]));
        assert_eq!(slab.generation(places[70]).get(), 2);
        assert_eq!(slab.generation(places[71]).get(), 1);
        assert_eq!(
            slab.iter().map(|(_, value)| *value).sum::<i32>(),
            (0..100).sum::<i32>() - 70 + 7
        );
        assert_eq!(slab.len(), 100);
    }
}
