//! Mutants from a seed: the same seed gives the same ones on every machine.

use millrace_sim::Rng;

/// Makes mutants.
#[derive(Debug)]
pub struct Mutator(Rng);

const INTERESTING: [u8; 10] = [0, 1, 2, 4, 5, 0x10, 0x7f, 0x80, 0xfe, 0xff];

impl Mutator {
    /// A mutator of this seed.
    pub fn new(seed: u64) -> Mutator {
        Mutator(Rng::new(seed))
    }

    fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit as u64) as usize
    }

    /// A few changes to one of the inputs, or the beginning of one and the end of another.
    pub fn mutant(&mut self, inputs: &[Vec<u8>]) -> Vec<u8> {
        let any = |this: &mut Mutator| match inputs.len() {
            0 => Vec::new(),
            count => inputs[this.below(count)].clone(),
        };
        let mut bytes = any(self);
        if self.below(4) == 0 {
            let other = any(self);
            bytes.truncate(self.below(bytes.len() + 1));
            bytes.extend_from_slice(&other[self.below(other.len() + 1)..]);
        }
        for _ in 0..=self.below(6) {
            let at = self.below(bytes.len() + 1);
            let fresh = match self.below(2) {
                0 => INTERESTING[self.below(INTERESTING.len())],
                _ => self.below(256) as u8,
            };
            match (self.below(4), bytes.get_mut(at)) {
                (0, Some(byte)) => *byte ^= 1 << self.below(8),
                (1, Some(byte)) => *byte = fresh,
                (2, Some(_)) => {
                    let end = (at + 1 + self.below(8)).min(bytes.len());
                    bytes.drain(at..end);
                }
                _ => bytes.insert(at, fresh),
            }
        }
        bytes
    }
}
