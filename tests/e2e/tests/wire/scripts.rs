//! Every state, everything that may be said in it, and where the kernel and we may differ.

use millrace_e2e::wire::{At, Do, Script, Send, Step};
use millrace_wire::tcp::Flags;

/// Where the two differ: names of scripts, in which `*` stands for any end of the state or of what
/// is said; and the reason.
pub const ALLOWED: &[(&[&str], &str)] = &[
    (
        &["SYN-SENT: SYN*"],
        "the kernel puts timestamps on the SYN-ACK of a simultaneous open whose SYN had none (RFC 7323 2.2 has none), and takes a SYN with a FIN \
         for a SYN; for us that is no SYN",
    ),
    (
        &["SYN-RECEIVED: SYN*"],
        "the kernel resets a half-open connection for a SYN that it did not expect; we challenge it (RFC 9293 3.10.7.4, fourth)",
    ),
    (
        &["*: *, no timestamp", "*: data, timestamp of wrong length"],
        "the kernel takes segments without the option; for us they are dropped (RFC 7323 3.2)",
    ),
    (
        &[
            "SYN-RECEIVED: *older timestamp",
            "SYN-RECEIVED: data, later timestamp beyond",
        ],
        "the kernel wants the timestamp of its SYN-ACK echoed, not a later one; and applies PAWS to a RST, which RFC 7323 5.2 exempts",
    ),
    (
        &[
            "CLOSED: *older timestamp",
            "CLOSED: data, same timestamp",
            "CLOSED: data, later timestamp beyond",
            "LISTEN: *older timestamp",
            "LISTEN: data, same timestamp",
            "LISTEN: data, later timestamp beyond",
        ],
        "our reset of what belongs to no connection echoes its timestamp (RFC 7323 5.2), the kernel's has none",
    ),
    (
        &["*: *urgent", "*: data, urgent 0", "*: nothing, urgent"],
        "the urgent byte is taken out of the stream by the shim, above what is tested here",
    ),
    (
        &["*: *at the edge", "*: *over the edge"],
        "for the kernel the right edge is part of the window, and what begins in the window is taken whole; RFC 9293 3.10.7.4 trims it",
    ),
    (
        &[
            "*: data, old",
            "*: data, half old",
            "*: FIN, old",
            "LAST-ACK*: *ACK of before",
            "CLOSING: *ACK of before",
        ],
        "what ends at RCV.NXT is acceptable to the kernel, and it reports bytes that claim to come before the first as duplicates",
    ),
    (
        &["*: FIN, out of order"],
        "the kernel keeps a FIN out of order as a byte, which data in its place takes away; ours marks the end of the stream once and for all",
    ),
    (
        &[
            "*: FIN",
            "*: FIN with data",
            "*: FIN, ACK of before",
            "CLOSE-WAIT: *",
        ],
        "data beyond the peer's FIN is ignored; the kernel says nothing, we acknowledge where we stand",
    ),
    (
        &[
            "ESTABLISHED*: ACK of before",
            "ESTABLISHED*: data, ACK of *before",
        ],
        "the kernel trusts an old acknowledgement no further back than what was acknowledged, RFC 5961 5.2 a whole window; but where nothing else is \
         unusual the kernel takes the data whatever it acknowledges",
    ),
    (
        &["*: ACK, older timestamp"],
        "the kernel forgives an acknowledgement whose timestamp is a little old as reordered; RFC 7323 5.3 R1 answers it",
    ),
    (
        &["FIN-WAIT-1, closed: *", "FIN-WAIT-2, closed: *"],
        "the kernel keeps what is left of a closed connection as TIME-WAIT, which answers resets and strange acknowledgements in its own way",
    ),
    (
        &[
            "TIME-WAIT: RST*",
            "TIME-WAIT: SYN and RST",
            "TIME-WAIT: all flags",
        ],
        "a reset ends the kernel's TIME-WAIT; RFC 1337 would have it ignored",
    ),
    (
        &[
            "TIME-WAIT: FIN*",
            "TIME-WAIT: data without ACK",
            "TIME-WAIT: Xmas",
        ],
        "a FIN that is no retransmission is nothing to us, nor what has no ACK (RFC 9293 3.10.7.4, fifth)",
    ),
    (
        &["TIME-WAIT: *timestamp*"],
        "TS.Recent follows a segment that is at RCV.NXT (RFC 7323 4.3); the kernel's stays",
    ),
    (
        &["TIME-WAIT: SYN, *"],
        "a new connection takes the place of the old; where it begins is each stack's own affair",
    ),
];

