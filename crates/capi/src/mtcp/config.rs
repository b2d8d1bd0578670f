//! mTCP's configuration: a file of `key = value`, and the numbers that a program can read and
//! change.

use std::ffi::c_int;

use millrace::Duration;

use crate::settings::{Settings, lines, number};

/// `struct mtcp_conf`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conf {
    pub num_cores: c_int,
    pub max_concurrency: c_int,
    pub max_num_buffers: c_int,
    pub rcvbuf_size: c_int,
    pub sndbuf_size: c_int,
    pub tcp_timewait: c_int,
    pub tcp_timeout: c_int,
}

/// Most cores: the shards that there can be.
const CORES_MAX: c_int = 64;
/// Most connections of a core at once.
const FLOWS_MAX: c_int = 1 << 20;
/// Bounds of a buffer in bytes.
const BUFFER: (c_int, c_int) = (2304, 16 << 20);
/// What a buffer that nobody has set has at first.
const BUFFER_DEFAULT: c_int = 64 << 10;
/// Longest time-out, in seconds.
const TIMEOUT_MAX: c_int = 24 * 3600;

/// Everything that the file and the program have said.
#[derive(Clone, Debug)]
pub struct Config {
    pub conf: Conf,
    /// What is not mTCP's: the link's addresses, and so on.
    base: Settings,
    /// Buffers that were set have that size; others grow.
    buffers_set: [bool; 2],
    memory_set: bool,
    io: Option<String>,
    port: Option<String>,
    pub stat_print: bool,
}

impl Default for Config {
    fn default() -> Config {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Config {
            conf: Conf {
                num_cores: (cores as c_int).min(CORES_MAX),
                max_concurrency: 10_000,
                max_num_buffers: 10_000,
                rcvbuf_size: BUFFER_DEFAULT,
                sndbuf_size: BUFFER_DEFAULT,
                tcp_timewait: 60,
                tcp_timeout: 30,
            },
            base: Settings::default(),
            buffers_set: [false; 2],
            memory_set: false,
            io: None,
            port: None,
            stat_print: false,
        }
    }
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// What is wrong, with file, line and key.
    pub fn read(&mut self, name: &str, text: &str) -> Result<(), String> {
        let mut ports = 0;
        for (line, key, value) in lines(text) {
            self.set(key, value)
                .map_err(|what| format!("{name}:{line}: {what}"))?;
            if key == "port" {
                ports = line;
            }
        }
        if self.port.is_none() {
            return Err(format!(
                "{name}: port: it is missing; `port = tap` makes a TAP device"
            ));
        }
        // What it is depends on `io`, which may stand after it.
        let settings = self.settings();
        settings.map_err(|what| format!("{name}:{ports}: {what}"))?;
        Ok(())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        let said = |what: String| format!("{key}: {what}");
        let conf = &mut self.conf;
        match key {
            "num_cores" => conf.num_cores = number(value, 1, CORES_MAX).map_err(said)?,
            "max_concurrency" => {
                conf.max_concurrency = number(value, 1, FLOWS_MAX).map_err(said)?;
            }
            "max_num_buffers" => {
                conf.max_num_buffers = number(value, 1, FLOWS_MAX).map_err(said)?;
                self.memory_set = true;
            }
            "rcvbuf" => {
                conf.rcvbuf_size = number(value, BUFFER.0, BUFFER.1).map_err(said)?;
                if !self.buffers_set[1] {
                    conf.sndbuf_size = conf.rcvbuf_size;
                }
                self.buffers_set[0] = true;
            }
            "sndbuf" => {
                conf.sndbuf_size = number(value, BUFFER.0, BUFFER.1).map_err(said)?;
                if !self.buffers_set[0] {
                    conf.rcvbuf_size = conf.sndbuf_size;
                }
                self.buffers_set[1] = true;
            }
            "tcp_timewait" => conf.tcp_timewait = number(value, 0, 240).map_err(said)?,
            "tcp_timeout" if value == "-1" => conf.tcp_timeout = -1,
            "tcp_timeout" => conf.tcp_timeout = number(value, 1, TIMEOUT_MAX).map_err(said)?,
            "port" if self.port.is_some() || value.contains([' ', '\t']) => {
                return Err(said("there is one port; a second one has no place".into()));
            }
            "port" if value.is_empty() => return Err(said("it names nothing".into())),
            "port" => self.port = Some(value.to_owned()),
            "io" => match value {
                "tap" | "tun" | "packet" | "macvtap" | "xdp" => self.io = Some(value.to_owned()),
                _ => {
                    return Err(said(format!(
                        "`{value}` is not here; there are tap, tun, packet, macvtap and xdp"
                    )));
                }
            },
            // One line of numbers each second says of every context what it does: there is one port
            // that they could be of.
            "stat_print" if value.is_empty() => return Err(said("it names nothing".into())),
            "stat_print" => self.stat_print = true,
            "num_mem_ch" | "core_mask" | "multiprocess" | "onvm_serv" | "onvm_inst"
            | "onvm_dest" => {
                return Err(said(
                    "it is a setting of mTCP's drivers, which are not here: take the line out"
                        .into(),
                ));
            }
            // They have other names here.
            "link" | "shards" | "clock" => {
                return Err(said("there is no such key in this file".into()));
            }
            _ => self.base.set(key, value)?,
        }
        Ok(())
    }

