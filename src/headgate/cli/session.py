"""What one run of the command was told by its common options, and the store it opened."""

from __future__ import annotations

import contextlib
import functools
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import click

if TYPE_CHECKING:
    from headgate.cli.remote import RemoteRepository
    from headgate.sync import SyncRateLimiter, SyncRepository

OK, ERROR, USAGE, LIMITED, UNAVAILABLE = 0, 1, 2, 3, 4
URL_VARIABLE = "HEADGATE_URL"
NAMESPACE_VARIABLE = "HEADGATE_NAMESPACE"


def command_path() -> str:
    """The command that runs, as it is typed: `headgate limits plan`."""
    context = click.get_current_context(silent=True)
    return context.command_path if context else "headgate"


class CommandFailed(click.ClickException):
    """The command could not do what it was asked to: what happened, why, and what to do."""

    exit_code = ERROR

    def __init__(self, what: str, why: str, advice: str) -> None:
        self.why = why
        self.advice = advice
        super().__init__(what)


class Misuse(CommandFailed):
    """A line that cannot be done as it stands."""

    exit_code = USAGE


@dataclass
class Session:
    """The common options, wherever on the line they stood."""

    url: str | None = None
    namespace: str | None = None
    principal: str | None = None
    as_json: bool = False
    debug: bool = False
    no_color: bool = False
    stores: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

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
    def audit_principal(self) -> str:
        """Whom the audit will name; what a user's name holds that it cannot is replaced."""
        from headgate.core.history import valid_principal

        if self.principal is not None:
            return self.principal
        user = os.environ.get("USER") or os.environ.get("LOGNAME")
        return valid_principal(f"cli:{user}" if user else "cli")

    @property
    def is_service(self) -> bool:
        """Whether the URL is that of a service, and not of a store."""
        return self.store_url.startswith(("http://", "https://"))

    def running_service(self, instead: str) -> RemoteRepository:
        """The service that the URL names, for what no store has; `instead` is what to do where it
        names a store."""
        if self.given_url is None:
            raise Misuse(
                "no service is named",
                f"neither --url nor {URL_VARIABLE} says where one runs",
                "give --url, e.g. --url https://limits.example.com",
            )
        if not self.is_service:
            raise Misuse(
                "this is asked of a running service",
                "the URL is that of a store, and not of a service (http://… or https://…)",
                instead,
            )
        return self.service

    @functools.cached_property
    def service(self) -> RemoteRepository:
        """The service that the URL names; opened and closed as a repository is."""
        from headgate.cli.remote import RemoteRepository

        if self.principal is not None:
            raise Misuse(
                "--principal is for stores",
                "a service records the API key that asks as the one who made a change",
                "leave --principal out, or give the store's own URL",
            )
        opened = RemoteRepository(self.store_url, self.namespace_name)
        return self.stores.enter_context(opened)

    @functools.cached_property
    def repository(self) -> SyncRepository:
        """Opened when it is first used; closed when the command has ended, before its answer. A
        service stands in for it with the verbs that REST has."""
        from headgate.sync import SyncRepository

        if self.is_service:
            return cast("SyncRepository", self.service)
        opened = SyncRepository(self.store_url, namespace=self.namespace_name)
        return self.stores.enter_context(opened)

    @functools.cached_property
    def limiter(self) -> SyncRateLimiter:
        """Opened and closed as the repository is."""
        from headgate.sync import SyncRateLimiter

        if self.is_service:
            return cast("SyncRateLimiter", self.service)
        opened = SyncRateLimiter(self.store_url, namespace=self.namespace_name)
        return self.stores.enter_context(opened)
