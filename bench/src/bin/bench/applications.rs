//! Unmodified programs as people run them, on the strict wire: nginx, redis-server, tgtd; each on
//! the kernel and on millrace, under the same client.

use std::net::TcpStream;

use anyhow::{Context as _, Result, ensure};
use millrace_bench::cpu::Interval;
use millrace_bench::load::Outcome;
use millrace_bench::report::{Goal, Scenario, Subject};
use millrace_e2e::content::write_file;
use millrace_e2e::programs::{Nginx, Tgtd, redis};
use millrace_e2e::{Process, Stack, World, command, seconds};

use crate::arguments::Arguments;
use crate::jobs::Job;
use crate::subjects::{attempt, name, print};
use crate::wire::{Client, Layout, Wire};

/// A program, and what is asked of it.
struct Application {
    name: &'static str,
    what: &'static str,
    server: Server,
    client: Does,
    /// Of the kernel's rate.
    goal: Option<f64>,
}

#[derive(Clone, Copy)]
enum Server {
    Nginx,
    Redis,
    Iscsi,
}

/// What the client does.
#[derive(Clone, Copy)]
enum Does {
    /// `millrace load http`: a file, and whether connections stay.
    Http(&'static str, bool),
    /// `ab`, by TLS, whether connections stay.
    Https(bool),
    /// `redis-benchmark`: a test, so many in a pipeline, so many requests for each second that is
    /// to be measured.
    Redis(&'static str, u32, u64),
    /// `iscsi-perf` with these options.
    Iscsi(&'static str),
}

/// Connections of nginx's and redis's clients.
const CONNECTIONS: u32 = 64;
/// The files that nginx serves.
const FILES: [(&str, usize); 5] = [
    ("0", 0),
    ("64", 64),
    ("4k", 4 << 10),
    ("64k", 64 << 10),
    ("1m", 1 << 20),
];
/// Bytes of the iSCSI disk.
const DISK: usize = 64 << 20;

/// A goal for those whose files are `small` and whose connections do not stay.
const fn nginx(name: &'static str, file: &'static str, stays: bool, small: bool) -> Application {
    Application {
        name,
        what: if stays {
            "nginx, two workers: GET of a file by HTTP/1.1, connections stay; `millrace load http`"
        } else {
            "nginx, two workers: GET of a file by HTTP/1.1, a connection for each; `millrace load http`"
        },
        server: Server::Nginx,
        client: Does::Http(file, stays),
        goal: if small && !stays { Some(2.0) } else { None },
    }
}

const APPLICATIONS: [Application; 18] = [
    nginx("nginx-0", "0", false, true),
    nginx("nginx-64", "64", false, true),
    nginx("nginx-4k", "4k", false, true),
    nginx("nginx-64k", "64k", false, false),
    nginx("nginx-1m", "1m", false, false),
    nginx("nginx-keep-0", "0", true, true),
    nginx("nginx-keep-64", "64", true, true),
    nginx("nginx-keep-4k", "4k", true, true),
    nginx("nginx-keep-64k", "64k", true, false),
    nginx("nginx-keep-1m", "1m", true, false),
    Application {
        name: "nginx-tls-4k",
        what: "nginx, two workers: GET of 4 KB by TLS 1.3, P-256, a connection and a handshake for each; `ab`",
        server: Server::Nginx,
        client: Does::Https(false),
        goal: None,
    },
    Application {
        name: "nginx-tls-keep-4k",
        what: "nginx, two workers: GET of 4 KB by TLS 1.3, connections stay; `ab`",
        server: Server::Nginx,
        client: Does::Https(true),
        goal: None,
    },
    Application {
        name: "redis-get",
        what: "redis-server: GET; `redis-benchmark`",
        server: Server::Redis,
        client: Does::Redis("get", 1, 50_000),
        goal: Some(1.5),
    },
    Application {
        name: "redis-set",
        what: "redis-server: SET; `redis-benchmark`",
        server: Server::Redis,
        client: Does::Redis("set", 1, 50_000),
        goal: Some(1.5),
    },
    Application {
        name: "redis-get-pipelined",
        what: "redis-server: GET in pipelines of 32; `redis-benchmark`",
        server: Server::Redis,
        client: Does::Redis("get", 32, 400_000),
        goal: None,
    },
    Application {
        name: "redis-set-pipelined",
        what: "redis-server: SET in pipelines of 32; `redis-benchmark`",
        server: Server::Redis,
        client: Does::Redis("set", 32, 400_000),
        goal: None,
    },
    Application {
        name: "iscsi-read",
        what: "tgtd: 64 KB in order, 32 at a time; `iscsi-perf -m 32 -b 128`",
        server: Server::Iscsi,
        client: Does::Iscsi("-m 32 -b 128"),
        goal: None,
    },
    Application {
        name: "iscsi-random",
        what: "tgtd: 4 KB anywhere, 8 at a time; `iscsi-perf -r -m 8 -b 8`",
        server: Server::Iscsi,
        client: Does::Iscsi("-r -m 8 -b 8"),
        goal: None,
    },
];
/// What a quick run has time for.
const QUICK: [&str; 2] = ["nginx-4k", "redis-get"];

/// A job for each that is wanted.
pub fn jobs<'a>(rounds: usize, length: f64, arguments: &'a Arguments) -> Vec<Job<'a>> {
    let is_wanted = |application: &&Application| {
        arguments.wants(application.name) && (!arguments.quick || QUICK.contains(&application.name))
    };
    let stacks = arguments.stacks();
    let job = |application: &'static Application| {
        let run = move |rounds| Ok(vec![compare(application, rounds, length, stacks)]);
        Job::new(application.name, rounds, stacks.len(), length, 0.7, run)
    };
    APPLICATIONS.iter().filter(is_wanted).map(job).collect()
}

