//! What a program writes into the memory that it shares with the engine.

use std::os::fd::AsFd;
use std::sync::OnceLock;

use millrace_context::layout::{Geometry, SUBMISSIONS};
use millrace_context::protocol::Attached;
use millrace_context::region::create;
use millrace_context::slot::unpack_ring;
use millrace_context::submission::Cursor;
use millrace_context::{Address, Operation, Region, SlotRef};

use crate::bytes::Bytes;

fn region() -> &'static Region {
    static REGION: OnceLock<Region> = OnceLock::new();
    REGION.get_or_init(|| {
        let geometry = Geometry {
            shards: 1,
            slots: 8,
            contexts: 2,
            pollers: 2,
            arena: 1 << 20,
        };
        let file = create(&geometry).expect("a region can be made");
        Region::map(file.as_fd(), geometry).expect("and mapped")
    })
}

/// Bytes over a context, then the engine takes what it finds; and whatever else is read from there.
pub fn run(data: &[u8]) {
    let mut bytes = Bytes(data);
    let region = region();
    let (context, ring) = region.context(0).expect("there is one");
    context.reset();
    let start = std::ptr::from_ref(context).cast_mut().cast::<u8>();
    let cells = ring.as_ptr().cast_mut().cast::<u8>();
    for _ in 0..64 {
        if bytes.is_empty() {
            break;
        }
        let (to, room) = match bytes.u8() % 2 {
            0 => (start, size_of_val(context)),
            _ => (cells, 16 * 64),
        };
        let at = (usize::from(bytes.u16()) % (room - 8)) & !7;
        // SAFETY: inside the context or its ring; this is the only thread that uses the region now,
        // and it holds integers only.
        unsafe { to.add(at).cast::<u64>().write_volatile(bytes.u64()) };
    }
    let mut cursor = Cursor::default();
    let mut taken = 0;
    while let Ok(Some(submission)) = context.take(ring, &mut cursor) {
        taken += 1;
        assert!(taken <= SUBMISSIONS, "more than the ring holds");
        if submission.operation == Operation::Send {
            let len = u64::from(submission.parameter);
            for (at, len) in cursor.staged(len) {
                assert!(len == 0 || region.staging(0, at, len).is_some());
            }
            cursor.unstage(len);
        }
        let words = submission.arguments;
        let _ = Address::from_words([words[0], words[1], words[2]]).as_v4();
        let _ = region.slot(submission.slot.index);
    }
    context.publish(&cursor);
    let word = bytes.u64();
    if let Some((at, size)) = unpack_ring(word) {
        let _ = region.arena(at, size as usize);
        region.read_arena(at, &mut [0; 16]);
    }
    let _ = SlotRef::from_bits(word);
    let _ = Attached::from_words(std::array::from_fn(|_| bytes.u64()));
}
