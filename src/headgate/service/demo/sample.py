"""The sample: who there is, and what they may use. Stored once; what is there stays as it is."""

from __future__ import annotations

from typing import NamedTuple

from headgate.admin.operations import Operations
from headgate.core.limits import DEFAULT_RESOURCE, Limit

PRINCIPAL = "demo"
ORG = "org:acme"


class SampleEntity(NamedTuple):
    id: str
    name: str
    parent_id: str | None = None
    plan: str = ""


ENTITIES = (
    SampleEntity(ORG, "Acme"),
    SampleEntity("team:search", "Search", ORG),
    SampleEntity("team:support", "Support", ORG),
    SampleEntity("api_key:search-prod", "Search, production", "team:search", "pro"),
    SampleEntity("api_key:search-batch", "Search, nightly batch", "team:search", "batch"),
    SampleEntity("api_key:support-bot", "Support bot", "team:support", "pro"),
    SampleEntity("api_key:intern", "Intern", "team:support", "trial"),
    SampleEntity("user:ann", "Ann"),
    SampleEntity("user:bob", "Bob"),
)

MODELS: dict[str, tuple[Limit, ...]] = {
    "gpt-4": (Limit.per_minute("rpm", 120), Limit.per_minute("tpm", 60_000, burst=80_000)),
    "gpt-4-mini": (Limit.per_minute("rpm", 300), Limit.per_minute("tpm", 150_000)),
    "api.search": (Limit.per_minute("rpm", 90, burst=30),),
}

SYSTEM = (Limit.per_minute("rpm", 600),)

# Who belongs to a team counts for the team and for the company, so theirs is room for all.
LEVELS: dict[tuple[str, str], tuple[Limit, ...]] = {
    (ORG, DEFAULT_RESOURCE): (
        Limit.per_minute("rpm", 2_000),
        Limit.per_minute("tpm", 600_000, burst=800_000),
    ),
    ("team:search", DEFAULT_RESOURCE): (
        Limit.per_minute("rpm", 600),
        Limit.per_minute("tpm", 250_000),
    ),
    ("team:support", DEFAULT_RESOURCE): (
        Limit.per_minute("rpm", 400),
        Limit.per_minute("tpm", 120_000),
    ),
    ("api_key:search-batch", "gpt-4"): (Limit.per_minute("rpm", 40, burst=20),),
    ("api_key:intern", "gpt-4"): (
        Limit.per_minute("rpm", 12, burst=5),
        Limit.per_minute("tpm", 6_000),
    ),
    ("user:playground", "playground"): (Limit.per_second("tokens", 2, burst=10),),
}


async def store_sample(operations: Operations) -> bool:
    """False where the sample is there already: somebody may have changed it since."""
    if await operations.get_entity(ORG) is not None:
        return False
    await operations.set_system_defaults(list(SYSTEM), principal=PRINCIPAL)
    for resource, limits in MODELS.items():
        await operations.set_resource_defaults(resource, list(limits), PRINCIPAL)
    for one in ENTITIES:
        await operations.create_entity(
            one.id,
            one.name,
            one.parent_id,
            one.parent_id is not None,
            {"plan": one.plan} if one.plan else None,
            PRINCIPAL,
        )
    for (entity_id, resource), limits in LEVELS.items():
        await operations.set_limits(entity_id, list(limits), resource, PRINCIPAL)
    return True
