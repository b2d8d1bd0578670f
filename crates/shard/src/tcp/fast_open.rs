//! TCP Fast Open (RFC 7413): who may put payload on a SYN, of those who come and of those that we
//! go to.

use std::collections::BTreeMap;
use std::net::IpAddr;

use millrace_tcp::{Duration, HalfOpen, Instant};
use millrace_wire::tcp::{Cookie, Segment};

use crate::connection_table::Tuple;
use crate::error::Error;
use crate::memory::Memory;
use crate::secrets::fast_open_cookie;
use crate::shard::Shard;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Marks, Socket, SocketId};

/// Options of a SYN, at most: they count against what a peer takes in one segment when payload
/// comes with them.
const OPTIONS_MAX: u16 = 40;
/// After a SYN with payload was lost no other is sent to that host for this long, twice as long
/// after the next, and so on (Linux's `tcp_fastopen_cookie_check`).
const PAUSE: Duration = Duration::from_secs(60);
/// How often that doubles.
const DOUBLINGS: u32 = 10;

/// The answer to a SYN for a listener with Fast Open.
pub(crate) enum Verdict {
    /// It opens a connection at once; its cookie was made with the key before this one, so it gets
    /// another.
    Early(Option<Cookie>),
    /// It is answered as any, with this cookie for the next time.
    Give(Cookie),
    /// It is answered as any.
    Plain,
}

/// Cookies that other hosts have given us.
pub(crate) struct FastOpenCookies {
    known: BTreeMap<IpAddr, Known>,
    limit: usize,
}

/// A host.
#[derive(Clone, Copy, Default)]
struct Known {
    cookie: Option<Cookie>,
    /// The largest segment that it accepts.
    mss: u16,
    /// SYNs with payload that were lost one after the other, and until when none is sent.
    losses: u32,
    until: Instant,
}

impl FastOpenCookies {
    /// Those of `limit` hosts at most.
    pub fn new(limit: u32) -> FastOpenCookies {
        FastOpenCookies {
            known: BTreeMap::new(),
            limit: limit as usize,
        }
    }

    fn entry(&mut self, host: IpAddr) -> Option<&mut Known> {
        if !self.known.contains_key(&host) && self.known.len() >= self.limit {
            return None;
        }
        Some(self.known.entry(host).or_default())
    }
}

impl<M: Memory> Shard<M> {
    /// A connection that has just begun, and of which nothing was sent yet, is to open fast.
    /// Returns how many bytes its SYN can take along: the SYN then waits for the first of them. 0:
    /// it does not wait, but asks for a cookie for the next time.
    ///
    /// # Errors
    /// [`Error::NoSocket`], [`Error::NotConnected`].
    pub fn open_fast(&mut self, id: SocketId, now: Instant) -> Result<u16, Error> {
        let index = self.base.check(id)?;
        let socket = self.base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let without = socket.options.no_cookie;
        let stream = socket.stream_mut().ok_or(Error::NotConnected)?;
        let known = self
            .cookies
            .known
            .get(&stream.endpoints.tuple().remote_ip())
            .copied();
        let known = known.unwrap_or_default();
        let info = stream.connection.info(now);
        // Of a host that has not said what it takes the least is assumed (RFC 7413 4.1.3).
        let assumed = if stream.endpoints.tuple().remote_ip().is_ipv4() {
            536
        } else {
            1_220
        };
        let mss = if known.mss > 0 { known.mss } else { assumed };
        let room = mss.min(info.send_mss).saturating_sub(OPTIONS_MAX);
        let (cookie, room) = match known.cookie {
            _ if known.until > now => (None, 0),
            _ if without => (None, room),
            Some(cookie) => (Some(cookie), room),
            None => (Some(Cookie::REQUEST), 0),
        };
        stream.connection.open_fast(cookie, room);
        self.ready.add(index, socket);
        Ok(room)
    }

