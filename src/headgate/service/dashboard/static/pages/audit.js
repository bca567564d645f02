// Who changed what in this namespace: everybody's changes, filters, and pages.

import { get, query, space } from "../api.js";
import { field, fill, go, h, table, title } from "../dom.js";
import { moment } from "../format.js";

const PAGE = 100;
const LINES_OPEN = 4; // so many differences are shown without a click
const UNTOLD = ["version", "digest"]; // they differ with every change, and tell nobody anything

export async function show(box, asked) {
  const of = text(asked, "of", "everybody", "audit-subjects");
  const by = text(asked, "by", "anybody");
  const action = text(asked, "action", "any", "audit-actions");
  const resource = text(asked, "resource", "all");
  const from = time(asked, "from");
  const to = time(asked, "to");
  const form = h(
    "form",
    {
      class: "card form",
      "aria-label": "Filters",
      onsubmit: (event) => {
        event.preventDefault();
        const wanted = { of, by, action, resource, from, to };
        go(`#/audit${query(Object.fromEntries(Object.entries(wanted).map(([name, one]) => [name, one.value])))}`);
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Of", of),
      field("By", by),
      field("Action", action),
      field("Resource", resource),
      field("From (UTC)", from),
      field("Until (UTC)", to),
      h("div", { class: "field act" }, h("button", { type: "submit", class: "primary" }, "Show")),
    ),
    datalist("audit-subjects", ["$SYSTEM", "$RESOURCE:api.search", "$PLAN:pro", "$POLICIES", "$ACCESS"]),
    datalist("audit-actions", [
      "entity_created",
      "entity_changed",
      "entity_deleted",
      "limits_set",
      "limits_deleted",
      "plan_set",
      "plan_deleted",
      "bucket_reset",
      "bucket_topped_up",
      "policies_changed",
      "access_denied",
    ]),
  );
  const out = h("section", { class: "card" });
  fill(
    box,
    title(
      "Audit",
      "Every change of limits, plans, entities, buckets and policies, and refused keys: who, when, and what was there before.",
    ),
    form,
    out,
  );
  const filters = {
    entity_id: of.value.trim(),
    principal: by.value,
    action: action.value.trim(),
    resource: resource.value.trim(),
    start: from.value,
    end: to.value,
    limit: PAGE,
  };
  await more(out, filters, [], null);
}

// The next page below those that are shown already.
async function more(out, filters, shown, cursor) {
  const found = await get(`${space()}/audit${query({ ...filters, cursor })}`);
  const items = [...shown, ...found.items];
  fill(
    out,
    table("Audit events", ["When", "Who", "What", "Of", "Resource", "Details"], items.map(row), "No change on record."),
    found.cursor &&
      h(
        "button",
        {
          type: "button",
          onclick: async (event) => {
            event.target.disabled = true;
            try {
              await more(out, filters, items, found.cursor);
            } catch (problem) {
              event.target.disabled = false;
              event.target.after(h("p", { role: "alert" }, problem.message));
            }
          },
        },
        found.items.length ? "Older" : "None so far: look at older ones",
      ),
  );
}

function row(one) {
  return [
    moment(one.timestamp),
    one.principal ?? "—",
    one.action,
    h("a", { href: `#/audit${query({ of: one.entity_id })}` }, one.entity_id),
    one.resource ?? "—",
    details(one.details),
  ];
}

function details(values) {
  if (isObject(values.before) && isObject(values.after)) return change(values.before, values.after);
  if (!Object.keys(values).length) return "—";
  const written = JSON.stringify(values, null, 1);
  return written.length < 90
    ? h("code", {}, JSON.stringify(values))
    : h("details", {}, h("summary", {}, Object.keys(values).join(", ")), h("pre", {}, written));
}

// What differs between both sides, line by line.
function change(before, after) {
  const lines = differences(before, after);
  if (!lines.length) return "—";
  const list = h(
    "ul",
    { class: "changes" },
    lines.map(([path, was, is]) =>
      h("li", {}, h("code", {}, path), " ", value(was), " → ", value(is)),
    ),
  );
  if (lines.length <= LINES_OPEN) return list;
  return h("details", {}, h("summary", {}, `${lines.length} values changed`), list);
}

function differences(before, after, stem = "") {
  return [...new Set([...Object.keys(before), ...Object.keys(after)])].flatMap((name) => {
    const [was, is] = [byName(before[name]), byName(after[name])];
    const path = stem + name;
    if (UNTOLD.includes(name) || JSON.stringify(was) === JSON.stringify(is)) return [];
    if (isObject(was) && isObject(is)) return differences(was, is, `${path}.`);
    return [[path, was, is]];
  });
}

// Limits are lists of objects with names; what changed in one of them is told by its name.
function byName(list) {
  const named = Array.isArray(list) && list.length && list.every((one) => isObject(one) && one.name);
  return named ? Object.fromEntries(list.map((one) => [one.name, one])) : list;
}

const isObject = (one) => typeof one === "object" && one !== null && !Array.isArray(one);
const isNothing = (one) => one === null || one === undefined;
const value = (one) => (isNothing(one) ? h("em", {}, "nothing") : h("code", {}, JSON.stringify(one)));

function text(asked, name, placeholder, list) {
  return h("input", { value: asked.get(name) ?? "", placeholder, spellcheck: "false", list });
}

function time(asked, name) {
  return h("input", { type: "datetime-local", value: asked.get(name) ?? "" });
}

function datalist(id, values) {
  return h(
    "datalist",
    { id },
    values.map((one) => h("option", { value: one })),
  );
}
