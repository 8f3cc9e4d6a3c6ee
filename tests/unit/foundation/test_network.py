"""Why a request failed, in words."""

from __future__ import annotations

import errno
import os
import ssl

import pytest

from hybridbench.foundation.network import network_fault


def test_an_error_of_the_system_has_no_number() -> None:
    refused = ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))

    assert network_fault(refused) == "Connection refused"


def test_an_error_without_a_message_has_its_name() -> None:
    assert network_fault(TimeoutError()) == "TimeoutError"
    assert network_fault(ValueError("no host given")) == "no host given"


def test_https_to_a_server_of_http_says_what_to_write() -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLError) as caught:
        client.do_handshake()

    assert network_fault(caught.value) == "it does not speak HTTPS; write http:// instead"


def test_a_certificate_that_is_not_accepted_says_why() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"

    assert network_fault(error) == "its certificate is not accepted (self-signed certificate)"
