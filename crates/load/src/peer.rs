//! The server at the other end of a pair: it does what the workload wants, as cheaply as it can.

use std::io::{self, ErrorKind};
use std::sync::Arc;

use millrace::{BuildError, Builder, Link, Stack, TcpListener, TcpStream};

use crate::plan::{Closes, Plan, Workload};

/// Bytes that are written at a time.
const PIECE: usize = 256 << 10;
/// The longest request.
const REQUEST_MAX: usize = 64 << 10;

/// The server's stack, which serves whenever it is polled.
pub(crate) fn serve(link: Link, plan: &Arc<Plan>) -> Result<Stack, BuildError> {
    let bits = plan.addresses.first().map_or(24, |(_, bits)| *bits);
    let stack = Builder::new()
        .link(link)
        .address(plan.target.address.ip(), bits)
        .build()?;
    let (here, plan) = (stack.clone(), plan.clone());
    stack.spawn(async move {
        // It listens at an address of its own, on a host that has no other listener.
        let listener = TcpListener::bind(&here, plan.target.address).expect("a free port");
        while let Ok((stream, _)) = listener.accept_async().await {
            here.spawn(converse(stream, plan.clone()));
        }
    });
    Ok(stack)
}

/// One connection, until an error or the end of it.
async fn converse(stream: TcpStream, plan: Arc<Plan>) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; PIECE];
    match plan.workload {
        Workload::Short => {
            let size = plan.size;
            stream.read_exact_async(&mut buffer[..size]).await?;
            stream.write_all_async(&buffer[..size]).await?;
            if plan.closes == Closes::Client {
                // Until it does.
                stream.read_async(&mut buffer).await?;
            }
            Ok(())
        }
        Workload::Pingpong => loop {
            match stream.read_async(&mut buffer).await? {
                0 => return Ok(()),
                len => stream.write_all_async(&buffer[..len]).await?,
            }
        },
        Workload::In => loop {
            match stream.read_with(|[first, second]| first.len() + second.len()) {
                Ok(0) => return Ok(()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    stream.readable_async().await?;
                }
                Err(error) => return Err(error),
            }
        },
        Workload::Out => loop {
            stream.write_async(&buffer).await?;
        },
        Workload::Http => answer(&stream, &plan, &mut buffer[..REQUEST_MAX]).await,
    }
}

/// Answers requests without looking at them.
async fn answer(stream: &TcpStream, plan: &Plan, buffer: &mut [u8]) -> io::Result<()> {
    let kept = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\nhello\n";
    let last = b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nhello\n";
    let mut held = 0;
    loop {
        match stream.read_async(&mut buffer[held..]).await? {
            0 => return Ok(()),
            len => held += len,
        }
        while let Some(end) = buffer[..held]
            .windows(4)
            .position(|four| four == b"\r\n\r\n")
        {
            buffer.copy_within(end + 4..held, 0);
            held -= end + 4;
            if !plan.keep_alive {
                return stream.write_all_async(last).await;
            }
            stream.write_all_async(kept).await?;
        }
    }
}
