//! HTTPS: rustls over the stack, a task for each connection. Every request is answered with what
//! was agreed on and what was asked.
//!
//! ```text
//! openssl req -x509 -newkey ed25519 -nodes -days 30 -keyout key.pem -out cert.pem \
//!     -subj /CN=millrace -addext subjectAltName=IP:10.77.0.2
//! tls cert.pem key.pem &    # as root: a TAP device; the kernel is 10.77.0.1, the server 10.77.0.2
//! curl --cacert cert.pem https://10.77.0.2/
//! ```
//!
//! With the feature `tokio` a [`TcpStream`] has that crate's I/O traits, which is all that
//! tokio-rustls wants of it: no runtime of its own runs here.

use std::error::Error;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use millrace::{Builder, Link, LinkOptions, Stack, TcpListener, TcpStream};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// Who has not shaken hands, or says nothing, for so long is sent away.
const SILENCE: Duration = Duration::from_secs(30);
/// The longest request head.
const HEAD_MAX: usize = 8192;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: tls CERTIFICATE.pem KEY.pem";
    let (certificate, key) = (
        arguments.next().ok_or(usage)?,
        arguments.next().ok_or(usage)?,
    );
    let acceptor = TlsAcceptor::from(Arc::new(configure(&certificate, &key)?));
    let options = LinkOptions::new().host(Ipv4Addr::new(10, 77, 0, 1), 24);
    let link = Link::open(&"tap".parse()?, &options)?;
    let stack = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .build()?;
    let listener = TcpListener::bind(&stack, "0.0.0.0:443")?;
    println!("ready");
    stack.block_on(async {
        loop {
            let (stream, peer) = listener.accept_async().await?;
            let (here, acceptor) = (stack.clone(), acceptor.clone());
            stack.spawn(async move {
                if let Err(error) = serve(&here, stream, peer, &acceptor).await {
                    eprintln!("{peer}: {error}");
                }
            });
        }
    })
}

/// A server with this certificate (the issuers' behind it, if there are any), for HTTP/1.1 over TLS
/// 1.2 and 1.3.
fn configure(certificate: &str, key: &str) -> Result<ServerConfig, Box<dyn Error>> {
    let told = |file: &str, error: &dyn Error| format!("{file}: {error}");
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate)
        .map_err(|error| told(certificate, &error))?
        .collect();
    let chain = chain.map_err(|error| told(certificate, &error))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| told(key, &error))?;
    let mut config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(|error| format!("{certificate} and {key}: {error}"))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Shakes hands, and answers one request after the other.
async fn serve(
    stack: &Stack,
    stream: TcpStream,
    peer: SocketAddr,
    acceptor: &TlsAcceptor,
) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let too_long = || io::Error::from(io::ErrorKind::TimedOut);
    let shaking = stack.timeout(SILENCE, acceptor.accept(stream)).await;
    let mut stream = shaking.ok_or_else(too_long)??;
    let (_, session) = stream.get_ref();
    let (version, suite) = (
        session.protocol_version(),
        session.negotiated_cipher_suite(),
    );
    let agreed = version.zip(suite.map(|suite| suite.suite()));
    let agreed = agreed.map_or(String::new(), |(version, suite)| {
        format!("{:?} {:?}", version, suite)
    });
    let mut head = Vec::new();
    loop {
        let asked = stack.timeout(SILENCE, read_head(&mut stream, &mut head));
        let Some(end) = asked.await.ok_or_else(too_long)?? else {
            return stream.shutdown().await;
        };
        let request = String::from_utf8_lossy(&head[..end]).into_owned();
        head.drain(..end);
        let line = request.lines().next().unwrap_or_default();
        let body = format!("{agreed}\n{peer}\n{line}\n");
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        stream.flush().await?;
    }
}

/// Reads until a request's head is there; where it ends, or none at the end of the stream.
async fn read_head(
    stream: &mut (impl tokio::io::AsyncRead + Unpin),
    head: &mut Vec<u8>,
) -> io::Result<Option<usize>> {
    loop {
        if let Some(at) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            return Ok(Some(at + 4));
        }
        if head.len() >= HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if stream.read_buf(head).await? == 0 {
            return Ok(None);
        }
    }
}
