//! The channel end to end: real control plane, real backends, real sockets.

mod common;

use common::{
    backends, bootstrap, builder, call, call_within, client, control_plane, service, spread, until_answered_by,
};

#[tokio::test]
async fn calls_go_round_the_endpoints_of_the_control_plane() {
    let [one, two] = backends(["one", "two"]).await;
    let server = control_plane(service(&[&one, &two])).await;
    let mut client = client(&[&server]);
    until_answered_by(&mut client, "one").await;
    until_answered_by(&mut client, "two").await;
    let counts = spread(&mut client, 10).await;
    assert_eq!((counts["one"], counts["two"]), (5, 5));
}
