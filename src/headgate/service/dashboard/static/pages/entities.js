// Who is limited: the tree, and for one of them its limits with their source and its buckets.

import { ask, enc, get, may, query, seat, space } from "../api.js";
import { confirmAction, field, fill, go, h, options, say, title, wide } from "../dom.js";
import { exact, identityOf, limitText, moment, resetText, sourceText } from "../format.js";
import { Gauge, quotaOf } from "../gauge.js";
import { choices, planLink, plans } from "../plans.js";
import { whatIf } from "../whatif.js";
import { REQUESTED } from "./explain.js";

const PAGES_MAX = 5;
const PAGE = 200;

export async function show(box, asked) {
  const [{ items, more }, sold] = await Promise.all([everybody(), plans()]);
  const search = h("input", { type: "search", placeholder: "Filter", "aria-label": "Filter entities" });
  const list = h("nav", { "aria-label": "Entities" });
  const detail = h("div", { class: "stack" });
  const chosen = asked.get("id") ?? items[0]?.id;
  const draw = () => fill(list, tree(items, search.value.trim().toLowerCase(), chosen));
  search.addEventListener("input", draw);
  fill(
    box,
    title("Entities", "Registered entities, their parents, their limits and their buckets."),
    h(
      "div",
      { class: "split tree" },
      h(
        "section",
        { class: "card" },
        search,
        list,
        more && h("p", { class: "dim" }, `The first ${PAGE * PAGES_MAX} are listed.`),
        may("admin") && newEntity(sold.items),
      ),
      detail,
    ),
  );
  draw();
  const gauges = chosen ? await one(detail, chosen, sold.items) : [];
  if (!chosen)
    fill(
      detail,
      h(
        "p",
        { class: "card empty" },
        "No entities yet. Whoever is not registered is limited, too, and appears on the Live page.",
      ),
    );
  return () => gauges.forEach((gauge) => gauge.end());
}

async function everybody() {
  const items = [];
  let cursor = null;
  for (let page = 0; page < PAGES_MAX; page++) {
    const found = await get(`${space()}/entities${query({ limit: PAGE, cursor })}`);
    items.push(...found.items);
    cursor = found.cursor;
    if (!cursor) break;
  }
  return { items, more: cursor !== null && cursor !== undefined };
}

function tree(items, filter, chosen) {
  const fits = (one) => !filter || `${one.id} ${one.name ?? ""}`.toLowerCase().includes(filter);
  const ids = new Set(items.map((one) => one.id));
  const below = group(items, "parent_id");
  const branch = (list, seen) =>
    list.length
      ? h(
          "ul",
          { class: "tree-list" },
          list
            .filter((one) => !seen.has(one.id))
            .map((one) =>
              h(
                "li",
                {},
                h(
                  "a",
                  { href: `#/entities?id=${enc(one.id)}`, "aria-current": one.id === chosen ? "true" : null },
                  one.name && one.name !== one.id ? [one.name, " ", h("em", {}, one.id)] : one.id,
                ),
                branch(below.get(one.id) ?? [], new Set([...seen, one.id])),
              ),
            ),
        )
      : null;
  if (filter)
    return branch(
      items.filter(fits).map((one) => ({ ...one })),
      new Set(),
    );
  return (
    branch(
      items.filter((one) => !ids.has(one.parent_id)),
      new Set(),
    ) ?? h("p", { class: "empty" }, "No entities yet.")
  );
}

function group(items, name) {
  const found = new Map();
  for (const one of items) {
    if (!found.has(one[name])) found.set(one[name], []);
    found.get(one[name]).push(one);
  }
  return found;
}

async function one(detail, id, sold) {
  const [entity, buckets, resources] = await Promise.all([
    get(`${space()}/entities/${enc(id)}`),
    get(`${space()}/buckets/${enc(id)}`),
    get(`${space()}/limits/resources`),
  ]);
  const gauges = [];
  const used = [...new Set([...buckets.items.map((item) => item.resource), ...resources.items])].slice(0, 12);
  const limits = await Promise.all(used.map((resource) => given(id, resource)));
  fill(
    detail,
    h(
      "section",
      { class: "card", "aria-labelledby": "entity-title" },
      h(
        "div",
        { class: "cardhead" },
        h("h2", { id: "entity-title" }, entity.name || entity.id),
        h("span", { class: `badge ${entity.mode === "normal" ? "good" : "bad"}` }, entity.mode),
      ),
      facts(entity),
      may("admin") && h("div", { class: "row top" }, edit(entity), assign(entity, sold), switchMode(entity)),
    ),
    h(
      "section",
      { class: "card", "aria-labelledby": "limits-title" },
      h("h2", { id: "limits-title" }, "Limits in force, and where each is set"),
      used.length
        ? used.map((resource, place) => rows(id, resource, limits[place]))
        : h("p", { class: "empty" }, "No resource has limits or a bucket yet."),
      used.length > 0 && wouldPass(id, used),
    ),
    h(
      "section",
      { class: "card", "aria-labelledby": "buckets-title" },
      h("h2", { id: "buckets-title" }, "Buckets"),
      buckets.items.length
        ? h(
            "div",
            { class: "gauges" },
            [...group(buckets.items, "resource").values()].map((items) => bucket(items, gauges)),
          )
        : h("p", { class: "empty" }, "Nothing used yet: every bucket is full."),
    ),
  );
  return gauges;
}

