//! Every row of the table of socket options against the kernel: unset, and set to values of every
//! kind, on sockets of every kind in every state (`tests/programs/options.py`).

use millrace_e2e::{Result, Stack, command, compile, scenario, seconds};
use millrace_sockopt::{ROWS, Sockets};

/// What differs, and why.
const DIFFERENT: &[(&str, &str)] = &[
    (
        "SO_BINDTOIFINDEX",
        "the engine serves its own device alone, and one that is bound keeps it",
    ),
    (
        "SO_LINGER",
        "a time beyond 65,535 s is that, and one that is off is none",
    ),
    (
        "SO_RCVBUF",
        "sizes before anyone has set them, and limits, are the engine's",
    ),
    (
        "SO_SNDBUF",
        "sizes before anyone has set them, and limits, are the engine's",
    ),
    ("SO_RCVLOWAT", "the limit is the engine's"),
    ("SO_RCVTIMEO", "the kernel rounds up to its ticks"),
    ("SO_SNDTIMEO", "the kernel rounds up to its ticks"),
    ("TCP_CONGESTION", "the default is the engine's"),
    ("TCP_FASTOPEN", "the limit is not net.core.somaxconn"),
    ("TCP_MAXSEG", "the kernel's loopback has another MTU"),
    ("IPV6_MTU", "the kernel's loopback has another MTU"),
    ("IP_MTU_DISCOVER", "streams let no router fragment"),
    ("IPV6_MTU_DISCOVER", "streams let no router fragment"),
    (
        "IP_DROP_MEMBERSHIP",
        "the kernel looks for a device first, even if the group is none",
    ),
    (
        "IP_MULTICAST_IF",
        "an index in `struct ip_mreqn` is not looked at",
    ),
    (
        "IPV6_MULTICAST_IF",
        "the engine serves its own device alone",
    ),
    (
        "IP_MULTICAST_ALL",
        "the kernel has it off on sockets of IPv6",
    ),
];

#[test]
fn every_option_takes_and_shows_what_it_does_on_linux() {
    scenario::run(Stack::Kernel, |world| {
        let kinds = [(Sockets::STREAM, "TCP"), (Sockets::DATAGRAM, "UDP")];
        let rows: String = ROWS
            .iter()
            .flat_map(|row| kinds.map(|(kind, text)| (row, kind, text)))
            .filter(|(row, kind, _)| row.sockets.contains(*kind))
            .map(|(row, _, text)| format!("{} {} {} {text}\n", row.symbol, row.level, row.number))
            .collect();
        let words = ["python3", &compile::script("options.py"), &rows];
        let on_kernel = world.start_on_subject(command(&words))?.wait(seconds(60))?;
        let run = world.millrace(&[&["run", "--quiet", "--loopback", "--"], &words[..]].concat());
        let on_millrace = world.start_on_subject(run)?.wait(seconds(60))?;
        let (kernels, ours) = (on_kernel.success()?.text(), on_millrace.success()?.text());
        compare(&kernels, &ours)
    });
}

fn compare(kernels: &str, ours: &str) -> Result<()> {
    assert_eq!(kernels.lines().count(), ours.lines().count());
    assert!(kernels.lines().count() > 10_000, "too little was tried");
    let is_known = |line: &str| {
        let option = line.split(' ').nth(3).unwrap_or(line);
        DIFFERENT.iter().any(|(known, _)| *known == option)
    };
    let differences: Vec<String> = kernels
        .lines()
        .zip(ours.lines())
        .filter(|(kernels, ours)| kernels != ours && !is_known(kernels))
        .map(|(kernels, ours)| format!("kernel   {kernels}\nmillrace {ours}"))
        .collect();
    let shown = &differences[..differences.len().min(20)];
    assert!(
        differences.is_empty(),
        "{} differences, among them\n{}",
        differences.len(),
        shown.join("\n")
    );
    Ok(())
}
