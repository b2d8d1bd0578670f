//! The rules of the house, checked on the text of the checkout.
//!
//! Each submodule holds rules of one kind, as functions from a file's path and text to problems, so
//! that each is tested on a few lines of text. What a rule says is in its doc comment; why is in
//! `CONTRIBUTING.md`. The lists of [`crate::compliance`] are checked with them.

mod circles;
mod docs;
mod examples;
mod functions;
mod glossary;
mod layers;
mod manifest;
mod source;
mod threats;
mod words;

use std::path::Path;

use crate::checkout::{Problem, read_all};

/// What a run found.
pub struct Report {
    /// How many files were read.
    pub files: usize,
    /// Broken rules, sorted by place.
    pub problems: Vec<Problem>,
}

/// Reads the checkout at `root` and applies every rule.
pub fn check(root: &Path) -> anyhow::Result<Report> {
    let files = read_all(root)?;
    let mut problems = Vec::new();
    for file in &files {
        source::check(file, &mut problems);
        functions::check(file, &mut problems);
        examples::check(file, &mut problems);
        examples::check_program(file, &mut problems);
        words::check(file, &mut problems);
        manifest::check(file, &mut problems);
        docs::check_links(file, &files, |path| root.join(path).exists(), &mut problems);
        docs::check_mentions(file, &files, &mut problems);
    }
    examples::check_below(&files, &mut problems);
    manifest::check_workspace(&files, &mut problems);
    threats::check(&files, &mut problems);
    layers::check(&files, &mut problems);
    circles::check(&files, &mut problems);
    glossary::check(&files, &mut problems);
    crate::compliance::check(&files, &mut problems);
    problems.sort();
    Ok(Report {
        files: files.len(),
        problems,
    })
}
