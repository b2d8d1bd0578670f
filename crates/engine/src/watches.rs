//! Who wants to hear of a slot.

use std::slice;

/// A poller that wants hints of a socket.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    /// Index of the poller.
    pub poller: u32,
    /// epoll bits that matter to it.
    pub mask: u32,
    /// Where its last hint for this socket stands in the poller's ring.
    pub hint: Option<u32>,
}

/// Pollers that want hints: one as a rule, which needs no memory of its own.
#[derive(Debug, Default)]
pub enum Watches {
    /// Nobody.
    #[default]
    None,
    /// A single one.
    One(Watch),
    /// As many as there are: few slots have several, and a word is less than three.
    Many(Box<Vec<Watch>>),
}

impl Watches {
    /// Each of them.
    #[inline]
    pub fn as_slice(&self) -> &[Watch] {
        match self {
            Watches::None => &[],
            Watches::One(watch) => slice::from_ref(watch),
            Watches::Many(watches) => watches,
        }
    }

    /// Each of them, to change.
    #[inline]
    pub fn as_mut_slice(&mut self) -> &mut [Watch] {
        match self {
            Watches::None => &mut [],
            Watches::One(watch) => slice::from_mut(watch),
            Watches::Many(watches) => watches,
        }
    }

    /// One more.
    pub fn push(&mut self, watch: Watch) {
        match self {
            Watches::None => *self = Watches::One(watch),
            Watches::One(first) => *self = Watches::Many(Box::new(vec![*first, watch])),
            Watches::Many(watches) => watches.push(watch),
        }
    }

    /// This poller is none of them any more.
    pub fn remove(&mut self, poller: u32) {
        match self {
            Watches::None => {}
            Watches::One(watch) if watch.poller == poller => *self = Watches::None,
            Watches::One(_) => {}
            Watches::Many(watches) => watches.retain(|watch| watch.poller != poller),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pollers(watches: &Watches) -> Vec<u32> {
        let all = watches.as_slice().iter();
        all.map(|watch| watch.poller).collect()
    }

    #[test]
    fn who_has_come_and_not_gone_is_there() {
        let mut watches = Watches::default();
        watches.remove(1);
        for poller in 1..5 {
            assert_eq!(pollers(&watches), Vec::from_iter(1..poller));
            watches.push(Watch {
                poller,
                mask: 0,
                hint: None,
            });
        }
        watches.as_mut_slice()[1].hint = Some(u32::MAX);
        watches.remove(3);
        watches.remove(7);
        assert_eq!(pollers(&watches), [1, 2, 4]);
        assert_eq!(watches.as_slice()[1].hint, Some(u32::MAX));
        for poller in [2, 4, 1] {
            watches.remove(poller);
        }
        assert!(pollers(&watches).is_empty());
        let mut alone = Watches::One(Watch {
            poller: 9,
            mask: 0,
            hint: None,
        });
        alone.remove(8);
        assert_eq!(pollers(&alone), [9]);
        alone.remove(9);
        assert!(alone.as_slice().is_empty() && alone.as_mut_slice().is_empty());
    }

    #[test]
    fn one_takes_no_more_than_itself() {
        assert_eq!(size_of::<Watches>(), size_of::<Watch>());
    }
}
