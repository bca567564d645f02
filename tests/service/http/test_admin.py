"""The operator's routes, each doing what it says to a service that is in use."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.service.keys.access import KEYS_NAMESPACE
from tests.service.decide.kit import World
from tests.service.http.kit import PATHS, Said, call, rest_of, run

NS = "/v1/namespaces/default"
ASK = {"identifier": "ann", "resource": "api.search"}


class Desk:
    """An operator's, who may do everything: one call a request."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.app = rest_of(world)

    def __call__(self, method: str, path: str, body: Any = None, query: str = "") -> Said:
        found: Said = run(call(self.app, method, path, body, query=query))
        return found

    def check(self, **more: Any) -> Said:
        return self("POST", PATHS["check"], {**ASK, **more})


@pytest.fixture
def desk(world: World) -> Desk:
    return Desk(world)


def test_entities_from_birth_to_death(desk: Desk) -> None:
    made = desk("POST", f"{NS}/entities", {"id": "user:ann", "name": "Ann", "metadata": {"a": [1]}})
    assert (made.status, made.json["version"], made.json["metadata"]) == (201, 1, {"a": [1]})
    assert desk("POST", f"{NS}/entities", {"id": "user:ann"}).status == 409
    assert desk("POST", f"{NS}/entities", {"id": "team:a"}).status == 201
    moved = desk("PATCH", f"{NS}/entities/user:ann", {"parent_id": "team:a", "cascade": True})
    assert (moved.json["parent_id"], moved.json["cascade"]) == ("team:a", True)
    stale = desk("PATCH", f"{NS}/entities/user:ann", {"cascade": False, "version": 1})
    assert (stale.status, stale.json["code"]) == (409, "CONFLICT")
    children = desk("GET", f"{NS}/entities/team:a/children").json["items"]
    assert [one["id"] for one in children] == ["user:ann"]
    first = desk("GET", f"{NS}/entities", query="limit=1").json
    rest = desk("GET", f"{NS}/entities", query=f"limit=1&cursor={first['cursor']}").json
    assert {first["items"][0]["id"], rest["items"][0]["id"]} == {"user:ann", "team:a"}
    assert desk("DELETE", f"{NS}/entities/user:ann").status == 204
    gone = desk("GET", f"{NS}/entities/user:ann")
    assert (gone.status, gone.json["code"]) == (404, "ENTITY_NOT_FOUND")


def test_a_parent_that_cannot_be_is_named_as_such(desk: Desk) -> None:
    desk("POST", f"{NS}/entities", {"id": "user:ann"})
    for parent_id, status in (("nobody", 404), ("no body", 400)):
        for method, path in (("POST", ""), ("PATCH", "/user:ann")):
            body = {"parent_id": parent_id, **({"id": "user:bob"} if method == "POST" else {})}
            said = desk(method, f"{NS}/entities{path}", body)
            assert (said.status, said.json.get("field")) == (status, "parent_id"), (method, said)
            assert parent_id in said.json["detail"] or status == 400


def test_a_window_that_is_none_is_named_as_it_was_sent(desk: Desk) -> None:
    said = desk("GET", f"{NS}/usage", query="window=weekly")
    assert (said.status, said.json["field"]) == (400, "window")
    assert "hourly, daily, monthly" in said.json["detail"]


def test_what_cannot_be_written_as_json_is_a_problem_like_any_other(desk: Desk) -> None:
    """The library takes half of a surrogate pair in metadata; no JSON has it."""
    run(desk.world.repository.create_entity("e", metadata={"a": "\ud800"}))
    said = desk("GET", f"{NS}/entities/e")
    assert (said.status, said.json["code"]) == (500, "INTERNAL")


def test_modes_of_an_entity_and_of_a_resource(desk: Desk) -> None:
    desk("POST", f"{NS}/entities", {"id": "user:ann"})
    assert desk("PATCH", f"{NS}/entities/user:ann", {"mode": "disabled"}).json["mode"] == "disabled"
    assert (desk.check().status, desk.check().json["code"]) == (403, "ENTITY_DISABLED")
    desk("PATCH", f"{NS}/entities/user:ann", {"mode": "bypass"})
    passed = desk.check()
    assert (passed.status, passed.json["tokens_remaining"]) == (200, None)
    desk("PATCH", f"{NS}/entities/user:ann", {"mode": "normal"})
    assert desk("PUT", f"{NS}/modes/api.search", {"mode": "disabled"}).status == 200
    assert desk.check().status == 403
    desk("PUT", f"{NS}/modes/api.search", {"mode": "normal"})
    assert desk.check().json["tokens_remaining"] == 9


