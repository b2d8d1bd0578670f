//! An HTTP client of a few lines, for loads that need to know what happened to each request.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// How long a request may take before it counts as lost.
const LIMIT: Duration = Duration::from_secs(20);

/// Fetches `path` on a connection of its own; the body of a 200.
pub fn get(address: SocketAddr, path: &str) -> io::Result<Vec<u8>> {
    let mut stream = connect(address)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    let (head, body) = split(&answer)?;
    if body.len() != content_length(head)? {
        return Err(invalid(format!(
            "{} bytes of body, head: {head}",
            body.len()
        )));
    }
    Ok(body.to_vec())
}

/// Fetches `path` on a connection that stays open.
pub fn get_on(stream: &mut TcpStream, path: &str) -> io::Result<Vec<u8>> {
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    let mut buffer = [0; 16384];
    loop {
        if let Ok((head, body)) = split(&answer)
            && body.len() >= content_length(head)?
        {
            return Ok(body.to_vec());
        }
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => answer.extend_from_slice(&buffer[..count]),
        }
    }
}

/// A connection with time limits.
pub fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

/// Head and body of an answer with status 200.
fn split(answer: &[u8]) -> io::Result<(&str, &[u8])> {
    let end = answer
        .windows(4)
        .position(|four| four == b"\r\n\r\n")
        .ok_or(io::ErrorKind::UnexpectedEof)?;
    let head = std::str::from_utf8(&answer[..end])
        .map_err(|_| invalid("a head that is no text".into()))?;
    if !head.starts_with("HTTP/1.1 200") && !head.starts_with("HTTP/1.0 200") {
        return Err(invalid(head.to_string()));
    }
    Ok((head, &answer[end + 4..]))
}

/// The length that a head announces.
fn content_length(head: &str) -> io::Result<usize> {
    let value = head
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    value
        .and_then(|(_, value)| value.trim().parse().ok())
        .ok_or_else(|| invalid(head.to_string()))
}

fn invalid(message: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
