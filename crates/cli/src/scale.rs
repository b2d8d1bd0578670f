//! `millrace scale`: how many shards serve, and what each of them has.

use std::process::ExitCode;

use anyhow::Context;
use millrace_context::protocol::Kind;
use serde_json::{Value, json};

use crate::arguments::ScaleArguments;
use crate::client;
use crate::output::print;

pub fn scale(arguments: &ScaleArguments) -> anyhow::Result<ExitCode> {
    let user = arguments.engine_user;
    let name = match &arguments.engine {
        Some(name) => name.clone(),
        None => client::only_engine(user)?,
    };
    let socket = client::connect(&name, user)?.socket;
    if let Some(shards) = arguments.shards {
        client::scale(&socket, shards)?;
    }
    let description = client::document(&socket, Kind::Describe)?;
    let description = serde_json::from_str(&description).context("the engine's answer")?;
    let shards = shards(&description);
    let shown = match arguments.json {
        true => serde_json::to_string(&shards)? + "\n",
        false => table(&shards),
    };
    print(&shown)?;
    Ok(ExitCode::SUCCESS)
}

/// What each shard has.
fn shards(description: &Value) -> Vec<Value> {
    let all = description["shards"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    let buckets = &description["buckets"];
    // Where shards own the queues of the device all of them serve, for good.
    let serving = buckets["serving"].as_u64().unwrap_or(all.len() as u64);
    let owners = buckets["shards"].as_array().cloned().unwrap_or_default();
    let load = buckets["load"].as_array().cloned().unwrap_or_default();
    let moved = |what: &str, number: usize| buckets[what][number].as_u64().unwrap_or(0);
    let row = |(number, shard): (usize, &Value)| {
        let sockets = shard["sockets"].as_u64().unwrap_or(0);
        let has = |owner: &Value| owner.as_u64() == Some(number as u64);
        let own = owners.iter().zip(&load).filter(|(owner, _)| has(owner));
        let state = match (number as u64) < serving {
            true => "serving",
            false if sockets > 0 => "draining",
            false => "idle",
        };
        json!({
            "shard": number,
            "state": state,
            "sockets": sockets,
            "buckets": own.clone().count(),
            "load": own.filter_map(|(_, load)| load.as_u64()).sum::<u64>(),
            "given": moved("given", number),
            "taken": moved("taken", number),
        })
    };
    all.iter().enumerate().map(row).collect()
}

fn table(shards: &[Value]) -> String {
    let mut rows = vec![
        [
            "Shard", "State", "Sockets", "Buckets", "Load", "Given", "Taken",
        ]
        .map(str::to_owned),
    ];
    for shard in shards {
        let state = shard["state"].as_str().unwrap_or_default().to_owned();
        let number = |key: &str| shard[key].to_string();
        let [shard, sockets, buckets] = ["shard", "sockets", "buckets"].map(number);
        let [load, given, taken] = ["load", "given", "taken"].map(number);
        rows.push([shard, state, sockets, buckets, load, given, taken]);
    }
    crate::table::format(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_that_serves_no_more_drains_until_it_has_no_socket() {
        let description = json!({
            "shards": [{"sockets": 2}, {"sockets": 1}, {"sockets": 0}],
            "buckets": {"serving": 1, "shards": [0, 0, 0], "load": [5, 0, 7], "given": [], "taken": [2, 0, 0]},
        });
        let shards = shards(&description);
        let states: Vec<_> = shards.iter().map(|shard| shard["state"].clone()).collect();
        assert_eq!(states, ["serving", "draining", "idle"]);
        assert_eq!(
            (&shards[0]["buckets"], &shards[0]["load"]),
            (&json!(3), &json!(12))
        );
        assert_eq!(
            (&shards[0]["given"], &shards[0]["taken"]),
            (&json!(0), &json!(2))
        );
        let table = table(&shards);
        assert_eq!(table.lines().count(), 4);
        assert!(
            table
                .lines()
                .nth(2)
                .is_some_and(|line| line.contains("draining"))
        );
    }

    #[test]
    fn all_serve_where_shards_own_the_queues() {
        let shards = shards(&json!({"shards": [{"sockets": 0}, {"sockets": 0}], "buckets": null}));
        assert!(shards.iter().all(|shard| shard["state"] == "serving"));
    }
}
