//! What is held of a flow: put where it belongs, taken out in order.

use millrace_wire::checksum::Sum;
use millrace_wire::tcp::{Flags, Seq};

use crate::ack_proxy::Kept;
use crate::config::Config;
use crate::flow::Flow;
use crate::pool::{Item, NONE, Pool};
use crate::unit::{Extent, Head, Sink, UNIT_SEGMENTS, Unit, extent, joins};

/// What became of a segment that was to be held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    /// It is behind all that is held.
    Last,
    /// It is between others, or before them; a part of it that was there already may have been cut
    /// off.
    Between {
        /// Whether a part was cut off.
        trimmed: bool,
    },
    /// All of it is there already.
    Duplicate,
    /// It has more than another one has on both of its sides.
    Covers,
}

/// Puts the segment that the next free buffer holds where it belongs. It starts at or behind
/// `base`, the number after what was handed on.
pub(crate) fn insert(flow: &mut Flow, pool: &mut Pool, mut item: Item, base: Seq) -> Held {
    let from_base = |seq: Seq| (seq - base) as u32;
    let tail_end = if flow.tail == NONE {
        base
    } else {
        pool.item(flow.tail).end()
    };
    if flow.tail == NONE || from_base(item.seq) >= from_base(tail_end) {
        link(flow, pool, flow.tail, item, base);
        return Held::Last;
    }
    // It is not the last: find the ones that it stands between.
    let (mut before, mut after) = (NONE, flow.head);
    while after != NONE && from_base(pool.item(after).seq) <= from_base(item.seq) {
        before = after;
        after = pool.item(after).next;
    }
    let mut trimmed = false;
    if before != NONE {
        let covered = from_base(pool.item(before).end()).saturating_sub(from_base(item.seq));
        if covered >= u32::from(item.len) {
            return Held::Duplicate;
        }
        if covered > 0 {
            trim_front(pool, &mut item, covered as u16);
            trimmed = true;
        }
    }
    if after != NONE {
        let next = pool.item(after);
        if from_base(item.end()) > from_base(next.end()) {
            return Held::Covers;
        }
        let over = from_base(item.end()).saturating_sub(from_base(next.seq));
        if over >= u32::from(item.len) {
            return Held::Duplicate;
        }
        if over > 0 {
            trim_back(pool, &mut item, over as u16);
            trimmed = true;
        }
    }
    link(flow, pool, before, item, base);
    Held::Between { trimmed }
}

/// Cuts off the first bytes. What is left is read once more for its sum: overlaps are rare.
fn trim_front(pool: &Pool, item: &mut Item, len: u16) {
    item.payload_at += len;
    item.seq += u32::from(len);
    item.len -= len;
    sum_again(pool, item);
}

/// Cuts off the last bytes, and the push that was for them.
fn trim_back(pool: &Pool, item: &mut Item, len: u16) {
    item.len -= len;
    item.flags -= Flags::PSH;
    sum_again(pool, item);
}

fn sum_again(pool: &Pool, item: &mut Item) {
    if item.sum.is_some() {
        let at = usize::from(item.frame_at) + usize::from(item.payload_at);
        let payload = &pool.buffer(pool.next())[at..at + usize::from(item.len)];
        item.sum = Some(Sum::of(payload));
    }
}

/// Puts it behind `before`, or at the head, and sees how far the bytes are in order now.
fn link(flow: &mut Flow, pool: &mut Pool, before: u32, item: Item, base: Seq) {
    let len = u32::from(item.len);
    let index = pool.take(item);
    let after = if before == NONE {
        std::mem::replace(&mut flow.head, index)
    } else {
        std::mem::replace(&mut pool.item_mut(before).next, index)
    };
    pool.item_mut(index).next = after;
    // Now both are at hand; when the unit is made they are long gone from the cache.
    pool.item_mut(index).follows = before != NONE && joins(pool, before, index);
    if after == NONE {
        flow.tail = index;
    } else {
        pool.item_mut(after).follows = joins(pool, index, after);
    }
    flow.count += 1;
    flow.bytes += len;
    extend_run(flow, pool, base);
}

/// The run grows by what now continues it.
fn extend_run(flow: &mut Flow, pool: &Pool, base: Seq) {
    let mut next = if flow.run_tail == NONE {
        flow.head
    } else {
        pool.item(flow.run_tail).next
    };
    while next != NONE && pool.item(next).seq == base + flow.run_bytes {
        flow.run_bytes += u32::from(pool.item(next).len);
        flow.pushed |= pool.item(next).flags.contains(Flags::PSH);
        flow.run_tail = next;
        next = pool.item(next).next;
    }
}

/// Hands on one unit of what is held first, be there a hole before it or not. `next_seq` moves
/// behind it. The segments go to `kept`, or back to the pool.
pub(crate) fn hand_on(
    flow: &mut Flow,
    pool: &mut Pool,
    config: &Config,
    kept: Option<&mut Kept>,
    sink: &mut impl Sink,
) {
    let Extent {
        last, count, len, ..
    } = show(pool, config, flow.head, sink);
    let end = pool.item(last).end();
    let first = std::mem::replace(&mut flow.head, pool.item(last).next);
    flow.count -= count;
    if let Some(kept) = kept {
        kept.add(pool, first, last);
    } else {
        let mut index = first;
        for _ in 0..count {
            index = pool.put(index);
        }
    }
    flow.next_seq = Some(end);
    flow.bytes -= len;
    flow.owed = flow.owed.saturating_sub(len);
    flow.run_bytes = flow.run_bytes.saturating_sub(len);
    flow.units += 1;
    if flow.head == NONE {
        flow.tail = NONE;
        flow.pushed = false;
    } else {
        pool.item_mut(flow.head).follows = false;
    }
    if flow.run_bytes == 0 {
        flow.run_tail = NONE;
        extend_run(flow, pool, end);
    }
}

/// Shows the sink the unit that begins with `first`; says which segments it is made of.
pub(crate) fn show(pool: &Pool, config: &Config, first: u32, sink: &mut impl Sink) -> Extent {
    let extent = extent(pool, first, u32::from(config.aggregate));
    if extent.count == 1 {
        give(pool, config, first, &extent, &[pool.payload(first)], sink);
        return extent;
    }
    let mut slices: [&[u8]; UNIT_SEGMENTS] = [&[]; UNIT_SEGMENTS];
    let slices = &mut slices[..extent.count as usize];
    let mut index = first;
    for slice in &mut *slices {
        *slice = pool.payload(index);
        index = pool.item(index).next;
    }
    give(pool, config, first, &extent, slices, sink);
    extent
}

/// Gives the sink a unit.
fn give(
    pool: &Pool,
    config: &Config,
    first: u32,
    extent: &Extent,
    payload: &[&[u8]],
    sink: &mut impl Sink,
) {
    let sum = config.finish_checksums.then(|| {
        let (mut sum, mut at, mut index) = (Sum::ZERO, 0, first);
        for slice in payload {
            let item = pool.item(index);
            let of_item = item.sum.unwrap_or_else(|| Sum::of(slice));
            sum = sum.add_at(at, of_item);
            at += usize::from(item.len);
            index = item.next;
        }
        sum
    });
    let head = Head::new(pool, first, extent, sum);
    sink.unit(Unit {
        head: head.bytes(),
        payload,
        vnet: head.vnet,
        segments: extent.count,
    });
}
