//! Serves the files of a directory over HTTP/1.1, on all shards.
//!
//! ```text
//! web DIRECTORY [SHARDS] &    # as root: a TAP device; the kernel is 10.77.0.1, we are 10.77.0.2
//! curl http://10.77.0.2/
//! ```
//!
//! Files are read anew for each request by the shard's own thread, which is right for what is in
//! the page cache and wrong for a slow disk.

use std::error::Error;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use millrace::{Builder, Link, LinkOptions, Stack, TcpListener, TcpStream};

/// The longest request head.
const HEAD_MAX: usize = 8192;
/// How long a connection may be idle.
const IDLE: Duration = Duration::from_secs(30);

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let usage = "usage: web DIRECTORY [SHARDS]";
    let root = PathBuf::from(arguments.next().ok_or(usage)?).canonicalize()?;
    let shards = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let options = LinkOptions::new()
        .host(Ipv4Addr::new(10, 77, 0, 1), 24)
        .queues(shards);
    let link = Link::open(&"tap".parse()?, &options)?;
    let root = Arc::<Path>::from(root);
    let engine = Builder::new()
        .link(link)
        .address(Ipv4Addr::new(10, 77, 0, 2), 24)
        .start(shards, move |stack, shard| {
            let root = root.clone();
            async move {
                if let Err(error) = serve(&stack, &root).await {
                    eprintln!("shard {shard}: {error}");
                }
            }
        })?;
    println!("ready");
    engine.join();
    Ok(())
}

/// Accepts what is this shard's.
async fn serve(stack: &Stack, root: &Arc<Path>) -> io::Result<()> {
    let listener = TcpListener::bind(stack, "0.0.0.0:80")?;
    loop {
        let (stream, _) = listener.accept_async().await?;
        stack.spawn(converse(stack.clone(), stream, root.clone()));
    }
}

/// Answers one request after the other.
async fn converse(stack: Stack, stream: TcpStream, root: Arc<Path>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut head = Vec::new();
    loop {
        let Some(Some(end)) = stack
            .timeout(IDLE, read_head(&stream, &mut head))
            .await
            .transpose()?
        else {
            return Ok(());
        };
        let keep = answer(&stream, &String::from_utf8_lossy(&head[..end]), &root).await?;
        head.drain(..end);
        if !keep {
            return Ok(());
        }
    }
}

/// Reads until a request's head is there; where it ends, or none at the end of the stream.
async fn read_head(stream: &TcpStream, head: &mut Vec<u8>) -> io::Result<Option<usize>> {
    let mut looked = 0;
    loop {
        if let Some(at) = head[looked..]
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
        {
            return Ok(Some(looked + at + 4));
        }
        looked = head.len().saturating_sub(3);
        if head.len() >= HEAD_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut more = [0; 2048];
        match stream.read_async(&mut more).await? {
            0 => return Ok(None),
            len => head.extend_from_slice(&more[..len]),
        }
    }
}

/// Answers one request; whether another may follow.
async fn answer(stream: &TcpStream, head: &str, root: &Path) -> io::Result<bool> {
    let mut lines = head.lines();
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or("/"));
    let keep = words.next() == Some("HTTP/1.1")
        && !lines.any(|line| line.eq_ignore_ascii_case("connection: close"));
    let path = file_of(root, target);
    let file = match (method, path) {
        (Some("GET" | "HEAD"), Some(path)) => std::fs::File::open(path).ok(),
        (Some("GET" | "HEAD"), None) => None,
        _ => {
            let refusal =
                "HTTP/1.1 405 Method Not Allowed\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all_async(refusal.as_bytes()).await?;
            return Ok(false);
        }
    };
    let connection = if keep { "keep-alive" } else { "close" };
    let Some(mut file) = file else {
        let missing = format!(
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: {connection}\r\n\r\n"
        );
        stream.write_all_async(missing.as_bytes()).await?;
        return Ok(keep);
    };
    let mut left = file.metadata()?.len();
    let head =
        format!("HTTP/1.1 200 OK\r\ncontent-length: {left}\r\nconnection: {connection}\r\n\r\n");
    stream.write_all_async(head.as_bytes()).await?;
    if method == Some("HEAD") {
        return Ok(keep);
    }
    while left > 0 {
        // The file is read to where it will be sent from.
        stream.writable_async().await?;
        let mut outcome = Ok(0);
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(256 << 10);
        stream.write_with(most, |[first, _]| {
            outcome = file.read(first);
            *outcome.as_ref().unwrap_or(&0)
        })?;
        match outcome? {
            // It has become shorter: there is no honest way to end but this.
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            len => left -= len as u64,
        }
    }
    Ok(keep)
}

/// The file that a target means, if it means one below the root.
fn file_of(root: &Path, target: &str) -> Option<PathBuf> {
    let path = target.split(['?', '#']).next()?.trim_start_matches('/');
    let path = Path::new(if path.is_empty() { "index.html" } else { path });
    let sound = |part| matches!(part, Component::Normal(_));
    path.components().all(sound).then(|| root.join(path))
}
