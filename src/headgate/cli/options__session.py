"""What a run of the command was told by its common options: which store, how to answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from headgate.sync import SyncRateLimiter
    from headgate.sync_admin__sync_repository import SyncRepository

URL_VARIABLE = "HEADGATE_URL"
NAMESPACE_VARIABLE = "HEADGATE_NAMESPACE"


class Misuse(click.UsageError):
    """A line that cannot be done as it stands, with words of its own for why and what to do."""

    def __init__(self, what: str, why: str, advice: str) -> None:
        self.why = why
        self.advice = advice
        super().__init__(what)


@dataclass
class Session:
    """The common options, wherever on the line they stood."""

    url: str | None = None
    namespace: str | None = None
    principal: str | None = None
    as_json: bool = False
    debug: bool = False
    no_color: bool = False

    @property
    def given_url(self) -> str | None:
        return self.url or os.environ.get(URL_VARIABLE) or None

    @property
    def store_url(self) -> str:
        """The store to use; there is no default, since each run would begin with an empty one."""
        url = self.given_url
        if not url:
            raise Misuse(
                "no store is named",
                f"neither --url nor {URL_VARIABLE} says where the limits are kept",
                "give --url, e.g. --url sqlite:///limits.db",
            )
        return url

    @property
    def namespace_name(self) -> str:
        return self.namespace or os.environ.get(NAMESPACE_VARIABLE) or "default"

    @property
    def who(self) -> str:
        """Whom the audit will name."""
        user = os.environ.get("USER") or os.environ.get("LOGNAME")
        return self.principal or (f"cli:{user}" if user else "cli")

    def repository(self) -> SyncRepository:
        from headgate.sync_admin__sync_repository import SyncRepository

        return SyncRepository(self.store_url, namespace=self.namespace_name)

    def limiter(self) -> SyncRateLimiter:
        from headgate.sync import SyncRateLimiter

        return SyncRateLimiter(self.store_url, namespace=self.namespace_name)


pass_session = click.make_pass_decorator(Session, ensure=True)