    /// How a listener with Fast Open answers a SYN (RFC 7413 4.2.2).
    pub(crate) fn judge_fast_open(
        &mut self,
        index: u32,
        tuple: &Tuple,
        syn: &Segment<'_>,
    ) -> Verdict {
        let Some(Socket {
            options,
            kind: Kind::Listener(listener),
            ..
        }) = self.base.sockets.get(index)
        else {
            return Verdict::Plain;
        };
        let without = options.no_cookie;
        let offered = syn.options.fast_open();
        let keys = listener.fast_open_keys.as_deref();
        let primary = keys.map_or(self.base.env.secrets.fast_open_key(), |keys| &keys.primary);
        let own = fast_open_cookie(primary, tuple);
        let is = |cookie| offered.is_some_and(|offered| offered.as_bytes() == cookie);
        let old = keys.and_then(|keys| keys.backup.as_ref());
        let old = old.is_some_and(|key| is(fast_open_cookie(key, tuple)));
        if is(own) || old || without && !syn.payload.is_empty() {
            if listener.early < u32::from(options.fast_open) {
                return Verdict::Early(Cookie::new(&own).filter(|_| old));
            }
            self.base.env.counters.fast_opens_limited += 1;
            return Verdict::Plain;
        }
        let Some(offered) = offered else {
            return Verdict::Plain;
        };
        self.base.env.counters.fast_opens_refused += u64::from(offered.is_some());
        self.base.env.counters.fast_open_cookies_out += 1;
        Cookie::new(&own).map_or(Verdict::Plain, Verdict::Give)
    }

    /// Opens a connection for a SYN that brought a good cookie, with its payload, and gives its
    /// host `another`. False when there is no room for it.
    pub(crate) fn open_early(
        &mut self,
        listener: u32,
        (tuple, syn): (&Tuple, &Segment<'_>),
        state: &HalfOpen,
        another: Option<Cookie>,
        now: Instant,
    ) -> bool {
        let made = self.establish_with(listener, *tuple, now, |config, settings| {
            let mut connection = state.open_early(config, settings, now);
            if let Some(another) = another {
                connection.give_cookie(another);
            }
            connection
        });
        let Some(index) = made else {
            return false;
        };
        self.base.env.counters.fast_opens += 1;
        if let Some(listener) = self
            .base
            .sockets
            .get_mut(listener)
            .and_then(Socket::listener_mut)
        {
            listener.early += 1;
        }
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return false;
        };
        // The program may read and write at once.
        socket.marks.insert(Marks::EARLY | Marks::ESTABLISHED);
        if let Socket {
            owner,
            kind: Kind::Stream(stream),
            ..
        } = socket
        {
            let mut sink = Sink {
                ring: &mut stream.recv,
                memory: &mut self.base.memory,
                owner: *owner,
                open: true,
                counters: &mut self.base.env.counters,
            };
            stream
                .connection
                .take_early(&self.base.env.config.tcp, syn, &mut sink, now);
        }
        self.apply_state_change(index);
        true
    }

    /// Something has become of a connection that was opened fast, if it was: its handshake is
    /// complete, it is over, or its SYN was not answered.
    pub(crate) fn note_fast_open(&mut self, index: u32, now: Instant) {
        let Some(socket) = self.base.sockets.get_mut(index) else {
            return;
        };
        let early = socket.marks.contains(Marks::EARLY);
        socket.marks.remove(Marks::EARLY);
        let Some(stream) = socket.stream_mut() else {
            return;
        };
        let (at, remote) = (stream.listener, stream.endpoints.tuple().remote_ip());
        let news = stream.connection.take_fast_open_news();
        let mss = stream.connection.path_max_segment();
        if early
            && let Some(listener) = self.base.sockets.get_mut(at).and_then(Socket::listener_mut)
        {
            listener.early = listener.early.saturating_sub(1);
        }
        let Some(news) = news else {
            return;
        };
        self.base.env.counters.fast_opens_lost += u64::from(news.lost);
        let Some(known) = self.cookies.entry(remote) else {
            self.base.env.counters.fast_open_cookies_refused += 1;
            return;
        };
        if let Some(cookie) = news.cookie {
            (known.cookie, known.mss) = (Some(cookie), mss);
        }
        if news.lost {
            let pause = PAUSE.as_micros() << known.losses.min(DOUBLINGS);
            known.until = now + Duration::from_micros(pause);
            known.losses += 1;
        } else {
            known.losses = 0;
        }
    }
}
