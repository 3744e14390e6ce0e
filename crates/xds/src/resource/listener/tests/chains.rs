//! Which filter chain a connection gets: a table, and random tables beside a matcher that goes by the plain rule.

use std::net::IpAddr;

use super::super::chain_index::ChainIndex;
use super::super::filter_chain_match::TakenMatches;
use super::*;

/// What a chain is for, in words: `to 10.0.0.0/8`, `from ::1/128`, `port 1`, `raw`, `local`, `external`; and what we know
/// nothing about: `at 80` (destination port), `sni x`, `alpn h2`, `tls`. Nothing at all is everything.
fn matches(words: &str) -> pb::FilterChainMatch {
    let mut m = pb::FilterChainMatch::default();
    let mut words = words.split_whitespace();
    while let Some(word) = words.next() {
        let mut next = || words.next().expect("a value");
        match word {
            "to" => m.prefix_ranges.push(range(next())),
            "from" => m.source_prefix_ranges.push(range(next())),
            "port" => m.source_ports.push(next().parse().unwrap()),
            "at" => m.destination_port = uint32(next().parse().unwrap()),
            "sni" => m.server_names.push(next().to_owned()),
            "alpn" => m.application_protocols.push(next().to_owned()),
            "raw" => m.transport_protocol = "raw_buffer".to_owned(),
            "tls" => m.transport_protocol = "tls".to_owned(),
            "local" => m.source_type = 1,
            "external" => m.source_type = 2,
            other => panic!("{other:?}"),
        }
    }
    m
}

fn range(text: &str) -> CidrRange {
    match text.split_once('/') {
        Some((address, len)) => cidr(address, len.parse().unwrap()),
        None => CidrRange { address_prefix: text.to_owned(), prefix_len: None },
    }
}

