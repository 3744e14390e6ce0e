//! Nothing here: see `tests/`. A crate of its own, so that only what Mainstay makes public can be used.