fn compare(application: &Application, rounds: usize, length: f64, stacks: &[Stack]) -> Scenario {
    println!("{}: {}", application.name, application.what);
    let named = |stack: &Stack| Subject::named(name(*stack));
    let mut subjects: Vec<Subject> = stacks.iter().map(named).collect();
    for _ in 0..rounds {
        for (stack, subject) in stacks.iter().zip(&mut subjects) {
            attempt(subject, Outcome::rate, || application.run(*stack, length));
        }
    }
    let scenario = Scenario {
        group: "Applications, on the strict wire".to_owned(),
        name: application.name.to_owned(),
        what: format!("{}.", application.what),
        unit: "per second".to_owned(),
        less_is_better: false,
        goals: application
            .goal
            .map(|bound| Goal {
                against: Some("kernel".to_owned()),
                bound,
            })
            .into_iter()
            .collect(),
        subjects,
        reason: None,
    };
    print(&scenario);
    scenario
}

impl Application {
    /// One run, of a server of its own.
    fn run(&self, stack: Stack, length: f64) -> Result<Outcome> {
        let port = self.server.port(self.client);
        let words = |world: &World, address: &str| self.server.words(world, address, port);
        let wire = Wire::start(stack, Layout::Strict, words, |world, _: &Process| {
            // Its order is the way to know that tgtd is there.
            if let Server::Iscsi = self.server {
                return Ok(Tgtd::of(world).is_ready());
            }
            let at = crate::wire::address(stack);
            let connect = || TcpStream::connect_timeout(&(at, port).into(), seconds(1)).is_ok();
            Ok(world.peer_namespace().enter(connect))
        })?;
        if let Server::Iscsi = self.server {
            Tgtd::of(&wire.world).make(&wire.world.directory().join("disk"))?;
        }
        let outcome = self.client.ask(&wire, port, length)?;
        match self.server {
            // It takes no notice of signals.
            Server::Iscsi => {
                Tgtd::of(&wire.world).end()?;
                wire.wait()?;
            }
            Server::Nginx | Server::Redis => wire.stop()?,
        }
        Ok(outcome)
    }
}

impl Server {
    fn port(self, client: Does) -> u16 {
        match (self, client) {
            (Server::Nginx, Does::Https(_)) => 443,
            (Server::Nginx, _) => 80,
            (Server::Redis, _) => 6379,
            (Server::Iscsi, _) => 3260,
        }
    }

