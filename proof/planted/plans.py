"""Faults in plans: which of their limits apply, who shares them, and when they may go."""

from __future__ import annotations

from proof.planted.fault import fault

UNITS = "tests/stores/dynamodb/test_config_units.py"
MEMORY = "tests/stores/test_contract.py::test_contract[memory-{}-blocking]"
DYNAMODB = "proof/model/test_contract.py::test_contract[{}-blocking]"

MUTANTS = [
    fault("plans: what they give for one resource counts for none", "Plan.limits_for",
          "self.resources.get(resource, ())", "()",
          "tests/core/test_plans.py::test_explain_says_which_plan_gives_a_limit_and_what_it_hides"),
    fault("plans: they go over what an entity has of its own", "levels._ladder",
          '        ("entity_default", f"entity {name} for every resource", standing.own_default),\n', "",
          "tests/core/test_plans.py::test_every_limit_comes_from_the_highest_level_that_names_it"),
    fault("plans: a request plan is copied under a plan that has changed", "SharedRequestPlans.copy",
          "            or standing.plan is not model.plan\n", "",
          "tests/core/test_plans.py::test_what_one_plan_gives_is_copied_for_all_who_are_on_it"),
    fault("plans: all plans of a resource are copied from one", "plan._plan_of",
          "return None if plan is None else plan.name", "return None",
          "tests/core/test_plans.py::test_what_one_plan_gives_is_copied_for_all_who_are_on_it"),
    fault("plans: each entity reads its plan again", "ConfirmedVersion.note_plans",
          "self.plans[standing.plan.name] = standing.plan", "pass",
          f"{UNITS}::test_a_plan_is_read_once_for_all_who_are_on_it"),
    fault("plans: for another resource they are read again", "ConfirmedVersion.known",
          "if levels is None and self.plans and", "if False and",
          f"{UNITS}::test_a_plan_is_read_once_for_all_who_are_on_it"),
    fault("plans: those of the day before are taken for those of a new one", "ConfirmedVersion.known",
          " and now_ms < self.since_ms + ERA_MS", "",
          f"{UNITS}::test_plans_are_read_anew_once_a_day_too"),
    fault("plans, dynamodb: what was known at another version is believed", "DynamoCatalog._read_lookup",
          "if known is not None and known.version == home.version else {}", "if known is not None else {}",
          DYNAMODB.format("what_is_known_of_plans_need_not_be_read")),
    fault("plans, dynamodb: one that is newer than what is known is believed", "DynamoCatalog._read_own",
          "if is_torn(known.version, {}, found) or len(found) < len(wanted_plans):", "if False:",
          f"{UNITS}::test_a_plan_that_is_newer_than_what_is_known_is_looked_up_in_full[the plan]"),
    fault("plans, dynamodb: nobody counts who is on one", "records._moved_counts",
          "moved[PlanKey(entity.plan)] += by", "pass",
          DYNAMODB.format("a_plan_that_entities_refer_to_is_not_deleted")),
    fault("plans, redis: who comes before the deletion is not seen", "RedisRecords.read_plan_family",
          'seen.evidence.append((count, ("ZLEXCOUNT", index, *members)))', "pass",
          "tests/stores/redis/test_catalog.py::TestRaces::test_whoever_comes_to_a_plan_before_its_deletion_keeps_it"),
    fault("plans: one that entities refer to is deleted", "PlanCatalog._delete_plan",
          "if count and not unassign:", "if False:",
          MEMORY.format("a_plan_that_entities_refer_to_is_not_deleted")),
    fault("plans: an entity is put on one that is not there", "catalog._check_plan",
          "raise PlanNotFoundError(plan)", "pass",
          MEMORY.format("nobody_is_put_on_a_plan_that_is_not_there")),
    fault("plans: what is set for one resource takes the others away", "PlanCatalog.set_plan",
          "{**others, **({resource: limits} if limits else {})}", "{resource: limits} if limits else {}",
          MEMORY.format("plans_are_kept_as_they_were_set")),
    fault("plans: a preview does not see who is moved to another", "apply._scopes",
          "    places |= {(entity_id, None) for entity_id in assigned}\n", "",
          "tests/cli/test_limits.py::test_a_plan_of_changes_sees_who_is_on_a_plan_and_who_is_moved"),
]  # fmt: skip
