//! What ends a stack's waits. None of them has a limit: a test that does not end has failed.

use std::io::{self, Read, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use millrace::{Builder, Capabilities, Link, Mac, Offload, Port, PortCounters, RxMeta, Stack};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// A link on which a byte of a socket stands for a frame, of which nothing is to be seen.
struct Bell {
    socket: UnixStream,
    /// How often it is to be flushed until all has left.
    left: Arc<AtomicU32>,
}

impl Port for Bell {
    fn receive(&mut self, _: &mut [u8]) -> io::Result<Option<RxMeta>> {
        match self.socket.read(&mut [0; 1]) {
            Ok(_) => Ok(Some(RxMeta::default())),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn send(&mut self, _: &[u8], _: [&[u8]; 2], _: Offload) -> io::Result<bool> {
        Ok(true)
    }

    fn flush(&mut self) -> io::Result<bool> {
        let left = self.left.load(Ordering::Relaxed);
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        Ok(left == 0)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            mac: Mac([2, 0, 0, 0, 0, 7]),
            mtu: 1500,
            tx_checksum: false,
            tx_segmentation_max: 0,
            rx_aggregated: true,
            trusted_checksum: false,
            queues: 1,
        }
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}

/// A stack on such a link, with nothing left to do; and what rings.
fn quiet() -> (Stack, UnixStream) {
    quiet_with(Arc::default())
}

fn quiet_with(left: Arc<AtomicU32>) -> (Stack, UnixStream) {
    let (one, other) = UnixStream::pair().expect("a pair");
    one.set_nonblocking(true).expect("ours");
    let stack = Builder::new()
        .link(Link::custom(vec![Box::new(Bell { socket: one, left })]))
        .address(Ipv4Addr::new(10, 0, 0, 2), 24)
        .build()
        .expect("a stack");
    while stack.poll() > 0 {}
    (stack, other)
}

fn is_readable(stack: &Stack) -> bool {
    let descriptor = stack.descriptor().expect("room for one more");
    let mut one = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    poll(&mut one, Some(&Timespec::default())).expect("it is there") > 0
}

#[test]
fn a_frame_ends_a_wait() {
    let (stack, mut bell) = quiet();
    bell.write_all(&[1]).expect("open");
    stack.wait(None).expect("a wait");
    assert_eq!(stack.poll(), 1);
    // And while somebody may wait for its descriptor.
    assert!(!is_readable(&stack));
    bell.write_all(&[1]).expect("open");
    assert!(is_readable(&stack));
    stack.wait(None).expect("a wait");
    assert_eq!(stack.poll(), 1);
    assert!(!is_readable(&stack));
}

#[test]
fn a_frame_on_either_link_ends_a_wait() {
    let link = || {
        let (one, other) = UnixStream::pair().expect("a pair");
        one.set_nonblocking(true).expect("ours");
        let bell = Bell {
            socket: one,
            left: Arc::default(),
        };
        (Link::custom(vec![Box::new(bell)]), other)
    };
    let ((one, first), (two, second)) = (link(), link());
    let stack = Builder::new()
        .link(one)
        .address(Ipv4Addr::new(10, 1, 0, 2), 24)
        .link(two)
        .address(Ipv4Addr::new(10, 2, 0, 2), 24)
        .build()
        .expect("a stack");
    while stack.poll() > 0 {}
    for mut bell in [&first, &second] {
        bell.write_all(&[1]).expect("open");
        stack.wait(None).expect("a wait");
        assert_eq!(stack.poll(), 1);
        assert!(!is_readable(&stack));
        bell.write_all(&[1]).expect("open");
        assert!(is_readable(&stack));
        assert_eq!(stack.poll(), 1);
    }
    // A timer is heard beside them, and a device that is gone does not hide the other.
    stack.block_on(stack.sleep(Duration::from_millis(1)));
    drop(first);
    (&second).write_all(&[1]).expect("open");
    stack.wait(None).expect("a wait");
    assert!(stack.poll() >= 1);
}

#[test]
fn what_a_link_has_not_let_go_ends_a_wait() {
    let left = Arc::<AtomicU32>::default();
    let (stack, _bell) = quiet_with(left.clone());
    left.store(3, Ordering::Relaxed);
    stack.poll();
    while left.load(Ordering::Relaxed) > 0 {
        stack.wait(None).expect("a wait");
        stack.poll();
    }
}

#[test]
fn a_wake_up_from_another_thread_ends_a_wait() {
    let (stack, _bell) = quiet();
    let (tell, told) = std::sync::mpsc::channel();
    let woken = std::cell::Cell::new(false);
    stack.block_on(std::future::poll_fn(|cx| {
        if woken.replace(true) {
            return std::task::Poll::Ready(());
        }
        tell.send(cx.waker().clone()).expect("it is heard");
        let waker = told.recv().expect("it was said");
        std::thread::spawn(move || waker.wake());
        std::task::Poll::Pending
    }));
}

#[test]
fn a_descriptor_and_a_timer_end_a_wait() {
    let (stack, _bell) = quiet();
    let (one, mut other) = UnixStream::pair().expect("a pair");
    one.set_nonblocking(true).expect("ours");
    let one = millrace::Descriptor::new(&stack, one).expect("one to wait for");
    other.write_all(&[1]).expect("open");
    stack.block_on(one.readable());
    stack.block_on(stack.sleep(Duration::from_millis(1)));
}
