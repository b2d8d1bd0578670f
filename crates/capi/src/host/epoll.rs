//! Who waits for a socket, and what it is told.

use std::ffi::c_int;

use libc::{EPOLLET, EPOLLONESHOT};
use millrace::{Poll, SocketId, View, ViewFlags};

use super::Host;
use crate::epoll::{ALWAYS, Control, Event, KNOWN, Set, Watch};
use crate::opening::{self, Opening};
use crate::outcome::Outcome;
use crate::things::{Known, Thing, Things};

impl Things {
    fn set_mut(&mut self, key: u32) -> Option<&mut Set> {
        match self.get_mut(key) {
            Some(Thing::Set(set)) => Some(set),
            _ => None,
        }
    }

    fn watchers_mut(&mut self, key: u32) -> Option<&mut Vec<(u32, u32)>> {
        match self.get_mut(key)? {
            Thing::Socket(socket) => Some(&mut socket.watchers),
            Thing::Pipe(end) => Some(&mut end.watchers),
            Thing::Set(_) => None,
        }
    }

    /// Queues those watches of something that ask for one of these events.
    pub fn tell(&mut self, key: u32, news: Poll) {
        let mut at = 0;
        while let Some(&(set, watch)) = self.watchers_mut(key).and_then(|watchers| watchers.get(at))
        {
            at += 1;
            if let Some(set) = self.set_mut(set)
                && let Some(Some(wanted)) = set.watches.get(watch as usize)
                && !wanted.spent
                && news.bits() & (wanted.events | ALWAYS) != 0
            {
                set.enqueue(watch);
            }
        }
    }

    /// Forgets all who wait for something that is no more.
    pub fn forget_watchers(&mut self, watchers: &[(u32, u32)]) {
        for &(set, watch) in watchers {
            if let Some(set) = self.set_mut(set) {
                set.forget(watch);
            }
        }
    }

    /// Forgets a set that is no more at those who are in it.
    pub fn forget_set(&mut self, key: u32, set: &Set) {
        for watch in set.watches.iter().flatten() {
            if let Some(watchers) = self.watchers_mut(watch.key) {
                watchers.retain(|&(other, _)| other != key);
            }
        }
    }
}

impl Host {
    /// What something is ready for. What it is not ready for is news when it is again.
    pub fn ready(&self, things: &mut Things, key: u32) -> Poll {
        let ready = match things.get(key) {
            Some(Thing::Socket(socket)) if socket.dead.is_some() => {
                Poll::IN | Poll::OUT | Poll::ERR | Poll::HUP
            }
            Some(Thing::Socket(socket)) => match socket.opening {
                Some(Opening::Asked(_)) => Poll::empty(),
                Some(Opening::Refused(_)) => opening::refused(),
                None => {
                    let view = self.stack.with_sockets(|sockets| sockets.view(socket.id));
                    view.map_or(Poll::empty(), |view| view.poll())
                }
            },
            Some(Thing::Pipe(end)) => end.poll(),
            _ => Poll::empty(),
        };
        if let Ok(socket) = things.socket_mut(key) {
            socket.known.bits &= ready;
        }
        ready
    }

    /// A socket has changed: tells those who wait for what is new.
    pub fn note(&self, id: SocketId) {
        let mut things = self.things.borrow_mut();
        let Some(key) = things.key_of(id) else {
            return;
        };
        let Some(view) = self.stack.with_sockets(|sockets| sockets.view(id)) else {
            return;
        };
        let now = self.stack.now();
        let Ok(socket) = things.socket_mut(key) else {
            return;
        };
        let news = news(&view, &mut socket.known);
        socket.active = now;
        if !news.is_empty() && !socket.watchers.is_empty() {
            things.tell(key, news);
        }
    }

