//! RST, SYN and other blind segments (RFC 5961; group A of the hostile inputs).

use millrace_tcp::{Config, Duration, Error, Events, Settings, State};
use millrace_wire::tcp::Flags;

use crate::support::script::base_config;
use crate::support::{Pair, Script, pair};

#[test]
fn a1_rst_at_rcv_nxt_resets() {
    let mut script = Script::established();
    script.inject("P. 1:101(100) ack 1");
    script.inject("R 101:101(0)");
    assert_eq!(script.state(), State::Closed);
    assert_eq!(script.connection.error(), Some(Error::ConnectionReset));
    assert_eq!(
        script.events(),
        Events::READABLE | Events::RESET | Events::CLOSED
    );
    script.silent();
    assert_eq!(script.connection.deadline(), None);
}

#[test]
fn a2_rst_in_window_is_challenged_once() {
    let mut script = Script::established();
    script.inject("R 2:2(0)");
    script.expect(". 1:1(0) ack 1");
    script.silent();
    script.inject("R 3000:3000(0)");
    script.silent();
    assert_eq!(script.state(), State::Established);
    // The peer that really lost its state answers with the right number.
    script.inject("R 1:1(0)");
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn a3_rst_out_of_window_is_dropped() {
    let mut script = Script::established();
    script.inject("R 70000:70000(0)");
    script.inject("R -5:-5(0)");
    script.silent();
    assert_eq!(script.state(), State::Established);
}

#[test]
fn a4_syn_in_established_is_challenged() {
    for syn in [
        "S 0:0(0)",
        "S 1:1(0)",
        "S 500:500(0)",
        "S 90000:90000(0)",
        "S. 0:0(0) ack 1",
        "S. 1:1(0) ack 1",
    ] {
        let mut script = Script::established();
        script.inject(syn);
        script.expect(". 1:1(0) ack 1");
        script.silent();
        assert_eq!(script.state(), State::Established, "{syn}");
    }
}

#[test]
fn a5_data_with_an_impossible_ack_is_not_delivered() {
    let mut script = Script::established();
    script.inject("P. 1:101(100) ack 2");
    script.expect(". 1:1(0) ack 1");
    script.pass(Duration::from_secs(1));
    script.inject("P. 1:101(100) ack -60001");
    script.expect(". 1:1(0) ack 1");
    assert_eq!(script.connection.received(), 0);
    // An old acknowledgement within the greatest window is the network's doing.
    script.inject("P. 1:101(100) ack -59999");
    assert_eq!(script.connection.received(), 100);
}

#[test]
fn a6_challenges_are_bounded_per_connection() {
    let mut script = Script::established();
    let mut answers = 0;
    for i in 0..10_000u32 {
        script.pass(Duration::from_micros(100));
        script.inject(if i % 2 == 0 { "R 2:2(0)" } else { "S 1:1(0)" });
        answers += script.drain().len();
    }
    assert!(
        (1..=3).contains(&answers),
        "{answers} challenges in a second"
    );
}

#[test]
fn a7_rst_in_syn_sent_needs_the_right_ack() {
    for (rst, refused) in [
        ("R 0:0(0)", false),
        ("R. 0:0(0) ack 2", false),
        ("R. 0:0(0) ack 0", false),
        ("R. 0:0(0) ack 1", true),
    ] {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        script.inject(rst);
        script.silent();
        assert_eq!(script.state() == State::Closed, refused, "{rst}");
        if refused {
            assert_eq!(script.connection.error(), Some(Error::ConnectionRefused));
            assert_eq!(script.events(), Events::REFUSED | Events::CLOSED);
        }
    }
}

#[test]
fn a8_wrong_ack_in_syn_sent_is_refused() {
    for segment in ["S. 0:0(0) ack 0", "S. 0:0(0) ack 2", ". 0:0(0) ack 1000"] {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        script.inject(segment);
        let reset = script.poll().expect("a reset");
        assert_eq!(reset.flags, Flags::RST, "{segment}");
        script.silent();
        assert_eq!(script.state(), State::SynSent);
    }
    // The handshake still works.
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.inject("S. 0:0(0) ack 77");
    script.expect("R 77:77(0)");
    script.inject("S. 0:0(0) ack 1 mss 1000");
    script.expect(". 1:1(0) ack 1");
}

#[test]
fn a10_rst_is_never_answered_with_rst() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.inject("R. 0:0(0) ack 9");
    script.inject("SR. 0:0(0) ack 9");
    script.silent();
    assert_eq!(script.state(), State::SynSent);
}

/// Every combination of flags, at and around the expected numbers, in every state: no panic,
/// nothing delivered without ACK.
/// A connection in this state.
fn in_state(state: State) -> Script {
    if matches!(state, State::SynSent | State::SynReceived) {
        let mut script = Script::connecting(base_config(), Settings::default());
        script.expect("S 0:0(0)");
        if state == State::SynReceived {
            script.inject("S 0:0(0) mss 1000");
            script.expect("S. 0:0(0) ack 1");
        }
        return script;
    }
    let mut script = Script::established();
    match state {
        State::Established => {}
        State::FinWait1 => {
            script.connection.shutdown_write(script.now);
            script.expect("F. 1:1(0) ack 1");
        }
        State::FinWait2 => {
            script.connection.shutdown_write(script.now);
            script.expect("F. 1:1(0) ack 1");
            script.inject(". 1:1(0) ack 2");
        }
        State::CloseWait => {
            script.inject("F. 1:1(0) ack 1");
            script.expect(". 1:1(0) ack 2");
        }
        State::Closing => {
            script.connection.shutdown_write(script.now);
            script.expect("F. 1:1(0) ack 1");
            script.inject("F. 1:1(0) ack 1");
            script.expect(". 2:2(0) ack 2");
        }
        State::LastAck => {
            script.inject("F. 1:1(0) ack 1");
            script.connection.shutdown_write(script.now);
            script.expect("F. 1:1(0) ack 2");
        }
        other => unreachable!("{other:?} is not prepared"),
    }
    script
}

