//! Modules without circles: files of one crate do not import each other in a loop.
//!
//! A file imports another if its code names what the other defines, by `use` or by a path. What a
//! module hands on by `pub use` belongs to the file that defines it. Code for tests alone does not
//! count.

mod graph;
mod names;

use std::collections::{BTreeMap, BTreeSet};

use crate::checkout::{File, Problem};
use graph::circles;
use names::{Crate, Imports};

/// Loops that may stay, each with its reason: the first file of the loop, then why. Five at most.
const ALLOWED: [(&str, &str); 0] = [];

/// Applies the rule to every crate of the checkout.
pub fn check(files: &[File], problems: &mut Vec<Problem>) {
    let texts: BTreeMap<&str, &str> = files
        .iter()
        .map(|file| (file.path.as_str(), file.text.as_str()))
        .collect();
    for root in texts.keys().filter(|path| is_root(path)) {
        let imports = match Crate::read(root, &texts) {
            Ok(found) => found.imports(),
            Err(error) => {
                problems.push(Problem::whole(root, format!("cannot be read: {error}")));
                continue;
            }
        };
        for circle in circles(imports.keys().cloned()) {
            if !is_allowed(&circle) {
                problems.push(Problem::whole(&circle[0], describe(&circle, &imports)));
            }
        }
    }
}

/// Whether a crate's modules begin in this file.
fn is_root(path: &str) -> bool {
    let product = ["crates/", "bench/", "xtask/"]
        .iter()
        .any(|folder| path.starts_with(folder));
    let is_program = path.contains("/src/bin/") && {
        let below = path.rsplit("/src/bin/").next().unwrap_or_default();
        below.ends_with("/main.rs") || !below.contains('/')
    };
    product && (path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") || is_program)
}

/// Whether a circle is in [`ALLOWED`].
fn is_allowed(circle: &[String]) -> bool {
    ALLOWED.iter().any(|(first, _)| circle[0] == *first)
}

/// The files of a circle and what ties them.
fn describe(circle: &[String], imports: &Imports) -> String {
    let within: BTreeSet<&String> = circle.iter().collect();
    let ties: Vec<String> = imports
        .iter()
        .filter(|((from, to), _)| within.contains(from) && within.contains(to))
        .map(|((from, to), name)| format!("{} -> {} ({name})", short(from), short(to)))
        .collect();
    format!(
        "{} files import each other in a circle; move what both need to a third: {}",
        circle.len(),
        ties.join(", ")
    )
}

/// A file's path below its `src`.
fn short(path: &str) -> &str {
    path.split_once("/src/").map_or(path, |(_, below)| below)
}

#[cfg(test)]
mod tests;
