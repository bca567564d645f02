// Plans: named sets of limits that entities are on. Listed on the page of limits, chosen on that of entities.

import { ask, enc, get, getOr, may, query, space } from "./api.js";
import { confirmAction, go, h, say, table } from "./dom.js";
import { count, limitText } from "./format.js";

const PAGES_MAX = 5;
const PAGE = 200;

// Those of the namespace, by name; as many as a page can show.
export async function plans() {
  const items = [];
  let cursor = null;
  for (let page = 0; page < PAGES_MAX; page++) {
    const found = await getOr(`${space()}/plans${query({ limit: PAGE, cursor })}`, { items: [], cursor: null });
    items.push(...found.items);
    cursor = found.cursor;
    if (!cursor) break;
  }
  return { items, more: Boolean(cursor) };
}

export const planLink = (plan, resource) =>
  `#/limits${query({ level: resource ? "plan_resource" : "plan", plan, resource })}`;

// What entities may be put on, for a list of choices.
export const choices = (items) => [["", "none"], ...items.map((plan) => [plan.name, plan.name])];

export function known(items) {
  return h(
    "datalist",
    { id: "known-plans" },
    items.map((plan) => h("option", { value: plan.name })),
  );
}

export function listed({ items, more }) {
  return h(
    "section",
    { class: "card", "aria-labelledby": "plans-title", id: "plans" },
    h("h2", { id: "plans-title" }, "Plans"),
    h(
      "p",
      { class: "dim" },
      "What entities on a plan have where they have no limits of their own. To make one, choose the level “A plan” above and name it.",
    ),
    table(
      "Plans",
      ["Plan", "Every resource", "Some resources", "#Entities", ...(may("admin") ? [""] : [])],
      items.map((plan) => [
        h("a", { href: planLink(plan.name) }, plan.name),
        plan.limits.length ? given(plan.limits) : h("span", { class: "dim" }, "as others"),
        Object.keys(plan.resources).map((resource) =>
          h("div", {}, h("a", { href: planLink(plan.name, resource) }, resource), " ", given(plan.resources[resource])),
        ),
        count(plan.entities),
        ...(may("admin") ? [removal(plan)] : []),
      ]),
      "No plans yet.",
    ),
    more && h("p", { class: "dim" }, `The first ${PAGE * PAGES_MAX} are listed.`),
  );
}

const given = (limits) =>
  limits.map((limit) => h("div", {}, h("strong", {}, limit.name), ` ${limitText(limit)}`));

function removal(plan) {
  return h(
    "button",
    {
      type: "button",
      class: "quiet danger",
      "aria-label": `Delete plan ${plan.name}`,
      onclick: () => remove(plan.name),
    },
    "Delete",
  );
}

// Asks first, with how many are on it now, and not as it was when the page was opened.
async function remove(name) {
  try {
    const { entities } = await get(`${space()}/plans/${enc(name)}`);
    const told = h(
      "p",
      { id: "unassigned", class: entities ? "notice" : "dim" },
      entities
        ? `${count(entities)} ${entities === 1 ? "entity is" : "entities are"} on it and will be on no plan.`
        : "No entity is on it.",
    );
    if (!(await confirmAction(`Delete the plan ${name}?`, told, "Delete the plan"))) return;
    await ask("DELETE", `${space()}/plans/${enc(name)}${query({ unassign: entities ? "true" : "" })}`);
    go(location.hash.includes(`plan=${enc(name)}`) ? "#/limits" : location.hash);
    say(`Deleted: plan ${name}.`);
  } catch (problem) {
    say(problem.message, "bad");
  }
}