async function given(id, resource) {
  return get(`/v1/explain${query({ entity_id: id, resource, namespace: seat.namespace })}`);
}

function rows(id, resource, { limits }) {
  return h(
    "div",
    { class: "bucket" },
    h(
      "h3",
      {},
      h("a", { href: `#/explain?entity=${enc(id)}&resource=${enc(resource)}` }, resource),
      h("em", {}, limits.length ? "" : "no limit"),
    ),
    limits.map((one) =>
      h(
        "div",
        { class: "row" },
        h("strong", {}, one.limit.name),
        h("span", {}, limitText(one.limit), resetText(one)),
        h("span", { class: `badge ${one.level === "limiter" ? "warn" : ""}` }, sourceText(one)),
      ),
    ),
  );
}

function facts(entity) {
  const pairs = [
    ["Id", h("code", {}, entity.id)],
    [
      "Parent",
      entity.parent_id
        ? h("a", { href: `#/entities?id=${enc(entity.parent_id)}` }, entity.parent_id)
        : "none",
    ],
    ["Plan", entity.plan ? h("a", { href: planLink(entity.plan) }, entity.plan) : "none"],
    ["Cascade", entity.cascade ? "yes: its use counts for its parents, too" : "no"],
    ["Since", moment(entity.created_at)],
    ...Object.entries(entity.metadata),
  ];
  return h(
    "dl",
    { class: "facts" },
    pairs.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
  );
}

function bucket(items, gauges) {
  const { resource } = items[0];
  const rows = items.map((item) => {
    const gauge = new Gauge(item.limit);
    gauge.set(
      item.tokens_remaining,
      item.tokens_capacity,
      item.refill_amount / item.refill_period_seconds / 1000,
      quotaOf(item),
    );
    gauges.push(gauge);
    return gauge.el;
  });
  const reset =
    may("admin") &&
    h(
      "button",
      {
        type: "button",
        class: "quiet",
        "aria-label": `Reset the bucket of ${resource}`,
        onclick: () => resetBucket(items[0]),
      },
      "Reset",
    );
  return h(
    "article",
    { class: "bucket" },
    h("h3", {}, resource, reset),
    rows,
    may("admin") && topUp(items[0].entity_id, resource, items),
  );
}

// Asks first, with what is owed as it is now, and not as it was when the page was opened.
async function resetBucket({ entity_id, resource }) {
  const path = `${space()}/buckets/${enc(entity_id)}${query({ resource })}`;
  let items;
  try {
    ({ items } = await get(path));
  } catch (problem) {
    return say(problem.message, "bad");
  }
  const owed = items.filter((one) => one.tokens_remaining < 0);
  const debts = owed.map((one) => `${exact(-one.tokens_remaining)} ${one.limit}`).join(" and ");
  const told = [
    h("p", {}, "The bucket becomes full, as if it had never been used."),
    owed.length
      ? h("p", { class: "notice", id: "forgiven" }, `This forgives a debt of ${debts}.`)
      : h("p", { class: "dim", id: "forgiven" }, "It owes nothing, so no debt is forgiven."),
    h("p", { class: "dim" }, "Buckets of its parents stay as they are. The audit log keeps who did it."),
  ];
  if (!(await confirmAction(`Reset ${resource} of ${entity_id}?`, told, "Reset the bucket"))) return undefined;
  const done = owed.length ? `A debt of ${debts} is forgiven.` : "It owed nothing.";
  return act("reset", { entity_id, resource }, `The bucket is full again. ${done}`);
}

function wouldPass(id, used) {
  const who = identityOf(id);
  if (!who || !REQUESTED.includes(who.scope)) return null;
  const resource = h("select", {}, options(used.map((one) => [one, one])));
  return whatIf(() => ({ ...who, resource: resource.value }), field("Resource", resource));
}

