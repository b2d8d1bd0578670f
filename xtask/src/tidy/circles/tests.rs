use super::*;

/// What the rule says of a crate of these files.
fn said(files: &[(&str, &str)]) -> Vec<String> {
    let files: Vec<File> = files
        .iter()
        .map(|(path, text)| File {
            path: format!("crates/x/src/{path}"),
            text: (*text).into(),
        })
        .collect();
    let mut problems = Vec::new();
    check(&files, &mut problems);
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn two_files_that_name_each_other_are_a_circle() {
    let said = said(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        ("b.rs", "pub struct B; fn f() { crate::a::A::new(); }"),
    ]);
    assert_eq!(said.len(), 1);
    assert!(said[0].contains("a.rs -> b.rs (B)"), "{said:?}");
}

#[test]
fn a_child_that_names_its_parent_is_one() {
    let said = said(&[
        ("lib.rs", "mod a;"),
        ("a.rs", "mod inner; pub struct A; fn f() { inner::go(); }"),
        ("a/inner.rs", "use super::A; pub fn go() -> A { A }"),
    ]);
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn what_is_handed_on_belongs_to_the_file_that_defines_it() {
    let said = said(&[
        ("lib.rs", "mod a; mod b; pub use a::A; pub use b::B;"),
        ("a.rs", "pub struct A;"),
        ("b.rs", "use crate::A; pub struct B(A);"),
    ]);
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn code_for_tests_does_not_count() {
    let said = said(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "use crate::b::B; pub struct A(B);"),
        (
            "b.rs",
            "pub struct B; #[cfg(test)] mod tests { use crate::a::A; }",
        ),
    ]);
    assert_eq!(said, Vec::<String>::new());
}

#[test]
fn a_macro_names_files_too() {
    let said = said(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub fn f() { println!(\"{}\", crate::b::g()); }"),
        ("b.rs", "use crate::a::f; pub fn g() -> u8 { f(); 0 }"),
    ]);
    assert_eq!(said.len(), 1, "{said:?}");
}

#[test]
fn an_attribute_names_files_too() {
    let said = said(&[
        ("lib.rs", "mod a; mod b;"),
        ("a.rs", "pub fn f() {} pub struct A(crate::b::B);"),
        (
            "b.rs",
            "pub struct B { #[arg(long, value_parser = crate::a::f)] x: u8 }",
        ),
    ]);
    assert_eq!(said.len(), 1, "{said:?}");
}
