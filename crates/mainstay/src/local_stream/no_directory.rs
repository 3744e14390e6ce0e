//! In the place of directories as servers, without the feature `file-servers`.

use std::convert::Infallible;
use std::path::PathBuf;

use mainstay_xds::local::LocalSet;

use super::LocalContext;

/// There is none.
pub(super) struct Directory(Infallible);

impl Directory {
    #[expect(clippy::unused_async, reason = "with the feature there is something to wait for")]
    pub(super) async fn open(path: PathBuf, _: &LocalContext) -> Result<(LocalSet, Self), String> {
        let path = path.display();
        Err(format!("{path} cannot be a server: mainstay was built without its feature \"file-servers\""))
    }

    #[expect(clippy::unused_async, reason = "with the feature there is something to wait for")]
    pub(super) async fn changed(&mut self) -> LocalSet {
        match self.0 {}
    }
}