/// Chains, whether there is a default one, and connections: to which address, from where, and which chain they get.
type Row<'a> = (&'a [&'a str], bool, &'a [(&'a str, &'a str, &'a str)]);

#[test]
fn a_connection_gets_the_chain_of_the_most_specific_criteria() {
    // SV-16, SV-17, S-15. Chains are a, b, c in order; `*` is the default one, `-` none at all.
    let table: &[Row<'_>] = &[
        // Everything, and the default.
        (&[""], false, &[("10.0.0.1", "10.0.0.2:5", "a"), ("::1", "[::2]:5", "a")]),
        (&["to 10.0.0.0/8"], false, &[("10.0.0.1", "10.0.0.2:5", "a"), ("11.0.0.1", "10.0.0.2:5", "-")]),
        (&["to 10.0.0.0/8"], true, &[("10.0.0.1", "10.0.0.2:5", "a"), ("11.0.0.1", "10.0.0.2:5", "*")]),
        (&[], true, &[("10.0.0.1", "10.0.0.2:5", "*"), ("::1", "[::2]:5", "*")]),
        // The longest destination, in whatever order they are written; edges of a range.
        (
            &["to 10.0.0.0/8", "to 10.1.0.0/16", "to 10.1.1.1/32"],
            true,
            &[
                ("10.1.1.1", "1.2.3.4:5", "c"),
                ("10.1.1.2", "1.2.3.4:5", "b"),
                ("10.1.255.255", "1.2.3.4:5", "b"),
                ("10.2.0.0", "1.2.3.4:5", "a"),
                ("10.255.255.255", "1.2.3.4:5", "a"),
                ("11.0.0.0", "1.2.3.4:5", "*"),
                ("9.255.255.255", "1.2.3.4:5", "*"),
            ],
        ),
        (
            &["to 10.1.0.0/16", "to 10.0.0.0/8"],
            false,
            &[("10.1.0.1", "1.2.3.4:5", "a"), ("10.2.0.1", "1.2.3.4:5", "b")],
        ),
        // One of several ranges is enough; host bits do not count.
        (
            &["to 10.1.2.3/8 to 192.0.2.0/24", ""],
            false,
            &[("192.0.2.7", "1.2.3.4:5", "a"), ("192.0.3.7", "1.2.3.4:5", "b")],
        ),
        // No range is less than one that holds everything, which is of one family.
        (&["", "to 0.0.0.0/0"], false, &[("10.0.0.1", "1.2.3.4:5", "b"), ("2001:db8::1", "[2001:db8::2]:5", "a")]),
        (&["to ::/0"], false, &[("10.0.0.1", "1.2.3.4:5", "-"), ("2001:db8::1", "[2001:db8::2]:5", "a")]),
        // No length is a length of zero.
        (&["to 10.1.2.3", "to 10.0.0.0/8"], false, &[("11.0.0.1", "1.2.3.4:5", "a"), ("10.0.0.1", "1.2.3.4:5", "b")]),
        // IPv6.
        (
            &["to 2001:db8::/32", "to 2001:db8:1::/48"],
            true,
            &[
                ("2001:db8:1::5", "[2001:db8::2]:5", "b"),
                ("2001:db8:2::5", "[2001:db8::2]:5", "a"),
                ("2001:db9::5", "[2001:db8::2]:5", "*"),
            ],
        ),
        // A socket for both families: addresses of IPv4 are wrapped.
        (
            &["to 10.0.0.0/8"],
            true,
            &[("::ffff:10.0.0.1", "[::ffff:1.2.3.4]:5", "a"), ("::ffff:11.0.0.1", "[::ffff:1.2.3.4]:5", "*")],
        ),
        (&["from 10.0.0.0/8"], true, &[("::ffff:1.2.3.4", "[::ffff:10.0.0.1]:5", "a")]),
        (
            &["local"],
            true,
            &[("::ffff:10.0.0.1", "[::ffff:127.0.0.1]:5", "a"), ("::ffff:10.0.0.1", "[::ffff:10.0.0.1]:5", "a")],
        ),
        // A range of IPv4 may be wrapped as well.
        (
            &["to ::ffff:10.0.0.0/104", "to ::ffff:0.0.0.0/0"],
            true,
            &[("10.0.0.1", "1.2.3.4:5", "a"), ("11.0.0.1", "1.2.3.4:5", "*"), ("2001:db8::1", "[::2]:5", "b")],
        ),
        // Nothing is taken back: destination found, source not.
        (
            &["to 10.0.0.0/8", "to 10.1.0.0/16 from 192.0.2.0/24"],
            true,
            &[
                ("10.1.0.1", "192.0.2.1:5", "b"),
                ("10.1.0.1", "198.51.100.1:5", "*"),
                ("10.2.0.1", "198.51.100.1:5", "a"),
            ],
        ),
        (&["", "to 10.0.0.0/8 port 7"], false, &[("10.0.0.1", "1.2.3.4:7", "b"), ("10.0.0.1", "1.2.3.4:8", "-")]),
        // raw_buffer before any, within one destination.
        (&["", "raw"], false, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        (&["raw", ""], false, &[("10.0.0.1", "1.2.3.4:5", "a")]),
        (&["raw from 192.0.2.0/24", ""], true, &[("10.0.0.1", "192.0.2.1:5", "a"), ("10.0.0.1", "1.2.3.4:5", "*")]),
        (&["raw", "to 10.0.0.0/8"], false, &[("10.0.0.1", "1.2.3.4:5", "b"), ("11.0.0.1", "1.2.3.4:5", "a")]),
        // What we know nothing about never matches.
        (&["tls"], true, &[("10.0.0.1", "1.2.3.4:5", "*")]),
        (&["tls", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        (&["at 80", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        (&["sni x", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        (&["alpn h2", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        // It hides what is less specific, if its criterion comes later; a destination port comes first and hides nothing.
        (&["to 10.0.0.0/8 at 80", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        (&["to 10.0.0.0/8 sni x", ""], true, &[("10.0.0.1", "1.2.3.4:5", "*")]),
        (&["to 10.0.0.0/8 tls", ""], true, &[("10.0.0.1", "1.2.3.4:5", "*")]),
        (&["raw alpn h2", ""], true, &[("10.0.0.1", "1.2.3.4:5", "*")]),
        (&["raw sni x", ""], true, &[("10.0.0.1", "1.2.3.4:5", "b")]),
        // Where it comes from.
        (
            &["local", "external", ""],
            true,
            &[
                ("10.0.0.1", "127.0.0.1:5", "a"),
                ("10.0.0.1", "127.8.8.8:5", "a"),
                ("10.0.0.1", "10.0.0.1:5", "a"),
                ("::1", "[::1]:5", "a"),
                ("10.0.0.1", "10.0.0.2:5", "b"),
            ],
        ),
        (&["local", ""], true, &[("10.0.0.1", "127.0.0.1:5", "a"), ("10.0.0.1", "10.0.0.2:5", "b")]),
        (&["external", ""], true, &[("10.0.0.1", "127.0.0.1:5", "b"), ("10.0.0.1", "10.0.0.2:5", "a")]),
        (&["local port 7", ""], true, &[("10.0.0.1", "127.0.0.1:7", "a"), ("10.0.0.1", "127.0.0.1:8", "*")]),
        // The longest source.
        (
            &["from 192.0.0.0/8", "from 192.0.2.0/24", ""],
            true,
            &[("10.0.0.1", "192.0.2.9:5", "b"), ("10.0.0.1", "192.0.3.9:5", "a"), ("10.0.0.1", "1.2.3.4:5", "c")],
        ),
        (
            &["from 192.0.0.0/8", "from 192.0.2.0/24 port 7"],
            true,
            &[("10.0.0.1", "192.0.2.9:7", "b"), ("10.0.0.1", "192.0.2.9:8", "*")],
        ),
        // An exact source port before any.
        (
            &["port 7 port 8", "", "port 9"],
            true,
            &[
                ("10.0.0.1", "1.2.3.4:7", "a"),
                ("10.0.0.1", "1.2.3.4:8", "a"),
                ("10.0.0.1", "1.2.3.4:9", "c"),
                ("10.0.0.1", "1.2.3.4:10", "b"),
            ],
        ),
        // Order of criteria: destination, then raw_buffer, then source.
        (
            &["to 10.0.0.0/8", "raw from 192.0.2.0/24"],
            true,
            &[("10.0.0.1", "192.0.2.1:5", "a"), ("11.0.0.1", "192.0.2.1:5", "b")],
        ),
        (&["local", "from 127.0.0.0/8"], true, &[("10.0.0.1", "127.0.0.1:5", "a")]),
    ];
    let mut rows = 0;
    for (chains, has_default, connections) in table {
        let chains: Vec<_> = chains.iter().map(|words| chain(Some(matches(words)))).collect();
        let default_filter_chain = has_default.then(|| chain(None));
        let listener = parse_server(&pb::Listener { default_filter_chain, ..server(chains.clone()) });
        for (destination, source, expected) in *connections {
            let place = listener.choose(destination.parse().unwrap(), source.parse().unwrap());
            let found = match place {
                None => "-".to_owned(),
                Some(place) if place == chains.len() => "*".to_owned(),
                Some(place) => char::from(b'a' + u8::try_from(place).unwrap()).to_string(),
            };
            assert_eq!(found, *expected, "{destination} {source} {chains:?}");
            rows += 1;
        }
    }
    assert!(rows >= 60, "{rows}");
}

#[test]
fn a_listener_is_for_its_address_and_for_any_port_if_it_says_so() {
    // SV-11
    let is_for =
        |listener: &str, ours: &str| ServerListener::new(listener.parse().unwrap(), None).is_for(ours.parse().unwrap());
    for (listener, ours, expected) in [
        ("0.0.0.0:80", "0.0.0.0:80", true),
        ("0.0.0.0:80", "0.0.0.0:81", false),
        ("0.0.0.0:0", "0.0.0.0:81", true),
        ("0.0.0.0:80", "127.0.0.1:80", false),
        ("[::]:80", "0.0.0.0:80", false),
        ("[::]:0", "0.0.0.0:80", false),
        ("[::1]:80", "[::1]:80", true),
        ("10.0.0.1:80", "[::ffff:10.0.0.1]:80", false),
    ] {
        assert_eq!(is_for(listener, ours), expected, "{listener} {ours}");
    }
}

#[test]
fn a_listener_with_one_chain_serves_all_by_it() {
    let listener = parse_server(&server(vec![chain(None)]));
    let all = ServerListener::new(listener.address, listener.chains.first().cloned());
    assert_eq!(all.choose("10.0.0.1".parse().unwrap(), "10.0.0.2:5".parse().unwrap()), Some(0));
    let none = ServerListener::new(listener.address, None);
    assert_eq!(none.choose("10.0.0.1".parse().unwrap(), "10.0.0.2:5".parse().unwrap()), None, "SV-19");
}

/// `CHAIN_TABLES=1000000 cargo test -p mainstay-xds --lib random_tables` runs a million.
#[test]
#[expect(clippy::disallowed_methods, reason = "how much is run is up to whoever runs it")]
fn random_tables_give_what_the_plain_rule_gives() {
    // SV-18
    let wanted = std::env::var("CHAIN_TABLES").map_or(120_000, |tables| tables.parse().unwrap());
    let mut draw = Draw(0x5eed);
    let (mut found, mut unmatched) = (0, 0);
    let mut tables = 0;
    while tables < wanted {
        let chains: Vec<_> = (0..1 + draw.below(5)).map(|_| draw.chain_match()).collect();
        let (mut taken, mut faults) = (TakenMatches::default(), crate::invalid::Faults::new());
        chains.iter().enumerate().for_each(|(i, m)| taken.add(i, m, &mut faults));
        if faults.finish(()).is_err() {
            continue; // Two that match the same.
        }
        tables += 1;
        let index = ChainIndex::new(taken.into_matches());
        for _ in 0..4 {
            let (destination, source, port) = (draw.address(), draw.address(), draw.below(3) as u16);
            let expected = plainly(&chains, destination, source, port.into());
            let place = index.find(destination, std::net::SocketAddr::new(source, port));
            assert_eq!(place, expected, "to {destination} from {source}:{port}: {chains:#?}");
            if place.is_some() { found += 1 } else { unmatched += 1 }
        }
    }
    assert!(found > tables / 2 && unmatched > tables, "{found} {unmatched}"); // What was not seen was not tested.
}

/// The plain rule: criterion by criterion, all chains but the best are left out.
fn plainly(chains: &[pb::FilterChainMatch], destination: IpAddr, source: IpAddr, port: u32) -> Option<usize> {
    type Rate<'a> = Box<dyn Fn(&pb::FilterChainMatch) -> Option<i32> + 'a>;
    let (width, source_bits) = bits(source);
    let local = (width == 32 && source_bits >> 24 == 127)
        || (width, source_bits) == (128, 1)
        || bits(source) == bits(destination);
    let criteria: [Rate<'_>; 8] = [
        Box::new(|m| m.destination_port.is_none().then_some(0)),
        Box::new(|m| longest(&m.prefix_ranges, destination)),
        Box::new(|m| m.server_names.is_empty().then_some(0)),
        Box::new(|m| ["", "raw_buffer"].iter().position(|name| m.transport_protocol == *name).map(|at| at as i32)),
        Box::new(|m| m.application_protocols.is_empty().then_some(0)),
        Box::new(move |m| match (m.source_type, local) {
            (0, _) => Some(0),
            (1, true) | (2, false) => Some(1),
            _ => None,
        }),
        Box::new(|m| longest(&m.source_prefix_ranges, source)),
        Box::new(move |m| match (m.source_ports.is_empty(), m.source_ports.contains(&port)) {
            (true, _) => Some(0),
            (false, true) => Some(1),
            (false, false) => None,
        }),
    ];
    let mut left: Vec<usize> = (0..chains.len()).collect();
    for rate in criteria {
        let best = left.iter().filter_map(|&at| rate(&chains[at])).max()?;
        left.retain(|&at| rate(&chains[at]) == Some(best));
    }
    assert_eq!(left.len(), 1, "two chains for one connection");
    left.pop()
}

/// The length of the longest of the ranges that holds the address; -1 if there are none to hold it.
fn longest(ranges: &[CidrRange], address: IpAddr) -> Option<i32> {
    if ranges.is_empty() {
        return Some(-1);
    }
    let (width, address) = bits(address);
    let holding = ranges.iter().filter_map(|range| {
        let (range_width, network) = bits(range.address_prefix.parse().unwrap());
        let len = range.prefix_len.map_or(0, |len| len.value).min(range_width);
        let first = |bits: u128| if len == 0 { 0 } else { bits >> (width - len) };
        (range_width == width && first(network) == first(address)).then_some(len as i32)
    });
    holding.max()
}

/// How many bits an address has, and which; one of IPv4 without its wrapping.
fn bits(address: IpAddr) -> (u32, u128) {
    match address.to_canonical() {
        IpAddr::V4(v4) => (32, u32::from(v4).into()),
        IpAddr::V6(v6) => (128, v6.into()),
    }
}

/// Random matches and connections out of a small world, so that they meet.
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % bound
    }

    fn address(&mut self) -> IpAddr {
        const ADDRESSES: [&str; 9] = [
            "10.0.0.1",
            "10.0.0.2",
            "10.1.0.1",
            "11.0.0.1",
            "127.0.0.1",
            "::1",
            "2001:db8::1",
            "2001:db8:1::1",
            "::ffff:10.0.0.1",
        ];
        ADDRESSES[self.below(ADDRESSES.len())].parse().unwrap()
    }

    fn ranges(&mut self) -> Vec<CidrRange> {
        const LENGTHS: [u32; 8] = [0, 7, 8, 16, 31, 32, 48, 200];
        let count = [0, 0, 1, 1, 2][self.below(5)];
        let mut range = || {
            let address = self.address();
            let len = if self.below(9) == 0 { None } else { uint32(LENGTHS[self.below(LENGTHS.len())]) };
            // What is wrapped is not in the range of any connection, as those come without.
            CidrRange { address_prefix: address.to_canonical().to_string(), prefix_len: len }
        };
        (0..count).map(|_| range()).collect()
    }

    fn chain_match(&mut self) -> pb::FilterChainMatch {
        let names = |some: bool| if some { vec!["x".to_owned()] } else { vec![] };
        pb::FilterChainMatch {
            prefix_ranges: self.ranges(),
            source_prefix_ranges: self.ranges(),
            source_ports: (0..[0, 0, 1, 2][self.below(4)]).map(|_| self.below(3) as u32).collect(),
            source_type: [0, 0, 1, 2][self.below(4)],
            transport_protocol: ["", "", "", "raw_buffer", "tls"][self.below(5)].to_owned(),
            server_names: names(self.below(12) == 0),
            application_protocols: names(self.below(12) == 0),
            destination_port: if self.below(12) == 0 { uint32(80) } else { None },
            ..Default::default()
        }
    }
}
