// How the service itself is.

import { ask, get, may, seat } from "../api.js";
import { fill, h, say, table, title } from "../dom.js";
import { count, moment, scheduleText } from "../format.js";

const EVERY_MS = 3000;

export async function show(box) {
  const tiles = h("section", { class: "tiles", "aria-label": "State" });
  const rules = h("section", { class: "card" });
  const numbers = h("section", { class: "card" });
  fill(
    box,
    title("Health", "The store, the breaker, the policies, and what was counted since the start."),
    tiles,
    rules,
    numbers,
  );
  const draw = async () => {
    const { status, body } = await ask("GET", "/readyz", undefined, [503]);
    fill(tiles, state(status, body));
  };
  const add = async () => fill(numbers, h("h2", {}, "Counters"), counters(await get("/metrics").catch(() => null)));
  await draw();
  if (may("read")) {
    fill(rules, policyRows(await get("/v1/policies").catch(() => null)));
    await add();
  }
  const again = async () => {
    await draw();
    if (may("read") && !numbers.contains(document.activeElement)) await add();
  };
  const timer = setInterval(() => again().catch((problem) => say(problem.message, "bad")), EVERY_MS);
  return () => clearInterval(timer);
}

function state(status, body) {
  const store = seat.about.store;
  const well = status === 200;
  return [
    tile(well ? body.status.toLowerCase() : "not ready", "service", well && body.status === "HEALTHY"),
    tile(
      well && body.storage_available ? "answers" : "away",
      `store${store ? `: ${store.name}` : ""}`,
      well && body.storage_available,
    ),
    tile(
      well ? body.circuit_breaker.replace("_", "-") : "—",
      "breaker",
      well && body.circuit_breaker === "closed",
    ),
    tile(
      well ? (body.policies === "ok" ? "in force" : "broken file") : "—",
      "policies",
      well && body.policies === "ok",
    ),
    tile(seat.about.fail_open ? "fails open" : "fails closed", "on an outage", true),
    tile(well ? count(body.leases) : "—", "leases held", true),
  ];
}

const tile = (text, told, good) =>
  h("div", { class: `tile text ${good ? "" : "bad"}` }, h("strong", {}, text), h("span", {}, told));

function policyRows(policies) {
  const reload =
    may("admin") &&
    policies?.standing &&
    h(
      "button",
      {
        type: "button",
        onclick: async () => {
          try {
            say(`Policies: ${(await ask("POST", "/v1/policies/reload")).body.result}.`);
          } catch (problem) {
            say(problem.message, "bad");
          }
        },
      },
      "Read the file now",
    );
  const head = h("div", { class: "cardhead" }, h("h2", {}, "Policies"), reload);
  if (!policies)
    return [
      head,
      h("p", { class: "empty" }, "This key may not see them: it needs the scope read for all namespaces."),
    ];
  if (!policies.standing)
    return [
      head,
      h(
        "p",
        { class: "empty" },
        "No policy file. Where no limits are stored, the built-in default applies: capacity 1,000, refills 10 per second.",
      ),
    ];
  return [
    head,
    policies.standing.trouble && h("pre", { role: "alert" }, policies.standing.trouble),
    h("p", { class: "dim" }, `Loaded ${moment(policies.standing.loaded_at)}`),
    table(
      "Policies",
      ["Name", "Scope", "Resource", "#Capacity", "#Refill per second"],
      policies.rate_limits.map((one) => [
        one.name,
        one.scope ?? "any",
        one.resource ?? "any",
        count(one.capacity),
        one.resets ? scheduleText(one.resets) : String(one.refill_rate),
      ]),
    ),
  ];
}

// Lines of the Prometheus text format: name{labels} value.
function counters(text) {
  if (typeof text !== "string")
    return h(
      "p",
      { class: "empty" },
      "This key may not see them: it needs the scope read for all namespaces.",
    );
  const rows = text
    .split("\n")
    .filter((line) => line && !line.startsWith("#") && !line.includes("_bucket{"))
    .map((line) => {
      const at = line.lastIndexOf(" ");
      return [line.slice(0, at), Number(line.slice(at + 1))];
    });
  return table(
    "Counters",
    ["Series", "#Value"],
    rows
      .filter(([, value]) => value !== 0)
      .slice(0, 200)
      .map(([name, value]) => [h("code", {}, name), count(value)]),
    "Nothing counted yet.",
  );
}
