//! How a TLS handshake ended, in the words of A118.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::{AlertDescription, CertificateError, CommonState, Error, HandshakeKind, PeerIncompatible};

/// A TLS handshake that ended (S-78).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Handshake {
    pub(crate) result: HandshakeResult,
    /// Whether it went on with an earlier session, as far as it came to that.
    pub(crate) resumed: Option<bool>,
}

/// How a TLS handshake of ours ends. Whoever makes a connection hears it here, also if it gives up waiting; nothing is
/// heard of one that never begins.
#[derive(Debug, Default)]
pub(crate) struct HandshakeNote(Mutex<Option<Handshake>>);

/// A handshake that has begun. If this is dropped without a word, it took too long.
pub(crate) struct UnderWay<'a>(&'a HandshakeNote);

/// How a TLS handshake ended (S-78).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandshakeResult {
    Success,
    Unknown,
    VerificationFailed,
    Revoked,
    Expired,
    NotYetValid,
    AuthorityInvalid,
    HostnameMismatch,
    Malformed,
    CipherSuiteMismatch,
    VersionUnsupported,
    InappropriateFallback,
    NoApplicationProtocol,
    SignatureFailed,
    DecryptionFailed,
    KeyExchangeFailed,
    UnexpectedMessage,
    TimedOut,
    PeerClosed,
}

impl Handshake {
    pub(crate) fn failed(result: HandshakeResult) -> Self {
        Self { result, resumed: None }
    }

    /// One that ended well.
    pub(crate) fn done(connection: &CommonState) -> Self {
        let resumed = connection.handshake_kind().map(|kind| kind == HandshakeKind::Resumed);
        Self { result: HandshakeResult::Success, resumed }
    }
}

impl HandshakeNote {
    pub(crate) fn begin(&self) -> UnderWay<'_> {
        UnderWay(self)
    }

    /// The peer breaks the connection off after our side of the handshake. In TLS 1.3 that is when it refuses our
    /// certificate: it says so in an alert.
    pub(crate) fn broken_off(&self, error: &io::Error) {
        let mut ended = self.lock();
        if ended.is_some() && matches!(tls_error(error), Some(Error::AlertReceived(_))) {
            *ended = Some(Handshake::failed(HandshakeResult::of(error)));
        }
    }

    pub(crate) fn ended(&self) -> Option<Handshake> {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handshake>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl UnderWay<'_> {
    pub(crate) fn end(self, handshake: Handshake) {
        *self.0.lock() = Some(handshake);
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.lock().get_or_insert(Handshake::failed(HandshakeResult::TimedOut));
    }
}

impl HandshakeResult {
    /// What an error of rustls, or of the connection under it, comes to.
    pub(crate) fn of(error: &io::Error) -> Self {
        match tls_error(error) {
            Some(error) => Self::of_tls(error),
            None => match error.kind() {
                io::ErrorKind::TimedOut => Self::TimedOut,
                io::ErrorKind::UnexpectedEof
                | io::ErrorKind::ConnectionReset
                | io::ErrorKind::ConnectionAborted
                | io::ErrorKind::BrokenPipe => Self::PeerClosed,
                _ => Self::Unknown,
            },
        }
    }

    fn of_tls(error: &Error) -> Self {
        match error {
            Error::InvalidCertificate(error) => Self::of_certificate(error),
            Error::NoCertificatesPresented => Self::VerificationFailed,
            Error::AlertReceived(alert) => Self::of_alert(*alert),
            Error::InvalidMessage(_)
            | Error::InappropriateMessage { .. }
            | Error::InappropriateHandshakeMessage { .. } => Self::UnexpectedMessage,
            Error::DecryptError => Self::DecryptionFailed,
            Error::NoApplicationProtocol => Self::NoApplicationProtocol,
            Error::PeerIncompatible(why) => match why {
                PeerIncompatible::NoCipherSuitesInCommon => Self::CipherSuiteMismatch,
                PeerIncompatible::NoKxGroupsInCommon => Self::KeyExchangeFailed,
                PeerIncompatible::Tls12NotOffered
                | PeerIncompatible::Tls12NotOfferedOrEnabled
                | PeerIncompatible::Tls13RequiredForQuic
                | PeerIncompatible::SupportedVersionsExtensionRequired
                | PeerIncompatible::ServerDoesNotSupportTls12Or13 => Self::VersionUnsupported,
                _ => Self::Unknown,
            },
            _ => Self::Unknown,
        }
    }

