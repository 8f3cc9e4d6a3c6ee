"""Say in words why a request over the network failed."""

from __future__ import annotations

import ssl

# OpenSSL's reason if the first bytes of the answer are not TLS.
_NOT_TLS = "WRONG_VERSION_NUMBER"


def network_fault(error: BaseException) -> str:
    """Return half a sentence on why ``error`` ended a request, without error numbers."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted ({error.verify_message})"
    if isinstance(error, ssl.SSLError) and error.reason == _NOT_TLS:
        return "it does not speak HTTPS; write http:// instead"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