    /// What starts it; its files are there then.
    fn words(self, world: &World, address: &str, port: u16) -> Result<Vec<String>> {
        match self {
            Server::Nginx => {
                let (http, server) = match port {
                    443 => (
                        "ssl_session_cache off; ssl_session_tickets off;",
                        tls(world)?,
                    ),
                    _ => ("sendfile on;", String::new()),
                };
                let words = Nginx {
                    // What it listens on anyway.
                    port: 80,
                    main: "daemon off;",
                    http,
                    server: &server,
                }
                .configure(world)?;
                for (name, len) in FILES {
                    write_file(&world.directory().join("www").join(name), 1, len)?;
                }
                Ok(words)
            }
            Server::Redis => Ok(redis(world, address, port, "")),
            Server::Iscsi => {
                write_file(&world.directory().join("disk"), 1, DISK)?;
                Ok(Tgtd::of(world).words(address, port))
            }
        }
    }
}

/// What has nginx speak TLS, with a certificate made for it.
fn tls(world: &World) -> Result<String> {
    let folder = world.directory().display();
    let line = format!(
        "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=millrace -keyout {folder}/key.pem -out {folder}/certificate.pem"
    );
    let words: Vec<&str> = line.split(' ').collect();
    let made = command(&words).output().context("running openssl")?;
    let said = String::from_utf8_lossy(&made.stderr);
    ensure!(made.status.success(), "openssl: {said}");
    Ok(format!(
        "listen 443 ssl; ssl_protocols TLSv1.3; ssl_certificate {folder}/certificate.pem; ssl_certificate_key {folder}/key.pem;"
    ))
}

impl Does {
    fn ask(self, wire: &Wire, port: u16, length: f64) -> Result<Outcome> {
        let target = wire.target(port);
        let host = target.split(':').next().unwrap_or_default();
        match self {
            Does::Http(file, stays) => {
                let stays = if stays { "" } else { " --no-keep-alive" };
                let words =
                    format!("http http://{target}/{file} --connections {CONNECTIONS}{stays}");
                wire.load(&words, length)?.flawless()
            }
            Does::Https(stays) => {
                let stays = if stays { "-k " } else { "" };
                // A time alone means 50,000 requests at most.
                let seconds = length.ceil();
                let line = format!(
                    "ab -q {stays}-c {CONNECTIONS} -t {seconds} -n 100000000 -f TLS1.3 https://{host}/4k"
                );
                let (said, machine) = Client::start(wire)?.run(&line, length)?;
                ensure!(
                    number(&said, "Failed requests:")? == 0.0,
                    "requests failed: {said}"
                );
                Ok(counted(number(&said, "Complete requests:")?, machine))
            }
            Does::Redis(test, pipeline, a_second) => {
                let count = (a_second as f64 * length) as u64;
                let line = format!(
                    "redis-benchmark -h {host} -p {port} -c {CONNECTIONS} -P {pipeline} -n {count} -t {test} --csv"
                );
                let (said, machine) = Client::start(wire)?.run(&line, length)?;
                let upper = format!("\"{}\"", test.to_uppercase());
                ensure!(said.contains(&upper), "redis-benchmark: {said}");
                Ok(counted(count as f64, machine))
            }
            Does::Iscsi(options) => {
                let seconds = length.ceil();
                let line = format!(
                    "iscsi-perf {options} -t {seconds} iscsi://{target}/{}/1",
                    Tgtd::NAME
                );
                let (said, machine) = Client::start(wire)?.run(&line, length)?;
                ensure!(said.contains("finished."), "iscsi-perf: {said}");
                // "iops average 12345 (678 MB/s)", again and again.
                let rate = said.rsplit("iops average ").next();
                let rate = rate.and_then(|text| text.split(' ').next()?.parse::<f64>().ok());
                let rate = rate.with_context(|| format!("iscsi-perf: {said}"))?;
                Ok(counted(rate * machine.seconds, machine))
            }
        }
    }
}

/// What so many operations come to, of which no more is known.
fn counted(operations: f64, machine: Interval) -> Outcome {
    Outcome {
        operations: operations as u64,
        bytes: 0,
        latency_us: [0.0; 5],
        distribution_us: Vec::new(),
        machine,
        own_seconds: 0.0,
        overdue: 0,
        failed: 0,
        failure: String::new(),
    }
}

/// The number behind a name in what a program said.
fn number(said: &str, name: &str) -> Result<f64> {
    let rest = said
        .split(name)
        .nth(1)
        .with_context(|| format!("no {name} in: {said}"))?;
    let word = rest.split_whitespace().next().unwrap_or_default();
    word.parse().with_context(|| format!("{name} {word}"))
}
