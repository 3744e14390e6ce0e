//! gRPC status codes: the one table of their numbers and names.

use std::fmt;

/// One line per code, in the order of their numbers.
macro_rules! codes {
    ($($(#[$doc:meta])* $code:ident $name:literal,)+) => {
        /// A gRPC status code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code {
            $($(#[$doc])* $code,)+
        }

        impl Code {
            /// Every code; each is where its number says.
            pub const ALL: [Code; [$($name),+].len()] = [$(Self::$code),+];

            /// Its name as gRPC spells it.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$code => $name,)+
                }
            }
        }
    };
}

codes! {
    /// Success.
    Ok "OK",
    /// The caller gave it up.
    Cancelled "CANCELLED",
    /// Any other error.
    Unknown "UNKNOWN",
    /// An argument is wrong in any state of the system.
    InvalidArgument "INVALID_ARGUMENT",
    /// Time is up.
    DeadlineExceeded "DEADLINE_EXCEEDED",
    /// Something does not exist.
    NotFound "NOT_FOUND",
    /// Something exists already.
    AlreadyExists "ALREADY_EXISTS",
    /// The caller may not do this.
    PermissionDenied "PERMISSION_DENIED",
    /// A resource is used up.
    ResourceExhausted "RESOURCE_EXHAUSTED",
    /// The system is not in the state that this needs.
    FailedPrecondition "FAILED_PRECONDITION",
    /// Something else came between.
    Aborted "ABORTED",
    /// Past the end.
    OutOfRange "OUT_OF_RANGE",
    /// Not implemented.
    Unimplemented "UNIMPLEMENTED",
    /// Something is broken.
    Internal "INTERNAL",
    /// Not available now.
    Unavailable "UNAVAILABLE",
    /// Data is lost.
    DataLoss "DATA_LOSS",
    /// The caller did not say who it is.
    Unauthenticated "UNAUTHENTICATED",
}

impl Code {
    /// The code with this number, if there is one.
    pub fn from_number(number: impl TryInto<usize>) -> Option<Self> {
        Self::ALL.get(number.try_into().ok()?).copied()
    }

    /// Its number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// The code of an RPC that got this HTTP status and no gRPC status, as gRPC maps them.
    pub const fn of_http_status(status: u16) -> Self {
        match status {
            400 => Self::Internal,
            401 => Self::Unauthenticated,
            403 => Self::PermissionDenied,
            404 => Self::Unimplemented,
            429 | 502 | 503 | 504 => Self::Unavailable,
            _ => Self::Unknown, // Also for 200 (S-52).
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_statuses_have_the_codes_of_the_table() {
        let table =
            [(400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (502, 14), (503, 14), (504, 14), (200, 2), (500, 2)];
        for (status, code) in table {
            assert_eq!(Code::of_http_status(status).number(), code, "S-52: {status}");
        }
    }

    #[test]
    fn a_code_is_found_by_its_number() {
        for (number, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!((Code::from_number(number), usize::from(code.number())), (Some(code), number));
        }
        assert_eq!((Code::from_number(17), Code::from_number(-1)), (None, None));
    }
}
