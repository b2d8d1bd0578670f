//! How the programs that several scenarios use are configured.

use std::fs;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::world::World;

/// Where `scripts/install-deps` puts packages of PyPI.
pub const PYPI: &str = "/usr/local/lib/millrace-tests";

/// What to change in nginx's configuration.
#[derive(Debug, Clone, Copy)]
pub struct Nginx<'a> {
    /// Port to listen on.
    pub port: u16,
    /// At the top.
    pub main: &'a str,
    /// In the `http` block.
    pub http: &'a str,
    /// In the `server` block.
    pub server: &'a str,
}

impl Nginx<'_> {
    /// In the foreground, with a master, two workers that are `www-data`, and the files of `www` in
    /// the world's directory. The words to start it with.
    pub fn configure(self, world: &World) -> Result<Vec<String>> {
        self.configure_in(world.directory())
    }

    /// As [`Nginx::configure`], in any directory.
    pub fn configure_in(self, directory: &Path) -> Result<Vec<String>> {
        let root = directory.display();
        fs::create_dir_all(directory.join("www"))?;
        let Nginx {
            port,
            main,
            http,
            server,
        } = self;
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|name| format!("{name}_temp_path {root}/{name}; "))
            .concat();
        let text = format!(
            "user www-data; worker_processes 2; pid {root}/nginx.pid; error_log stderr; {main}\n\
             events {{ worker_connections 4096; }}\n\
             http {{ access_log off; tcp_nopush on; keepalive_requests 1000000; types {{ }} default_type application/octet-stream;\n\
             {temporary}\n{http}\nserver {{ listen {port}; root {root}/www; {server} }} }}\n"
        );
        let path = directory.join("nginx.conf");
        fs::write(&path, text)?;
        // A binary upgrade needs the whole path.
        Ok(vec![
            "/usr/sbin/nginx".into(),
            "-p".into(),
            root.to_string(),
            "-c".into(),
            path.to_string_lossy().into_owned(),
        ])
    }
}

/// The words that start redis-server on `address`, without saving by itself.
pub fn redis(world: &World, address: &str, port: u16, more: &str) -> Vec<String> {
    let directory = world.directory().display();
    let line = format!(
        "redis-server --bind {address} --port {port} --protected-mode no --dir {directory} {more}"
    );
    let mut words: Vec<String> = line.split_whitespace().map(String::from).collect();
    words.extend(["--save".into(), String::new()]);
    words
}

/// An iSCSI target, `tgtd`, and where it takes orders: a socket of the kernel's in the world's
/// directory.
#[derive(Debug)]
pub struct Tgtd {
    orders: PathBuf,
}

impl Tgtd {
    /// The name of its one target.
    pub const NAME: &str = "iqn.2026-01.org.millrace:disk";

    /// One of this world.
    pub fn of(world: &World) -> Tgtd {
        Tgtd {
            orders: world.directory().join("tgtd"),
        }
    }

    /// The words that start it in the foreground.
    pub fn words(&self, address: &str, port: u16) -> Vec<String> {
        let orders = self.orders.display();
        let line =
            format!("env TGT_IPC_SOCKET={orders} tgtd -f -t 2 --iscsi portal={address}:{port}");
        line.split(' ').map(String::from).collect()
    }

    /// Whether it takes orders.
    pub fn is_ready(&self) -> bool {
        // Of the first target on a machine. The socket is there before it listens, and tgtadm does
        // not see that it was refused.
        UnixStream::connect(self.orders.with_extension("0")).is_ok()
    }

    /// Makes the target, with a disk that is a file.
    pub fn make(&self, disk: &Path) -> Result<()> {
        let (name, disk) = (Tgtd::NAME, disk.display());
        for order in [
            format!("--mode target --op new --tid 1 -T {name}"),
            format!("--mode logicalunit --op new --tid 1 --lun 1 -b {disk}"),
            "--mode target --op bind --tid 1 -I ALL".to_owned(),
        ] {
            self.order(&order)?;
        }
        Ok(())
    }

    /// Removes the target, and ends the program.
    pub fn end(&self) -> Result<()> {
        self.order("--mode target --op delete --force --tid 1")?;
        self.order("--mode system --op delete")
    }

    fn order(&self, order: &str) -> Result<()> {
        let output = Command::new("tgtadm")
            .env("TGT_IPC_SOCKET", &self.orders)
            .args(["--lld", "iscsi"])
            .args(order.split(' '))
            .output()
            .context("running tgtadm")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "tgtadm {order}: {said}");
        Ok(())
    }
}
