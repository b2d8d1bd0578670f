//! Servers whose threads share epoll sets: one thread puts a connection in, or takes it out, that
//! another one waits for.

use std::fs;
use std::thread;

use millrace_e2e::content::write_file;
use millrace_e2e::programs::Nginx;
use millrace_e2e::{
    Context as _, Process, Result, SUBJECT, World, ensure, http, on_both_stacks_and_two_shards,
    seconds, wait_until,
};
use rustix::process::Signal;

on_both_stacks_and_two_shards!(
    apache_with_the_event_mpm,
    mariadb_with_a_pool_of_threads,
    nginx_with_a_pool_of_threads,
);

const PORT: u16 = 8000;
const SIZE: usize = 30_000_000;
/// How many fetch at the same time, and how often each.
const CLIENTS: usize = 8;
const TIMES: usize = 2;

/// Fetches `/big` on several connections at once and compares what comes.
fn fetch_big(world: &World) -> Result<()> {
    let expected = fs::read(world.directory().join("www/big"))?;
    let fetch = || -> Result<()> {
        world.peer_namespace().join_thread()?;
        for _ in 0..TIMES {
            let body = http::get(world.at(PORT), "/big")?;
            ensure!(body == expected, "wrong content, {} bytes", body.len());
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(fetch)).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that fetches does not panic"))
    })
}

fn write_big(world: &World) -> Result<()> {
    fs::create_dir_all(world.directory().join("www"))?;
    write_file(&world.directory().join("www/big"), 11, SIZE)
}

fn apache_with_the_event_mpm(world: &World) -> Result<()> {
    write_big(world)?;
    let root = world.directory().display();
    let modules: String = ["mpm_event", "authz_core"]
        .map(|name| format!("LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n"))
        .concat();
    let text = format!(
        "{modules}ServerRoot {root}\nDefaultRuntimeDir {root}\nPidFile {root}/apache.pid\nErrorLog /dev/stderr\nServerName here\n\
         Listen {SUBJECT}:{PORT}\nUser www-data\nGroup www-data\nDocumentRoot {root}/www\n\
         <Directory {root}/www>\nRequire all granted\n</Directory>\n\
         StartServers 2\nThreadsPerChild 25\nMinSpareThreads 25\nMaxSpareThreads 75\n"
    );
    let config = world.directory().join("apache.conf");
    fs::write(&config, text)?;
    let words = [
        "apache2",
        "-f",
        &config.to_string_lossy(),
        "-D",
        "FOREGROUND",
    ];
    let server = world.serve(&words, PORT)?;
    fetch_big(world)?;
    stop(server)
}

fn nginx_with_a_pool_of_threads(world: &World) -> Result<()> {
    for sendfile in ["on", "off"] {
        let nginx = Nginx {
            port: PORT,
            main: "daemon off; thread_pool files threads=4;",
            http: "",
            server: &format!("aio threads=files; sendfile {sendfile}; output_buffers 2 64k;"),
        };
        let words = nginx.configure(world)?;
        write_big(world)?;
        let server = world.serve(&words, PORT)?;
        fetch_big(world)?;
        stop(server)?;
    }
    Ok(())
}

/// The server ends on SIGTERM, whatever its status for that is.
fn stop(server: Process) -> Result<()> {
    server.stop(Signal::TERM, seconds(30)).map(|_| ())
}

/// What a client of MariaDB prints for some statements.
fn ask(world: &World, statements: &str) -> Result<String> {
    let (host, port) = (SUBJECT.to_string(), PORT.to_string());
    let words = [
        "mariadb",
        "--no-defaults",
        "--protocol=tcp",
        "-h",
        &host,
        "-P",
        &port,
        "-u",
        "root",
        "--max-allowed-packet=64M",
        "-N",
        "-B",
        "-e",
        statements,
    ];
    Ok(world.run_on_peer(&words, seconds(60))?.text())
}

/// A server with data of its own, for which nobody needs a password.
fn start_mariadb(world: &World) -> Result<Process> {
    let data = world.directory().join("data");
    let data = format!("--datadir={}", data.display());
    let install = [
        "mariadb-install-db",
        "--no-defaults",
        "--user=root",
        "--skip-test-db",
        &data,
    ];
    let mut install = millrace_e2e::command(&install);
    // Names of its temporary files have the number of its process, which others have elsewhere.
    install.env("TMPDIR", world.directory());
    let installed = world.start_on_peer(install)?;
    installed.wait(seconds(60))?.success()?;
    let root = world.directory().display();
    let line = format!(
        "mariadbd --no-defaults --user=root {data} --socket={root}/socket --pid-file={root}/pid --tmpdir={root} --bind-address={SUBJECT} --port={PORT} \
         --skip-grant-tables --skip-name-resolve --skip-networking=0 --max-allowed-packet=64M \
         --innodb-flush-log-at-trx-commit=0 --thread-handling=pool-of-threads --thread-pool-size=2"
    );
    let words: Vec<&str> = line.split_whitespace().collect();
    let server = world.subject(&words)?;
    wait_until("mariadbd takes connections", seconds(30), || {
        Ok(server.stderr().contains("ready for connections"))
    })
    .with_context(|| format!("it says:\n{}", server.stderr()))?;
    Ok(server)
}

fn mariadb_with_a_pool_of_threads(world: &World) -> Result<()> {
    const ROWS: usize = 50;
    let server = start_mariadb(world)?;
    let handling = ask(world, "SELECT @@thread_handling")?;
    ensure!(handling.trim() == "pool-of-threads", "{handling}");
    ask(
        world,
        "CREATE DATABASE d; CREATE TABLE d.t (client INT, number INT, text VARCHAR(100))",
    )?;
    // Each statement is a turn of the pool: a thread takes the connection out of its set, and puts
    // it in again.
    let insert = move |client: usize| -> Result<()> {
        let statements: String = (0..ROWS)
            .map(|row| format!("INSERT INTO d.t VALUES ({client}, {row}, MD5({row})); "))
            .collect();
        ask(world, &statements).map(drop)
    };
    let large = || -> Result<()> {
        let text = ask(world, "SELECT REPEAT('0123456789', 500000)")?;
        ensure!(
            text.trim() == "0123456789".repeat(500_000),
            "{}",
            text.len()
        );
        Ok(())
    };
    thread::scope(|scope| {
        let mut threads: Vec<_> = (0..CLIENTS)
            .map(|client| scope.spawn(move || insert(client)))
            .collect();
        threads.extend((0..2).map(|_| scope.spawn(large)));
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().expect("a thread that asks does not panic"))
    })?;
    let sums =
        "SELECT COUNT(*), COUNT(DISTINCT client, number), SUM(BINARY text = MD5(number)) FROM d.t";
    let rows = CLIENTS * ROWS;
    ensure!(ask(world, sums)?.trim() == format!("{rows}\t{rows}\t{rows}"));
    stop(server)
}
