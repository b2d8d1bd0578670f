//! The tables of `docs/sockets.md` are written from the table of options.

use millrace_sockopt::{READ_ONLY, ROWS, Row, Sockets};

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/sockets.md");
const BEGIN: &str = "<!-- options: written by `BLESS=1 cargo test -p millrace-sockopt` -->\n";
const END: &str = "<!-- end of options -->\n";

fn level(level: i32) -> &'static str {
    match level {
        libc::SOL_SOCKET => "`SOL_SOCKET`",
        libc::IPPROTO_TCP => "`IPPROTO_TCP`",
        libc::IPPROTO_IP => "`IPPROTO_IP`",
        libc::IPPROTO_IPV6 => "`IPPROTO_IPV6`",
        libc::IPPROTO_UDP => "`IPPROTO_UDP`",
        _ => panic!("a level without a name: {level}"),
    }
}

fn sockets(sockets: Sockets) -> &'static str {
    match (
        sockets.contains(Sockets::STREAM),
        sockets.contains(Sockets::DATAGRAM),
    ) {
        (true, true) => "TCP, UDP",
        (true, false) => "TCP",
        (false, true) => "UDP",
        (false, false) => "",
    }
}

fn line(row: &Row) -> String {
    let (symbol, range, remark) = (row.symbol, (row.range)(), row.remark);
    let (level, has, library) = (level(row.level), sockets(row.sockets), sockets(row.library));
    format!("| {level} | `{symbol}` | {has} | {library} | {range} | {remark} |\n")
}

#[test]
fn the_page_has_every_option() {
    let page = std::fs::read_to_string(PAGE).expect("docs/sockets.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where it ends");
    let head =
        "| level | option | sockets | C library | values | remarks |\n|---|---|---|---|---|---|\n";
    let lines = ROWS.iter().map(line);
    let table = std::iter::once(head.to_string())
        .chain(lines)
        .collect::<String>();
    if found == table {
        return;
    }
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(PAGE, [before, BEGIN, &table, END, after].concat())
            .expect("a page to write");
        return;
    }
    panic!(
        "docs/sockets.md is not what the table of options says. Write it anew: BLESS=1 cargo test -p millrace-sockopt"
    );
}

#[test]
fn the_page_names_what_can_only_be_read_and_refuses_nothing_that_there_is() {
    let page = std::fs::read_to_string(PAGE).expect("docs/sockets.md");
    let (_, read) = page
        .split_once("These can only be read:")
        .expect("what can only be read");
    let read = read.split("\n\n").next().unwrap_or(read);
    for row in READ_ONLY {
        assert!(
            read.contains(&format!("`{}`", row.symbol)),
            "{}",
            row.symbol
        );
    }
    let (_, refused) = page.split_once("\n## Refused\n").expect("what is refused");
    for symbol in ROWS
        .iter()
        .map(|row| row.symbol)
        .chain(READ_ONLY.iter().map(|row| row.symbol))
    {
        assert!(!refused.contains(&format!("`{symbol}`")), "{symbol}");
    }
}
