//! The environment variables that turn optional behaviours off.

use super::Guards;

impl Guards {
    /// Reads the guards through `var`, which answers like `std::env::var(..).ok()`.
    ///
    /// What a gRFC guards is on unless its variable is `false`, in any case of letters. Other values change nothing.
    pub fn from_vars(var: impl Fn(&str) -> Option<String>) -> Self {
        let on = |name: &str| !var(name).is_some_and(|value| value.trim().eq_ignore_ascii_case("false"));
        Self {
            fallback: on("GRPC_EXPERIMENTAL_XDS_FALLBACK"),
            endpoint_fallback: on("GRPC_EXPERIMENTAL_XDS_ENDPOINT_FALLBACK"),
            data_error_handling: on("GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING"),
            federation: on("GRPC_EXPERIMENTAL_XDS_FEDERATION"),
            authority_rewrite: on("GRPC_EXPERIMENTAL_XDS_AUTHORITY_REWRITE"),
            call_creds: on("GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS"),
            http_connect: on("GRPC_EXPERIMENTAL_XDS_HTTP_CONNECT"),
        }
    }
}

impl Default for Guards {
    /// What holds when no variable is set.
    fn default() -> Self {
        Self::from_vars(|_| None)
    }
}

#[cfg(test)]
mod tests {
    use super::Guards;

    #[test]
    fn every_guard_is_on_by_default() {
        // B-45, and the design: what the seeds guard is on.
        let all_on = Guards {
            fallback: true,
            endpoint_fallback: true,
            data_error_handling: true,
            federation: true,
            authority_rewrite: true,
            call_creds: true,
            http_connect: true,
        };
        assert_eq!(Guards::default(), all_on);
        assert_eq!(Guards::from_vars(|_| Some("maybe".to_owned())), all_on);
        assert_eq!(Guards::from_vars(|_| Some(String::new())), all_on);
    }

    #[test]
    fn false_in_any_case_turns_a_guard_off() {
        // B-10, B-45
        let all_off = Guards {
            fallback: false,
            endpoint_fallback: false,
            data_error_handling: false,
            federation: false,
            authority_rewrite: false,
            call_creds: false,
            http_connect: false,
        };
        for off in ["false", "FALSE", "False"] {
            assert_eq!(Guards::from_vars(|_| Some(off.to_owned())), all_off);
        }
        assert_eq!(Guards::from_vars(|_| Some("True".to_owned())), Guards::default());
    }

    #[test]
    fn each_guard_has_its_own_variable() {
        let off =
            |variable: &'static str| Guards::from_vars(move |name| (name == variable).then(|| "false".to_owned()));
        let on = Guards::default();
        for (variable, guards) in [
            ("GRPC_EXPERIMENTAL_XDS_FALLBACK", Guards { fallback: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_ENDPOINT_FALLBACK", Guards { endpoint_fallback: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_DATA_ERROR_HANDLING", Guards { data_error_handling: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_FEDERATION", Guards { federation: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_AUTHORITY_REWRITE", Guards { authority_rewrite: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_BOOTSTRAP_CALL_CREDS", Guards { call_creds: false, ..on }),
            ("GRPC_EXPERIMENTAL_XDS_HTTP_CONNECT", Guards { http_connect: false, ..on }),
        ] {
            assert_eq!(off(variable), guards, "{variable}");
        }
    }
}
