//! The I/O traits of other crates, on the stack's own executor.

use std::net::{Ipv4Addr, SocketAddr};

use millrace::{Builder, Stack, TcpListener, TcpStream};

fn pair(stack: &Stack) -> (TcpStream, TcpStream) {
    let address: SocketAddr = (Ipv4Addr::LOCALHOST, 80).into();
    let listener = TcpListener::bind(stack, address).expect("free");
    let client = TcpStream::connect(stack, address).expect("connected");
    (client, listener.accept().expect("one waits").0)
}

#[test]
fn tokio_reads_and_writes() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let stack = Builder::new().build().expect("a stack");
    let (mut client, mut server) = pair(&stack);
    stack.spawn(async move {
        let mut line = vec![0; 100_000];
        server.read_exact(&mut line).await.expect("open");
        server.write_all(&line).await.expect("open");
        AsyncWriteExt::shutdown(&mut server).await.expect("open");
    });
    let sent: Vec<u8> = (0..100_000).map(|at| (at % 251) as u8).collect();
    let back = stack.block_on(async {
        client.write_all(&sent).await.expect("open");
        let mut back = Vec::new();
        client.read_to_end(&mut back).await.expect("open");
        back
    });
    assert!(back == sent);
}

#[test]
fn futures_reads_and_writes() {
    use futures_util::{AsyncReadExt, AsyncWriteExt};
    let stack = Builder::new().build().expect("a stack");
    let (mut client, mut server) = pair(&stack);
    stack.spawn(async move {
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.expect("open");
        server.write_all(&all).await.expect("open");
        server.close().await.expect("open");
    });
    let back = stack.block_on(async {
        client.write_all(&[7; 100_000]).await.expect("open");
        client.close().await.expect("open");
        let mut back = Vec::new();
        client.read_to_end(&mut back).await.expect("open");
        back
    });
    assert!(back == [7; 100_000]);
}
