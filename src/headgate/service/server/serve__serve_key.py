"""Making an API key where there is none yet: `python -m headgate.service key`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from headgate.core.runtime import run
from headgate.core.runtime__clock import wall_clock_ms
from headgate.repository import Repository
from headgate.service.keys.file import FileShelf
from headgate.service.keys.key import mint, parse_grant
from headgate.service.keys.stored import CatalogShelf
from headgate.service.keys.stored__keys_shelf import KeyShelf
from headgate.service.program import STORE_KEYS
from headgate.service.server.options import OptionError


def make_key(arguments: Sequence[str]) -> int:
    """Makes one key and prints it: the only time that anybody sees it."""
    given = _parser().parse_args(arguments)
    grant = parse_grant(given.scopes.split(","), given.namespace, given.entity_prefix)
    made = mint(grant, name=given.name, principal=given.principal, now_ms=wall_clock_ms())
    run(_shelf(given.keys, given.store).put(made.key))
    sys.stdout.write(made.text + "\n")
    return 0


def _shelf(keys: str, store: str | None) -> KeyShelf:
    if keys != STORE_KEYS:
        return FileShelf(keys, create=True)
    if store is None:
        raise OptionError("--keys store needs --store URL: the store that keeps the keys")
    repository = run(Repository.open(store, _blocking=True))
    return CatalogShelf(repository.backend.catalog, repository.clock)


def _who() -> str:
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    return f"cli:{user}" if user else "cli"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m headgate.service key")
    parser.add_argument("--keys", required=True, help="key file (made if missing), or 'store'")
    parser.add_argument("--store", help="URL of the store, for --keys store")
    parser.add_argument("--scopes", default="check", help="of check, read, admin: check,read")
    parser.add_argument("--namespace", default="default", help="'*' is all of them")
    parser.add_argument("--entity-prefix", help="only entities whose id begins so, as user:")
    parser.add_argument("--name", default="", help="for people")
    parser.add_argument("--principal", default=_who(), help="whom the audit names")
    return parser
