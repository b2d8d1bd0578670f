//! The TCP state of a shard, without its sockets.

use millrace_tcp::{HalfOpenVerdict, Instant, State};

use crate::base::Base;
use crate::config::Config;
use crate::connection_table::{MOST, Table, Tuple};
use crate::memory::Memory;
use crate::memory::shares::Shares;
use crate::network::reply_queue::Reply;
use crate::rate_limit::RateLimit;
use crate::secrets::Secrets;
use crate::socket::local_ports::Ports;
use crate::socket::marks::Marks;
use crate::socket::{Kind, Socket};
use crate::steering::Flow;
use crate::tcp::autotuning::ActiveSenders;
use crate::tcp::fast_open_cookies::FastOpenCookies;
use crate::tcp::ready::Ready;
use crate::tcp::stalled::Stalled;
use crate::tcp::syn_received::HalfOpenTable;
use crate::tcp::time_wait::TimeWaitTable;
use crate::timer_wheel::TimerWheel;

/// An owner may have twice as many connections that no program holds any more as are left for all.
const ORPHANS_GENEROSITY: u32 = 2;

/// After so many time-outs in a row it may be the neighbour that has changed.
const DOUBTFUL_TIMEOUTS: u8 = 2;

/// The tables of connections and listeners, and the order in which connections are served.
pub(crate) struct Tcp {
    /// Connections by their ends.
    pub(super) table: Table,
    pub(super) ports: Ports,
    /// The listener at every address and port that nothing else is at.
    pub(super) catch_all_listener: Option<u32>,
    pub(super) half_open: HalfOpenTable,
    pub(super) time_wait: TimeWaitTable,
    pub(super) cookies: FastOpenCookies,
    /// Timers of connections, by socket index.
    pub(super) wheel: TimerWheel,
    pub(super) reset_limit: RateLimit,
    pub(super) ready: Ready,
    pub(super) active_senders: ActiveSenders,
    /// The segment that a full port did not take.
    pub(super) stalled: Option<Stalled>,
    /// Connections that no program holds any more.
    pub(super) orphans: Shares,
}

impl Tcp {
    pub fn new(config: &Config, secrets: &mut Secrets, now: Instant) -> Tcp {
        let limits = &config.limits;
        Tcp {
            table: Table::new(secrets.table),
            ports: Ports::new(config.ephemeral.as_deref(), secrets, limits.shared),
            catch_all_listener: None,
            half_open: HalfOpenTable::new(limits.half_open.min(MOST), limits.shared, now),
            time_wait: TimeWaitTable::new(limits.time_wait.min(MOST)),
            cookies: FastOpenCookies::new(limits.cookies),
            wheel: TimerWheel::new(now),
            reset_limit: RateLimit::new(limits.resets_per_second),
            ready: Ready::default(),
            active_senders: ActiveSenders::default(),
            stalled: None,
            orphans: Shares::new(limits.orphans, limits.shared, ORPHANS_GENEROSITY),
        }
    }

    /// Connections by their ends.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Local ports.
    pub fn ports(&self) -> &Ports {
        &self.ports
    }

    /// Local ports, to change what is registered there.
    pub fn ports_mut(&mut self) -> &mut Ports {
        &mut self.ports
    }

    /// Connections in SYN-RECEIVED.
    pub fn half_open(&self) -> &HalfOpenTable {
        &self.half_open
    }

    /// Connections in TIME-WAIT.
    pub fn time_wait(&self) -> &TimeWaitTable {
        &self.time_wait
    }

    /// Numbers of connections that no program holds, and of timers.
    pub fn orphans_and_timers(&self) -> (usize, usize) {
        (self.orphans.used() as usize, self.wheel.len())
    }

    /// How many connections have had something to send of late.
    #[inline]
    pub fn active_senders(&self) -> u32 {
        self.active_senders.count()
    }

    /// When [`Tcp::advance`] has something to do.
    #[inline]
    pub fn deadline(&self) -> Instant {
        let timers = [
            self.wheel.deadline(),
            self.half_open.deadline(),
            self.time_wait.deadline(),
        ];
        timers.into_iter().fold(Instant::NEVER, |earliest, timer| {
            earliest.min(timer.unwrap_or(Instant::NEVER))
        })
    }

    /// Whether connections may have something to send.
    #[inline]
    pub fn has_output(&self) -> bool {
        !self.ready.is_empty() || self.stalled.is_some()
    }

