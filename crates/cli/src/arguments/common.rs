//! Values and arguments that several commands take.

use std::net::{IpAddr, Ipv6Addr};

use clap::Args;
use millrace_context::control_socket;
use millrace_port::spec::Prefix;

/// Ethernet's.
pub const DEFAULT_MTU: u16 = 1500;

/// What a process gives up once it has opened what it needs.
#[derive(Debug, Args)]
#[command(next_help_heading = "Privileges")]
pub struct PrivilegeArguments {
    /// The user that the stack's process becomes if root starts it: a name of /etc/passwd or a
    /// number [default: `millrace` if there is such a user, otherwise a number that no user has].
    /// It keeps those capabilities alone that the link needs; programs stay who they are
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// Do not limit the system calls of the stack's threads: for valgrind and the like
    #[arg(long)]
    pub no_seccomp: bool,
    /// Let a crash of the stack's process leave a core file, and its user's debuggers attach: for
    /// who looks for an error in millrace
    #[arg(long)]
    pub dumpable: bool,
}

impl PrivilegeArguments {
    /// As the process is told.
    pub fn sandbox(&self) -> millrace_sandbox::Config {
        millrace_sandbox::Config {
            user: self.user.clone(),
            all_calls: self.no_seccomp,
            dumpable: self.dumpable,
        }
    }
}

/// An address with the length of its prefix.
pub fn address(text: &str) -> Result<(IpAddr, u8), String> {
    let Some((ip, bits)) = text
        .split_once('/')
        .and_then(|(ip, bits)| Some((ip.parse::<Ipv6Addr>().ok()?, bits.parse::<u8>().ok()?)))
    else {
        let prefix: Prefix = text
            .parse()
            .map_err(|error: millrace_port::spec::Error| error.to_string())?;
        if prefix.address.is_loopback() {
            return Err(format!(
                "{text} is a loopback address, which no link can have; leave it out and give --loopback, which serves 127.0.0.0/8"
            ));
        }
        return Ok((prefix.address.into(), prefix.len));
    };
    let special = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_unicast_link_local()
        || ip.to_ipv4_mapped().is_some();
    if special || !(1..=126).contains(&bits) {
        return Err(format!(
            "{text} is no address of a host in a prefix of 1 to 126 bits; write it as fd00:9::2/64"
        ));
    }
    Ok((ip.into(), bits))
}

/// A value of `--engine-user`.
pub fn user(text: &str) -> Result<u32, String> {
    control_socket::user(text).ok_or_else(|| "there is no such user".to_owned())
}

/// The name of an engine, as a value of a flag.
pub fn engine_name(text: &str) -> Result<String, String> {
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if text.is_empty() || text.len() > 64 || text.starts_with('.') || !text.chars().all(good) {
        return Err(
            "a name is 1 to 64 letters, digits, '-', '_' or '.', without a '.' first".to_owned(),
        );
    }
    Ok(text.to_owned())
}