def test_stored_limits_come_before_policies(desk: Desk) -> None:
    assert desk.check().json["tokens_capacity"] == 10
    limit = {"name": "tokens", "capacity": 50, "refill_amount": 1, "refill_period_seconds": 1}
    path = f"{NS}/limits/entities/user:ann/api.search"
    stored = desk("PUT", path, {"limits": [limit]})
    assert stored.json == {"limits": [{**limit, "soft": False}]}
    assert desk.check().json["tokens_capacity"] == 50
    told = desk("GET", "/v1/explain", query="identifier=ann&resource=api.search").json
    assert told["limits"][0]["limit"]["capacity"] == 50
    assert told["policy"]["name"] == "search_user"
    assert told["limits"][0]["source"] == "entity user:ann for api.search"
    assert desk("DELETE", path).status == 204
    assert desk("GET", path).json == {"limits": []}
    assert desk.check().json["tokens_capacity"] == 10


def test_plans_from_birth_to_death(desk: Desk) -> None:
    limit = {"name": "tokens", "capacity": 50, "refill_amount": 1, "refill_period_seconds": 1}
    stored = {**limit, "soft": False}
    made = desk("PUT", f"{NS}/plans/pro", {"limits": [limit]})
    assert made.json == {
        "name": "pro", "limits": [stored], "resources": {}, "version": 1, "entities": 0,
    }  # fmt: skip
    path = f"{NS}/plans/pro/limits/api/v2/search"
    assert desk("PUT", path, {"limits": ["tokens:7/min"]}).json["limits"][0]["capacity"] == 7
    assert desk("GET", path).json["limits"][0]["refill_period_seconds"] == 60
    made = desk("POST", f"{NS}/entities", {"id": "user:ann", "plan": "pro"})
    assert (made.status, made.json["plan"]) == (201, "pro")
    assert desk.check().json["tokens_capacity"] == 50
    assert desk.check(resource="api/v2/search").json["tokens_capacity"] == 7
    told = desk("GET", "/v1/explain", query="identifier=ann&resource=api.search").json
    assert (told["plan"], told["limits"][0]["source"]) == ("pro", "plan pro for every resource")
    [listed] = desk("GET", f"{NS}/plans", query="limit=5").json["items"]
    assert listed == desk("GET", f"{NS}/plans/pro").json
    assert (listed["entities"], list(listed["resources"])) == (1, ["api/v2/search"])
    assert desk("GET", f"{NS}/plans/pro/entities").json == {"items": ["user:ann"], "cursor": None}
    held = desk("DELETE", f"{NS}/plans/pro")
    assert (held.status, held.json["code"]) == (409, "CONFLICT")
    assert "1 of them: user:ann;" in held.json["detail"]
    assert desk("PUT", f"{NS}/plans/free", {"limits": []}).json["limits"] == []
    moved = desk("PUT", f"{NS}/entities/user:ann/plan", {"plan": "free"})
    assert (moved.json["plan"], moved.json["version"]) == ("free", 2)
    assert desk.check().json["tokens_capacity"] == 10, "the policy's again"
    stale = desk("PUT", f"{NS}/entities/user:ann/plan", {"plan": "pro", "version": 1})
    assert stale.status == 409
    assert desk("DELETE", path).status == 204
    assert desk("GET", path).json == {"limits": []}
    assert desk("DELETE", f"{NS}/plans/pro").json == {"unassigned": 0}
    gone = desk("DELETE", f"{NS}/plans/free", query="unassign=true")
    assert gone.json == {"unassigned": 1}
    assert desk("GET", f"{NS}/entities/user:ann").json["plan"] is None
    events = desk("GET", f"{NS}/audit", query="entity_id=%24PLAN:free").json["items"]
    assert [event["action"] for event in events] == ["plan_deleted", "plan_set"]
    assert events[0]["details"]["unassigned"] == 1