    /// Whether a segment waits for room in the port.
    #[inline]
    pub fn is_stalled(&self) -> bool {
        self.stalled.is_some()
    }

    /// The connection that is to be served next.
    #[inline]
    pub fn pop_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }
}

impl Tcp {
    /// Runs the timers that are due at `now`.
    pub(crate) fn advance<M: Memory>(&mut self, base: &mut Base<M>, now: Instant) {
        while let Some(index) = self.wheel.pop(now) {
            let Some(Socket {
                owner,
                kind: Kind::Stream(stream),
                ..
            }) = base.sockets.get_mut(index)
            else {
                continue;
            };
            stream.armed = Instant::NEVER;
            match stream.connection.deadline() {
                Some(deadline) if deadline <= now => {
                    stream.connection.on_timer(&base.env.config.tcp, now);
                    let opening = stream.connection.state() == State::SynSent;
                    if stream.connection.timeouts_in_a_row() >= DOUBTFUL_TIMEOUTS {
                        base.network.neighbours.suspect(stream.hop, now);
                    }
                    let starved = base.send_memory.is_short(*owner) && stream.send.len() > 0;
                    if starved {
                        self.starve_orphan(base, index);
                    }
                    if opening {
                        self.note_fast_open(base, index, now);
                    }
                    self.apply_state_change(base, index);
                }
                // The deadline has moved since the timer was armed.
                _ => stream.arm(&mut self.wheel, index),
            }
        }
        while let Some(index) = self.half_open.pop_due(now) {
            let Some(pending) = self.half_open.get_mut(index) else {
                continue;
            };
            if pending.asked {
                // Nobody has said whether it is wanted.
                base.env.counters.half_open_expired += 1;
                self.forget_half_open(base, index);
                continue;
            }
            let tuple = pending.tuple;
            match pending.state.on_timer(&base.env.config.tcp, now) {
                HalfOpenVerdict::Reply(outgoing) => {
                    base.network
                        .reply(&mut base.env.counters, Reply::Segment(tuple, outgoing));
                    self.half_open.arm(index);
                }
                HalfOpenVerdict::Drop => {
                    base.env.counters.half_open_expired += 1;
                    self.forget_half_open(base, index);
                }
                HalfOpenVerdict::Ignore | HalfOpenVerdict::Establish => self.half_open.arm(index),
            }
        }
        while let Some(waiting) = self.time_wait.pop(now) {
            self.forget_tuple(base, &waiting.tuple);
            self.ports
                .remove_connection(waiting.tuple.local(), waiting.reuse);
        }
    }

    /// The connection at `tuple` is over.
    pub(crate) fn forget_tuple<M: Memory>(&mut self, base: &mut Base<M>, tuple: &Tuple) {
        self.table.remove(tuple);
        let steer = base.env.config.steer.as_ref();
        base.steering.note_over(steer, Flow::stream(*tuple));
    }

    /// The socket at `index` may have something to send.
    pub(crate) fn mark_ready<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        if let Some(socket) = base.sockets.get_mut(index) {
            self.ready.add(index, socket);
        }
    }

    /// Forgets a connection in SYN-RECEIVED.
    pub(crate) fn forget_half_open<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        let Some(pending) = self.half_open.remove(index) else {
            return;
        };
        self.forget_tuple(base, &pending.tuple);
        if let Some(listener) = base
            .sockets
            .get_mut(pending.listener)
            .and_then(Socket::listener_mut)
        {
            listener.half_open -= 1;
            // The program may wait for this one.
            if listener.asks {
                base.mark_changed(pending.listener);
            }
        }
    }

    /// Resets the connection at `index` if no program holds it: memory is short, and it makes no
    /// progress (Linux's `tcp_out_of_resources`).
    fn starve_orphan<M: Memory>(&mut self, base: &mut Base<M>, index: u32) {
        let Some(socket) = base.sockets.get_mut(index) else {
            return;
        };
        let (owner, orphan) = (socket.owner, socket.marks.contains(Marks::ORPHAN));
        if let Some(stream) = socket.stream_mut().filter(|_| orphan) {
            stream.connection.abort();
            // At once, so that no more of them go than must.
            stream.send.free(&mut base.send_memory, owner);
            base.env.counters.orphans_starved += 1;
        }
    }
}
