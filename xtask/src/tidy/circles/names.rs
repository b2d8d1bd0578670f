//! The modules of one crate and what each of them names.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, bail};
use proc_macro2::{TokenStream, TokenTree};
use syn::visit::Visit;

/// How many `pub use` are followed from a name to where it is defined.
const HOPS_MAX: usize = 8;
/// In place of a name: every name of a module.
const ALL: &str = "*";

/// A path below the crate's root, or the name of a module.
type Names = Vec<String>;

/// Imports between files, each with one of the names that it takes.
pub type Imports = BTreeMap<(String, String), String>;

/// A crate's modules by their paths; the root has the empty path.
pub struct Crate(BTreeMap<Names, Module>);

/// One module: a file, or a block within one.
#[derive(Default)]
struct Module {
    /// The file in which it stands.
    file: String,
    /// What it defines.
    items: BTreeSet<String>,
    /// Names that it takes from elsewhere or hands on: the name here, and the path as written.
    taken: BTreeMap<String, Names>,
    /// Modules of which it takes every name, as written.
    globs: Vec<Names>,
    /// Paths that its code names, as written, and its private `use`.
    named: BTreeSet<Names>,
}

impl Crate {
    /// Reads the crate whose modules begin in the file `root`.
    pub fn read(root: &str, texts: &BTreeMap<&str, &str>) -> anyhow::Result<Crate> {
        let mut found = Crate(BTreeMap::new());
        let (folder, _) = root.rsplit_once('/').unwrap_or_default();
        found.read_file(root, folder, Vec::new(), texts)?;
        Ok(found)
    }

    /// Reads a file that is the module `at`; its modules lie in `folder`.
    fn read_file(
        &mut self,
        path: &str,
        folder: &str,
        at: Names,
        texts: &BTreeMap<&str, &str>,
    ) -> anyhow::Result<()> {
        let text = texts.get(path).with_context(|| format!("no file {path}"))?;
        let parsed = syn::parse_file(text).with_context(|| format!("parsing {path}"))?;
        self.read_items(&parsed.items, path, folder, at, texts)
    }

    /// Reads what a module holds, and the modules below it.
    fn read_items(
        &mut self,
        items: &[syn::Item],
        path: &str,
        folder: &str,
        at: Names,
        texts: &BTreeMap<&str, &str>,
    ) -> anyhow::Result<()> {
        let mut module = Module {
            file: path.into(),
            ..Module::default()
        };
        for item in items {
            let syn::Item::Mod(inner) = item else {
                module.visit_item(item);
                continue;
            };
            if is_for_tests(&inner.attrs) {
                continue;
            }
            let name = inner.ident.to_string();
            let below = [at.clone(), vec![name.clone()]].concat();
            let inside = format!("{folder}/{name}");
            match &inner.content {
                Some((_, items)) => self.read_items(items, path, &inside, below, texts)?,
                None => {
                    let file = [format!("{inside}.rs"), format!("{inside}/mod.rs")]
                        .into_iter()
                        .chain(given_path(&inner.attrs).map(|given| format!("{folder}/{given}")))
                        .find(|file| texts.contains_key(file.as_str()));
                    let Some(file) = file else {
                        bail!("no file for `mod {name}` of {path}");
                    };
                    self.read_file(&file, &inside, below, texts)?;
                }
            }
        }
        self.0.insert(at, module);
        Ok(())
    }

    /// Which file names what of which other.
    pub fn imports(&self) -> Imports {
        let mut imports = Imports::new();
        for (at, module) in &self.0 {
            for named in &module.named {
                let Some(file) = self.defined_in(at, named, HOPS_MAX) else {
                    continue;
                };
                if file != module.file {
                    let name = named.last().cloned().unwrap_or_default();
                    imports
                        .entry((module.file.clone(), file.to_string()))
                        .or_insert(name);
                }
            }
        }
        imports
    }

    /// The file of this crate that defines what `path` names within the module `at`. A module by
    /// itself is no definition: what is named through it counts.
    fn defined_in(&self, at: &[String], path: &[String], hops: usize) -> Option<&str> {
        let (mut at, path) = self.start(at, path)?;
        for (index, name) in path.iter().enumerate() {
            let module = &self.0[&at];
            let below = [at.clone(), vec![name.clone()]].concat();
            if self.0.contains_key(&below) {
                at = below;
            } else if name == ALL || module.items.contains(name) {
                return Some(&module.file);
            } else if let Some(taken) = module.taken.get(name).filter(|_| hops > 0) {
                let whole = [taken.as_slice(), &path[index + 1..]].concat();
                return self.defined_in(&at, &whole, hops - 1);
            } else {
                let rest = &path[index..];
                return module.globs.iter().filter(|_| hops > 0).find_map(|glob| {
                    let whole = [glob.as_slice(), rest].concat();
                    self.defined_in(&at, &whole, hops - 1)
                });
            }
        }
        None
    }

