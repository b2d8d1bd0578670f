//! Errors about datagrams that were sent, from ICMP.

use std::net::{IpAddr, SocketAddr};

use millrace_tcp::Instant;

use super::socket::{Datagram, Report};
use super::state::Udp;
use crate::base::Base;
use crate::connection_table::Tuple;
use crate::error::{Error, errno};
use crate::memory::Memory;
use crate::socket::{Kind, SocketId};

/// Paths of less nobody is believed to have (Linux's `min_pmtu`; RFC 8200 5).
const LEAST_V4: u16 = 552;
const LEAST_V6: u16 = 1280;
/// Errors that wait to be read from one socket; further ones are dropped.
const REPORTS_MAX: usize = 16;
/// Bytes of a datagram that a report quotes at most.
pub(super) const QUOTE_MAX: usize = 416;

/// An ICMP error about a datagram.
pub(crate) struct Failure<'a> {
    pub errno: i32,
    /// Whether it is reported also to those who did not ask for errors (RFC 1122 4.1.3.3).
    pub hard: bool,
    pub kind: u8,
    pub code: u8,
    pub info: u32,
    pub offender: IpAddr,
    /// The part of the payload that the error quotes.
    pub payload: &'a [u8],
}

impl Udp {
    /// Gives an error to the socket that sent the datagram from `tuple.local` to `tuple.remote`.
    pub(crate) fn datagram_error<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        tuple: &Tuple,
        failure: &Failure<'_>,
        now: Instant,
    ) {
        let found = self.find_datagram(base, tuple);
        let home = self.shard_of_datagram(base, found);
        let Some(index) = found.filter(|_| home.is_none()) else {
            if !base.is_datagram_misrouted(home, tuple) {
                base.env.counters.icmp_errors_unmatched += 1;
            }
            return;
        };
        base.env.counters.icmp_errors_in += 1;
        if failure.errno == errno::EMSGSIZE {
            let remote = tuple.remote_ip();
            let least = if remote.is_ipv4() { LEAST_V4 } else { LEAST_V6 };
            let mtu = failure.info.min(u32::from(u16::MAX)) as u16;
            let learned = base.network.path_mtus.learn(remote, mtu.max(least), now);
            base.env.counters.paths_refused += u64::from(!learned);
            // IP_MTU tells.
            base.mark_changed(index);
        }
        self.fail_datagram(base, index, tuple, failure);
    }

    /// A datagram of the socket at `index` has failed.
    pub(crate) fn fail_datagram<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        index: u32,
        tuple: &Tuple,
        failure: &Failure<'_>,
    ) {
        let Some(Kind::Datagram(datagram)) =
            base.sockets.get_mut(index).map(|socket| &mut socket.kind)
        else {
            return;
        };
        if datagram.note(tuple.remote(), failure) {
            base.mark_changed(index);
        }
    }

    /// The oldest error that waits, with its particulars (`MSG_ERRQUEUE`); once.
    pub(crate) fn take_report<M: Memory>(
        &mut self,
        base: &mut Base<M>,
        id: SocketId,
    ) -> Result<Report, Error> {
        let index = base.check(id)?;
        let socket = base.sockets.get_mut(index).ok_or(Error::NoSocket)?;
        let Kind::Datagram(datagram) = &mut socket.kind else {
            return Err(Error::NotSupported);
        };
        let report = datagram.reports.pop_front().ok_or(Error::WouldBlock)?;
        // Linux: the error that is pending is that of the oldest one left.
        datagram.error = datagram.reports.front().map_or(0, |next| next.errno);
        base.mark_changed(index);
        Ok(report)
    }
}

impl Datagram {
    /// Takes note of a failure, if the program wants to know; whether it does. (Linux's
    /// `__udp4_lib_err`.)
    fn note(&mut self, to: SocketAddr, failure: &Failure<'_>) -> bool {
        let asked = match to {
            SocketAddr::V4(_) => self.settings.errors_v4,
            SocketAddr::V6(_) => self.settings.errors_v6,
        };
        if !asked && (self.remote.is_none() || !failure.hard) {
            return false;
        }
        // Larger datagrams go on in fragments.
        if !asked && failure.errno == errno::EMSGSIZE {
            return false;
        }
        if asked && self.reports.len() < REPORTS_MAX {
            self.reports.push_back(Report {
                errno: failure.errno,
                kind: failure.kind,
                code: failure.code,
                info: failure.info,
                offender: failure.offender,
                to,
                payload: failure.payload[..failure.payload.len().min(QUOTE_MAX)].into(),
            });
        }
        self.error = failure.errno;
        true
    }
}
