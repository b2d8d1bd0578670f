//! Reading socket options.

use std::num::NonZeroU8;

use millrace_sockopt::{Opt, OptName};

use super::options::seconds_of;
use super::{Kind, Socket};
use crate::config::Config;
use crate::error::Error;
use crate::tcp::segment::HOPS;

/// The segment size that Linux reports for a socket that is not connected.
const DEFAULT_MSS: u16 = 536;

impl Socket {
    /// Reads an option. See [`crate::Shard::option`].
    pub fn option(&self, config: &Config, name: OptName) -> Result<Opt, Error> {
        let options = &self.options;
        let (send, receive) = match &self.kind {
            Kind::Stream(stream) => (stream.send_limit, stream.receive_limit),
            Kind::Datagram(datagram) => (datagram.send_limit, datagram.receive_limit),
            _ => (config.buffers.send_default, config.buffers.receive_default),
        };
        Ok(match name {
            OptName::NoDelay => Opt::NoDelay(options.tcp.nodelay),
            OptName::Cork => Opt::Cork(options.tcp.cork),
            OptName::KeepAlive => Opt::KeepAlive(options.tcp.keepalive.is_some()),
            OptName::KeepIdle => Opt::KeepIdle(options.keepalive.idle_s),
            OptName::KeepInterval => Opt::KeepInterval(options.keepalive.interval_s),
            OptName::KeepCount => Opt::KeepCount(options.keepalive.probes),
            OptName::UserTimeout => Opt::UserTimeout(options.tcp.user_timeout_ms.unwrap_or(0)),
            OptName::MaxSegment => Opt::MaxSegment(match self.stream() {
                Some(stream) => stream.connection.send_mss(),
                None => options.tcp.max_segment.unwrap_or(DEFAULT_MSS),
            }),
            OptName::SynCount => {
                Opt::SynCount(options.tcp.syn_retries.unwrap_or(config.tcp.syn_retries))
            }
            OptName::Linger2 => Opt::Linger2(match options.tcp.fin_wait_s {
                None => config.tcp.fin_wait_timeout.as_secs() as i16,
                Some(0) => -1,
                Some(seconds) => seconds as i16,
            }),
            OptName::Linger => Opt::Linger(options.linger),
            OptName::ReceiveBuffer => {
                Opt::ReceiveBuffer(options.receive_buffer.map_or(receive, |set| set.get() * 2))
            }
            OptName::SendBuffer => {
                Opt::SendBuffer(options.send_buffer.map_or(send, |set| set.get() * 2))
            }
            OptName::ReceiveLowWater => Opt::ReceiveLowWater(options.receive_low.max(1)),
            OptName::Congestion => {
                Opt::Congestion(options.tcp.congestion.unwrap_or(config.tcp.congestion))
            }
            OptName::QuickAck => {
                Opt::QuickAck(self.stream().map_or(!options.tcp.interactive, |stream| {
                    stream.connection.quick_ack()
                }))
            }
            OptName::MaxPacingRate => Opt::MaxPacingRate(options.tcp.max_pacing_rate),
            OptName::DeferAccept => Opt::DeferAccept(seconds_of(options.tcp.defer_accept)),
            OptName::ReuseAddress => Opt::ReuseAddress(options.reuse.address),
            OptName::ReusePort => Opt::ReusePort(options.reuse.port),
            OptName::V6Only => Opt::V6Only(options.v6_only),
            OptName::NotSentLowWater => Opt::NotSentLowWater(options.notsent_low),
            OptName::FastOpen => Opt::FastOpen(options.fast_open),
            OptName::FastOpenNoCookie => Opt::FastOpenNoCookie(options.no_cookie),
            OptName::MtuDiscover => Opt::MtuDiscover(options.discovery[0]),
            OptName::MtuDiscoverV6 => Opt::MtuDiscoverV6(options.discovery[1]),
            OptName::AddressOnly => Opt::AddressOnly(options.address_only),
            OptName::Ttl => Opt::Ttl(options.ttl.map_or(HOPS, NonZeroU8::get)),
            OptName::Tos => Opt::Tos(options.tos),
            OptName::HopLimit => Opt::HopLimit(Some(options.hop_limit.unwrap_or(HOPS))),
            OptName::TrafficClass => Opt::TrafficClass(options.traffic_class),
            name => match &self.kind {
                Kind::Datagram(datagram) => datagram.settings.get(name).ok_or(Error::NoOption)?,
                _ => return Err(Error::NoOption),
            },
        })
    }
}
