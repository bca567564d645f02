// Why an entity has the limits it has: the stored levels, one below the other, and the policy.

import { enc, get, getOr, may, query, seat, space } from "../api.js";
import { field, fill, go, h, title } from "../dom.js";
import { identityOf, limitText, resetText, sourceText } from "../format.js";
import { planLink } from "../plans.js";
import { whatIf } from "../whatif.js";

const NOTHING = { limits: [] };
export const REQUESTED = ["user", "ip", "api_key", "global"]; // scopes that any request may name

export function show(box, asked) {
  const entity = asked.get("entity");
  const given = entity ? (identityOf(entity) ?? { scope: "", identifier: entity }) : null;
  const scope = h("input", {
    value: given?.scope ?? asked.get("scope") ?? "user",
    required: true,
    spellcheck: "false",
  });
  const identifier = h("input", {
    value: given?.identifier ?? asked.get("identifier") ?? "",
    required: true,
    spellcheck: "false",
  });
  const resource = h("input", { value: asked.get("resource") ?? "", required: true, spellcheck: "false" });
  const out = h("div", { class: "stack" });
  const form = h(
    "form",
    {
      class: "card form",
      onsubmit: (event) => {
        event.preventDefault();
        const same = entity && scope.value === given?.scope && identifier.value === given?.identifier;
        const who = same ? { entity } : { scope: scope.value, identifier: identifier.value };
        go(`#/explain${query({ ...who, resource: resource.value })}`);
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Scope", scope),
      field("Identifier", identifier),
      field("Resource", resource),
      h("div", { class: "field act" }, h("button", { class: "primary", type: "submit" }, "Explain")),
    ),
  );
  fill(
    box,
    title("Explain", "Which level gives a limit, what it overrides, and what a request would meet."),
    form,
    out,
  );
  if (identifier.value && resource.value) {
    const who = { scope: scope.value, identifier: identifier.value, resource: resource.value };
    return answer(out, who, entity ? { entity_id: entity, resource: resource.value } : who);
  }
  return undefined;
}

// `who` is as a request would name it; teams and companies are asked by their id instead.
async function answer(out, who, asked) {
  const why = await get(`/v1/explain${query({ ...asked, namespace: seat.namespace })}`);
  const rungs = await ladder(why);
  fill(
    out,
    h(
      "section",
      { class: "card", "aria-labelledby": "sum-title" },
      h("h2", { id: "sum-title" }, `${why.entity_id} on ${why.resource}`),
      summary(why),
      REQUESTED.includes(who.scope) && whatIf(() => who),
    ),
    h(
      "section",
      { "aria-label": "Ladder" },
      h(
        "ol",
        { class: "ladder", id: "ladder" },
        rungs.map((one) => rung(one, why)),
      ),
    ),
    why.parents.map((parent) =>
      h(
        "section",
        { class: "card" },
        h(
          "h2",
          {},
          "Also counts for ",
          h("a", { href: `#/entities?id=${enc(parent.entity_id)}` }, parent.entity_id),
        ),
        summary(parent),
      ),
    ),
  );
}

function summary(why) {
  const mode = why.mode !== "normal" && h("p", { class: "badge bad" }, `${why.mode} by ${why.mode_source}`);
  if (!why.limits.length) return [mode, h("p", { class: "empty" }, "No level gives a limit.")];
  return [
    mode,
    h(
      "ul",
      { class: "ladder" },
      why.limits.map((one) =>
        h(
          "li",
          {},
          h("strong", {}, one.limit.name),
          ` ${limitText(one.limit)}${resetText(one)}, from `,
          h("strong", {}, sourceText(one)),
          one.overrides.length ? h("em", {}, ` over ${one.overrides.join(", ")}`) : "",
        ),
      ),
    ),
  ];
}

async function ladder(why) {
  const own = `${space()}/limits/entities/${enc(why.entity_id)}`;
  const [plan, entity, every, resource, system] = await Promise.all([
    why.plan ? getOr(`${space()}/plans/${enc(why.plan)}`, null) : null,
    getOr(`${own}/${why.resource}`, NOTHING),
    getOr(`${own}/_default_`, NOTHING),
    getOr(`${space()}/limits/resources/${why.resource}`, NOTHING),
    getOr(`${space()}/limits/system`, NOTHING),
  ]);
  const edit = (level) =>
    `#/limits?${new URLSearchParams({ level, entity: why.entity_id, resource: why.resource })}`;
  const rungs = [
    {
      level: "entity",
      name: `${why.entity_id} for ${why.resource}`,
      limits: entity.limits,
      edit: edit("entity"),
    },
    {
      level: "entity_default",
      name: `${why.entity_id} for every resource`,
      limits: every.limits,
      edit: edit("entity_default"),
    },
    ...(plan ? planRungs(plan, why.resource) : []),
    {
      level: "resource",
      name: `Resource ${why.resource}`,
      limits: resource.limits,
      edit: edit("resource"),
    },
    {
      level: "system",
      name: "System defaults",
      limits: system.limits,
      edit: edit("system"),
    },
  ];
  rungs.push({
    level: "limiter",
    name: why.policy ? `Policy ${why.policy.name}` : "No policy",
    limits: why.limits.filter((one) => one.level === "limiter").map((one) => one.limit),
    note: why.policy?.shadow ? "shadow mode: recorded, never refuses" : null,
  });
  return rungs;
}

const planRungs = (plan, resource) => [
  {
    level: "plan_resource",
    name: `Plan ${plan.name} for ${resource}`,
    limits: plan.resources[resource] ?? [],
    edit: planLink(plan.name, resource),
  },
  {
    level: "plan",
    name: `Plan ${plan.name} for every resource`,
    limits: plan.limits,
    edit: planLink(plan.name),
  },
];

function rung(one, why) {
  const inForce = (limit) =>
    why.limits.some((given) => given.limit.name === limit.name && given.level === one.level);
  const gives = one.limits.some(inForce);
  return h(
    "li",
    {
      class: `rung ${gives ? "gives" : one.limits.length ? "" : "bare"}`,
      "data-level": one.level,
      "data-gives": String(gives),
    },
    h(
      "div",
      {},
      h(
        "div",
        { class: "top" },
        h("h3", {}, one.name),
        one.level === "limiter" && one.limits.length > 0 && h("span", { class: "badge warn" }, "not stored"),
        one.edit && may("admin") && h("a", { href: one.edit }, "edit"),
      ),
      one.limits.length
        ? h(
            "ul",
            {},
            one.limits.map((limit) =>
              h(
                "li",
                { class: inForce(limit) ? "" : "over" },
                h("strong", {}, limit.name),
                h("span", {}, limitText(limit)),
                h(
                  "span",
                  { class: `badge ${inForce(limit) ? "good" : ""}` },
                  inForce(limit) ? "in force" : "overridden",
                ),
              ),
            ),
          )
        : h(
            "p",
            { class: "dim" },
            one.level === "limiter" ? "not needed, a level above gives the limits" : "nothing stored",
          ),
      one.note && h("p", { class: "badge bad" }, one.note),
    ),
  );
}
