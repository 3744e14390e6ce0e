//! The models of `mainstay_races`, explored.

#[test]
fn racing_rpcs_never_exceed_the_limit_of_a_circuit_breaker() {
    mainstay_races::circuit_breaker();
}

#[test]
fn no_reader_sees_more_calls_ended_than_begun() {
    mainstay_races::counters();
}
