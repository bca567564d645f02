"""Servers that live as long as the test run; each is started when first asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.stores.redis.client.calls import open_port
from tests.stores.redis import secured, servers

PATIENCE_MS = 20_000
# Where a test is not about deadlines, a busy machine must not make it fail.
open_port.__kwdefaults__["timeout_ms"] = PATIENCE_MS


@pytest.fixture(scope="session")
def redis_server() -> Iterator[servers.Server]:
    """Standalone, on TCP and a unix socket; its ACL user `gate` has the password `pass word`."""
    with servers.folder() as folder:
        options = ("--unixsocket", str(folder / "redis.sock"))
        with servers.Server(folder, *options) as server:
            rule = ("on", ">pass word", "~*", "+@all", "-@dangerous", "+flushall")
            servers.command(server.url, "ACL", "SETUSER", "gate", *rule)
            yield server


@pytest.fixture(scope="session")
def redis_url(redis_server: servers.Server) -> str:
    return redis_server.url


@pytest.fixture(scope="session")
def unix_url(redis_server: servers.Server) -> str:
    return f"unix://{redis_server.folder}/redis.sock"


@pytest.fixture(scope="session")
def acl_url(redis_server: servers.Server) -> str:
    return redis_server.url.replace("://", "://gate:pass%20word@")


@pytest.fixture(scope="session")
def cluster() -> Iterator[servers.Cluster]:
    with servers.folder() as folder, servers.Cluster(folder) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_url(cluster: servers.Cluster) -> str:
    return cluster.url


@pytest.fixture(scope="session")
def sentinel_url() -> Iterator[str]:
    with servers.folder() as folder, servers.folder() as other:
        with servers.Server(folder) as master:
            with servers.Sentinel(other, master.port) as sentinel:
                yield sentinel.service_url


@pytest.fixture(scope="session")
def certificates() -> Iterator[secured.Made]:
    with servers.folder() as folder:
        yield secured.certificates(folder)


@pytest.fixture(scope="session")
def tls_url(certificates: secured.Made) -> Iterator[str]:
    with servers.folder() as folder, secured.tls_server(folder, certificates) as server:
        yield server.url


@pytest.fixture(scope="session")
def mutual_url(certificates: secured.Made) -> Iterator[str]:
    """It asks for a client certificate, and the URL shows one."""
    with servers.folder() as folder:
        with secured.tls_server(folder, certificates, mutual=True) as server:
            yield server.url


@pytest.fixture(scope="session")
def tls_cluster(certificates: secured.Made) -> Iterator[servers.Cluster]:
    """Its nodes ask for client certificates, also each other."""
    with servers.folder() as folder, secured.tls_cluster(folder, certificates) as cluster:
        yield cluster


@pytest.fixture
def url(request: pytest.FixtureRequest, server: str) -> str:
    """Of the server or cluster that the test's parameter `server` names, emptied."""
    found = request.getfixturevalue(server)
    address: str = found if isinstance(found, str) else found.url
    servers.flush(address)
    return address


@pytest.fixture
def own_server() -> Iterator[servers.Server]:
    """A server of the test's own, to be killed and confused."""
    with servers.folder() as folder, servers.Server(folder) as server:
        yield server


@pytest.fixture
def old_server() -> Iterator[servers.Server]:
    """The same of the oldest Redis that is served."""
    with servers.folder() as folder, servers.oldest(folder) as server:
        yield server
