//! The targets that have engines in this process: the corpus of each, and mutants of it. Apart from
//! the others, since they compare the descriptors of the process; and one after the other.

mod common;

use common::check;

#[test]
fn engines_survive_the_corpora_and_their_mutants() {
    check("control", 40);
    check("forks", 8);
    check("strangers", 12);
}
