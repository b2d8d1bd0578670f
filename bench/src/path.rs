//! A long and lossy path between two namespaces, and what a stack makes of it: iperf3 sends on it
//! and receives on the kernel.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use millrace_e2e::namespace::Namespace;
use millrace_e2e::relay::Relay;
use millrace_e2e::scenario::{seconds, wait_until};
use millrace_e2e::{PEER, Process, SUBJECT, Stack, World, command};
use millrace_sim::{Link, LinkCounters};
use millrace_tcp::Duration;
use serde_json::Value;

/// The receiver's address, and the sender's kernel's.
const THERE: &str = "10.9.1.2";
const HERE: &str = "10.9.1.1";

/// What the path is like, and how long it is used.
#[derive(Clone, Debug, clap::Args)]
pub struct LossyPath {
    /// Mbit/s of the bottleneck
    #[arg(long, default_value_t = 100)]
    pub rate: u64,
    /// Round trip in milliseconds
    #[arg(long, default_value_t = 100)]
    pub round_trip: u64,
    /// Frames lost on the way there, of ten thousand
    #[arg(long, default_value_t = 100)]
    pub loss: u64,
    /// Queue before the bottleneck, in quarters of what the path holds
    #[arg(long, default_value_t = 4)]
    pub queue: u64,
    /// How long each measurement takes, in seconds
    #[arg(long, default_value_t = 40)]
    pub seconds: u64,
    /// What does not count at the start of each, in seconds
    #[arg(long, default_value_t = 5)]
    pub warm_up: u64,
}

impl LossyPath {
    /// Megabits of payload a second, of all flows, with this congestion control; what iperf3 says
    /// of it is kept in the folder `reports`.
    ///
    /// # Errors
    /// What failed; also when nothing was lost that should have been.
    pub fn goodput(
        &self,
        stack: Stack,
        control: &str,
        flows: usize,
        seed: u64,
        reports: Option<&Path>,
    ) -> Result<f64> {
        let world = World::create(Stack::Millrace)?;
        let (here, there) = (world.peer_namespace(), Namespace::create()?);
        let rate = self.rate * 1_000_000;
        let way = Link {
            rate: Some(rate),
            queue_bytes: rate / 8 * self.round_trip / 1_000 * self.queue / 4,
            delay: Duration::from_micros(self.round_trip * 500),
            loss: self.loss as f64 / 10_000.0,
            spare_arp: true,
            ..Link::default()
        };
        let back = Link {
            rate: None,
            loss: 0.0,
            ..way
        };
        let ends = [
            (here, &*format!("{HERE}/24")),
            (&there, &*format!("{THERE}/24")),
        ];
        let relay = Relay::start(ends, [way, back], seed)?;
        here.set("ipv4.ip_forward", "1")?;
        there.ip(&format!("route add {SUBJECT}/32 via {HERE}"))?;
        let server = Process::spawn(
            &there,
            world.directory(),
            command(&["iperf3", "-s", "--forceflush"]),
        )?;
        wait_until("iperf3 listens", seconds(10), || {
            Ok(server.stdout().contains("listening"))
        })?;
        let words = format!(
            "iperf3 -c {THERE} -C {control} -t {} -O {} -P {flows} --json",
            self.seconds, self.warm_up
        );
        let words: Vec<&str> = words.split_whitespace().collect();
        let client: Command = match stack {
            Stack::Kernel => command(&words),
            Stack::Millrace => {
                let mut run = world.millrace(&["run", "--link", "tap:mr0", "--gateway"]);
                run.arg(PEER.to_string())
                    .args(["--addr", &format!("{SUBJECT}/24")])
                    .args(["--host-addr", &format!("{PEER}/24"), "--"])
                    .args(&words);
                run
            }
        };
        let limit = seconds(self.seconds + self.warm_up + 30);
        let ended = world.start_on_peer(client)?.wait(limit)?;
        if let Some(reports) = reports {
            let name = format!("{stack:?}-{control}-{seed}.json").to_lowercase();
            std::fs::write(reports.join(name), &ended.stdout)?;
        }
        let said: Value = serde_json::from_slice(&ended.stdout)
            .with_context(|| format!("iperf3 wrote {:?} {:?}", ended.text(), ended.error_text()))?;
        ensure!(said["error"].is_null(), "iperf3: {}", said["error"]);
        let [way, _]: [LinkCounters; 2] = relay.stop()?;
        ensure!(self.loss == 0 || way.lost > 0, "nothing was lost: {way:?}");
        let bits = said["end"]["sum_received"]["bits_per_second"]
            .as_f64()
            .context("iperf3 says how much was received")?;
        Ok(bits / 1e6)
    }
}
