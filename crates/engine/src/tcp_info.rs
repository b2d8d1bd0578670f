//! Linux's `struct tcp_info`, filled from what a connection knows.

use millrace_tcp::{Info, Phase, State};

/// Linux's number of a state (include/net/tcp_states.h).
pub(crate) fn state_number(state: State) -> u8 {
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

/// The structure of a socket without a connection: a listener with so many waiting and this backlog, or none.
pub(crate) fn unconnected(queue: Option<(u64, u32)>) -> Vec<u8> {
    // SAFETY: tcp_info is integers only.
    let mut out: libc::tcp_info = unsafe { std::mem::zeroed() };
    out.tcpi_state = CLOSE;
    if let Some((waiting, backlog)) = queue {
        out.tcpi_state = LISTEN;
        out.tcpi_unacked = waiting as u32;
        out.tcpi_sacked = backlog;
    }
    bytes(&out)
}

/// Fills the structure, of a connection whose path takes packets of `path_mtu` bytes; what we do not know stays 0.
pub(crate) fn encode(info: &Info, path_mtu: u16) -> Vec<u8> {
    // SAFETY: tcp_info is integers only.
    let mut out: libc::tcp_info = unsafe { std::mem::zeroed() };
    out.tcpi_state = state_number(info.state);
    out.tcpi_ca_state = match info.phase {
        Phase::Open => 0,
        Phase::Disorder => 1,
        Phase::Reduced => 2,
        Phase::Recovery => 3,
        Phase::Loss => 4,
    };
    out.tcpi_retransmits = info.backoff;
    out.tcpi_backoff = info.backoff;
    out.tcpi_options = if info.timestamps { TIMESTAMPS } else { 0 }
        | if info.selective_ack { SACK } else { 0 }
        | if info.send_scale.is_some() { WSCALE } else { 0 }
        | if info.ecn { ECN } else { 0 }
        | if info.syn_data { SYN_DATA } else { 0 };
    out.tcpi_snd_rcv_wscale =
        info.send_scale.unwrap_or(0) & 15 | (info.receive_scale.unwrap_or(0) & 15) << 4;
    out.tcpi_rto = info.rto_us;
    out.tcpi_snd_mss = u32::from(info.send_mss);
    out.tcpi_rcv_mss = u32::from(info.receive_mss);
    out.tcpi_advmss = u32::from(info.advertised_mss);
    let segments = |bytes: u32| bytes.div_ceil(u32::from(info.send_mss.max(1)));
    out.tcpi_unacked = segments(info.in_flight);
    out.tcpi_sacked = segments(info.sacked);
    out.tcpi_lost = segments(info.lost);
    out.tcpi_retrans = segments(info.retransmitted);
    out.tcpi_last_data_sent = info.last_sent_ms;
    out.tcpi_last_data_recv = info.last_received_ms;
    out.tcpi_last_ack_recv = info.last_received_ms;
    out.tcpi_pmtu = u32::from(path_mtu);
    out.tcpi_rtt = info.srtt_us;
    out.tcpi_rttvar = info.rttvar_us;
    out.tcpi_snd_ssthresh = if info.ssthresh == u32::MAX {
        i32::MAX as u32
    } else {
        segments(info.ssthresh)
    };
    out.tcpi_snd_cwnd = segments(info.cwnd);
    out.tcpi_rcv_space = info.receive_window;
    out.tcpi_total_retrans = info.segments_retransmitted;
    bytes(&out)
}

fn bytes(info: &libc::tcp_info) -> Vec<u8> {
    // SAFETY: a structure of integers read as bytes; its padding is zeroed by those who make it.
    unsafe {
        std::slice::from_raw_parts(
            std::ptr::from_ref(info).cast::<u8>(),
            size_of::<libc::tcp_info>(),
        )
    }
    .to_vec()
}
