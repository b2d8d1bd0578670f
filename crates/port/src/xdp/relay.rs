//! Frames that go on to another port.

use std::io;

use millrace_wire::ethernet;
use millrace_wire::vlan;
use millrace_wire::vnet::{self, VnetHeader};

use super::{Xdp, unfinished};
use crate::relay::TAG_LEN;
use crate::{Offload, Relay, Relayed};

impl Relay for Xdp {
    fn receive_parts(&mut self, buffer: &mut [u8], rest: &mut [u8]) -> io::Result<Option<Relayed>> {
        // Room for a tag is not needed before a frame that has its own in it; it is left so that
        // payload lies as it does for other ports.
        let room = &mut buffer[TAG_LEN..];
        let Some(frame_len) = self.take(room, rest) else {
            return Ok(None);
        };
        let len = frame_len.min(room.len());
        let mut vnet = VnetHeader::default();
        if self.is_local
            && let Some((start, offset)) = unfinished::find(&room[..len])
        {
            vnet.flags = vnet::Flags::NEEDS_CSUM;
            (vnet.csum_start, vnet.csum_offset) = (start, offset);
        }
        Ok(Some(Relayed {
            start: TAG_LEN,
            len,
            rest: frame_len - len,
            vnet,
        }))
    }

    fn send_parts(
        &mut self,
        head: &[u8],
        payload: &[&[u8]],
        vnet: &VnetHeader,
    ) -> io::Result<bool> {
        let parts = || std::iter::once(head).chain(payload.iter().copied());
        let len: usize = parts().map(<[u8]>::len).sum();
        let offload = match vnet.flags.contains(vnet::Flags::NEEDS_CSUM) {
            true => Offload::Checksum {
                start: vnet.csum_start,
                offset: vnet.csum_offset,
            },
            false => Offload::None,
        };
        let can = vnet.gso == vnet::Gso::NONE
            && (offload == Offload::None || self.capabilities.tx_checksum);
        // What whoever sent it to be relayed has made too large is his loss.
        let max = ethernet::HEADER_LEN + vlan::LEN + usize::from(self.capabilities.mtu);
        let sent = can && len <= max && self.queues[0].send(parts(), len, offload)?;
        self.sent(sent, len);
        Ok(sent)
    }
}
