//! Programs written to mTCP's interface, on one core and on two, with the kernel's programs as
//! their peers.

use std::fs;
use std::net::TcpStream;

use millrace_e2e::namespace::Namespace;
use millrace_e2e::programs::Nginx;
use millrace_e2e::{
    Directory, Process, Result, command, compile, content, ensure, scenario, seconds, wait_until,
};
use rustix::process::Signal;

/// Bytes of the file that is fetched.
const LEN: usize = 150_000;

/// Writes a configuration; its path.
fn configure(directory: &Directory, cores: u32, more: &str) -> Result<String> {
    let path = directory.join("mtcp.conf");
    let text = format!(
        "# of mTCP's, and where the link is\nio = tap\nport = tap\nnum_cores = {cores}\nhost = 10.77.0.1/24\naddress = 10.77.0.2/24\n{more}\n"
    );
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}

fn serve_on(cores: u32) -> Result<()> {
    scenario::prepare()?;
    let (namespace, directory) = (Namespace::create()?, Directory::create()?);
    let root = directory.join("root");
    fs::create_dir(&root)?;
    content::write_file(&root.join("large"), 3, 8 << 20)?;
    fs::write(root.join("index.html"), "front")?;
    let program = compile::embedded("epoll_server")?;
    let file = configure(
        &directory,
        cores,
        "max_concurrency = 1000\nstat_print = tap",
    )?;
    let root_path = root.display().to_string();
    let words = command(&[&program, &file, &root_path]);
    let mut server = Process::spawn(&namespace, &directory, words)?;
    wait_until("every core is ready", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(server.stdout().matches("is ready").count() == cores as usize)
    })?;
    let beside = |words: &str| -> Result<String> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let process = Process::spawn(&namespace, &directory, command(&words))?;
        Ok(process.wait(seconds(60))?.success()?.text())
    };
    ensure!(beside("curl -sSf http://10.77.0.2/")? == "front");
    let got = directory.join("got");
    for _ in 0..4 {
        beside(&format!(
            "curl -sSf -o {} http://10.77.0.2/large",
            got.display()
        ))?;
        content::ensure_same(&root.join("large"), &got)?;
    }
    for (options, target, status) in [
        ("", "/missing", "404"),
        ("-X POST", "/", "405"),
        ("-I", "/large", "200"),
        ("-0", "/", "200"),
    ] {
        let answer = beside(&format!(
            "curl -sS {options} -o /dev/null -w %{{http_code}} http://10.77.0.2{target}"
        ))?;
        ensure!(answer == status, "{options} {target}: {answer}");
    }
    for keep in ["-k", ""] {
        let report = beside(&format!(
            "ab -q {keep} -n 10000 -c 50 http://10.77.0.2/index.html"
        ))?;
        ensure!(report.contains("Failed requests:        0"), "{report}");
    }
    // A signal ends the waits of every core, whichever thread it came to.
    let ended = server.stop(Signal::TERM, seconds(10))?.success()?;
    ensure!(
        ended.error_text().contains("[CPU 0] flows: "),
        "{}",
        ended.error_text()
    );
    let left = namespace.devices()?;
    ensure!(left.is_empty(), "left behind: {left:?}");
    Ok(())
}

fn fetch_on(cores: u32) -> Result<()> {
    scenario::prepare()?;
    let (namespace, directory) = (Namespace::create()?, Directory::create()?);
    let nginx = Nginx {
        port: 80,
        main: "daemon off;",
        http: "",
        server: "",
    };
    let words = nginx.configure_in(&directory)?;
    content::write_file(&directory.join("www/file"), 7, LEN)?;
    let mut server = Process::spawn(&namespace, &directory, command(&words))?;
    wait_until("nginx listens", seconds(10), || {
        server.ensure_not_failed()?;
        Ok(namespace.enter(|| TcpStream::connect("127.0.0.1:80").is_ok()))
    })?;
    let program = compile::embedded("epoll_fetch")?;
    let file = configure(&directory, cores, "rcvbuf = 65536\ntcp_timeout = 20")?;
    let words = [&program, &file, "10.77.0.1", "/file", "1000", "50"];
    let process = Process::spawn(&namespace, &directory, command(&words))?;
    let said = process.wait(seconds(60))?.success()?.text();
    let count = 1000 * cores as usize;
    let expected = format!("{count} whole, 0 failed, {} bytes", count * LEN);
    ensure!(said.contains(&expected), "{said}");
    server.stop(Signal::QUIT, seconds(10))?;
    Ok(())
}

#[test]
fn server_on_one_core() {
    serve_on(1).expect("files");
}

#[test]
fn server_on_two_cores() {
    serve_on(2).expect("files");
}

#[test]
fn downloads_on_one_core() {
    fetch_on(1).expect("whole files");
}

#[test]
fn downloads_on_two_cores() {
    fetch_on(2).expect("whole files");
}

/// What is wrong in a configuration is named with the file, the line and the key.
#[test]
fn a_wrong_configuration() {
    let directory = Directory::create().expect("a directory");
    let program = compile::embedded("epoll_server").expect("a program");
    for (line, said) in [
        ("colour = blue", ":7: colour: there is no such key"),
        ("num_mem_ch = 4", ":7: num_mem_ch: it is a setting"),
        ("rcvbuf = many", ":7: rcvbuf: `many` is not a number"),
    ] {
        let file = configure(&directory, 1, line).expect("a file");
        let run = command(&[&program, &file, "/nonexistent"]).output();
        assert!(!run.expect("a program").status.success());
        let run = command(&[&program, &file, "/"])
            .output()
            .expect("a program");
        let text = String::from_utf8_lossy(&run.stderr).into_owned();
        assert!(
            !run.status.success() && text.contains(&format!("{file}{said}")),
            "{text}"
        );
    }
}
