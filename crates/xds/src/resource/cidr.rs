//! Ranges of IP addresses.

use std::net::IpAddr;

use envoy_types::pb::envoy::config::core::v3::CidrRange;

use super::fields::excerpt;
use crate::invalid::Faults;

/// `envoy.config.core.v3.CidrRange`: the addresses that begin like this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cidr {
    /// The first address of the range. Never an IPv4 address in IPv6's clothes.
    network: IpAddr,
    /// How many bits all addresses have in common.
    len: u8,
}

impl Cidr {
    /// Checks a CidrRange; `faults` is at it. Without `prefix_len` it is all addresses of its family (AZ-4), and a
    /// length that the address does not have is a fault.
    pub(crate) fn parse(pb: &CidrRange, faults: &mut Faults) -> Option<Self> {
        let Ok(address) = pb.address_prefix.parse::<IpAddr>() else {
            let found = excerpt(&pb.address_prefix);
            faults.field("address_prefix", |f| f.add(format!("{found} is not an IPv4 or IPv6 address")));
            return None;
        };
        let len = pb.prefix_len.map_or(0, |len| len.value);
        let bits = if address.is_ipv4() { 32 } else { 128 };
        if len > bits {
            faults.field("prefix_len", |f| f.add(format!("is {len}: {address} has {bits} bits")));
            return None;
        }
        Some(Self::new(address, len as u8))
    }

    /// The range of `address` with the first `len` bits; those that it does not have do not count.
    pub fn new(address: IpAddr, len: u8) -> Self {
        // Connections have addresses of their own family, so that a mapped range is one of that family, too.
        let (address, len) = match address.to_canonical() {
            IpAddr::V4(inner) if address.is_ipv6() && len >= MAPPED => (IpAddr::V4(inner), len - MAPPED),
            IpAddr::V4(_) | IpAddr::V6(_) => (address, len),
        };
        match address {
            IpAddr::V4(address) => {
                let len = len.min(32);
                let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
                Self { network: IpAddr::V4((address.to_bits() & mask).into()), len }
            }
            IpAddr::V6(address) => {
                let len = len.min(128);
                let mask = u128::MAX.checked_shl(128 - u32::from(len)).unwrap_or(0);
                Self { network: IpAddr::V6((address.to_bits() & mask).into()), len }
            }
        }
    }

    /// The first address of the range.
    pub(crate) const fn network(self) -> IpAddr {
        self.network
    }

    /// How many bits all addresses of the range have in common.
    pub(crate) const fn len(self) -> u8 {
        self.len
    }

    /// Whether an address is in the range. An IPv4 address is never in a range of IPv6, and the other way round.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.len)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let differing = network.to_bits() ^ address.to_bits();
                differing.leading_zeros() >= u32::from(self.len)
            }
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.network, self.len)
    }
}

/// How many bits come before the IPv4 address in an IPv6 address that stands for one.
const MAPPED: u8 = 96;

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::UInt32Value;

    use super::*;

    #[test]
    fn az4_a_range_without_a_length_is_everything_of_its_family() {
        let all = parse("10.1.2.3", None).unwrap();
        assert_eq!(all.to_string(), "0.0.0.0/0");
        assert!(all.contains(ip("192.0.2.1")) && !all.contains(ip("2001:db8::1")));
        let all = parse("2001:db8::1", None).unwrap();
        assert!(all.contains(ip("::1")) && !all.contains(ip("192.0.2.1")));
    }

    #[test]
    fn bits_behind_the_length_do_not_count() {
        let table = [
            ("10.1.2.3", 8, "10.255.0.1", true),
            ("10.1.2.3", 8, "11.0.0.1", false),
            ("10.1.2.3", 32, "10.1.2.3", true),
            ("10.1.2.3", 32, "10.1.2.2", false),
            ("10.1.2.3", 31, "10.1.2.2", true),
            ("128.0.0.0", 1, "127.255.255.255", false),
            ("2001:db8::", 32, "2001:db8:ffff::1", true),
            ("2001:db8::", 32, "2001:db9::1", false),
            ("::1", 128, "::1", true),
            ("::1", 128, "::2", false),
        ];
        for (prefix, len, address, expected) in table {
            assert_eq!(parse(prefix, Some(len)).unwrap().contains(ip(address)), expected, "{prefix}/{len} {address}");
        }
    }

    #[test]
    fn an_ipv4_address_is_one_in_either_form() {
        let range = parse("10.0.0.0", Some(8)).unwrap();
        assert!(range.contains(ip("::ffff:10.1.1.1")));
        let mapped = parse("::ffff:10.0.0.0", Some(104)).unwrap();
        assert_eq!(mapped, range);
        assert!(!parse("::", Some(0)).unwrap().contains(ip("::ffff:10.1.1.1")));
    }

    #[test]
    fn what_is_no_range_is_a_fault() {
        for (prefix, len, fault) in [
            ("", None, "address_prefix: \"\" is not an IPv4 or IPv6 address"),
            ("example.com", Some(8), "address_prefix: \"example.com\" is not an IPv4 or IPv6 address"),
            ("10.0.0.0", Some(33), "prefix_len: is 33: 10.0.0.0 has 32 bits"),
            ("::1", Some(129), "prefix_len: is 129: ::1 has 128 bits"),
            ("::1", Some(u32::MAX), "prefix_len: is 4294967295: ::1 has 128 bits"),
        ] {
            assert_eq!(parse(prefix, len).unwrap_err(), fault);
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn parse(prefix: &str, len: Option<u32>) -> Result<Cidr, String> {
        let pb = CidrRange { address_prefix: prefix.into(), prefix_len: len.map(|value| UInt32Value { value }) };
        let mut faults = Faults::new();
        let cidr = Cidr::parse(&pb, &mut faults);
        faults.finish(cidr).map(Option::unwrap).map_err(|invalid| invalid.to_string())
    }
}