def test_what_is_wrong_with_a_plan_is_named(desk: Desk) -> None:
    desk("POST", f"{NS}/entities", {"id": "user:ann"})
    for method, path, body in (
        ("GET", "plans/gold", None), ("DELETE", "plans/gold", None),
        ("GET", "plans/gold/entities", None), ("GET", "plans/gold/limits/api", None),
        ("DELETE", "plans/gold/limits/api", None),
        ("POST", "entities", {"id": "e", "plan": "gold"}),
        ("PUT", "entities/user:ann/plan", {"plan": "gold"}),
    ):  # fmt: skip
        said = desk(method, f"{NS}/{path}", body)
        assert (said.status, said.json["code"]) == (404, "PLAN_NOT_FOUND"), path
        assert said.json["field"] == "plan"
    nobody = desk("PUT", f"{NS}/entities/nobody/plan", {"plan": None})
    assert (nobody.status, nobody.json["code"]) == (404, "ENTITY_NOT_FOUND")
    for method, path, body, field in (
        ("PUT", "plans/a b", {"limits": []}, "plan"), ("GET", "plans/$x", None, "plan"),
        ("PUT", "plans/pro", {"limits": ["x"]}, "limits[0]"), ("PUT", "plans/pro", {}, "limits"),
        ("PUT", "plans/pro", {"limits": ["a:1/s"] * 17}, "limits"),
        ("PUT", "plans/pro/limits/api", {"limits": []}, "limits"),
        ("PUT", "plans/pro/limits/_default_", {"limits": ["a:1/s"]}, "resource"),
        ("PUT", "entities/user:ann/plan", {}, "plan"),
        ("PUT", "entities/user:ann/plan", {"plan": "a b"}, "plan"),
        ("POST", "entities", {"id": "e", "plan": None}, "plan"),
    ):  # fmt: skip
        said = desk(method, f"{NS}/{path}", body)
        assert (said.status, said.json["field"]) == (400, field), (path, said.json)
    wrong = desk("DELETE", f"{NS}/plans/pro", query="unassign=1")
    assert (wrong.status, wrong.json["field"]) == (400, "unassign")
    assert desk("GET", f"{NS}/plans").json == {"items": [], "cursor": None}


def test_explain_names_the_policy_that_gives_a_limit(desk: Desk) -> None:
    for query, sources in (
        ("identifier=ann&resource=api.search", {"tokens": "policy search_user"}),
        ("entity_id=user:ann&resource=api.search", {"tokens": "policy search_user"}),
        ("identifier=ann&resource=other", {"tokens": "policy default_user"}),
        (
            "identifier=ann&resource=both",
            {"tokens": "policy pair.tokens", "hourly": "policy pair.hourly"},
        ),
        ("identifier=a&resource=other&scope=api_key", {"tokens": "policy global_default"}),
    ):
        told = desk("GET", "/v1/explain", query=query).json["limits"]
        assert {one["limit"]["name"]: one["source"] for one in told} == sources
        assert {one["level"] for one in told} == {"limiter"}, "no level stores it"


def test_limits_of_a_resource_with_slashes_and_of_everybody(desk: Desk) -> None:
    path = f"{NS}/limits/resources/api/v2/search"
    assert desk("PUT", path, {"limits": ["rpm:100/minute burst 150"]}).status == 200
    assert desk("GET", f"{NS}/limits/resources").json == {
        "items": ["api/v2/search"],
        "of_entities": [],
    }
    assert desk("GET", path).json["limits"][0]["capacity"] == 150
    assert desk.check(resource="api/v2/search").json["tokens_capacity"] == 150
    assert desk("DELETE", path).status == 204
    system = f"{NS}/limits/system"
    put = desk("PUT", system, {"limits": ["7/second"], "on_unavailable": "allow"})
    assert put.json["on_unavailable"] == "allow"
    assert desk.check(resource="new").json["tokens_capacity"] == 7
    assert desk("DELETE", system).status == 204
    assert desk("GET", system).json["limits"] == []