const SYN: Flags = Flags::SYN;
const ACK: Flags = Flags::ACK;
const FIN: Flags = Flags::FIN;
const RST: Flags = Flags::RST;
const FIN_ACK: Flags = FIN.union(ACK);
const SYN_ACK: Flags = SYN.union(ACK);
const RST_ACK: Flags = RST.union(ACK);

fn send(flags: Flags) -> Step {
    Step::Send(Send::new(flags))
}

/// How each state is reached.
fn states() -> Vec<(&'static str, Vec<Step>)> {
    let syn_received = vec![Step::Do(Do::Listen), send(SYN)];
    let then = |before: &[Step], steps: &[Step]| [before, steps].concat();
    let established = then(&syn_received, &[send(ACK), Step::Do(Do::Accept)]);
    let fin_wait_1 = then(&established, &[Step::Do(Do::Shutdown)]);
    let fin_wait_2 = then(&fin_wait_1, &[send(ACK)]);
    let close_wait = then(&established, &[send(FIN_ACK)]);
    let not_of_fin = Step::Send(Send {
        ack: -1,
        ..Send::new(FIN_ACK)
    });
    vec![
        ("CLOSED", vec![]),
        ("LISTEN", vec![Step::Do(Do::Listen)]),
        ("SYN-SENT", vec![Step::Do(Do::Connect)]),
        ("SYN-RECEIVED", syn_received),
        (
            "ESTABLISHED by connect",
            vec![Step::Do(Do::Connect), send(SYN_ACK)],
        ),
        (
            "ESTABLISHED with data out",
            then(&established, &[Step::Do(Do::Write(500))]),
        ),
        (
            "ESTABLISHED after data",
            then(
                &established,
                &[Step::Send(Send {
                    len: 300,
                    ..Send::new(ACK)
                })],
            ),
        ),
        ("CLOSE-WAIT", close_wait.clone()),
        ("LAST-ACK", then(&close_wait, &[Step::Do(Do::Shutdown)])),
        (
            "LAST-ACK, closed",
            then(&close_wait, &[Step::Do(Do::Close)]),
        ),
        (
            "FIN-WAIT-1, closed",
            then(&established, &[Step::Do(Do::Close)]),
        ),
        (
            "FIN-WAIT-2, closed",
            then(&established, &[Step::Do(Do::Close), send(ACK)]),
        ),
        (
            "CLOSING",
            then(&fin_wait_1, std::slice::from_ref(&not_of_fin)),
        ),
        ("TIME-WAIT", then(&fin_wait_2, &[send(FIN_ACK)])),
        ("ESTABLISHED", established),
        ("FIN-WAIT-1", fin_wait_1),
        ("FIN-WAIT-2", fin_wait_2),
    ]
}

/// The segments that are sent in each state, by name.
fn words() -> Vec<(&'static str, Send)> {
    [
        acknowledgements(),
        data(),
        urgent(),
        ends(),
        resets(),
        openings(),
        options(),
    ]
    .concat()
}

/// A segment with these flags.
fn of(flags: Flags) -> Send {
    Send::new(flags)
}

/// A segment with these flags at a sequence number.
fn at(flags: Flags, seq: At) -> Send {
    Send { seq, ..of(flags) }
}

/// A segment with these flags and bytes.
fn with(flags: Flags, len: usize) -> Send {
    Send { len, ..of(flags) }
}

/// A segment that acknowledges this many bytes more than were sent.
fn acking(ack: i32, len: usize) -> Send {
    Send {
        ack,
        len,
        ..of(ACK)
    }
}

/// Data with these options.
fn with_options(options: &'static [u8]) -> Send {
    Send {
        options: Some(options),
        ..with(ACK, 10)
    }
}