/// Control bits in the notation of the scripts.
fn letters(flags: Flags) -> String {
    let letters: String = [
        (Flags::SYN, 'S'),
        (Flags::FIN, 'F'),
        (Flags::RST, 'R'),
        (Flags::PSH, 'P'),
        (Flags::URG, 'U'),
    ]
    .into_iter()
    .chain([(Flags::ECE, 'E'), (Flags::CWR, 'C'), (Flags::ACK, '.')])
    .filter(|(flag, _)| flags.contains(*flag))
    .map(|(_, letter)| letter)
    .collect();
    if letters.is_empty() {
        "-".into()
    } else {
        letters
    }
}

/// Injects one segment into a connection in this state, and checks that it does no harm.
fn inject_in(state: State, flags: Flags, start: i64, len: i64, ack: i64) {
    let mut script = in_state(state);
    assert_eq!(script.state(), state);
    let before = script.connection.received();
    let letters = letters(flags);
    script.inject(&format!(
        "{letters} {start}:{}({len}) ack {ack}",
        start + len
    ));
    let answers = script.drain();
    assert!(
        answers.len() <= 2,
        "{letters} {start} in {state:?}: {answers:?}"
    );
    if !flags.contains(Flags::ACK) {
        let received = script.connection.received();
        assert_eq!(received, before, "{letters} in {state:?}");
    }
    if flags.contains(Flags::RST) {
        assert!(
            answers.iter().all(|answer| !answer.starts_with('R')),
            "{letters} in {state:?}: {answers:?}"
        );
    } else if !matches!(state, State::SynSent | State::SynReceived) {
        let gone = script.state() == State::Closed;
        assert!(
            !gone || (state == State::LastAck && ack == 2),
            "{letters} {start} {ack} in {state:?}"
        );
    }
}

#[test]
fn a11_all_flags_in_every_state() {
    let states = [
        State::SynSent,
        State::SynReceived,
        State::Established,
        State::FinWait1,
        State::FinWait2,
        State::CloseWait,
        State::Closing,
        State::LastAck,
    ];
    for state in states {
        for bits in 0..=255u8 {
            let flags = Flags::from_bits_retain(bits);
            for start in [-1i64, 0, 1, 2, 100, 70_000] {
                for len in [0i64, 10] {
                    for ack in [-70_000i64, 0, 1, 2, 3, 1_000] {
                        inject_in(state, flags, start, len, ack);
                    }
                }
            }
        }
    }
}

#[test]
fn rfc5961_3_rst_in_syn_received_after_a_simultaneous_open_refuses() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.inject("S 0:0(0) mss 1000");
    script.expect("S. 0:0(0) ack 1");
    script.inject("R 1:1(0)");
    assert_eq!(script.connection.error(), Some(Error::ConnectionRefused));
}

#[test]
fn rfc9293_3_10_7_4_wrong_ack_in_syn_received_is_refused() {
    let mut script = Script::connecting(base_config(), Settings::default());
    script.expect("S 0:0(0)");
    script.inject("S 0:0(0) mss 1000");
    script.expect("S. 0:0(0) ack 1");
    script.inject(". 1:1(0) ack 9");
    script.expect("R 9:9(0)");
    assert_eq!(script.state(), State::SynReceived);
}

#[test]
fn rst_after_fin_with_the_number_of_the_fin_is_believed() {
    let mut script = Script::established();
    script.inject("F. 1:1(0) ack 1");
    script.expect(". 1:1(0) ack 2");
    script.inject("R 1:1(0)");
    assert_eq!(script.state(), State::Closed);
}

#[test]
fn restarted_peer_is_found_out() {
    // A peer that lost its state and connects again on the same ports gets a challenge, answers it
    // with RST, and then succeeds.
    let mut script = Script::established();
    script.inject("S 33333:33333(0) mss 1000");
    script.expect(". 1:1(0) ack 1");
    script.inject("R 1:1(0)");
    assert_eq!(script.connection.error(), Some(Error::ConnectionReset));
}

#[test]
fn aborted_connection_sends_rst() {
    let mut pair = Pair::with_defaults();
    pair.connect();
    pair.write(pair::CLIENT, 100);
    pair.run_for(Duration::from_millis(100));
    let mut script = Script::active(
        Config {
            timestamps: true,
            ..base_config()
        },
        Settings::default(),
        "mss 1000",
    );
    script.write(100);
    script.expect("P. 1:101(100) ack 1");
    script.connection.abort();
    script.expect("R. 101:101(0) ack 1");
    script.silent();
    assert_eq!(script.connection.error(), Some(Error::ConnectionAborted));
    assert_eq!(script.state(), State::Closed);
}
