//! `millrace ss`: connections, listeners and datagram sockets.

use std::process::ExitCode;

use anyhow::Context;
use millrace_context::protocol::Kind;
use serde_json::Value;

use crate::arguments::SsArguments;
use crate::client;
use crate::output::print;

pub fn ss(arguments: &SsArguments) -> anyhow::Result<ExitCode> {
    let user = arguments.engine_user;
    let name = match &arguments.engine {
        Some(name) => name.clone(),
        None => client::only_engine(user)?,
    };
    let socket = client::connect(&name, user)?.socket;
    let text = client::document(
        &socket,
        if arguments.counters {
            Kind::Describe
        } else {
            Kind::Sockets
        },
    )?;
    let shown = if arguments.json || arguments.counters {
        text + "\n"
    } else {
        table(&text)?
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

fn table(json: &str) -> anyhow::Result<String> {
    let sockets: Vec<Value> = serde_json::from_str(json).context("the engine's answer")?;
    let mut rows = vec![
        [
            "Proto", "State", "Recv-Q", "Send-Q", "Local", "Peer", "Process", "cwnd", "rtt",
            "retrans", "dropped",
        ]
        .map(str::to_owned),
    ];
    for socket in &sockets {
        let text = |key: &str| socket[key].as_str().unwrap_or("").to_owned();
        let number = |value: &Value| {
            value
                .as_u64()
                .map_or_else(String::new, |number| number.to_string())
        };
        let pids: Vec<String> = socket["pids"]
            .as_array()
            .into_iter()
            .flatten()
            .map(number)
            .collect();
        let tcp = &socket["tcp"];
        let rtt = tcp["rtt_us"]
            .as_u64()
            .map_or_else(String::new, |us| format!("{:.3} ms", us as f64 / 1000.0));
        rows.push([
            text("protocol"),
            text("state"),
            number(&socket["receive_queue"]),
            number(&socket["send_queue"]),
            text("local"),
            text("remote"),
            pids.join(","),
            number(&tcp["cwnd"]),
            rtt,
            number(&tcp["retransmits"]),
            socket["dropped"]
                .as_u64()
                .filter(|dropped| *dropped > 0)
                .map_or_else(String::new, |dropped| dropped.to_string()),
        ]);
    }
    Ok(crate::table::format(&rows))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_a_line_for_each_socket() {
        let json = r#"[{"protocol":"udp","state":"UNCONN","local":"0.0.0.0:53","remote":"0.0.0.0:0","receive_queue":0,"send_queue":0,"pids":[9],"dropped":77},
            {"protocol":"tcp","state":"LISTEN","local":"0.0.0.0:80","remote":"0.0.0.0:0","receive_queue":1,"send_queue":511,"pids":[7,8]},
            {"protocol":"tcp","state":"ESTAB","local":"10.9.0.2:80","remote":"10.9.0.1:999","receive_queue":0,"send_queue":5,"pids":[8],
             "tcp":{"cwnd":14480,"rtt_us":1234,"retransmits":2}}]"#;
        let table = table(json).unwrap();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[1].starts_with("udp") && lines[1].ends_with("77"));
        assert!(lines[2].contains("7,8") && lines[3].contains("1.234 ms"));
    }
}
