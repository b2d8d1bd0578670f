//! TCP Fast Open (RFC 7413): payload on the SYNs of clients, and on our own.

use millrace_tcp::{HalfOpen, Instant};
use millrace_wire::tcp::{Cookie, Segment};

use crate::base::Base;
use crate::connection_table::Tuple;
use crate::error::Error;
use crate::memory::Memory;
use crate::secrets::fast_open_cookie;
use crate::socket::receive_ring::Sink;
use crate::socket::{Kind, Marks, Socket, SocketId};
use crate::tcp::state::Tcp;

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

impl Tcp {
    /// A connection that has just begun, and of which nothing was sent yet, is to open fast.
    pub(crate) fn open_fast<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
        now: Instant,
    ) -> Result<u16, Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let without = socket.options.no_cookie;
        let stream = socket.stream_mut().ok_or(Error::NotConnected)?;
        let remote = stream.endpoints.tuple().remote_ip();
        let send_mss = stream.connection.info(now).send_mss;
        let (cookie, room) = self.cookies.terms(remote, send_mss, without, now);
        stream.connection.open_fast(cookie, room);
        self.ready.add(index, socket);
        Ok(room)
    }

    /// How a listener with Fast Open answers a SYN (RFC 7413 4.2.2).
    pub(crate) fn judge_fast_open<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        tuple: &Tuple,
        syn: &Segment<'_>,
    ) -> Verdict {
        let Some(Socket {
            options,
            kind: Kind::Listener(listener),
            ..
        }) = base.sockets.get(index)
        else {
            return Verdict::Plain;
        };
        let without = options.no_cookie;
        let offered = syn.options.fast_open();
        let keys = listener.fast_open_keys.as_deref();
        let primary = keys.map_or(base.env.secrets.fast_open_key(), |keys| &keys.primary);
        let own = fast_open_cookie(primary, tuple);
        let is = |cookie| offered.is_some_and(|offered| offered.as_bytes() == cookie);
        let old = keys.and_then(|keys| keys.backup.as_ref());
        let old = old.is_some_and(|key| is(fast_open_cookie(key, tuple)));
        if is(own) || old || without && !syn.payload.is_empty() {
            if listener.early < u32::from(options.fast_open) {
                return Verdict::Early(Cookie::new(&own).filter(|_| old));
            }
            base.env.counters.fast_opens_limited += 1;
            return Verdict::Plain;
        }
        let Some(offered) = offered else {
            return Verdict::Plain;
        };
        base.env.counters.fast_opens_refused += u64::from(offered.is_some());
        base.env.counters.fast_open_cookies_out += 1;
        Cookie::new(&own).map_or(Verdict::Plain, Verdict::Give)
    }

    /// Opens a connection for a SYN that brought a good cookie, with its payload, and gives its
    /// host `another`. False when there is no room for it.
    pub(crate) fn open_early<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        listener: u32,
        (tuple, syn): (&Tuple, &Segment<'_>),
        state: &HalfOpen,
        another: Option<Cookie>,
        now: Instant,
    ) -> bool {
        let made = self.establish_with(base, listener, *tuple, now, |config, settings| {
            let mut connection = state.open_early(config, settings, now);
            if let Some(another) = another {
                connection.give_cookie(another);
            }
            connection
        });
        let Some(index) = made else {
            return false;
        };
        base.env.counters.fast_opens += 1;
        if let Some(listener) = base
            .sockets
            .get_mut(listener)
            .and_then(Socket::listener_mut)
        {
            listener.early += 1;
        }
        let Some(socket) = base.sockets.get_mut(index) else {
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
                memory: &mut base.memory,
                owner: *owner,
                open: true,
                counters: &mut base.env.counters,
            };
            stream
                .connection
                .take_early(&base.env.config.tcp, syn, &mut sink, now);
        }
        self.apply_state_change(base, index);
        true
    }

    /// Something has become of a connection that was opened fast, if it was: its handshake is
    /// complete, it is over, or its SYN was not answered.
    pub(crate) fn note_fast_open<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        now: Instant,
    ) {
        let Some(socket) = base.sockets.get_mut(index) else {
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
        if early && let Some(listener) = base.sockets.get_mut(at).and_then(Socket::listener_mut) {
            listener.early = listener.early.saturating_sub(1);
        }
        let Some(news) = news else {
            return;
        };
        base.env.counters.fast_opens_lost += u64::from(news.lost);
        if !self.cookies.note(remote, &news, mss, now) {
            base.env.counters.fast_open_cookies_refused += 1;
        }
    }
}
