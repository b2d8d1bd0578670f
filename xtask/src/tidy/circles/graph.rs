//! Loops in a graph.

use std::collections::{BTreeMap, BTreeSet};

/// Nodes that reach each other, of two nodes and more; nodes and groups are sorted.
///
/// A node is in a group with all nodes that it reaches and that reach it. The graphs here have some
/// hundred nodes, so that walking from each is quick enough.
pub fn circles(edges: impl Iterator<Item = (String, String)>) -> Vec<Vec<String>> {
    let mut next: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for (from, to) in edges {
        next.entry(from).or_default().insert(to);
    }
    let reached: BTreeMap<&String, BTreeSet<&String>> = next
        .keys()
        .map(|node| (node, reached_from(node, &next)))
        .collect();
    let mut found = BTreeSet::new();
    for (node, beyond) in &reached {
        let group: Vec<String> = beyond
            .iter()
            .filter(|other| reached.get(**other).is_some_and(|back| back.contains(node)))
            .map(|other| (*other).clone())
            .collect();
        if group.len() > 1 {
            found.insert(group);
        }
    }
    found.into_iter().collect()
}

/// Every node to which a way of at least one edge leads from `start`.
fn reached_from<'a>(
    start: &String,
    next: &'a BTreeMap<String, BTreeSet<String>>,
) -> BTreeSet<&'a String> {
    let mut reached = BTreeSet::new();
    let mut pending: Vec<&String> = next[start].iter().collect();
    while let Some(node) = pending.pop() {
        if reached.insert(node) {
            pending.extend(next.get(node).into_iter().flatten());
        }
    }
    reached
}
