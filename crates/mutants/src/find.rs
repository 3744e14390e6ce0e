//! Finds the places of a source text where a small logic error could be.
//!
//! What is text for people (`Debug`, `Display`), tests, constants, patterns and the arguments of macros are left alone,
//! and so is what only makes room. Whether a mutant compiles is not known here: see `build`.

use std::collections::BTreeMap;
use std::ops::Range;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprIf, ExprMethodCall, ExprWhile, ImplItemFn, ItemFn, ItemImpl, Lit, Local,
    Pat, ReturnType, Signature, Stmt, TraitItemFn, Type, UnOp,
};

use crate::mutant::{Mutant, Operator, Wrap};

/// All mutants of a source file, in the order of its text.
///
/// # Errors
/// If it is not Rust.
pub(crate) fn find(file: &str, source: &str) -> syn::Result<Vec<Mutant>> {
    let mut finder = Finder { file, source, within: Vec::new(), found: Vec::new() };
    finder.visit_file(&syn::parse_file(source)?);
    let mut found = finder.found;
    found.sort_by_key(|mutant| (mutant.range.start, mutant.range.end));
    let mut alike = BTreeMap::new();
    for mutant in &mut found {
        let seen = alike.entry((mutant.within.clone(), mutant.what.clone())).or_insert(0);
        mutant.nth = *seen;
        *seen += 1;
    }
    Ok(found)
}

struct Finder<'a> {
    file: &'a str,
    source: &'a str,
    /// Types and functions around the place.
    within: Vec<String>,
    found: Vec<Mutant>,
}

