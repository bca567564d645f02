"""Redis behind TLS, client certificates and a login; one server and a cluster."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.stores.redis import servers
from tests.stores.redis.servers import HOST

# All that headgate needs of a server: its own keys, and no command that is dangerous.
ACL_RULE = ("on", ">pass word", "resetkeys", "~hg:*", "-@all", "+@connection", "+@scripting")
ACL_RULE += ("+@read", "+@write", "+time", "-@dangerous")
ACL_CLUSTER = (*ACL_RULE, "+cluster|slots")
LOGIN = "gate:pass%20word@"

Made = Mapping[str, Path]


def certificates(folder: Path) -> dict[str, Path]:
    """An authority, certificates by it for 127.0.0.1 and for a client, and an authority nobody
    trusts with a client of its own."""
    for name in ("ca", "other"):
        usage = ["-addext", "keyUsage=critical,keyCertSign"]  # Python 3.13 asks for it
        _openssl(folder, *_new_key(name), "-x509", *usage, "-days", "2", "-out", f"{name}.crt")
    (folder / "names").write_text(
        f"subjectAltName=IP:{HOST},DNS:localhost\nauthorityKeyIdentifier=keyid\n"
    )  # Python 3.13 asks for the key identifier
    for name, by in (("server", "ca"), ("client", "ca"), ("stranger", "other")):
        _openssl(folder, *_new_key(name), "-out", f"{name}.csr")
        signing = ["-CA", f"{by}.crt", "-CAkey", f"{by}.key", "-CAcreateserial"]
        asked = ["x509", "-req", "-in", f"{name}.csr", "-days", "2", "-out", f"{name}.crt"]
        _openssl(folder, *asked, *signing, "-extfile", "names")
    names = ("ca", "other", "server", "client", "stranger")
    return {
        f"{name}.{kind}": folder / f"{name}.{kind}" for name in names for kind in ("crt", "key")
    }


def _new_key(name: str) -> list[str]:
    subject = f"/CN=headgate test {name}"
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]  # made at once
    return ["req", *curve, "-nodes", "-keyout", f"{name}.key", "-subj", subject]


def _openssl(folder: Path, *arguments: str) -> None:
    done = subprocess.run(["openssl", *arguments], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"openssl {' '.join(arguments)}: {done.stderr}")


def tls_options(made: Made, port: int, *, mutual: bool = False) -> tuple[str, ...]:
    """TLS only, on that port; `mutual` asks clients for a certificate, too."""
    options = ("--port", "0", "--tls-port", str(port))
    options += ("--tls-auth-clients", "yes" if mutual else "no")
    options += ("--tls-cert-file", str(made["server.crt"]), "--tls-key-file")
    return (*options, str(made["server.key"]), "--tls-ca-cert-file", str(made["ca.crt"]))


def trusting(made: Made, hosts: str, *, client: str = "", login: str = "") -> str:
    """The URL of a server whose authority is known; `client` shows a certificate."""
    url = f"rediss://{login}{hosts}?ssl_ca_certs={made['ca.crt']}"
    if not client:
        return url
    shown = f"&ssl_certfile={made[f'{client}.crt']}&ssl_keyfile={made[f'{client}.key']}"
    return url + shown


def tls_server(folder: Path, made: Made, *, mutual: bool = False) -> servers.Server:
    port = servers.free_port()
    url = trusting(made, f"{HOST}:{port}", client="client" if mutual else "")
    options = tls_options(made, port, mutual=mutual)
    return servers.Server(folder, *options, port=port, url=url)


def tls_cluster(folder: Path, made: Made) -> servers.Cluster:
    """TLS with client certificates towards everybody, also among the nodes."""
    return servers.Cluster(
        folder,
        options=lambda port: (*tls_options(made, port, mutual=True), "--tls-cluster", "yes"),
        reached=lambda hosts: trusting(made, hosts, client="client"),
    )


def with_login(cluster: servers.Cluster) -> str:
    """The cluster's URL for a user who may do no more than headgate needs."""
    for server in cluster.servers:
        servers.command(server.url, "ACL", "SETUSER", "gate", *ACL_CLUSTER)
    return cluster.url.replace("://", f"://{LOGIN}")