    fn of_certificate(error: &CertificateError) -> Self {
        match error {
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => Self::Expired,
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => Self::NotYetValid,
            CertificateError::Revoked => Self::Revoked,
            CertificateError::UnknownIssuer => Self::AuthorityInvalid,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                Self::HostnameMismatch
            }
            CertificateError::BadEncoding => Self::Malformed,
            CertificateError::BadSignature => Self::SignatureFailed,
            _ => Self::VerificationFailed,
        }
    }

    /// What the peer says of us.
    fn of_alert(alert: AlertDescription) -> Self {
        match alert {
            AlertDescription::CertificateExpired => Self::Expired,
            AlertDescription::CertificateRevoked => Self::Revoked,
            AlertDescription::UnknownCA => Self::AuthorityInvalid,
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRequired => Self::VerificationFailed,
            AlertDescription::ProtocolVersion => Self::VersionUnsupported,
            AlertDescription::InappropriateFallback => Self::InappropriateFallback,
            AlertDescription::NoApplicationProtocol => Self::NoApplicationProtocol,
            AlertDescription::DecryptError | AlertDescription::BadRecordMac => Self::DecryptionFailed,
            AlertDescription::UnexpectedMessage | AlertDescription::DecodeError => Self::UnexpectedMessage,
            AlertDescription::CloseNotify | AlertDescription::UserCanceled => Self::PeerClosed,
            _ => Self::Unknown,
        }
    }

    /// The value of the label.
    #[cfg(any(feature = "opentelemetry", test))]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::Unknown => "UNKNOWN_FAILURE",
            Self::VerificationFailed => "CERTIFICATE_VERIFICATION_FAILED",
            Self::Revoked => "CERTIFICATE_REVOKED",
            Self::Expired => "CERTIFICATE_EXPIRED",
            Self::NotYetValid => "CERTIFICATE_NOT_YET_VALID",
            Self::AuthorityInvalid => "CERTIFICATE_AUTHORITY_INVALID",
            Self::HostnameMismatch => "CERTIFICATE_HOSTNAME_MISMATCH",
            Self::Malformed => "CERTIFICATE_MALFORMED",
            Self::CipherSuiteMismatch => "CIPHER_SUITE_MISMATCH",
            Self::VersionUnsupported => "PROTOCOL_VERSION_UNSUPPORTED",
            Self::InappropriateFallback => "INAPPROPRIATE_FALLBACK",
            Self::NoApplicationProtocol => "NO_APPLICATION_PROTOCOL",
            Self::SignatureFailed => "SIGNATURE_VERIFICATION_FAILED",
            Self::DecryptionFailed => "DECRYPTION_FAILED",
            Self::KeyExchangeFailed => "KEY_EXCHANGE_FAILURE",
            Self::UnexpectedMessage => "UNEXPECTED_MESSAGE",
            Self::TimedOut => "HANDSHAKE_TIMEOUT",
            Self::PeerClosed => "PEER_CONNECTION_CLOSED",
        }
    }
}

fn tls_error(error: &io::Error) -> Option<&Error> {
    error.get_ref()?.downcast_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// S-78: whoever stops waiting has not heard of an end, and a refusal may come after ours.
    #[test]
    fn a_handshake_is_noted_however_it_ends() {
        let ended = |note: &HandshakeNote| note.ended().map(|handshake| handshake.result);
        let alert = Error::AlertReceived(AlertDescription::CertificateRequired);
        let alert = io::Error::new(io::ErrorKind::InvalidData, alert);

        let never = HandshakeNote::default();
        never.broken_off(&alert);
        assert_eq!(ended(&never), None, "it did not begin");

        let late = HandshakeNote::default();
        drop(late.begin());
        assert_eq!(ended(&late), Some(HandshakeResult::TimedOut));

        let refused = HandshakeNote::default();
        refused.begin().end(Handshake { result: HandshakeResult::Success, resumed: Some(false) });
        refused.broken_off(&io::ErrorKind::ConnectionReset.into());
        assert_eq!(ended(&refused), Some(HandshakeResult::Success), "what HTTP/2 lacks is no fault of TLS");
        refused.broken_off(&alert);
        assert_eq!(ended(&refused), Some(HandshakeResult::VerificationFailed));
    }

    #[test]
    fn errors_of_tls_and_of_the_connection_have_the_words_of_a118() {
        let tls = |error: Error| io::Error::new(io::ErrorKind::InvalidData, error);
        let certificate = |error| tls(Error::InvalidCertificate(error));
        let alert = |alert| tls(Error::AlertReceived(alert));
        for (error, word) in [
            (certificate(CertificateError::Expired), "CERTIFICATE_EXPIRED"),
            (certificate(CertificateError::NotValidYet), "CERTIFICATE_NOT_YET_VALID"),
            (certificate(CertificateError::Revoked), "CERTIFICATE_REVOKED"),
            (certificate(CertificateError::UnknownIssuer), "CERTIFICATE_AUTHORITY_INVALID"),
            (certificate(CertificateError::NotValidForName), "CERTIFICATE_HOSTNAME_MISMATCH"),
            (certificate(CertificateError::BadEncoding), "CERTIFICATE_MALFORMED"),
            (certificate(CertificateError::BadSignature), "SIGNATURE_VERIFICATION_FAILED"),
            (certificate(CertificateError::InvalidPurpose), "CERTIFICATE_VERIFICATION_FAILED"),
            (tls(Error::NoCertificatesPresented), "CERTIFICATE_VERIFICATION_FAILED"),
            (tls(Error::DecryptError), "DECRYPTION_FAILED"),
            (tls(Error::NoApplicationProtocol), "NO_APPLICATION_PROTOCOL"),
            (tls(Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon)), "CIPHER_SUITE_MISMATCH"),
            (tls(Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon)), "KEY_EXCHANGE_FAILURE"),
            (tls(Error::PeerIncompatible(PeerIncompatible::Tls12NotOffered)), "PROTOCOL_VERSION_UNSUPPORTED"),
            (tls(Error::InvalidMessage(rustls::InvalidMessage::InvalidCcs)), "UNEXPECTED_MESSAGE"),
            (alert(AlertDescription::UnknownCA), "CERTIFICATE_AUTHORITY_INVALID"),
            (alert(AlertDescription::InappropriateFallback), "INAPPROPRIATE_FALLBACK"),
            (alert(AlertDescription::HandshakeFailure), "UNKNOWN_FAILURE"),
            (tls(Error::General("?".into())), "UNKNOWN_FAILURE"),
            (io::ErrorKind::UnexpectedEof.into(), "PEER_CONNECTION_CLOSED"),
            (io::ErrorKind::TimedOut.into(), "HANDSHAKE_TIMEOUT"),
            (io::ErrorKind::OutOfMemory.into(), "UNKNOWN_FAILURE"),
        ] {
            assert_eq!(HandshakeResult::of(&error).name(), word, "S-78: {error}");
        }
    }
}