def test_bad_limits_are_told(desk: Desk) -> None:
    whole = {"name": "a", "capacity": 1, "refill_amount": 1, "refill_period_seconds": 1}
    bad: list[tuple[Any, str]] = [
        ([], "limits"),
        ("10/minute", "limits"),
        ([1], "limits[0]"),
        (["10/minute", "20/minute"], "limits"),
        (["often"], "limits[0]"),
        (["10/minute"] * 17, "limits"),
        ([{"name": "a"}], "limits[0].capacity"),
        (["10/minute", {**whole, "capacity": 0}], "limits[1].capacity"),
        *[([{**whole, "capacity": wrong}], "limits[0].capacity") for wrong in (1.5, True)],
        ([{**whole, "burst": 1}], "limits[0].burst"),
        ([{"name": "a", "capacity": 1}], "limits[0].refill_amount"),
        ([{**whole, "every": "month"}], "limits[0]"),
        ([{"name": "a", "capacity": 1, "every": "fortnight"}], "limits[0].every"),
        (["10/minute", {"name": "a", "capacity": 1, "every": "day", "tz": "Mars"}], "limits[1]"),
        ([{"name": "a", "capacity": 1, "every": "day", "reset_after": 1}], "limits[0]"),
    ]
    for limits, field in bad:
        said = desk("PUT", f"{NS}/limits/system", {"limits": limits})
        told = said.status, said.json["code"], said.json["field"]
        assert told == (400, "INVALID_REQUEST", field), limits
    assert desk("GET", f"{NS}/limits/system").json["limits"] == []


def test_the_audit_of_a_namespace(desk: Desk) -> None:
    """Everybody's events, the filters of the library, and pages that follow each other."""
    for n in range(4):
        assert desk("POST", f"{NS}/entities", {"id": f"user:{n}"}).status == 201
    one = {"name": "rpm", "capacity": 7, "refill_amount": 1, "refill_period_seconds": 1}
    assert desk("PUT", f"{NS}/limits/resources/gpt-4", {"limits": [one]}).status == 200
    whole = desk("GET", f"{NS}/audit").json
    told = [(event["entity_id"], event["action"]) for event in whole["items"]]
    assert told[:5] == [
        ("$RESOURCE:gpt-4", "limits_set"), *((f"user:{n}", "entity_created") for n in (3, 2, 1, 0)),
    ]  # fmt: skip
    assert whole["cursor"] is None
    found: list[Any] = []
    for name in ("cursor", "after"):
        page = desk("GET", f"{NS}/audit", query="limit=2").json
        found = page["items"]
        while page["cursor"] is not None:
            page = desk("GET", f"{NS}/audit", query=f"limit=2&{name}={page['cursor']}").json
            found += page["items"]
        assert found == whole["items"]
    at = whole["items"][0]["timestamp"]
    for query, count in (
        ("action=limits_set", 1), ("resource=gpt-4", 1), ("principal=dev&action=entity_created", 4),
        ("entity_id=user:2", 1), ("principal=eve", 0), (f"end={at}", 0),
        ("entity_id=$RESOURCE:gpt-4", 1), (f"start={at}&action=entity_created", 4),
    ):  # fmt: skip
        assert len(desk("GET", f"{NS}/audit", query=query).json["items"]) == count, query
    for bad, field in (
        ("action=%00", "action"), ("principal=%0A", "principal"), ("principal=", "principal"),
        ("resource=9", "resource"), ("start=soon", "start"), ("cursor=x", "cursor"),
        ("after=x", "after"), ("limit=0", "limit"), ("limit=1001", "limit"),
        ("entity_id=$", "entity_id"),
    ):  # fmt: skip
        answer = desk("GET", f"{NS}/audit", query=bad)
        assert (answer.status, answer.json["field"]) == (400, field), bad


def test_buckets_usage_and_audit(desk: Desk) -> None:
    desk.check(tokens=6)
    held = desk("GET", f"{NS}/buckets/user:ann").json["items"]
    assert [(one["tokens_remaining"], one["total_consumed"]) for one in held] == [(4, 6)]
    assert desk("GET", f"{NS}/buckets/user:ann", query="resource=other").json == {"items": []}
    reset = {"entity_id": "user:ann", "resource": "api.search"}
    assert desk("POST", f"{NS}/buckets/reset", reset).status == 204
    assert desk.check().json["tokens_remaining"] == 9
    audit = desk("GET", f"{NS}/audit", query="entity_id=user:ann").json["items"]
    assert [(one["action"], one["principal"]) for one in audit] == [("bucket_reset", "dev")]
    usage = desk("GET", f"{NS}/usage", query="entity_id=user:ann&window=hourly").json["items"]
    assert [(one["resource"], one["counters"]) for one in usage] == [("api.search", {"tokens": 7})]
    assert (usage[0]["from_children"], usage[0]["events_from_children"]) == ({}, 0)
    since = "start=2023-11-14T00:00:00Z&end=2023-11-15T00:00:00Z"
    assert desk("GET", f"{NS}/usage", query=since.replace("+", "%2B")).json["items"]
    assert desk("GET", f"{NS}/usage", query="start=1800000000000").json["items"] == []
    for bad in ("start=tomorrow", "start=9999999999999999", "window=yearly", "limit=0"):
        assert desk("GET", f"{NS}/usage", query=bad).status == 400
    for name in ("start", "end"):
        said = desk("GET", f"{NS}/usage", query=f"{name}=soon")
        assert (said.status, said.json["field"]) == (400, name)