    /// Where a path begins: its module, and what is left of it; `None` if it leaves the crate.
    fn start<'p>(&self, at: &[String], path: &'p [String]) -> Option<(Names, &'p [String])> {
        let mut at = at.to_vec();
        let mut rest = path;
        match rest.first()?.as_str() {
            "crate" => {
                at.clear();
                rest = &rest[1..];
            }
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            name => {
                let module = &self.0[&at];
                let below = [at.clone(), vec![name.to_string()]].concat();
                let is_known = module.taken.contains_key(name) || self.0.contains_key(&below);
                if !is_known && !module.items.contains(name) {
                    return None;
                }
                if module.taken.get(name).is_some_and(|taken| taken == path) {
                    return None;
                }
            }
        }
        Some((at, rest))
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_item(&mut self, item: &'ast syn::Item) {
        if is_for_tests(attributes(item)) {
            return;
        }
        if let Some(name) = name_of(item) {
            self.items.insert(name);
        }
        syn::visit::visit_item(self, item);
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        let is_private = matches!(item.vis, syn::Visibility::Inherited);
        self.take(&item.tree, &mut Vec::new(), is_private);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let names = path.segments.iter().map(|part| part.ident.to_string());
        self.named.insert(names.collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        self.visit_path(&mac.path);
        self.scan(mac.tokens.clone());
    }

    fn visit_meta_list(&mut self, list: &'ast syn::MetaList) {
        self.visit_path(&list.path);
        self.scan(list.tokens.clone());
    }
}

impl Module {
    /// Takes the names of a `use`; a private one is named here, a public one is handed on.
    fn take(&mut self, tree: &syn::UseTree, before: &mut Names, is_private: bool) {
        let mut insert = |name: String, path: Names| {
            if is_private {
                self.named.insert(path.clone());
            }
            self.taken.insert(name, path);
        };
        match tree {
            syn::UseTree::Path(part) => {
                before.push(part.ident.to_string());
                self.take(&part.tree, before, is_private);
                before.pop();
            }
            syn::UseTree::Name(leaf) if leaf.ident == "self" => {
                insert(before.last().cloned().unwrap_or_default(), before.clone());
            }
            syn::UseTree::Name(leaf) => {
                let name = leaf.ident.to_string();
                insert(name.clone(), [before.clone(), vec![name]].concat());
            }
            syn::UseTree::Rename(leaf) => {
                let path = [before.clone(), vec![leaf.ident.to_string()]].concat();
                insert(leaf.rename.to_string(), path);
            }
            syn::UseTree::Glob(_) => {
                if is_private {
                    self.named
                        .insert([before.clone(), vec![ALL.into()]].concat());
                }
                self.globs.push(before.clone());
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.take(tree, before, is_private);
                }
            }
        }
    }

    /// Finds paths in what a macro or an attribute is given, of which the grammar is not known.
    fn scan(&mut self, tokens: TokenStream) {
        let mut path = Names::new();
        let mut is_open = false;
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if !is_open {
                        self.named.insert(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    is_open = false;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => is_open = !path.is_empty(),
                TokenTree::Group(group) => {
                    self.named.insert(std::mem::take(&mut path));
                    self.scan(group.stream());
                    is_open = false;
                }
                _ => {
                    self.named.insert(std::mem::take(&mut path));
                    is_open = false;
                }
            }
        }
        self.named.insert(path);
    }
}

/// Whether an item is compiled for tests alone.
fn is_for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let syn::Meta::List(list) = &attribute.meta else {
            return false;
        };
        let said = list.tokens.to_string();
        list.path.is_ident("cfg") && said.contains("test") && !said.contains("not (test")
    })
}

/// The file that `#[path = ".."]` names.
fn given_path(attributes: &[syn::Attribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else {
            return None;
        };
        let syn::Expr::Lit(literal) = &pair.value else {
            return None;
        };
        match &literal.lit {
            syn::Lit::Str(path) if pair.path.is_ident("path") => Some(path.value()),
            _ => None,
        }
    })
}

/// The attributes of an item.
fn attributes(item: &syn::Item) -> &[syn::Attribute] {
    match item {
        syn::Item::Const(item) => &item.attrs,
        syn::Item::Enum(item) => &item.attrs,
        syn::Item::Fn(item) => &item.attrs,
        syn::Item::Impl(item) => &item.attrs,
        syn::Item::Macro(item) => &item.attrs,
        syn::Item::Static(item) => &item.attrs,
        syn::Item::Struct(item) => &item.attrs,
        syn::Item::Trait(item) => &item.attrs,
        syn::Item::Type(item) => &item.attrs,
        syn::Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// The name under which an item is found.
fn name_of(item: &syn::Item) -> Option<String> {
    let name = match item {
        syn::Item::Const(item) => &item.ident,
        syn::Item::Enum(item) => &item.ident,
        syn::Item::Fn(item) => &item.sig.ident,
        syn::Item::Macro(item) => item.ident.as_ref()?,
        syn::Item::Static(item) => &item.ident,
        syn::Item::Struct(item) => &item.ident,
        syn::Item::Trait(item) => &item.ident,
        syn::Item::Type(item) => &item.ident,
        syn::Item::Union(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}
