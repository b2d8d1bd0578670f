//! A function has at most 80 lines, and a line of comment at most 100 columns.

use syn::spanned::Spanned as _;
use syn::visit::Visit;

use crate::checkout::{File, Problem};

/// The lines of a function, from its name to its closing brace.
const LINES_MAX: usize = 80;
/// The columns of a line that is a comment alone.
const COLUMNS_MAX: usize = 100;

/// Applies this module's rules to one file.
pub fn check(file: &File, problems: &mut Vec<Problem>) {
    if !file.path.ends_with(".rs") {
        return;
    }
    check_columns(file, problems);
    match syn::parse_file(&file.text) {
        Ok(parsed) => Functions { file, problems }.visit_file(&parsed),
        Err(error) => problems.push(Problem::whole(&file.path, format!("no Rust: {error}"))),
    }
}

/// Comments of at most [`COLUMNS_MAX`] columns. A link, a command or the row of a
/// table may be longer than a line.
fn check_columns(file: &File, problems: &mut Vec<Problem>) {
    for (index, line) in file.text.lines().enumerate() {
        let columns = line.chars().count();
        let text = line.trim_start_matches([' ', '/', '!']);
        let may_be_long = !text.contains(' ') || text.starts_with('|');
        if columns > COLUMNS_MAX && !may_be_long && line.trim_start().starts_with("//") {
            problems.push(Problem::at(
                &file.path,
                index + 1,
                format!("{columns} columns of comment; {COLUMNS_MAX} is the most"),
            ));
        }
    }
}

/// Looks at every function of a file.
struct Functions<'a> {
    file: &'a File,
    problems: &'a mut Vec<Problem>,
}

impl Functions<'_> {
    /// Measures one function.
    fn measure(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let first = signature.fn_token.span().start().line;
        let lines = block.brace_token.span.close().end().line + 1 - first;
        if lines > LINES_MAX {
            self.problems.push(Problem::at(
                &self.file.path,
                first,
                format!(
                    "`{}` has {lines} lines; {LINES_MAX} is the most: one task a function",
                    signature.ident
                ),
            ));
        }
    }
}

impl<'ast> Visit<'ast> for Functions<'_> {
    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.measure(&item.sig, &item.block);
        syn::visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        self.measure(&item.sig, &item.block);
        syn::visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.measure(&item.sig, block);
        }
        syn::visit::visit_trait_item_fn(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> Vec<String> {
        let mut problems = Vec::new();
        let file = File {
            path: "crates/x/src/lib.rs".into(),
            text: text.into(),
        };
        check(&file, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_function_of_80_lines_passes_and_one_more_does_not() {
        let of = |lines: usize| format!("fn f() {{{}}}\n", "\n".repeat(lines - 1));
        assert_eq!(said(&of(80)), Vec::<String>::new());
        assert_eq!(said(&of(81)).len(), 1);
        assert_eq!(said(&format!("impl X {{ {} }}", of(81))).len(), 1);
    }

    #[test]
    fn a_comment_of_100_columns_passes_and_one_more_does_not() {
        let of = |columns: usize| format!("    // a {}\n", "b".repeat(columns - 9));
        assert_eq!(said(&of(100)), Vec::<String>::new());
        assert_eq!(said(&of(101)).len(), 1);
        let link = format!("//! https://x.org/{}\n", "y".repeat(100));
        assert_eq!(said(&link), Vec::<String>::new());
    }
}
