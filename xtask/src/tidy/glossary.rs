//! The field's words: a name that the glossary of `ARCHITECTURE.md` has replaced does not come
//! back.

use syn::visit::Visit;

use crate::checkout::{File, Problem};

/// The page with the glossary.
const PAGE: &str = "ARCHITECTURE.md";
/// The head of the glossary's table.
const HEAD: &str = "| not | but | where |";

/// One row: a name that is not used, the one in its place, and the folder where that holds.
struct Row {
    not: String,
    but: String,
    folder: String,
}

/// Applies the rule to every crate.
pub fn check(files: &[File], problems: &mut Vec<Problem>) {
    let page = files.iter().find(|file| file.path == PAGE);
    let rows = page.map(|page| rows(&page.text)).unwrap_or_default();
    if rows.is_empty() {
        let message = format!("the table of words, headed `{HEAD}`, is missing");
        return problems.push(Problem::whole(PAGE, message));
    }
    for file in files {
        let here: Vec<&Row> = rows
            .iter()
            .filter(|row| file.path.starts_with(&row.folder))
            .collect();
        if file.path.ends_with(".rs") && !here.is_empty() {
            check_file(file, &here, problems);
        }
    }
}

/// Applies the rule to the file's own name and to the names that it declares.
fn check_file(file: &File, rows: &[&Row], problems: &mut Vec<Problem>) {
    let parts = file.path.trim_end_matches(".rs").split('/');
    let mut names: Vec<(String, usize)> = parts.skip(2).map(|part| (part.into(), 0)).collect();
    if let Ok(parsed) = syn::parse_file(&file.text) {
        let mut declared = Declared(Vec::new());
        declared.visit_file(&parsed);
        names.extend(declared.0);
    }
    for (name, line) in names {
        for row in rows.iter().filter(|row| row.not == name) {
            problems.push(Problem::at(
                &file.path,
                line,
                format!(
                    "`{name}` is called `{}`: see the glossary of {PAGE}",
                    row.but
                ),
            ));
        }
    }
}

/// The rows of the table. A row may name several words and several crates.
fn rows(page: &str) -> Vec<Row> {
    let mut rows = Vec::new();
    let table = page
        .lines()
        .skip_while(|line| !line.starts_with(HEAD))
        .skip(2)
        .take_while(|line| line.starts_with('|'));
    for line in table {
        let cells: Vec<&str> = line.trim_matches('|').split('|').map(str::trim).collect();
        let [not, but, place] = cells[..] else {
            continue;
        };
        let bare = |word: &str| word.trim().trim_matches('`').to_string();
        for (not, place) in not
            .split(',')
            .flat_map(|not| place.split(',').map(move |place| (not, place)))
        {
            rows.push(Row {
                not: bare(not),
                but: bare(but),
                folder: match bare(place).as_str() {
                    "everywhere" => "crates/".into(),
                    name => format!("crates/{name}/"),
                },
            });
        }
    }
    rows
}

/// Names of functions, types, fields, variants, constants and modules, with their lines.
struct Declared(Vec<(String, usize)>);

impl Declared {
    fn add(&mut self, name: &syn::Ident) {
        self.0.push((name.to_string(), name.span().start().line));
    }
}

impl<'ast> Visit<'ast> for Declared {
    fn visit_signature(&mut self, item: &'ast syn::Signature) {
        self.add(&item.ident);
    }

    fn visit_field(&mut self, item: &'ast syn::Field) {
        item.ident.iter().for_each(|name| self.add(name));
    }

    fn visit_variant(&mut self, item: &'ast syn::Variant) {
        self.add(&item.ident);
        syn::visit::visit_variant(self, item);
    }

    fn visit_item(&mut self, item: &'ast syn::Item) {
        match item {
            syn::Item::Const(item) => self.add(&item.ident),
            syn::Item::Enum(item) => self.add(&item.ident),
            syn::Item::Mod(item) => self.add(&item.ident),
            syn::Item::Static(item) => self.add(&item.ident),
            syn::Item::Struct(item) => self.add(&item.ident),
            syn::Item::Trait(item) => self.add(&item.ident),
            syn::Item::Type(item) => self.add(&item.ident),
            _ => {}
        }
        syn::visit::visit_item(self, item);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "| not | but | where |\n|---|---|---|\n| `lane` | `SubmissionHandle` | everywhere |\n\
                         | `path`, `route` | `pmtud` | `tcp` |\n";

    fn said(path: &str, text: &str) -> Vec<String> {
        let files = [(PAGE, TABLE), (path, text)].map(|(path, text)| File {
            path: path.into(),
            text: text.into(),
        });
        let mut problems = Vec::new();
        check(&files, &mut problems);
        problems.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_replaced_word_does_not_come_back_as_a_name() {
        assert_eq!(
            said("crates/preload/src/a.rs", "struct S { lane: u8 }").len(),
            1
        );
        assert_eq!(said("crates/preload/src/lane.rs", "").len(), 1);
        assert_eq!(
            said("crates/preload/src/a.rs", "fn f() { let lane = 1; }").len(),
            0
        );
    }

    #[test]
    fn a_word_of_one_crate_is_free_in_the_others() {
        assert_eq!(said("crates/tcp/src/a.rs", "fn path() {}").len(), 1);
        assert_eq!(said("crates/tcp/src/a.rs", "fn route() {}").len(), 1);
        assert_eq!(said("crates/cli/src/a.rs", "fn path() {}").len(), 0);
    }

    #[test]
    fn a_page_without_the_table_is_a_problem() {
        let mut problems = Vec::new();
        check(&[], &mut problems);
        assert_eq!(problems.len(), 1);
    }
}
