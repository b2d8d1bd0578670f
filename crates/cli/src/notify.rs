//! What a service manager is told (sd_notify(3)): a datagram to the socket named by NOTIFY_SOCKET.

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Environment: the socket of the service manager.
const ENV_SOCKET: &str = "NOTIFY_SOCKET";

/// A connection to the service manager, if this process has one. It is made before the engine gives
/// up its rights, because its new user may not reach the socket.
pub struct Notifier(Option<UnixDatagram>);

impl Notifier {
    pub fn open() -> Notifier {
        let address = std::env::var_os(ENV_SOCKET);
        Notifier(address.and_then(|address| match connect(&address) {
            Ok(socket) => Some(socket),
            Err(error) => {
                eprintln!(
                    "millrace: cannot reach the service manager at {} ({ENV_SOCKET}): {error}",
                    address.display()
                );
                None
            }
        }))
    }

    /// Tells the service manager that the engine serves, with a line of status.
    pub fn ready(&self, status: &str) {
        if let Some(socket) = &self.0
            && let Err(error) = socket.send(format!("READY=1\nSTATUS={status}").as_bytes())
        {
            eprintln!(
                "millrace: cannot tell the service manager that the engine is ready: {error}"
            );
        }
    }
}

/// Connects to a path, or to an abstract name, which begins with `@`.
fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let address = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&address)?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_reaches_a_path_and_an_abstract_name() {
        let name = format!("millrace-notify-{}", std::process::id());
        let path = std::env::temp_dir().join(&name);
        let by_name = SocketAddr::from_abstract_name(&name).expect("a name");
        let by_path = SocketAddr::from_pathname(&path).expect("a path");
        let abstract_name = format!("@{name}");
        for (address, text) in [
            (by_name, OsStr::new(&abstract_name)),
            (by_path, path.as_os_str()),
        ] {
            let manager = UnixDatagram::bind_addr(&address).expect("a socket");
            let notifier = Notifier(Some(connect(text).expect("it listens")));
            notifier.ready("10.8.0.2/24 on lab0");
            let mut buffer = [0; 64];
            let len = manager.recv(&mut buffer).expect("a datagram");
            assert_eq!(&buffer[..len], b"READY=1\nSTATUS=10.8.0.2/24 on lab0");
        }
        std::fs::remove_file(&path).expect("it is there");
        assert!(connect(path.as_os_str()).is_err());
    }
}