function topUp(entity_id, resource, items) {
  const limit = h(
    "select",
    { "aria-label": `Limit of ${resource} to top up` },
    options(items.map((item) => [item.limit, item.limit])),
  );
  const amount = h("input", {
    type: "number",
    min: 1,
    value: "10",
    required: true,
    "aria-label": `Tokens to grant on ${resource}`,
  });
  const form = h(
    "form",
    {
      class: "row",
      onsubmit: (event) => {
        event.preventDefault();
        const amounts = { [limit.value]: Number(amount.value) };
        const idempotency_key = crypto.randomUUID?.();
        act(
          "top-up",
          { entity_id, resource, amounts, ...(idempotency_key && { idempotency_key }) },
          `${amount.value} granted on ${resource}, up to its capacity.`,
        );
      },
    },
    limit,
    amount,
    h("button", { type: "submit" }, "Top up"),
  );
  return h("details", {}, h("summary", {}, "Grant tokens"), form);
}

async function change(path, body, told, method = "PATCH") {
  try {
    await ask(method, `${space()}/entities/${path}`, body);
    go(location.hash);
    say(told);
  } catch (problem) {
    say(problem.message, "bad");
  }
}

function edit(entity) {
  const parent = h("input", { value: entity.parent_id ?? "", spellcheck: "false", placeholder: "none" });
  const cascade = h("input", { type: "checkbox", checked: entity.cascade });
  const form = h(
    "form",
    {
      class: "form",
      "aria-label": `Change ${entity.id}`,
      onsubmit: (event) => {
        event.preventDefault();
        const body = {
          parent_id: parent.value.trim() || null,
          cascade: cascade.checked,
          version: entity.version,
        };
        change(enc(entity.id), body, `${entity.id} is changed.`);
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Parent", parent),
      field("Cascade to its parents", cascade),
      h("div", { class: "field act" }, h("button", { type: "submit" }, "Save")),
    ),
  );
  return h("details", {}, h("summary", {}, "Change"), form);
}

function assign(entity, sold) {
  const plan = h("select", {}, options(choices(sold), entity.plan ?? ""));
  const form = h(
    "form",
    {
      class: "form",
      "aria-label": `Plan of ${entity.id}`,
      onsubmit: async (event) => {
        event.preventDefault();
        const body = { plan: plan.value || null, version: entity.version };
        const told = plan.value ? `${entity.id} is on ${plan.value}.` : `${entity.id} is on no plan.`;
        await change(`${enc(entity.id)}/plan`, body, told, "PUT");
      },
    },
    h(
      "div",
      { class: "fields" },
      wide(field("Plan", plan, "What its buckets hold goes along.")),
      h("div", { class: "field act" }, h("button", { type: "submit" }, "Assign")),
    ),
  );
  return h("details", {}, h("summary", {}, "Plan"), form);
}

const MODES = [
  ["normal", "normal: limits count"],
  ["disabled", "disabled: everything is refused"],
  ["bypass", "bypass: no limit counts"],
];

function switchMode(entity) {
  const mode = h("select", {}, options(MODES, entity.mode));
  const form = h(
    "form",
    {
      class: "form",
      onsubmit: (event) => {
        event.preventDefault();
        change(enc(entity.id), { mode: mode.value }, `${entity.id} is ${mode.value}.`);
      },
    },
    h(
      "div",
      { class: "fields" },
      wide(field("Mode", mode)),
      h("div", { class: "field act" }, h("button", { type: "submit" }, "Switch")),
    ),
  );
  return h("details", {}, h("summary", {}, "Switch off or on"), form);
}

async function act(word, body, told) {
  try {
    await ask("POST", `${space()}/buckets/${word}`, body);
    go(location.hash);
    say(told);
  } catch (problem) {
    say(problem.message, "bad");
  }
}

function newEntity(sold) {
  const id = h("input", { required: true, placeholder: "user:ann", spellcheck: "false" });
  const name = h("input", { placeholder: "Ann" });
  const parent = h("input", { spellcheck: "false", placeholder: "none" });
  const cascade = h("input", { type: "checkbox" });
  const plan = h("select", {}, options(choices(sold), ""));
  const form = h(
    "form",
    {
      class: "form",
      onsubmit: async (event) => {
        event.preventDefault();
        const body = {
          id: id.value,
          name: name.value || null,
          parent_id: parent.value || null,
          cascade: cascade.checked,
          ...(plan.value && { plan: plan.value }),
        };
        try {
          await ask("POST", `${space()}/entities`, body);
          go(`#/entities?id=${enc(id.value)}`);
          say(`Added: ${id.value}.`);
        } catch (problem) {
          say(problem.message, "bad");
        }
      },
    },
    field("Id", id),
    field("Name", name),
    field("Parent", parent),
    field("Cascade to its parents", cascade),
    sold.length > 0 && field("Plan", plan),
    h("div", { class: "row" }, h("button", { type: "submit" }, "Add")),
  );
  return h("details", {}, h("summary", {}, "Add entity"), form);
}