/// Segments without data.
fn acknowledgements() -> Vec<(&'static str, Send)> {
    vec![
        ("ACK", of(ACK)),
        ("ACK of before", acking(-1, 0)),
        ("ACK of long before", acking(-100_000, 0)),
        ("ACK of the future", acking(1, 0)),
        ("ACK of the far future", acking(2_000_000, 0)),
        ("ACK, old number", at(ACK, At::Next(-1))),
        ("ACK, very old number", at(ACK, At::Next(-10_000))),
        ("ACK, in the window", at(ACK, At::Next(100))),
        ("ACK, at the edge", at(ACK, At::Edge(0))),
        ("ACK, beyond the window", at(ACK, At::Edge(1))),
    ]
}

/// Segments with data.
fn data() -> Vec<(&'static str, Send)> {
    vec![
        ("data", with(ACK, 100)),
        (
            "data, old",
            Send {
                len: 1,
                ..at(ACK, At::Next(-1))
            },
        ),
        (
            "data, half old",
            Send {
                len: 100,
                ..at(ACK, At::Next(-50))
            },
        ),
        (
            "data, out of order",
            Send {
                len: 100,
                ..at(ACK, At::Next(50))
            },
        ),
        (
            "data, at the edge",
            Send {
                len: 100,
                ..at(ACK, At::Edge(0))
            },
        ),
        (
            "data, over the edge",
            Send {
                len: 100,
                ..at(ACK, At::Edge(-50))
            },
        ),
        (
            "data, far beyond",
            Send {
                len: 100,
                ..at(ACK, At::Edge(100_000))
            },
        ),
        ("data, ACK of before", acking(-1, 100)),
        ("data, ACK of long before", acking(-100_000, 100)),
        ("data, ACK of the future", acking(1, 100)),
        ("data without ACK", with(Flags::empty(), 100)),
        (
            "data, damaged",
            Send {
                damaged: true,
                ..with(ACK, 100)
            },
        ),
    ]
}

/// Segments with urgent data, and one that closes the window.
fn urgent() -> Vec<(&'static str, Send)> {
    vec![
        (
            "data, urgent",
            Send {
                urgent: 50,
                ..with(ACK | Flags::URG, 100)
            },
        ),
        (
            "data, urgent beyond",
            Send {
                urgent: 5_000,
                ..with(ACK | Flags::URG, 100)
            },
        ),
        (
            "data, urgent 0",
            Send {
                urgent: 0,
                ..with(ACK | Flags::URG, 100)
            },
        ),
        (
            "nothing, urgent",
            Send {
                urgent: 1,
                ..of(ACK | Flags::URG)
            },
        ),
        (
            "data, zero window",
            Send {
                window: 0,
                ..with(ACK, 100)
            },
        ),
    ]
}

/// Segments with FIN.
fn ends() -> Vec<(&'static str, Send)> {
    vec![
        ("FIN", of(FIN_ACK)),
        ("FIN without ACK", of(FIN)),
        ("FIN with data", with(FIN_ACK, 100)),
        ("FIN, out of order", at(FIN_ACK, At::Next(1))),
        ("FIN, old", at(FIN_ACK, At::Next(-1))),
        ("FIN, beyond the window", at(FIN_ACK, At::Edge(1))),
        (
            "FIN, ACK of before",
            Send {
                ack: -1,
                ..of(FIN_ACK)
            },
        ),
        (
            "FIN, ACK of the future",
            Send {
                ack: 1,
                ..of(FIN_ACK)
            },
        ),
    ]
}

/// Segments with RST.
fn resets() -> Vec<(&'static str, Send)> {
    vec![
        ("RST", of(RST)),
        ("RST, off by one", at(RST, At::Next(1))),
        ("RST, one before", at(RST, At::Next(-1))),
        ("RST, last of the window", at(RST, At::Edge(-1))),
        ("RST, at the edge", at(RST, At::Edge(0))),
        ("RST, beyond the window", at(RST, At::Edge(1))),
        ("RST, old", at(RST, At::Next(-10_000))),
        ("RST with ACK", of(RST_ACK)),
        (
            "RST with ACK of before",
            Send {
                ack: -1,
                ..of(RST_ACK)
            },
        ),
        (
            "RST with ACK of the future",
            Send {
                ack: 1,
                ..of(RST_ACK)
            },
        ),
        ("RST with data", with(RST, 100)),
    ]
}

