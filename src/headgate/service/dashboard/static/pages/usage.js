// What was used: by hour, day or month, with a forecast for the running window, a price, and CSV.
// Totals and the price are of what entities asked for themselves, so that each unit counts once. What
// children used through a parent is a roll-up, shown beside it under its own name.

import { get, query, space } from "../api.js";
import { Chart } from "../chart.js";
import { field, fill, go, h, options, table, title } from "../dom.js";
import { count, moment } from "../format.js";

const WINDOWS = [
  ["hourly", "By hour"],
  ["daily", "By day"],
  ["monthly", "By month"],
];
const SECONDS = { hourly: 3600, daily: 86400, monthly: 2629800 };
const ROWS = 1000;
const SHOWN = 200;

export async function show(box, asked) {
  const window = h("select", {}, options(WINDOWS, asked.get("window") ?? "hourly"));
  const entity = h("input", {
    value: asked.get("entity") ?? "",
    placeholder: "everybody",
    spellcheck: "false",
  });
  const resource = h("input", {
    value: asked.get("resource") ?? "",
    placeholder: "all",
    spellcheck: "false",
  });
  const price = h("input", {
    type: "number",
    min: 0,
    step: "any",
    value: asked.get("price") ?? "",
    placeholder: "none",
  });
  const form = h(
    "form",
    {
      class: "card form",
      onsubmit: (event) => {
        event.preventDefault();
        go(
          `#/usage${query({ window: window.value, entity: entity.value, resource: resource.value, price: price.value })}`,
        );
      },
    },
    h(
      "div",
      { class: "fields" },
      field("Window", window),
      field("Entity", entity),
      field("Resource", resource),
      field("Price of 1000 tokens", price),
      h("div", { class: "field act" }, h("button", { type: "submit", class: "primary" }, "Show")),
    ),
  );
  const out = h("div", { class: "stack" });
  fill(box, title("Usage", "Net consumption as the ledger has it."), form, out);
  const found =
    entity.value || resource.value
      ? await get(
          `${space()}/usage${query({ window: window.value, entity_id: entity.value, resource: resource.value, limit: ROWS })}`,
        )
      : null;
  if (!found) return fill(out, h("p", { class: "card empty" }, "Name an entity or a resource.")) && undefined;
  return draw(out, found, Number(price.value) || 0, SECONDS[window.value]);
}

function draw(out, found, price, seconds) {
  const all = found.items.flatMap((one) => [...Object.keys(one.counters), ...Object.keys(one.from_children)]);
  const names = [...new Set(all)].sort();
  const rolled = found.items.some(
    (one) => one.events_from_children || Object.values(one.from_children).some((amount) => amount),
  );
  const name = h("select", { class: "fit", "aria-label": "Limit" }, options(names.map((one) => [one, one])));
  const tiles = h("div", { class: "tiles" });
  const plot = h("div", { class: "plot", role: "img", "aria-label": "Consumption per window" });
  const csv = h("button", { type: "button", onclick: () => download(found.items, names, rolled) }, "CSV");
  fill(
    out,
    tiles,
    h(
      "section",
      { class: "card" },
      h(
        "div",
        { class: "cardhead" },
        h("h2", {}, "Consumption"),
        h("div", { class: "row" }, names.length > 1 && name, csv),
      ),
      plot,
    ),
    h(
      "section",
      { class: "card" },
      h("h2", {}, "Windows"),
      table(
        "Usage",
        [
          "Window",
          "Entity",
          "Resource",
          ...names.map((one) => `#${one}`),
          "#Requests",
          ...(rolled ? ["Used by children through it"] : []),
        ],
        found.items
          .slice(0, SHOWN)
          .map((one) => [
            moment(one.window_start),
            one.entity_id,
            one.resource,
            ...names.map((limit) => count(own(one, limit))),
            count(ownEvents(one)),
            ...(rolled ? [fromChildren(one)] : []),
          ]),
        "Nothing used in this window.",
      ),
    ),
    found.cursor && h("p", { class: "dim" }, `The first ${ROWS} are counted; narrow it down for the rest.`),
  );
  const chart = new Chart(plot, {
    series: [{ label: "used", colour: "--good" }],
    bars: seconds,
    height: 220,
  });
  const redraw = () => {
    const sums = new Map();
    for (const one of found.items)
      sums.set(one.window_start, (sums.get(one.window_start) ?? 0) + own(one, name.value));
    const times = [...sums.keys()].sort();
    chart.set([times.map((one) => Date.parse(one) / 1000), times.map((one) => sums.get(one))]);
    const all = [...sums.values()].reduce((sum, one) => sum + one, 0);
    const entities = new Set(found.items.map((one) => one.entity_id));
    const through = found.items.reduce((sum, one) => sum + (one.from_children[name.value] ?? 0), 0);
    fill(
      tiles,
      tile(count(all), `total ${name.value || "tokens"}`),
      tile(count(found.items.reduce((sum, one) => sum + ownEvents(one), 0)), "requests"),
      tile(forecast(found.items, name.value), "forecast for the running window"),
      price ? tile(((all / 1000) * price).toFixed(2), "cost at that price") : null,
      rolled && entities.size === 1
        ? tile(count(through), `${name.value || "tokens"} used by children through it, not in the total`)
        : null,
    );
  };
  name.addEventListener("change", redraw);
  redraw();
  return () => chart.end();
}

// What was asked for the entity itself.
const own = (one, limit) => (one.counters[limit] ?? 0) - (one.from_children[limit] ?? 0);
const ownEvents = (one) => one.total_events - one.events_from_children;
const fromChildren = (one) =>
  Object.entries(one.from_children)
    .map(([limit, amount]) => `${limit} ${count(amount)}`)
    .join(", ");

const tile = (number, told) => h("div", { class: "tile" }, h("strong", {}, number), h("span", {}, told));

// The running window goes on as it went so far.
function forecast(items, name) {
  const now = Date.now();
  const running = items.filter(
    (one) => Date.parse(one.window_start) <= now && now < Date.parse(one.window_end),
  );
  if (!running.length) return "—";
  const begin = Date.parse(running[0].window_start);
  const passed = (now - begin) / (Date.parse(running[0].window_end) - begin);
  return count(
    Math.round(running.reduce((sum, one) => sum + own(one, name), 0) / Math.max(passed, 0.01)),
  );
}

// A cell that a spreadsheet would take for a formula is led by an apostrophe.
function cell(value) {
  const text = /^[=+\-@\t]/.test(value) && Number.isNaN(Number(value)) ? `'${value}` : String(value);
  return `"${text.replace(/"/g, '""')}"`;
}

function download(items, names, rolled) {
  const more = rolled ? names : [];
  const lines = [
    [
      "window_start",
      "window_end",
      "entity_id",
      "resource",
      ...names,
      "requests",
      ...more.map((name) => `${name} from children`),
    ],
    ...items.map((one) => [
      one.window_start,
      one.window_end,
      one.entity_id,
      one.resource,
      ...names.map((name) => own(one, name)),
      ownEvents(one),
      ...more.map((name) => one.from_children[name] ?? 0),
    ]),
  ];
  const url = URL.createObjectURL(
    new Blob([lines.map((line) => line.map(cell).join(",")).join("\r\n")], { type: "text/csv" }),
  );
  h("a", { href: url, download: "usage.csv" }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
