"""A scenario: what happens when, as plain data that can be kept in a file and cut shorter; and how
one is made up from a seed: bursts of callers, pauses, and everything that can go wrong."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

_MASK = (1 << 64) - 1


def mixed(*labels: int) -> int:
    """A number of 64 bits that is different for different labels."""
    state = 0x9E3779B97F4A7C15
    for label in labels:
        state = (state ^ (label & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ state >> 29) * 0x94D049BB133111EB & _MASK
        state ^= state >> 32
    return state


def fraction(*labels: int) -> float:
    """From 0 to 1."""
    return mixed(*labels) / 2.0**64


# Name, capacity, amount, period in seconds; then whether it is soft, and the schedule of a quota.
Limits = list[list[Any]]


@dataclass(frozen=True)
class Event:
    """`args` depend on the kind; see `client.Client` and `world.World` for who reads them."""

    id: int
    at_ms: int
    kind: str
    client: int
    args: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        who = f" client {self.client}" if self.client >= 0 else ""
        args = ", ".join(f"{name}={value}" for name, value in self.args.items())
        return f"#{self.id}{who} {self.kind} {args}"


@dataclass(frozen=True)
class Scenario:
    """`faults` are the requests (event, number) that may meet a fault; None: as the weather is."""

    world: str
    seed: int
    episode: int
    profiles: list[dict[str, Any]]
    limits: dict[str, Limits]  # by resource
    meter: int  # writes a second that one key bears
    events: list[Event]
    faults: list[tuple[int, int]] | None = None

    def only(self, events: Iterable[Event]) -> Scenario:
        return replace(self, events=list(events))

    def with_faults(self, faults: Iterable[tuple[int, int]]) -> Scenario:
        return replace(self, faults=sorted(faults))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Scenario:
        values = json.loads(text)
        values["events"] = [Event(**event) for event in values["events"]]
        if values["faults"] is not None:
            values["faults"] = [(event, number) for event, number in values["faults"]]
        return cls(**values)


CLIENTS = (2, 3, 4, 4, 6, 8, 12, 16, 24, 32)
ENTITIES = ("e0", "e1", "kid-1", "kid-2", "team")
RESOURCES = ("api", "llm")
NAMESPACES = ("north", "south")
SKEW_MS = 5000
BURSTS = 10
ACTS_MAX = 60
SOFT_PART = 0.35  # of the scenarios have soft limits
QUOTA_PART = 0.25  # of the scenarios have quotas
SCHEDULES = (  # with resets within the two hours that a scenario takes
    "session 2s", "session 70s", "session 900s", "cron 0 * * * * UTC",
    "cron 10,40 */2 * * * Asia/Kolkata", "cron 20 */3 * * * America/St_Johns",
    "calendar day Asia/Shanghai", "calendar week Asia/Shanghai",
)  # fmt: skip

FAIR = [0.0, 0.0, 0.0, 0.0, 0.0]
WEATHERS = (
    FAIR,
    [0.02, 0.02, 0.02, 0.02, 0.02],
    [0.0, 0.15, 0.0, 0.0, 0.0],
    [0.1, 0.0, 0.1, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.2, 0.2],
    [0.9, 0.0, 0.0, 0.1, 0.0],
    [0.0, 0.0, 0.0, 1.0, 0.0],
)


class Plot:
    def __init__(self, world: str, seed: int, episode: int, *, quotas: bool) -> None:
        self.world = world
        self.seed = seed
        self.episode = episode
        self.rng = random.Random(f"{world}/{seed}/{episode}")
        # Apart from the rest, so that scenarios without soft limits are as they always were.
        self.soft_rng = random.Random(f"mild/{world}/{seed}/{episode}")
        self.softens = self.soft_rng.random() < SOFT_PART
        self.quota_rng = random.Random(f"quota/{world}/{seed}/{episode}")
        self.has_quotas = quotas and self.quota_rng.random() < QUOTA_PART
        self.events: list[Event] = []
        self.at_ms = 1000
        self.clients = self.rng.choice(CLIENTS)
        self.limits = {resource: self._limits() for resource in RESOURCES}

    def scenario(self) -> Scenario:
        for _ in range(BURSTS):
            self._burst()
            self._pause()
        return Scenario(
            self.world,
            self.seed,
            self.episode,
            [self._profile() for _ in range(self.clients)],
            self.limits,
            self.rng.choice((0, 0, 4, 10, 30)),
            sorted(self.events, key=lambda event: (event.at_ms, event.id)),
        )

    def _limits(self) -> Limits:
        rng = self.rng
        fast = rng.choice((3, 10, 20, 40, 100, 200, 500))
        slow = rng.choice((10, 60, 100, 300, 1000))
        limits = [
            ["a", fast, rng.choice((1, 3, max(1, fast // 2), fast)), 1],
            ["b", slow, rng.choice((7, slow)), rng.choice((10, 60))],
        ]
        if rng.random() < 0.3:
            limits.append(["c", rng.choice((5, 50)), rng.choice((0, 5, 11)), rng.choice((1, 3))])
        for limit in limits[:2] if self.softens else ():
            if self.soft_rng.random() < 0.5:
                limit.append(True)
        if self.has_quotas:
            return [self._with_schedule(limit) for limit in limits]
        return limits

    def _with_schedule(self, limit: list[Any]) -> list[Any]:
        """The same as a quota, most often; so what changes later changes schedules, too."""
        rng = self.quota_rng
        if rng.random() < (0.4 if limit[0] == "a" else 0.7):
            name, capacity, _, _, *soft = limit
            return [name, capacity, 0, 1, bool(soft), rng.choice(SCHEDULES)]
        return limit

    def _profile(self) -> dict[str, Any]:
        rng = self.rng
        return {
            "namespace": rng.choice(NAMESPACES[:1] * 3 + NAMESPACES),
            "breaker": rng.random() < 0.7,
            "rejections": rng.random() < 0.7,
            "prefetch": rng.random() < 0.4,
            "shadow": rng.random() < 0.05,
            "allow": rng.random() < 0.4,
            "strict": rng.random() < 0.25,
            "told_clock": rng.random() < 0.5,
            "cache_s": rng.choice((0, 1, 60)),
            "skew_ms": rng.choice((0, 0, rng.randint(-50, 50), rng.randint(-SKEW_MS, SKEW_MS))),
        }

    def _add(self, kind: str, args: dict[str, Any], *, client: int = -1, after_ms: int = 0) -> int:
        number = len(self.events)
        self.events.append(Event(number, self.at_ms + after_ms, kind, client, args))
        return number

    def _burst(self) -> None:
        """Some callers at about the same time, mostly on few buckets."""
        rng = self.rng
        if rng.random() < 0.6:
            odds = rng.choice(WEATHERS)
            self._add("weather", {"odds": odds, "delay_ms": rng.choice((1, 2, 10, 100))})
        if rng.random() < 0.2:
            self._add("meter", {"most": rng.choice((0, 2, 5, 20, 100))})
        focus = rng.sample(ENTITIES, rng.randint(1, 2))
        if rng.random() < 0.3:
            self._stream(focus[0], rng.randrange(self.clients))
        pace_ms = rng.choice((0, 1, 3, 20, 100))
        for _ in range(rng.randint(5, ACTS_MAX)):
            self.at_ms += rng.randint(0, 2 * pace_ms)
            entity = rng.choice(focus) if rng.random() < 0.8 else rng.choice(ENTITIES)
            self._act(entity, rng.randrange(self.clients))
        if rng.random() < 0.3:
            self._add("weather", {"odds": FAIR, "delay_ms": 2})

    def _stream(self, entity: str, client: int) -> None:
        """One client that asks for little again and again, as prefetching is made for."""
        rng = self.rng
        pace_ms = rng.choice((2, 10, 30))
        amounts = {"a": 1} if rng.random() < 0.7 else {"a": 1, "b": 1}
        for _ in range(rng.randint(10, ACTS_MAX)):
            self.at_ms += rng.randint(1, 2 * pace_ms)
            plain = {"steps": [], "hold_ms": 0, "fails": False, "on_error": "keep", "wait_s": None}
            self._add(
                "acquire", {"wants": [[entity, RESOURCES[0], amounts]], **plain}, client=client
            )

    def _act(self, entity: str, client: int) -> None:
        rng = self.rng
        luck = rng.random()
        resource = rng.choice(RESOURCES[:1] * 3 + RESOURCES[1:])
        if luck < 0.72:
            self._acquire(entity, resource, client)
        elif luck < 0.79:
            self._add("check", {"wants": [self._want(entity, resource)]}, client=client)
        elif luck < 0.82:
            args = {"entity": entity, "resource": resource, "amounts": {"a": rng.randint(1, 20)}}
            if rng.random() < 0.5:
                args["key"] = f"key-{rng.randint(1, 4)}"
            self._add("top_up", args, client=client)
        elif luck < 0.87:
            self._add("crash", {}, client=client)
            self._add("restart", {"skew_ms": rng.randint(-SKEW_MS, SKEW_MS)},
                      client=client, after_ms=rng.choice((0, 100, 5000)))  # fmt: skip
        elif luck < 0.90:
            self._churn(entity, resource)
        elif luck < 0.92:
            self._add("sweep", {})
        elif luck < 0.93:
            self._add("reset", {"entity": entity, "resource": resource}, client=client)
        else:
            kind = "split" if luck < 0.97 else "merge"
            args = {"entity": entity, "resource": resource, "shard": rng.choice((0, 0, 0, 1, 2, 3))}
            self._add(kind, args, client=client)

    def _acquire(self, entity: str, resource: str, client: int) -> None:
        rng = self.rng
        wants = [self._want(entity, resource)]
        if rng.random() < 0.15:
            other = rng.choice([name for name in ENTITIES if name != entity])
            wants.append(self._want(other, rng.choice(RESOURCES)))
        steps = []
        for _ in range(rng.choice((0, 0, 0, 0, 1, 2))):
            verb = rng.choice(("adjust", "adjust", "settle", "release", "consume"))
            amount = rng.randint(0, 5) if verb != "adjust" else rng.randint(-5, 30)
            steps.append([rng.choice((0, 5, 300)), verb, {"a": amount}])
        number = self._add(
            "acquire",
            {
                "wants": wants,
                "steps": steps,
                "hold_ms": rng.choice((0, 0, 1, 20, 800)),
                "fails": rng.random() < 0.2,
                "on_error": rng.choice(("refund", "refund", "keep")),
                "wait_s": rng.choice((None, None, None, None, 0.5, 5.0)),
            },
            client=client,
        )
        if rng.random() < 0.12:
            after_ms = rng.choice((0, 1, 2, 3, 5, 10, 30, 500, 2500))
            self._add("cancel", {"target": number}, client=client, after_ms=after_ms)

    def _want(self, entity: str, resource: str) -> list[Any]:
        rng = self.rng
        amounts = {}
        for name, capacity, *_ in self.limits[resource]:
            if name == "a" or rng.random() < (0.4 if name == "b" else 0.1):
                share = rng.choice((0, 0, 0, 0, 0, capacity // 4, capacity // 2, capacity))
                amounts[name] = max(1, share) if share else rng.randint(0, min(3, capacity))
        return [entity, resource, amounts]

    def _churn(self, entity: str, resource: str) -> None:
        """Other limits, of one entity or for all; what callers ask stays as it was."""
        rng = self.rng
        limits = self._limits()[:2] + self.limits[resource][2:]
        whose = rng.choice((None, None, entity))
        space = rng.choice(NAMESPACES)
        self._add("limits", {"namespace": space, "entity": whose, "resource": resource,
                             "limits": limits})  # fmt: skip

    def _pause(self) -> None:
        rng = self.rng
        self.at_ms += rng.choice((10, 300, 3000, 15_000, 70_000, 400_000, 4_000_000))
        if rng.random() < 0.5:
            self._add("sweep", {})
            self.at_ms += 1


def plotted(world: str, seed: int, episode: int, *, quotas: bool = True) -> Scenario:
    """Without `quotas` as it was before there were any, for episodes that are kept."""
    return Plot(world, seed, episode, quotas=quotas).scenario()