/// Segments with SYN, and flags that make no sense together.
fn openings() -> Vec<(&'static str, Send)> {
    vec![
        ("SYN", of(SYN)),
        ("SYN again", at(SYN, At::Next(-1))),
        ("SYN, in the window", at(SYN, At::Next(100))),
        ("SYN, beyond the window", at(SYN, At::Edge(1_000))),
        ("SYN, long before", at(SYN, At::Next(-100_000))),
        ("SYN with data", with(SYN, 100)),
        ("SYN and ACK", of(SYN_ACK)),
        ("SYN and ACK again", at(SYN_ACK, At::Next(-1))),
        (
            "SYN and ACK of before",
            Send {
                ack: -1,
                ..of(SYN_ACK)
            },
        ),
        (
            "SYN and ACK of the future",
            Send {
                ack: 1,
                ..of(SYN_ACK)
            },
        ),
        ("SYN and FIN", of(SYN | FIN)),
        ("SYN and RST", of(SYN | RST)),
        ("no flags", of(Flags::empty())),
        ("all flags", of(Flags::all())),
        ("Xmas", of(FIN | Flags::URG | Flags::PSH)),
    ]
}

/// Data with odd options.
fn options() -> Vec<(&'static str, Send)> {
    vec![
        ("option of length 0", with_options(&[2, 0, 0, 0])),
        ("option past the header", with_options(&[2, 40, 0, 0])),
        ("unknown options", with_options(&[254, 4, 1, 2, 1, 1, 1, 0])),
        (
            "MSS and scale too late",
            with_options(&[2, 4, 0, 1, 3, 3, 14, 0]),
        ),
        ("only NOP", with_options(&[1, 1, 1, 1])),
        (
            "SACK of nothing",
            with_options(&[1, 1, 5, 10, 0, 0, 0, 1, 0, 0, 0, 2]),
        ),
        (
            "SACK of odd length",
            with_options(&[1, 1, 5, 9, 0, 0, 0, 1, 0, 0, 0, 2]),
        ),
    ]
}

/// What is said besides where both have timestamps.
fn timed_words() -> Vec<(&'static str, Send)> {
    let of = Send::new;
    let old = |flags, len| Send {
        clock: -5,
        len,
        ..of(flags)
    };
    const NONE: Option<&[u8]> = Some(&[]);
    const BAD: Option<&[u8]> = Some(&[1, 1, 8, 9, 0, 0, 0, 1, 0, 0, 0, 2]);
    vec![
        ("data, older timestamp", old(ACK, 100)),
        ("ACK, older timestamp", old(ACK, 0)),
        ("FIN, older timestamp", old(FIN_ACK, 0)),
        ("RST, older timestamp", old(RST, 0)),
        ("SYN, older timestamp", old(SYN, 0)),
        (
            "data, same timestamp",
            Send {
                clock: 0,
                len: 100,
                ..of(ACK)
            },
        ),
        (
            "data, much older timestamp",
            Send {
                clock: i32::MIN + 10,
                len: 100,
                ..of(ACK)
            },
        ),
        (
            "data, later timestamp beyond",
            Send {
                clock: 1_000,
                len: 10,
                seq: At::Edge(1),
                ..of(ACK)
            },
        ),
        (
            "data, no timestamp",
            Send {
                options: NONE,
                len: 100,
                ..of(ACK)
            },
        ),
        (
            "FIN, no timestamp",
            Send {
                options: NONE,
                ..of(FIN_ACK)
            },
        ),
        (
            "RST, no timestamp",
            Send {
                options: NONE,
                ..of(RST)
            },
        ),
        (
            "data, timestamp of wrong length",
            Send {
                options: BAD,
                len: 100,
                ..of(ACK)
            },
        ),
    ]
}

/// What follows, to show what was believed: an acknowledgement and data in order.
fn epilogue() -> [Step; 2] {
    let data = Send {
        len: 7,
        ..Send::new(ACK)
    };
    [Step::Do(Do::Accept), Step::Send(data)]
}

/// Every state by everything that may be said in it.
pub fn scripts() -> Vec<Script> {
    let mut scripts = Vec::new();
    for (state, before) in states() {
        let mut add = |what: &str, timestamps, send| {
            let mut steps = before.clone();
            steps.push(Step::Send(send));
            steps.extend(epilogue());
            scripts.push(Script {
                name: format!("{state}: {what}"),
                timestamps,
                steps,
            });
        };
        for (what, send) in words() {
            add(what, false, send);
        }
        for (what, send) in timed_words() {
            add(what, true, send);
        }
    }
    scripts
}
