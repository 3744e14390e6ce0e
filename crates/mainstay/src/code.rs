//! Status codes: those of the cores and those of tonic have the same numbers.

use mainstay_xds::Code;

/// The code of the cores.
pub(crate) fn of_tonic(code: tonic::Code) -> Code {
    Code::from_number(code as i32).unwrap_or(Code::Unknown)
}

/// The code of tonic.
pub(crate) fn to_tonic(code: Code) -> tonic::Code {
    tonic::Code::from_i32(code.number().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_the_same_there_and_back() {
        for code in Code::ALL {
            assert_eq!(of_tonic(to_tonic(code)), code);
        }
    }
}
