//! The code on the pages of the book, so that it is compiled. A test of `crates/checks` fails if a page with code is not here.

#[doc = include_str!("../../docs/README.md")]
struct Readme;

#[doc = include_str!("../../docs/recipes/istio.md")]
struct RecipesIstio;

#[doc = include_str!("../../docs/recipes/last-good.md")]
struct RecipesLastGood;

#[doc = include_str!("../../docs/recipes/tls.md")]
struct RecipesTls;

#[doc = include_str!("../../docs/use/client.md")]
struct UseClient;

#[doc = include_str!("../../docs/use/explain.md")]
struct UseExplain;

#[doc = include_str!("../../docs/use/server.md")]
struct UseServer;
