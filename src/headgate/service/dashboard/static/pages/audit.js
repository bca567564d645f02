// Who changed what.

import { enc, get, query, space } from "../api.js";
import { field, fill, go, h, table, title } from "../dom.js";
import { moment } from "../format.js";

export async function show(box, asked) {
  const whom = h("input", {
    value: asked.get("of") ?? "$SYSTEM",
    required: true,
    spellcheck: "false",
    list: "audit-kinds",
  });
  const form = h(
    "form",
    {
      class: "card form",
      onsubmit: (event) => {
        event.preventDefault();
        go(`#/audit?of=${enc(whom.value)}`);
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Of: an entity, $SYSTEM, or $RESOURCE:name", whom),
      h("div", { class: "field act" }, h("button", { type: "submit", class: "primary" }, "Show")),
    ),
    h(
      "datalist",
      { id: "audit-kinds" },
      h("option", { value: "$SYSTEM" }),
      h("option", { value: "$RESOURCE:api.search" }),
    ),
  );
  const out = h("section", { class: "card" });
  fill(
    box,
    title(
      "Audit",
      "Every change of limits, entities and buckets: who made it, when, and what was there before.",
    ),
    form,
    out,
  );
  const found = await get(`${space()}/audit${query({ entity_id: whom.value, limit: 200 })}`);
  fill(
    out,
    h("h2", {}, whom.value),
    table(
      "Audit events",
      ["When", "Who", "What", "Resource", "Details"],
      found.items.map((one) => [
        moment(one.timestamp),
        one.principal ?? "—",
        one.action,
        one.resource ?? "—",
        details(one.details),
      ]),
      "No change on record.",
    ),
  );
}

function details(values) {
  if (!Object.keys(values).length) return "—";
  const text = JSON.stringify(values, null, 1);
  return text.length < 90
    ? h("code", {}, JSON.stringify(values))
    : h("details", {}, h("summary", {}, Object.keys(values).join(", ")), h("pre", {}, text));
}