    /// Takes over what a program says; what is 0 stays, as in mTCP. False for what is out of
    /// bounds, and nothing has changed.
    pub fn change(&mut self, conf: &Conf) -> bool {
        let old = self.conf;
        let mut all = true;
        let mut pick = |new: c_int, old: c_int, least: c_int, most: c_int| {
            let good = new == 0 || new == old || (least..=most).contains(&new);
            all &= good;
            if new == 0 { old } else { new }
        };
        let new = Conf {
            num_cores: pick(conf.num_cores, old.num_cores, 1, CORES_MAX),
            max_concurrency: pick(conf.max_concurrency, old.max_concurrency, 1, FLOWS_MAX),
            max_num_buffers: pick(conf.max_num_buffers, old.max_num_buffers, 1, FLOWS_MAX),
            rcvbuf_size: pick(conf.rcvbuf_size, old.rcvbuf_size, BUFFER.0, BUFFER.1),
            sndbuf_size: pick(conf.sndbuf_size, old.sndbuf_size, BUFFER.0, BUFFER.1),
            tcp_timewait: pick(conf.tcp_timewait, old.tcp_timewait, 1, 240),
            tcp_timeout: pick(conf.tcp_timeout, old.tcp_timeout, -1, TIMEOUT_MAX),
        };
        if all {
            self.conf = new;
            self.buffers_set[0] |= new.rcvbuf_size != old.rcvbuf_size;
            self.buffers_set[1] |= new.sndbuf_size != old.sndbuf_size;
            self.memory_set |= new.max_num_buffers != old.max_num_buffers;
        }
        all
    }

    /// What our engine is to be.
    ///
    /// # Errors
    /// What the port is not.
    pub fn settings(&self) -> Result<Settings, String> {
        let conf = self.conf;
        let cores = conf.num_cores as u32;
        let mut settings = self.base.clone();
        settings.shards = conf.num_cores as u16;
        let port = self.port.as_deref().unwrap_or_default();
        let link = match &self.io {
            Some(io) if !port.contains(':') && port != io => format!("{io}:{port}"),
            _ => port.to_owned(),
        };
        settings
            .set("link", &link)
            .map_err(|what| format!("port: {what}"))?;
        settings.limits.sockets = conf.max_concurrency as u32 * cores;
        let [receive, send] = [conf.rcvbuf_size, conf.sndbuf_size].map(|bytes| bytes as u32);
        if self.buffers_set.contains(&true) {
            (
                settings.buffers.receive_default,
                settings.buffers.receive_max,
            ) = (receive, receive);
            (settings.buffers.send_default, settings.buffers.send_max) = (send, send);
        }
        if self.memory_set {
            let buffers = u64::from(conf.max_num_buffers as u32 * cores);
            // A ring is a power of two.
            settings.receive_memory = buffers * u64::from(receive.next_power_of_two());
            settings.limits.send_memory = buffers * u64::from(send.next_power_of_two());
        }
        match conf.tcp_timewait {
            0 => settings.limits.time_wait = 0,
            seconds => settings.tcp.time_wait = Duration::from_secs(seconds as u64),
        }
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_mtcps_is_read() {
        let text = "# ours\nio = tap\nnum_cores = 2\nport = mr3\nmax_concurrency = 100\nrcvbuf = 8192\ntcp_timeout = -1\ntcp_timewait = 0\nstat_print = mr3\naddress = 10.77.0.2/24\n";
        let mut config = Config::default();
        config.read("server.conf", text).expect("good lines");
        assert_eq!(
            config.conf,
            Conf {
                num_cores: 2,
                max_concurrency: 100,
                max_num_buffers: 10_000,
                rcvbuf_size: 8192,
                sndbuf_size: 8192,
                tcp_timewait: 0,
                tcp_timeout: -1,
            }
        );
        assert!(config.stat_print);
        let settings = config.settings().expect("a link");
        assert_eq!((settings.shards, settings.limits.sockets), (2, 200));
        assert_eq!(settings.limits.time_wait, 0);
        assert_eq!(settings.buffers.send_max, 8192);
    }

    #[test]
    fn what_is_wrong_is_named_with_file_line_and_key() {
        for (text, said) in [
            ("io = dpdk\n", "a.conf:1: io: `dpdk` is not here"),
            ("\nnum_cores = 0\n", "a.conf:2: num_cores: `0` is not"),
            ("num_cores = two\n", "a.conf:1: num_cores: `two` is not"),
            ("num_mem_ch = 4\n", "a.conf:1: num_mem_ch: it is a setting"),
            ("rcvbuf = 1\n", "a.conf:1: rcvbuf: `1` is not"),
            ("port = tap\nport = tap\n", "a.conf:2: port: there is one"),
            ("port = a b\n", "a.conf:1: port: there is one"),
            ("tcp_timeout = 0\n", "a.conf:1: tcp_timeout: `0`"),
            ("colour = blue\n", "a.conf:1: colour: there is no such key"),
            ("shards = 2\n", "a.conf:1: shards: there is no such key"),
            ("num_cores = 1\n", "a.conf: port: it is missing"),
            (
                "\nport = dpdk0\n",
                "a.conf:2: port: link: there is no link `dpdk0`",
            ),
        ] {
            let error = Config::default().read("a.conf", text).expect_err(text);
            assert!(error.starts_with(said), "{error}");
        }
    }

    #[test]
    fn what_a_program_changes_is_bounded() {
        let mut config = Config::default();
        let read = config.conf;
        assert!(config.change(&read));
        let mut conf = Conf {
            num_cores: 3,
            max_concurrency: 0,
            ..read
        };
        assert!(config.change(&conf));
        assert_eq!(
            (config.conf.num_cores, config.conf.max_concurrency),
            (3, 10_000)
        );
        conf.num_cores = 65;
        assert!(!config.change(&conf));
        conf.num_cores = -1;
        assert!(!config.change(&conf));
        assert_eq!(config.conf.num_cores, 3);
    }
}
