//! The checkout's files and what is said of them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;

/// One broken rule at one place.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    /// Path from the root of the checkout, with `/`.
    pub path: String,
    /// Line, from 1; 0 speaks of the whole file.
    pub line: usize,
    /// What is wrong and what to do.
    pub message: String,
}

impl Problem {
    /// At a line, counted from 1.
    pub(crate) fn at(path: &str, line: usize, message: impl Into<String>) -> Problem {
        Problem {
            path: path.into(),
            line,
            message: message.into(),
        }
    }

    /// About a whole file.
    pub(crate) fn whole(path: &str, message: impl Into<String>) -> Problem {
        Problem::at(path, 0, message)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(out, "{}: {}", self.path, self.message),
            line => write!(out, "{}:{line}: {}", self.path, self.message),
        }
    }
}

/// A file of the checkout.
pub struct File {
    /// Path from the root, with `/`.
    pub path: String,
    /// Its text.
    pub text: String,
}

/// What holds no source: build output, history (a file in a second working tree), results of runs.
fn is_skipped(name: &str) -> bool {
    name == ".git" || name == "results" || name.starts_with("target")
}

/// Every text file below `root`. Files that are not UTF-8 are no source and are left out.
pub(crate) fn read_all(root: &Path) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(directory) = pending.pop() {
        for entry in
            fs::read_dir(&directory).with_context(|| format!("reading {}", directory.display()))?
        {
            let entry = entry?;
            let kind = entry.file_type()?;
            if is_skipped(&entry.file_name().to_string_lossy()) {
                continue;
            }
            if kind.is_dir() {
                pending.push(entry.path());
            } else if kind.is_file()
                && let Ok(text) = fs::read_to_string(entry.path())
            {
                files.push(File {
                    path: relative(root, &entry.path()),
                    text,
                });
            }
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

/// `path` as seen from `root`, with `/`.
fn relative(root: &Path, path: &Path) -> String {
    let below: PathBuf = path.strip_prefix(root).unwrap_or(path).into();
    below.to_string_lossy().replace('\\', "/")
}

/// Whether `word` stands in `line` and is no part of a longer word; `is_part` tells which
/// characters make up words.
pub(crate) fn contains_word(line: &str, word: &str, is_part: impl Fn(char) -> bool) -> bool {
    let is_cut = |edge: Option<char>, beside: Option<char>| {
        edge.is_some_and(&is_part) && beside.is_some_and(&is_part)
    };
    line.match_indices(word).any(|(at, _)| {
        let cut_before = is_cut(word.chars().next(), line[..at].chars().next_back());
        let cut_after = is_cut(
            word.chars().next_back(),
            line[at + word.len()..].chars().next(),
        );
        !cut_before && !cut_after
    })
}
