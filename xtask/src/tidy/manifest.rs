//! Rules for manifests: every crate says what it is and takes the workspace's lints, and what is
//! built is pinned.

use crate::checkout::{File, Problem};

/// Applies this module's rules to one manifest.
pub fn check(file: &File, problems: &mut Vec<Problem>) {
    if !file.path.ends_with("/Cargo.toml") {
        return;
    }
    let described = file.text.lines().any(|line| {
        line.split_once('=')
            .is_some_and(|(key, value)| key.trim() == "description" && value.trim().len() > 2)
    });
    if !described {
        problems.push(Problem::whole(&file.path, "add a `description`"));
    }
    if section(&file.text, "lints").all(|(_, line)| line.replace(' ', "") != "workspace=true") {
        problems.push(Problem::whole(&file.path, "add `[lints] workspace = true`"));
    }
}

/// Cargo.lock is part of the source.
pub fn check_workspace(files: &[File], problems: &mut Vec<Problem>) {
    if !files.iter().any(|file| file.path == "Cargo.lock") {
        problems.push(Problem::whole(
            "Cargo.lock",
            "commit it: what is built is pinned",
        ));
    }
}

/// Lines of `[name]`, with their numbers from 1.
pub fn section<'a>(manifest: &'a str, name: &'a str) -> impl Iterator<Item = (usize, &'a str)> {
    let mut inside = false;
    manifest
        .lines()
        .enumerate()
        .filter_map(move |(index, line)| {
            let line = line.trim();
            if let Some(header) = line
                .strip_prefix('[')
                .and_then(|rest| rest.strip_suffix(']'))
            {
                inside = header == name;
                return None;
            }
            (inside && !line.is_empty() && !line.starts_with('#')).then_some((index + 1, line))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let mut problems = Vec::new();
        check(
            &File {
                path: "crates/x/Cargo.toml".into(),
                text: text.into(),
            },
            &mut problems,
        );
        problems.len()
    }

    #[test]
    fn a_crate_has_a_description_and_the_lints() {
        assert_eq!(count("[package]\nname = \"x\"\n"), 2);
        assert_eq!(
            count("[package]\ndescription = \"It does x.\"\n[lints]\nworkspace = true\n"),
            0
        );
        assert_eq!(
            count("[package]\ndescription = \"\"\n[lints]\nworkspace = true\n"),
            1
        );
    }

    #[test]
    fn a_section_ends_at_the_next() {
        let lines: Vec<_> = section("[a]\nx = 1\n# no\n\n[b]\ny = 2\n", "a").collect();
        assert_eq!(lines, [(2, "x = 1")]);
    }

    #[test]
    fn the_lock_file_is_there() {
        let mut problems = Vec::new();
        check_workspace(&[], &mut problems);
        assert_eq!(problems.len(), 1);
    }
}
