"""Who a request counts for: key functions that a client cannot get around.

A key function takes a Caller and returns an entity id, or None for a request that is not limited.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Any, NamedTuple, overload

from headgate.core.errors import ValidationError
from headgate.core.http_fields import entity_id_of

HOPS_MAX = 16
HEADER_LENGTH_MAX = 4096
NOBODY = "ip:unknown"

_SCOPE = re.compile(r"[a-zA-Z][a-zA-Z0-9_.\-]{0,63}")
_PORTED = re.compile(r"\[([0-9a-fA-F:.]+)\](?::[0-9]{1,5})?|([0-9.]+):[0-9]{1,5}")

Address = IPv4Address | IPv6Address


class Caller(NamedTuple):
    """A request as every framework knows it.

    `peer` is the other end of the connection; `fields()` gives the names and values of the headers
    as the framework has them; `native` is what it hands out itself (scope, request, context).
    """

    peer: str | None
    fields: Callable[[], Iterable[tuple[str, str]]]
    method: str
    path: str
    native: Any

    def header(self, name: str) -> str | None:
        """The first value of a header, whatever the case of its name; None where it is missing."""
        return next(iter(self.headers(name)), None)

    @overload
    def headers(self) -> dict[str, str]: ...

    @overload
    def headers(self, name: str) -> list[str]: ...

    def headers(self, name: str | None = None) -> dict[str, str] | list[str]:
        """All headers, by their names in lower case; those that came repeatedly are joined with
        a comma, cookies with a semicolon. With a name the list of its values, oldest first."""
        if name is not None:
            wanted = name.lower()
            return [value for field, value in self.fields() if field.lower() == wanted]
        found: dict[str, str] = {}
        for field, value in self.fields():
            key = field.lower()
            between = "; " if key == "cookie" else ", "
            found[key] = f"{found[key]}{between}{value}" if key in found else value
        return found


Key = Callable[[Caller], str | None]


def scoped(scope: str, text: str) -> str:
    """An entity id for any text; different pairs never share one. The service does the same."""
    if _SCOPE.fullmatch(scope) is None:
        raise ValidationError("scope", scope, "must be a word of letters, digits and _ . -")
    if not text:
        raise ValidationError("identifier", text, "is empty; name somebody")
    return entity_id_of(scope, text)


def by_ip(
    *, trusted_hops: int = 0, trusted_proxies: Sequence[str] = (), ipv6_prefix: int = 64
) -> Key:
    """By the client's address. `X-Forwarded-For` is trusted only as far as your proxies wrote it.

    `trusted_hops` is how many proxies stand in front of the app; `trusted_proxies` names their
    networks instead. With neither, the header is ignored. An IPv6 client owns a whole /64 and may
    change its address with every request, so addresses are cut to `ipv6_prefix` bits.
    """
    if type(trusted_hops) is not int or not 0 <= trusted_hops <= HOPS_MAX:
        raise ValidationError("trusted_hops", trusted_hops, f"must be an int from 0 to {HOPS_MAX}")
    if trusted_hops and trusted_proxies:
        raise ValidationError(
            "trusted_hops", trusted_hops, "and trusted_proxies say the same; give one of them"
        )
    if type(ipv6_prefix) is not int or not 1 <= ipv6_prefix <= 128:
        raise ValidationError("ipv6_prefix", ipv6_prefix, "must be an int from 1 to 128")
    networks = [_network(text) for text in trusted_proxies]

    def key(caller: Caller) -> str:
        trusts = trusted_hops or networks
        chain = _chain(caller) if trusts else [_address(caller.peer or "")]
        client = chain[0]
        if len(chain) <= trusted_hops:  # it passed too few proxies: trust nothing
            chain = chain[:1]
        for hop, address in enumerate(chain[1:], start=1):
            proxy_is_ours = (
                hop <= trusted_hops
                if not networks
                else client is None or any(client in network for network in networks)
            )
            if not proxy_is_ours or address is None:
                break
            client = address
        return NOBODY if client is None else f"ip:{_address_text(client, ipv6_prefix)}"

    return key


def by_header(name: str, *, scope: str = "key", otherwise: Key | None = None) -> Key:
    """By a header such as an API key; only its digest is stored, because it is a secret.

    Check the header before the limit, or whoever invents a new value gets a new bucket. Requests
    without the header are counted by `otherwise` (default: by the address).
    """
    fallback = by_ip() if otherwise is None else otherwise
    scoped(scope, "x")

    def key(caller: Caller) -> str | None:
        values = [value for value in caller.headers(name) if value]
        if not values:
            return fallback(caller)
        digest = hashlib.sha256(values[0].encode(errors="surrogatepass")).hexdigest()
        return f"{scope}:{digest[:32]}"

    return key


def everybody(name: str = "everybody") -> Key:
    """One bucket for all."""
    entity_id = scoped("all", name)
    return lambda caller: entity_id


def _chain(caller: Caller) -> list[Address | None]:
    """The peer, then the addresses that each hop reported, nearest first; None where unknown."""
    said = ",".join(caller.headers("x-forwarded-for"))[-HEADER_LENGTH_MAX:]
    hops = said.rsplit(",", HOPS_MAX)[::-1] if said else []
    return [_address(caller.peer or ""), *(_address(hop) for hop in hops[:HOPS_MAX])]


def _address(text: str) -> Address | None:
    text = text.strip().strip('"')
    ported = _PORTED.fullmatch(text)
    try:
        found = ip_address(ported[1] or ported[2] if ported else text.partition("%")[0])
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _address_text(address: Address, ipv6_prefix: int) -> str:
    if isinstance(address, IPv4Address):
        return str(address)
    network = IPv6Network((address, ipv6_prefix), strict=False)
    return str(network.network_address)


def _network(text: str) -> Any:
    try:
        return ip_network(text)
    except ValueError as error:
        raise ValidationError(
            "trusted_proxies", text, "is not a network; write it like '10.0.0.0/8'"
        ) from error
