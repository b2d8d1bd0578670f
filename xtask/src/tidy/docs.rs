//! Rules for pages: a relative link leads to a file, and its anchor to a heading. A source file
//! that a page or a comment names is there.

use crate::checkout::{File, Problem};

/// Checks the links of one page. `exists` is asked about paths from the root; `files` holds the
/// pages with the headings.
pub fn check_links(
    file: &File,
    files: &[File],
    exists: impl Fn(&str) -> bool,
    problems: &mut Vec<Problem>,
) {
    if !file.path.ends_with(".md") {
        return;
    }
    for (number, target) in links(&file.text) {
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
        let path = if path.is_empty() {
            file.path.clone()
        } else {
            resolve(&file.path, path)
        };
        if !exists(&path) {
            problems.push(Problem::at(
                &file.path,
                number,
                format!("`{target}` leads nowhere"),
            ));
            continue;
        }
        let page = files.iter().find(|file| file.path == path);
        if !anchor.is_empty()
            && page.is_some_and(|page| !headings(&page.text).any(|heading| heading == anchor))
        {
            problems.push(Problem::at(
                &file.path,
                number,
                format!("`{path}` has no heading `#{anchor}`"),
            ));
        }
    }
}

/// Checks that each source file in the prose of a page or in a comment is the end of a file's path.
/// What has happened to files is for the changelog to tell.
pub fn check_mentions(file: &File, files: &[File], problems: &mut Vec<Problem>) {
    let lines: Vec<(usize, &str)> = if file.path == "CHANGELOG.md" {
        return;
    } else if file.path.ends_with(".md") {
        prose(&file.text).collect()
    } else if file.path.ends_with(".rs") {
        let numbered = file.text.lines().enumerate();
        let comments = numbered.filter(|(_, line)| line.trim_start().starts_with("//"));
        comments.map(|(index, line)| (index + 1, line)).collect()
    } else {
        return;
    };
    for (number, line) in lines {
        for name in mentioned(line) {
            let is_end = |path: &str| {
                let before = path.strip_suffix(name);
                before.is_some_and(|before| before.is_empty() || before.ends_with('/'))
            };
            if !files.iter().any(|file| is_end(&file.path)) {
                let message = format!("there is no file `{name}`; say where it is now");
                problems.push(Problem::at(&file.path, number, message));
            }
        }
    }
}

/// Names of source files between backticks.
fn mentioned(line: &str) -> impl Iterator<Item = &str> {
    let spans = line.split('`').skip(1).step_by(2);
    spans.filter(|span| {
        let is_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | '/' | '.' | '-');
        span.ends_with(".rs") && span.len() > 3 && span.chars().all(is_path)
    })
}

/// Lines of a page outside code blocks, with their numbers from 1.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
            return None;
        }
        (!in_code).then_some((index + 1, line))
    })
}

/// Targets of `[text](target)`, with their lines.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    for (number, line) in prose(text) {
        let mut rest = line;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, next)) = after.split_once(')') else {
                break;
            };
            found.push((number, target.trim()));
            rest = next;
        }
    }
    found
}

/// Headings as anchors: lower case, spaces as `-`, other marks left out.
fn headings(text: &str) -> impl Iterator<Item = String> {
    prose(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| {
            let title = line.trim_start_matches('#').trim().to_lowercase();
            title
                .chars()
                .filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'))
                .map(|c| if c == ' ' { '-' } else { c })
                .collect()
        })
}

/// `target` as seen from the page `from`, as a path from the root.
fn resolve(from: &str, target: &str) -> String {
    let mut parts: Vec<&str> = from.split('/').collect();
    parts.pop();
    for part in target.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(text: &str) -> usize {
        let page = |path: &str, text: &str| File {
            path: path.into(),
            text: text.into(),
        };
        let files = [
            page("docs/a.md", text),
            page("README.md", "# The two commands\n"),
        ];
        let mut problems = Vec::new();
        check_links(
            &files[0],
            &files,
            |path| files.iter().any(|file| file.path == path),
            &mut problems,
        );
        problems.len()
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        assert_eq!(
            count(
                "see [x](../README.md), [y](../README.md#the-two-commands), [z](https://example.com/) and [w](#own)\n# Own\n"
            ),
            0
        );
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        assert_eq!(count("see [x](b.md) and [y](../README.md#three)\n"), 2);
    }

    #[test]
    fn files_that_are_named_are_there() {
        let page = |path: &str, text: &str| File {
            path: path.into(),
            text: text.into(),
        };
        let files = [
            page(
                "docs/a.md",
                "see `tcp/src/input.rs`, `input.rs`, `put.rs` and `gone.rs`\n",
            ),
            page(
                "crates/tcp/src/input.rs",
                "// as `gone.rs` has it\nlet a = `gone.rs`;\n",
            ),
        ];
        let mut problems = Vec::new();
        for file in &files {
            check_mentions(file, &files, &mut problems);
        }
        let places: Vec<_> = problems
            .iter()
            .map(|found| (&*found.path, found.line))
            .collect();
        let expected = [
            ("docs/a.md", 1),
            ("docs/a.md", 1),
            ("crates/tcp/src/input.rs", 1),
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn code_is_no_link() {
        assert_eq!(count("```\na[0](b)\n```\n"), 0);
    }
}
