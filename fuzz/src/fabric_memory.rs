//! What a peer writes into the memory of a pair of ports.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;

use millrace_fabric::shm::memory::{CELLS, PIECE_MAX, create, map, scribble};
use millrace_fabric::{Body, Head};

use crate::bytes::Bytes;

/// Words anywhere in the memory, cells with the right tag among them; then both ends of one side
/// are used.
pub fn run(data: &[u8]) {
    static FILE: OnceLock<OwnedFd> = OnceLock::new();
    let file = FILE.get_or_init(|| create().expect("a file"));
    let mut bytes = Bytes(data);
    // What the run before has left.
    let blank = (0..1 << 16).step_by(8);
    scribble(file.as_fd(), blank.map(|at| (at, 0))).expect("ours");
    let (mut writer, mut reader) = map(file.as_fd(), false).expect("ours");
    let mut buffer = vec![0; PIECE_MAX];
    for round in 0..8 {
        let mut words = Vec::new();
        for _ in 0..16 {
            let cell = u64::from(bytes.u8() % 64);
            words.push(match bytes.u8() % 4 {
                0 => (bytes.u16() as usize, bytes.u64()),
                1 => (bytes.u16() as usize % 2048, u64::from(bytes.u8())),
                2 => (
                    4096 + cell as usize * 128 + 24,
                    u64::from(bytes.u16()) << 32 | u64::from(bytes.u32()),
                ),
                _ => {
                    let kind = u64::from(bytes.u8() % 9) << 24;
                    (4096 + cell as usize * 128, (cell + 1) << 32 | kind)
                }
            });
        }
        scribble(file.as_fd(), words.into_iter()).expect("ours");
        let mut taken = 0;
        while let Ok(Some((_, body))) = reader.next() {
            assert!(body.len() <= PIECE_MAX);
            body.copy_to(&mut buffer[..body.len()]);
            taken += 1;
            assert!(taken <= CELLS, "more than the ring holds");
        }
        reader.tell(round % 2 == 0);
        let room = writer.room().unwrap_or_default().min(PIECE_MAX);
        writer.push(Head::Data { ticket: 0, at: 0 }, &buffer[..room]);
        writer.push(Head::System, &buffer[..32]);
        writer.take_sleeper();
        if bytes.is_empty() {
            break;
        }
    }
}
