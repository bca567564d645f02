"""What the service holds and answers in a search: each request on each snapshot once."""

from __future__ import annotations

from typing import Any

from headgate.core.errors import StoreTrouble, Throttled, Unreachable
from headgate.core.record import BucketKey
from headgate.stores.dynamodb.client.calls import ConditionFailed, Rejected, TransactionCancelled
from proof.interleavings import ghosts
from proof.interleavings.clients import TABLE, Node
from proof.interleavings.ghosts import Broken
from proof.interleavings.scene import Scene
from proof.model.engine import Snapshot, apply
from proof.model.values import Row

LOST, HELD_BACK = "lost", "held back"
FAILED = ("failed", "cancelled")


class Service:
    """Snapshots go by number; every new one must keep the laws of a state."""

    def __init__(self, scene: Scene) -> None:
        self._keys = scene.keys
        self.snapshots: list[Snapshot] = []
        self._ids: dict[Snapshot, int] = {}
        self._replies: dict[tuple[int, str], tuple[int, str]] = {}
        self._shards: dict[tuple[int, BucketKey], dict[int, Row]] = {}
        self._levels: dict[tuple[int, BucketKey, str, int], int | None] = {}
        self.outcomes: dict[str, Any] = {
            LOST: Unreachable("the reply was lost"),
            HELD_BACK: Throttled("the service holds this key back"),
        }

    @staticmethod
    def empty() -> Snapshot:
        return Snapshot(tables={TABLE: {"GlobalSecondaryIndexes": []}})

    def id(self, snapshot: Snapshot) -> int:
        found = self._ids.get(snapshot)
        if found is None:
            found = self._ids[snapshot] = len(self.snapshots)
            self.snapshots.append(snapshot)
            for key in self._keys:
                ghosts.check_state(self.shards(found, key))
        return found

    def shards(self, snapshot: int, key: BucketKey) -> dict[int, Row]:
        found = self._shards.get((snapshot, key))
        if found is None:
            found = self._shards[snapshot, key] = ghosts.shards_of(self.snapshots[snapshot], key)
        return found

    def level(self, snapshot: int, key: BucketKey, limit: str, now_ms: int) -> int | None:
        """What a bucket holds; None where it has no such limit, or is not there."""
        name = snapshot, key, limit, now_ms
        if name not in self._levels:
            self._levels[name] = ghosts.level_of(self.shards(snapshot, key), limit, now_ms)
        return self._levels[name]

    def reply(self, snapshot: int, node: Node, place: int) -> tuple[int, str]:
        """The snapshot after one of the client's requests, and the name of what it comes to."""
        text = node.texts[place]
        found = self._replies.get((snapshot, text))
        if found is None:
            assert node.requests is not None
            after, outcome = apply(self.snapshots[snapshot], node.requests[place])
            if isinstance(outcome, Rejected):
                raise Broken(f"the service refuses {text}: {outcome}")
            name = _name(outcome)
            self.outcomes.setdefault(name, outcome)
            found = self._replies[snapshot, text] = self.id(after), name
        return found


def _name(outcome: Any) -> str:
    """A text that is different for different outcomes."""
    if isinstance(outcome, ConditionFailed):
        return f"failed {_sorted(outcome.item)}"
    if isinstance(outcome, TransactionCancelled):
        return f"cancelled {[(code, _sorted(item)) for code, item in outcome.reasons]}"
    if isinstance(outcome, StoreTrouble):
        return repr(outcome)
    return f"done {_sorted(outcome)}"


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((key, _sorted(inner)) for key, inner in value.items())
    return value
