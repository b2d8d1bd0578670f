//! The relay, between two kernels.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};

use millrace_e2e::namespace::Namespace;
use millrace_e2e::relay::Relay;
use millrace_e2e::{Result, ensure, scenario};
use millrace_sim::Link;
use millrace_tcp::Duration;

/// What is sent through a bad path arrives whole; and the path was bad.
fn a_bad_path_between_two_kernels() -> Result<()> {
    scenario::prepare()?;
    let (here, there) = (Namespace::create()?, Namespace::create()?);
    let link = Link {
        rate: Some(50_000_000),
        delay: Duration::from_millis(5),
        loss: 0.02,
        reorder: 0.02,
        duplicate: 0.02,
        corrupt: 0.01,
        spare_arp: true,
        ..Link::default()
    };
    let ends = [(&here, "10.9.1.1/24"), (&there, "10.9.1.2/24")];
    let relay = Relay::start(ends, [link; 2], 1)?;
    let bytes: Vec<u8> = (0..2_000_000u32).map(|at| (at % 251) as u8).collect();
    let listener = there.enter(|| TcpListener::bind("10.9.1.2:80"))?;
    let received = std::thread::spawn(move || -> Result<Vec<u8>> {
        let mut received = Vec::new();
        listener.accept()?.0.read_to_end(&mut received)?;
        Ok(received)
    });
    let mut stream = here.enter(|| TcpStream::connect("10.9.1.2:80"))?;
    stream.write_all(&bytes)?;
    drop(stream);
    let received = received.join().expect("it does not panic")?;
    ensure!(
        received == bytes,
        "{} of {} bytes",
        received.len(),
        bytes.len()
    );
    let [there, back] = relay.stop()?;
    ensure!(there.lost > 0 && there.reordered > 0, "{there:?}");
    ensure!(there.duplicated > 0 && there.corrupted > 0, "{there:?}");
    ensure!(back.frames > 100, "{back:?}");
    Ok(())
}

#[test]
fn carries_what_two_kernels_say() {
    a_bad_path_between_two_kernels().expect("the relay carries");
}
