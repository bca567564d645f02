"""A request of the client, as bytes."""

from __future__ import annotations

from headgate.client.requests import RequestHead


def test_a_request() -> None:
    head = RequestHead("/base", (("host", "h:1"), ("authorization", "Bearer hidden")))
    assert head.request("POST", "/v1/x", b"{}") == (
        b"POST /base/v1/x HTTP/1.1\r\nhost: h:1\r\nauthorization: Bearer hidden\r\n"
        b"content-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    )
    assert head.request("GET", "/y?z=1", None).endswith(b"Bearer hidden\r\n\r\n")
    assert "hidden" not in repr(head)