    /// `epoll_ctl`.
    ///
    /// # Errors
    /// `EBADF`, `EINVAL` for what is no set, for a set in a set, and for events that are not known,
    /// `EEXIST`, `ENOENT`.
    pub fn control(&self, set: u32, key: u32, control: Control) -> Outcome<()> {
        let mut things = self.things.borrow_mut();
        let known = things.get(key).is_some();
        match things.get(set) {
            None => return Err(libc::EBADF),
            _ if !known => return Err(libc::EBADF),
            Some(Thing::Set(_)) => {}
            Some(_) => return Err(libc::EINVAL),
        }
        if let Control::Add(events, _) | Control::Modify(events, _) = control
            && events & !KNOWN != 0
        {
            return Err(libc::EINVAL);
        }
        let watchers = things.watchers_mut(key).ok_or(libc::EINVAL)?;
        let place = watchers.iter().position(|&(other, _)| other == set);
        let at = match (control, place) {
            (Control::Add(..), Some(_)) => return Err(libc::EEXIST),
            (Control::Modify(..) | Control::Delete, None) => return Err(libc::ENOENT),
            (Control::Delete, Some(place)) => {
                let (_, at) = watchers.swap_remove(place);
                if let Some(set) = things.set_mut(set) {
                    set.forget(at);
                }
                return Ok(());
            }
            (Control::Add(events, data), None) => {
                let watch = Watch {
                    key,
                    events,
                    data,
                    queued: false,
                    spent: false,
                };
                let Some(found) = things.set_mut(set) else {
                    return Err(libc::EINVAL);
                };
                let at = match found.vacant.pop() {
                    Some(at) => {
                        found.watches[at as usize] = Some(watch);
                        at
                    }
                    None => {
                        found.watches.push(Some(watch));
                        found.watches.len() as u32 - 1
                    }
                };
                if let Some(watchers) = things.watchers_mut(key) {
                    watchers.push((set, at));
                }
                at
            }
            (Control::Modify(events, data), Some(place)) => {
                let (_, at) = watchers[place];
                if let Some(set) = things.set_mut(set)
                    && let Some(Some(watch)) = set.watches.get_mut(at as usize)
                {
                    (watch.events, watch.data, watch.spent) = (events, data, false);
                }
                at
            }
        };
        // What is there already is told, edge or level.
        if let Control::Add(events, _) | Control::Modify(events, _) = control
            && self.ready(&mut things, key).bits() & (events | ALWAYS) != 0
            && let Some(set) = things.set_mut(set)
        {
            set.enqueue(at);
        }
        Ok(())
    }

    /// Takes what has happened, as many events as `room` takes.
    fn collect(&self, key: u32, room: usize, mut tell: impl FnMut(Event)) -> Outcome<usize> {
        let mut things = self.things.borrow_mut();
        let mut told = 0;
        let mut left = things.set_mut(key).ok_or(libc::EINVAL)?.queue.len();
        while told < room && left > 0 {
            left -= 1;
            let set = things.set_mut(key).ok_or(libc::EINVAL)?;
            let Some(at) = set.queue.pop_front() else {
                break;
            };
            let Some(watch) = &mut set.watches[at as usize] else {
                set.vacant.push(at);
                continue;
            };
            watch.queued = false;
            let (target, wanted, data, spent) = (watch.key, watch.events, watch.data, watch.spent);
            let events = self.ready(&mut things, target).bits() & (wanted | ALWAYS);
            if events == 0 || spent {
                continue;
            }
            tell(Event { events, data });
            told += 1;
            let set = things.set_mut(key).ok_or(libc::EINVAL)?;
            if wanted & EPOLLONESHOT as u32 != 0 {
                if let Some(Some(watch)) = set.watches.get_mut(at as usize) {
                    watch.spent = true;
                }
            } else if wanted & EPOLLET as u32 == 0 {
                // It is looked at again the next time, and told if it still is ready.
                set.enqueue(at);
            }
        }
        Ok(told)
    }

    /// `epoll_wait`: does the stack's work, and waits until something has happened, for so many
    /// milliseconds; below 0 for ever.
    ///
    /// # Errors
    /// `EINVAL` for what is no set and for no room, `EINTR`.
    pub fn wait_for(
        &self,
        key: u32,
        room: usize,
        timeout_ms: c_int,
        mut tell: impl FnMut(Event),
    ) -> Outcome<usize> {
        match self.things.borrow().get(key) {
            None => return Err(libc::EBADF),
            Some(Thing::Set(_)) if room > 0 => {}
            Some(_) => return Err(libc::EINVAL),
        }
        // What the program has written since the last time leaves, and what has come is seen.
        self.work();
        let mut until = None;
        loop {
            let told = self.collect(key, room, &mut tell)?;
            if told > 0 || timeout_ms == 0 {
                return Ok(told);
            }
            if timeout_ms > 0 && until.is_none() {
                until = self.until(timeout_ms as u64 * 1000);
            }
            match self.wait(until) {
                Err(libc::EAGAIN) => return self.collect(key, room, tell),
                outcome => outcome?,
            }
        }
    }
}

/// What of a socket's state is new to those who wait for it.
fn news(view: &View, known: &mut Known) -> Poll {
    let bits = view.poll();
    let mut news = bits.difference(known.bits);
    // An error that was taken may be followed by another.
    news |= bits & Poll::ERR;
    // The end of a stream is to be read, as bytes are, and is not counted among them.
    if view.received > known.received
        || news.contains(Poll::RDHUP)
        || view.flags.contains(ViewFlags::LISTENING)
    {
        news |= bits & Poll::IN;
    }
    if known.starved && bits.contains(Poll::OUT) {
        known.starved = false;
        news |= Poll::OUT;
    }
    known.bits = bits;
    known.received = view.received;
    news
}