impl Finder<'_> {
    fn text(&self, range: Range<usize>) -> &str {
        &self.source[range]
    }

    fn of(&self, node: &impl Spanned) -> &str {
        self.text(node.span().byte_range())
    }

    fn add(&mut self, operator: Operator, place: &impl Spanned, wrap: Wrap, becomes: &str) {
        let span = place.span();
        let what = format!("`{}` {becomes}", brief(self.of(place)));
        self.found.push(Mutant {
            file: self.file.to_owned(),
            line: span.start().line,
            within: self.within.join("::"),
            operator,
            what,
            nth: 0,
            range: span.byte_range(),
            wrap,
        });
    }

    /// Another expression in place of one.
    fn instead(&mut self, operator: Operator, place: &impl Spanned, other: String) {
        let becomes = format!("becomes `{other}`");
        self.add(operator, place, Wrap::Instead(other), &becomes);
    }

    /// The same expression with another text in place of a part of it.
    fn swap(&mut self, operator: Operator, place: &impl Spanned, part: &impl Spanned, other: &str) {
        let (around, part) = (place.span().byte_range(), part.span().byte_range());
        let (before, after) = (self.text(around.start..part.start), self.text(part.end..around.end));
        let wrap = match other {
            "==" | "!=" => Wrap::Negate,
            _ => Wrap::Instead(format!("{before}{other}{after}")),
        };
        let becomes = format!("with `{other}` for `{}`", self.text(part));
        self.add(operator, place, wrap, &becomes);
    }

    /// A function: what it answers, what it does last, and all within.
    fn function(&mut self, attributes: &[Attribute], signature: &Signature, block: &Block) {
        if is_for_tests(attributes) || signature.constness.is_some() {
            return;
        }
        self.within.push(signature.ident.to_string());
        match &signature.output {
            ReturnType::Default => self.tail_of(block),
            ReturnType::Type(_, result) => self.result(result, block),
        }
        self.visit_block(block);
        self.within.pop();
    }

    fn result(&mut self, result: &Type, block: &Block) {
        let answers: &[&str] = match last_segment(result).as_deref() {
            Some("bool") => &["true", "false"],
            Some("Option") => &["None"],
            _ => &[],
        };
        let trivial =
            |answer: &&&str| !matches!(&block.stmts[..], [Stmt::Expr(only, None)] if self.of(only) == **answer);
        for answer in answers.iter().filter(trivial).copied().collect::<Vec<_>>() {
            let at = block.brace_token.span.open();
            self.found.push(Mutant {
                file: self.file.to_owned(),
                line: at.start().line,
                within: self.within.join("::"),
                operator: Operator::Result,
                what: format!("answers `{answer}`"),
                nth: 0,
                range: at.byte_range().end..at.byte_range().end,
                wrap: Wrap::Before(format!("return {answer};")),
            });
        }
    }

    /// The end of a block that is worth nothing: what it does last can be left out.
    fn tail_of(&mut self, block: &Block) {
        if let Some(Stmt::Expr(last, None)) = block.stmts.last() {
            self.tail(last);
        }
    }

    fn tail(&mut self, last: &Expr) {
        match last {
            Expr::Block(inner) => self.tail_of(&inner.block),
            Expr::If(inner) => {
                self.tail_of(&inner.then_branch);
                if let Some((_, other)) = &inner.else_branch {
                    self.tail(other);
                }
            }
            Expr::Match(inner) => inner.arms.iter().for_each(|arm| self.tail(&arm.body)),
            _ if has_effect(last) => self.add(Operator::Skip, last, Wrap::WithoutTail, "is left out"),
            _ => {}
        }
    }

    /// A condition that is an expression is negated, unless something within does the same; one that binds something
    /// never holds.
    fn condition(&mut self, condition: &Expr) {
        if binds(condition) {
            self.add(Operator::Condition, condition, Wrap::Never, "never holds");
        } else if !is_negated_within(condition) {
            self.add(Operator::Condition, condition, Wrap::Negate, "is negated");
        }
    }

    /// Whether another mutant leaves out the statement that is this expression.
    fn is_left_out(&self, expression: &impl Spanned) -> bool {
        let start = expression.span().byte_range().start;
        self.found.iter().any(|mutant| mutant.operator == Operator::Skip && mutant.range.start == start)
    }

    fn method(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        if let Some(other) = other_method(&name, call.args.len()) {
            self.swap(Operator::Method, call, &call.method, other);
        }
        match &*name {
            "filter" | "retain" | "take_while" | "skip_while" => {
                if let Some(Expr::Closure(predicate)) = call.args.first() {
                    let becomes = format!("of `{name}` is always true");
                    self.add(Operator::Always, &predicate.body, Wrap::True, &becomes);
                }
            }
            "insert" if call.args.len() == 1 && !self.is_left_out(call) => {
                self.add(Operator::Always, call, Wrap::True, "is true and inserts nothing");
            }
            _ => {}
        }
    }
}