def test_namespaces_from_birth_to_death(desk: Desk) -> None:
    made = desk("PUT", "/v1/namespaces/eu")
    assert (made.status, made.json["name"]) == (200, "eu")
    assert desk("PUT", "/v1/namespaces/eu").json["id"] == made.json["id"]
    assert desk.check(namespace="eu", tokens=3).json["tokens_remaining"] == 7
    assert [one["name"] for one in desk("GET", "/v1/namespaces").json["items"]] == ["eu"]
    assert desk("DELETE", "/v1/namespaces/eu").status == 204
    assert desk.check(namespace="eu").status == 404
    assert desk("GET", "/v1/namespaces/eu").status == 404
    deleted = desk("GET", "/v1/deleted-namespaces").json["items"]
    assert [one["name"] for one in deleted] == ["eu"]
    path = f"/v1/deleted-namespaces/{made.json['id']}"
    assert desk("POST", f"{path}/recover").json["name"] == "eu"
    assert desk.check(namespace="eu").json["tokens_remaining"] == 6
    assert desk("DELETE", "/v1/namespaces/eu").status == 204
    assert desk("DELETE", path).json["records"] >= 1
    assert desk("POST", f"{path}/recover").status == 404


def test_the_keys_namespace_is_nobodys(desk: Desk) -> None:
    run(desk.world.repository.register_namespace(KEYS_NAMESPACE))
    assert KEYS_NAMESPACE not in str(desk("GET", "/v1/namespaces").json)
    path = f"/v1/namespaces/{KEYS_NAMESPACE}"
    for method in ("GET", "PUT", "DELETE"):
        assert desk(method, path).status == 404
    assert desk("GET", f"{path}/entities").status == 404
    assert desk.check(namespace=KEYS_NAMESPACE).status == 404


def test_leases_over_the_wire(desk: Desk) -> None:
    made = desk("POST", "/v1/leases", {**ASK, "tokens": 5})
    assert (made.status, made.json["held"], made.headers["x-ratelimit-remaining"]) == (
        201, {"tokens": 5}, "5"
    )  # fmt: skip
    path = f"/v1/leases/{made.json['lease_id']}"
    assert desk("POST", f"{path}/adjust", {"tokens": 2}).json["held"] == {"tokens": 7}
    assert desk("GET", path).json["state"] == "open"
    assert desk("POST", f"{path}/settle", {"tokens": 1}).json["state"] == "settled"
    assert desk("POST", f"{path}/settle", {"tokens": 1}).status == 200
    assert desk("POST", f"{path}/release").status == 409
    assert desk.check(dry_run=True).json["tokens_remaining"] == 9 - 1 + 1
    other = desk("POST", "/v1/leases", {**ASK, "tokens": 9}).json["lease_id"]
    refused = desk("POST", "/v1/leases", {**ASK, "tokens": 9})
    assert (refused.status, "lease_id" in refused.json) == (429, False)
    assert desk("POST", f"/v1/leases/{other}/release").json["state"] == "released"
    assert desk("POST", "/v1/leases/unknown/settle").json["code"] == "LEASE_NOT_FOUND"


def test_leases_are_refused_where_they_could_not_be_found_again(world: World) -> None:
    app = rest_of(world, workers=2)
    said = run(call(app, "POST", "/v1/leases", ASK))
    assert (said.status, said.json["code"]) == (422, "CONFIGURATION_ERROR")
    assert run(call(app, "GET", "/v1/leases/x")).status == 422
    assert world.store.verbs == []


def test_counters_name_no_caller(desk: Desk) -> None:
    desk.check(identifier="somebody-secret")
    desk.check(tokens=0)
    text = desk("GET", "/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert b'headgate_errors_total{type="INVALID_REQUEST"} 1' in text.content
    assert b'headgate_request_duration_seconds_count{wire="rest"} 2' in text.content
    assert b"secret" not in text.content
