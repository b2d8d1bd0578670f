//! Linux's `struct tcp_info`, as long as the C library has it, filled from what a connection knows.

use millrace_tcp::{Info, Phase, State};

/// Bytes of the structure.
pub const TCP_INFO_LEN: usize = 104;

/// Linux's number of a state (include/net/tcp_states.h).
fn state_number(state: State) -> u8 {
    match state {
        State::Established => 1,
        State::SynSent => 2,
        State::SynReceived => 3,
        State::FinWait1 => 4,
        State::FinWait2 => 5,
        State::TimeWait => 6,
        State::Closed => CLOSE,
        State::CloseWait => 8,
        State::LastAck => 9,
        State::Closing => 11,
    }
}

/// `TCP_CLOSE`, `TCP_LISTEN`.
const CLOSE: u8 = 7;
const LISTEN: u8 = 10;
/// `TCPI_OPT_TIMESTAMPS`, `_SACK`, `_WSCALE`, `_ECN`.
const TIMESTAMPS: u8 = 1;
const SACK: u8 = 2;
const WSCALE: u8 = 4;
const ECN: u8 = 8;
/// `TCPI_OPT_SYN_DATA`.
const SYN_DATA: u8 = 32;

/// The structure; what is not known stays 0.
struct Filled([u8; TCP_INFO_LEN]);

impl Filled {
    /// Sets a field of 32 bits, by where it is.
    fn set(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_ne_bytes());
    }
}

/// Of a socket without a connection: a listener with so many waiting and this backlog, or none.
pub fn unconnected(queue: Option<(u64, u32)>) -> [u8; TCP_INFO_LEN] {
    let mut out = Filled([0; TCP_INFO_LEN]);
    out.0[0] = CLOSE;
    if let Some((waiting, backlog)) = queue {
        out.0[0] = LISTEN;
        out.set(24, waiting as u32);
        out.set(28, backlog);
    }
    out.0
}

/// Of a connection whose path takes packets of `path_mtu` bytes.
pub fn connected(info: &Info, path_mtu: u16) -> [u8; TCP_INFO_LEN] {
    let mut out = Filled([0; TCP_INFO_LEN]);
    // tcpi_state, _ca_state, _retransmits, _probes, _backoff, _options, _snd_wscale and _rcv_wscale
    out.0[..7].copy_from_slice(&[
        state_number(info.state),
        match info.phase {
            Phase::Open => 0,
            Phase::Disorder => 1,
            Phase::Reduced => 2,
            Phase::Recovery => 3,
            Phase::Loss => 4,
        },
        info.backoff,
        0,
        info.backoff,
        if info.timestamps { TIMESTAMPS } else { 0 }
            | if info.selective_ack { SACK } else { 0 }
            | if info.send_scale.is_some() { WSCALE } else { 0 }
            | if info.ecn { ECN } else { 0 }
            | if info.syn_data { SYN_DATA } else { 0 },
        info.send_scale.unwrap_or(0) & 15 | (info.receive_scale.unwrap_or(0) & 15) << 4,
    ]);
    let segments = |bytes: u32| bytes.div_ceil(u32::from(info.send_mss.max(1)));
    let ssthresh = match info.ssthresh {
        u32::MAX => i32::MAX as u32,
        bytes => segments(bytes),
    };
    for (at, value) in [
        // _rto, _snd_mss, _rcv_mss
        (8, info.rto_us),
        (16, info.send_mss.into()),
        (20, info.receive_mss.into()),
        // _unacked, _sacked, _lost, _retrans
        (24, segments(info.in_flight)),
        (28, segments(info.sacked)),
        (32, segments(info.lost)),
        (36, segments(info.retransmitted)),
        // _last_data_sent, _last_data_recv, _last_ack_recv
        (44, info.last_sent_ms),
        (52, info.last_received_ms),
        (56, info.last_received_ms),
        // _pmtu, _rtt, _rttvar, _snd_ssthresh, _snd_cwnd, _advmss
        (60, path_mtu.into()),
        (68, info.srtt_us),
        (72, info.rttvar_us),
        (76, ssthresh),
        (80, segments(info.cwnd)),
        (84, info.advertised_mss.into()),
        // _rcv_space, _total_retrans
        (96, info.receive_window),
        (100, info.segments_retransmitted),
    ] {
        out.set(at, value);
    }
    out.0
}