impl<'ast> Visit<'ast> for Finder<'_> {
    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let of_trait = item.trait_.as_ref().and_then(|(_, path, _)| path.segments.last());
        let is_text = of_trait.is_some_and(|name| TEXT.contains(&&*name.ident.to_string()));
        if is_text || is_for_tests(&item.attrs) {
            return;
        }
        self.within.push(last_segment(&item.self_ty).unwrap_or_default());
        visit::visit_item_impl(self, item);
        self.within.pop();
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.attrs, &item.sig, &item.block);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.attrs, &item.sig, block);
        }
    }

    fn visit_block(&mut self, block: &'ast Block) {
        for (index, statement) in block.stmts.iter().enumerate() {
            match statement {
                Stmt::Expr(expression, Some(_)) if has_effect(expression) => {
                    self.add(Operator::Skip, statement, Wrap::Without, "is left out");
                }
                Stmt::Expr(expression, None) if index + 1 < block.stmts.len() => self.tail(expression),
                _ => {}
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let Some(init) = &local.init
            && init.diverge.is_some()
            && let Pat::TupleStruct(pattern) = &local.pat
            && pattern.path.is_ident("Some")
        {
            self.instead(Operator::Nothing, &init.expr, "None".to_owned());
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_if(&mut self, inner: &'ast ExprIf) {
        self.condition(&inner.cond);
        visit::visit_expr_if(self, inner);
    }

    fn visit_expr_while(&mut self, inner: &'ast ExprWhile) {
        if binds(&inner.cond) {
            self.add(Operator::Condition, &inner.cond, Wrap::Never, "never holds");
        } else {
            self.instead(Operator::Condition, &inner.cond, "false".to_owned());
        }
        self.tail_of(&inner.body);
        visit::visit_expr_while(self, inner);
    }

    fn visit_expr_for_loop(&mut self, inner: &'ast syn::ExprForLoop) {
        self.tail_of(&inner.body);
        visit::visit_expr_for_loop(self, inner);
    }

    fn visit_expr_loop(&mut self, inner: &'ast syn::ExprLoop) {
        self.tail_of(&inner.body);
        visit::visit_expr_loop(self, inner);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard);
        }
        visit::visit_arm(self, arm);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        match expression {
            Expr::Binary(inner) => {
                let in_chain = matches!(inner.op, BinOp::And(_)) && binds(expression);
                if let Some((operator, other)) = other_operator(&inner.op)
                    && !in_chain
                {
                    self.swap(operator, expression, &inner.op, other);
                }
            }
            Expr::Unary(inner) if matches!(inner.op, UnOp::Not(_)) => {
                self.add(Operator::Negation, expression, Wrap::Negate, "without `!`");
            }
            Expr::Macro(inner) if inner.mac.path.is_ident("matches") => {
                self.add(Operator::Negation, expression, Wrap::Negate, "is negated");
            }
            Expr::MethodCall(inner) => self.method(inner),
            Expr::Call(inner) if self.of(&inner.func) == "Some" => {
                self.instead(Operator::Nothing, expression, "None".to_owned());
            }
            Expr::Lit(inner) => match &inner.lit {
                Lit::Bool(_) => self.add(Operator::Flag, expression, Wrap::Negate, "is negated"),
                Lit::Int(number) => {
                    if let Ok(value) = number.base10_parse::<u128>() {
                        self.instead(Operator::Number, expression, format!("{}{}", value + 1, number.suffix()));
                    }
                }
                Lit::Float(number) => {
                    if let Ok(value) = number.base10_parse::<f64>() {
                        self.instead(Operator::Number, expression, format!("{:?}{}", value + 1.0, number.suffix()));
                    }
                }
                _ => {}
            },
            Expr::Path(inner)
                if inner.path.segments.last().is_some_and(|name| is_constant(&name.ident.to_string())) =>
            {
                self.add(Operator::Number, expression, Wrap::More, "is one more");
            }
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    /// Only what is repeated: how often is part of a type.
    fn visit_expr_repeat(&mut self, inner: &'ast syn::ExprRepeat) {
        self.visit_expr(&inner.expr);
    }

    // Nothing in these happens at run time, or it is for people.
    fn visit_item_const(&mut self, _: &'ast syn::ItemConst) {}
    fn visit_item_static(&mut self, _: &'ast syn::ItemStatic) {}
    fn visit_impl_item_const(&mut self, _: &'ast syn::ImplItemConst) {}
    fn visit_trait_item_const(&mut self, _: &'ast syn::TraitItemConst) {}
    fn visit_expr_const(&mut self, _: &'ast syn::ExprConst) {}
    fn visit_variant(&mut self, _: &'ast syn::Variant) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_generic_argument(&mut self, _: &'ast syn::GenericArgument) {}
    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_macro(&mut self, _: &'ast syn::Macro) {}
}

/// Whether to leave an expression out would change more than how much room there is.
fn has_effect(expression: &Expr) -> bool {
    match expression {
        Expr::MethodCall(call) => !ROOM.contains(&&*call.method.to_string()),
        Expr::Call(call) => {
            let named = |name: &str| matches!(&*call.func, Expr::Path(path) if path.path.is_ident(name));
            let drops_a_name = named("drop") && matches!(call.args.first(), Some(Expr::Path(_)));
            !(drops_a_name || named("Some") || named("Ok") || named("Err"))
        }
        Expr::Assign(_) | Expr::Return(_) | Expr::Continue(_) | Expr::Break(_) => true,
        Expr::Binary(inner) => is_assignment(&inner.op),
        _ => false,
    }
}

fn is_assignment(operator: &BinOp) -> bool {
    matches!(
        operator,
        BinOp::AddAssign(_)
            | BinOp::SubAssign(_)
            | BinOp::MulAssign(_)
            | BinOp::DivAssign(_)
            | BinOp::RemAssign(_)
            | BinOp::BitAndAssign(_)
            | BinOp::BitOrAssign(_)
            | BinOp::BitXorAssign(_)
    )
}

/// Whether a condition has a `let` in its chain.
fn binds(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(inner) if matches!(inner.op, BinOp::And(_)) => binds(&inner.left) || binds(&inner.right),
        _ => false,
    }
}

/// Whether another mutant negates this condition as a whole.
fn is_negated_within(condition: &Expr) -> bool {
    match condition {
        Expr::Paren(inner) => is_negated_within(&inner.expr),
        Expr::Binary(inner) => matches!(inner.op, BinOp::Eq(_) | BinOp::Ne(_)),
        Expr::Unary(inner) => matches!(inner.op, UnOp::Not(_)),
        Expr::Macro(inner) => inner.mac.path.is_ident("matches"),
        Expr::MethodCall(call) => ["is_some", "is_none", "is_ok", "is_err"].contains(&&*call.method.to_string()),
        _ => false,
    }
}

fn other_operator(operator: &BinOp) -> Option<(Operator, &'static str)> {
    Some(match operator {
        BinOp::Eq(_) => (Operator::Comparison, "!="),
        BinOp::Ne(_) => (Operator::Comparison, "=="),
        BinOp::Lt(_) => (Operator::Comparison, "<="),
        BinOp::Le(_) => (Operator::Comparison, "<"),
        BinOp::Gt(_) => (Operator::Comparison, ">="),
        BinOp::Ge(_) => (Operator::Comparison, ">"),
        BinOp::And(_) => (Operator::Connective, "||"),
        BinOp::Or(_) => (Operator::Connective, "&&"),
        BinOp::Add(_) => (Operator::Arithmetic, "-"),
        BinOp::Sub(_) => (Operator::Arithmetic, "+"),
        BinOp::AddAssign(_) => (Operator::Arithmetic, "-="),
        BinOp::SubAssign(_) => (Operator::Arithmetic, "+="),
        _ => return None,
    })
}

/// The method that somebody may have meant.
fn other_method(name: &str, arguments: usize) -> Option<&'static str> {
    let pairs: &[(&str, &str)] = match arguments {
        0 => &[
            ("first", "last"),
            ("first_key_value", "last_key_value"),
            ("pop_first", "pop_last"),
            ("pop_front", "pop_back"),
            ("front", "back"),
            ("is_some", "is_none"),
            ("is_ok", "is_err"),
            ("min", "max"),
            ("next", "next_back"),
        ],
        1 => &[
            ("min", "max"),
            ("min_by_key", "max_by_key"),
            ("any", "all"),
            ("is_some_and", "is_none_or"),
            ("push_back", "push_front"),
            ("saturating_add", "saturating_sub"),
            ("wrapping_add", "wrapping_sub"),
        ],
        _ => &[],
    };
    pairs.iter().find_map(|(one, other)| match name {
        _ if name == *one => Some(*other),
        _ if name == *other => Some(*one),
        _ => None,
    })
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("test")
            || attribute.path().is_ident("cfg")
                && matches!(&attribute.meta, syn::Meta::List(list) if list.tokens.to_string() == "test")
    })
}

fn is_constant(name: &str) -> bool {
    name.len() > 1 && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')
}

fn last_segment(of: &Type) -> Option<String> {
    match of {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        _ => None,
    }
}

/// On one line, and not too long.
fn brief(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

const LONGEST: usize = 90;

/// Traits whose code is for people, or only for tables of hashes.
const TEXT: [&str; 4] = ["Debug", "Display", "Error", "Hash"];

/// Methods that only make room.
const ROOM: [&str; 3] = ["reserve", "shrink_to_fit", "reserve_exact"];
