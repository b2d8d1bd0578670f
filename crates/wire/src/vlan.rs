//! Tags of virtual LANs (IEEE 802.1Q): four bytes between the addresses of an Ethernet frame and
//! its type.

use crate::ethernet::EtherType;

/// Length of a tag in bytes.
pub const LEN: usize = 4;
/// Where it is in a frame.
pub const START: usize = 12;
/// The bits of a tag that name the LAN; the others are priority and whether it may be dropped
/// first.
const ID_MASK: u16 = 0xfff;

/// The tag of a virtual LAN, with priority 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag {
    id: u16,
}

impl Tag {
    /// The tag of the LAN `id`, 1 to 4094: 0 means that there is none, and 4095 is reserved.
    pub fn new(id: u16) -> Option<Tag> {
        (1..ID_MASK).contains(&id).then_some(Tag { id })
    }

    /// The number of the LAN.
    pub fn id(self) -> u16 {
        self.id
    }

    /// The tag as bytes.
    pub fn emit(self) -> [u8; LEN] {
        let [a, b] = EtherType::VLAN.0.to_be_bytes();
        let [c, d] = self.id.to_be_bytes();
        [a, b, c, d]
    }

    /// Whether `bytes`, which follow the addresses of a frame, are a tag of this LAN, whatever the
    /// priority.
    pub fn is(self, bytes: [u8; LEN]) -> bool {
        let [a, b, c, d] = bytes;
        u16::from_be_bytes([a, b]) == EtherType::VLAN.0
            && u16::from_be_bytes([c, d]) & ID_MASK == self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ieee8021q_a_tag_is_a_type_and_a_number() {
        let tag = Tag::new(7).unwrap();
        assert_eq!((tag.emit(), tag.id()), ([0x81, 0, 0, 7], 7));
        assert_eq!((Tag::new(0), Tag::new(4095)), (None, None));
        // Priority and drop eligibility are the sender's.
        assert!(tag.is([0x81, 0, 0xf0, 7]) && tag.is([0x81, 0, 0, 7]));
        for other in [
            [0x81, 0, 0, 8],
            [0x81, 0, 0, 0],
            [0x81, 0, 1, 7],
            // An outer tag of a provider (802.1ad), and no tag at all.
            [0x88, 0xa8, 0, 7],
            [0x08, 0, 0x45, 0],
        ] {
            assert!(!tag.is(other), "{other:?}");
        }
    }
}
