// Limits of one level, edited as a table, with a look at who would be over them before they count.

import { ask, enc, getOr, may, query, seat, space } from "../api.js";
import { confirmAction, field, fill, go, h, options, say, table, title, wide } from "../dom.js";
import { count, limitText, sourceText } from "../format.js";
import { known, listed, plans } from "../plans.js";

const LEVELS = [
  ["system", "System: every entity, every resource"],
  ["resource", "A resource, every entity"],
  ["plan", "A plan, every resource"],
  ["plan_resource", "A plan on a resource"],
  ["entity_default", "An entity, every resource"],
  ["entity", "An entity on a resource"],
];

export async function show(box, asked) {
  const level = h("select", {}, options(LEVELS, asked.get("level") ?? "system"));
  const entity = h("input", {
    value: asked.get("entity") ?? "",
    placeholder: "user:ann",
    spellcheck: "false",
    required: true,
  });
  const resource = h("input", {
    value: asked.get("resource") ?? "",
    placeholder: "api.search",
    spellcheck: "false",
    required: true,
    list: "known-resources",
  });
  const plan = h("input", {
    value: asked.get("plan") ?? "",
    placeholder: "pro",
    spellcheck: "false",
    required: true,
    list: "known-plans",
  });
  const [resources, sold] = await Promise.all([
    getOr(`${space()}/limits/resources`, { items: [] }),
    plans(),
  ]);
  const where = h("form", {
    class: "card form",
    onsubmit: (event) => {
      event.preventDefault();
      const inputs = Object.entries({ plan, entity, resource }).filter(([part]) => has(level.value, part));
      go(`#/limits${query({ level: level.value, ...Object.fromEntries(inputs.map(([part, el]) => [part, el.value])) })}`);
    },
  });
  const names = {
    plan: field("Plan", plan),
    entity: field("Entity", entity),
    resource: field("Resource", resource),
  };
  const adapt = () => {
    for (const [part, el] of Object.entries(names)) {
      el.hidden = !has(level.value, part);
      el.querySelector("input").disabled = el.hidden;
    }
  };
  // What is open below belongs to another level from now on: to save it would change that one.
  const out = h("div", { class: "stack" });
  const empty = () =>
    fill(out, h("p", { class: "card empty", id: "unopened" }, "Open this level to see and change its limits."));
  level.addEventListener("change", () => {
    adapt();
    empty();
  });
  plan.addEventListener("input", empty);
  entity.addEventListener("input", empty);
  resource.addEventListener("input", empty);
  adapt();
  fill(
    where,
    h(
      "div",
      { class: "fields" },
      field("Level", level),
      names.plan,
      names.entity,
      names.resource,
      h("div", { class: "field act" }, h("button", { type: "submit" }, "Open")),
    ),
    h(
      "datalist",
      { id: "known-resources" },
      resources.items.map((name) => h("option", { value: name })),
    ),
    known(sold.items),
  );
  fill(
    box,
    title("Limits", "Stored limits of one level. A level overrides those below it, limit by limit."),
    where,
    !may("admin") &&
      h("p", { class: "card warn" }, "Read only: changing limits needs a key with the scope admin."),
    out,
    listed(sold),
  );
  const place = placeOf(level.value, { plan: plan.value, entity: entity.value, resource: resource.value });
  if (!place) return;
  // A plan that is not there yet is made by saving it.
  const isNew = place.level.plan && !sold.more && !sold.items.some((one) => one.name === place.level.plan);
  const stored = isNew ? { limits: [] } : await getOr(place.path, { limits: [] });
  new Editor(out, place, stored, await inForce(place));
  if (level.value === "resource" && may("admin")) out.append(switchResource(resource.value));
}

// What gives the limits of an entity on a resource while nothing is stored here.
async function inForce({ level }) {
  if (!level.entity_id || !level.resource) return null;
  return getOr(`/v1/explain${query({ ...level, namespace: seat.namespace })}`, null);
}

const MODES = [
  ["normal", "normal: limits count"],
  ["disabled", "disabled: everything is refused"],
  ["bypass", "bypass: no limit counts"],
];

function switchResource(resource) {
  const mode = h("select", {}, options(MODES, "normal"));
  getOr(`/v1/explain${query({ entity_id: "nobody", resource, namespace: seat.namespace })}`, null)
    .then((why) => {
      if (why?.mode_source.startsWith("resource")) mode.value = why.mode;
    })
    .catch(() => {});
  return h(
    "form",
    {
      class: "card form",
      "aria-label": `Mode of ${resource}`,
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          await ask("PUT", `${space()}/modes/${resource}`, { mode: mode.value });
          say(`${resource} is ${mode.value}.`);
        } catch (problem) {
          say(problem.message, "bad");
        }
      },
    },
    h(
      "div",
      { class: "fields" },
      wide(field(`Mode of ${resource}, for everybody`, mode)),
      h("div", { class: "field act" }, h("button", { type: "submit" }, "Switch")),
    ),
  );
}

const PARTS = {
  system: [],
  resource: ["resource"],
  plan: ["plan"],
  plan_resource: ["plan", "resource"],
  entity_default: ["entity"],
  entity: ["entity", "resource"],
};
const has = (level, part) => PARTS[level].includes(part);

function placeOf(level, { plan, entity, resource }) {
  if (level === "plan" && plan)
    return { path: `${space()}/plans/${enc(plan)}`, name: `Plan ${plan}, every resource`, level: { plan } };
  if (level === "plan_resource" && plan && resource)
    return {
      path: `${space()}/plans/${enc(plan)}/limits/${resource}`,
      name: `Plan ${plan} on ${resource}`,
      level: { plan, resource },
    };
  const root = `${space()}/limits`;
  if (level === "system") return { path: `${root}/system`, name: "System defaults", level: {} };
  if (level === "resource" && resource)
    return { path: `${root}/resources/${resource}`, name: `Resource ${resource}`, level: { resource } };
  if (level === "entity_default" && entity)
    return {
      path: `${root}/entities/${enc(entity)}/_default_`,
      name: `${entity}, every resource`,
      level: { entity_id: entity },
    };
  if (level === "entity" && entity && resource)
    return {
      path: `${root}/entities/${enc(entity)}/${resource}`,
      name: `${entity} on ${resource}`,
      level: { entity_id: entity, resource },
    };
  return null;
}

const KINDS = [
  ["refill", "bit by bit"],
  ["day", "every day"],
  ["week", "every week"],
  ["month", "every month"],
  ["year", "every year"],
  ["cron", "by cron"],
  ["session", "after use"],
];

const input = (label, props) =>
  h("input", { "aria-label": label, required: true, readonly: !may("admin"), spellcheck: "false", ...props });

// What brings tokens back, by its kind: a refill every so many seconds, or what resets a quota.
function detailsOf(kind, limit) {
  const number = (label, name, min, usual) =>
    input(label, { type: "number", min, name, value: limit[name] ?? usual });
  const zone = input("Time zone", { name: "tz", value: limit.tz ?? "UTC" });
  if (kind === "refill")
    return [
      number("Refill", "refill_amount", 0, limit.capacity),
      h("span", {}, "every"),
      number("Every, in seconds", "refill_period_seconds", 1, 60),
      h("span", {}, "s"),
    ];
  if (kind === "session") return [number("Seconds from the first use", "reset_after", 1, 18000), h("span", {}, "s")];
  if (kind !== "cron") return zone;
  return [input("Cron expression", { name: "cron", value: limit.cron ?? "0 0 1,15 * *" }), zone];
}

class Editor {
  constructor(out, place, stored, why) {
    this.place = place;
    this.body = h("tbody", {});
    this.seen = h("div", { "aria-live": "polite", id: "preview" });
    this.none = h("div", { class: "empty", id: "nothing-stored" }, nothingStored(why));
    this.clear = h(
      "button",
      { type: "button", class: "danger", hidden: !stored.limits.length, onclick: () => this.remove() },
      "Remove all",
    );
    const free = may("admin");
    const form = h(
      "form",
      {
        class: "card form",
        "aria-label": place.name,
        onsubmit: (event) => {
          event.preventDefault();
          this.save();
        },
      },
      h("h2", {}, place.name),
      this.none,
      h(
        "div",
        { class: "scroll" },
        h(
          "table",
          {},
          h("caption", { class: "hidden" }, "Limits"),
          h(
            "thead",
            {},
            h(
              "tr",
              {},
              ["Name", "Capacity", "Comes back", "Refill or reset", "Shadow mode", ""].map((one) =>
                h("th", { scope: "col" }, one),
              ),
            ),
          ),
          this.body,
        ),
      ),
      h(
        "fieldset",
        { class: "row", disabled: !free, "aria-label": "Actions" },
        h("button", { type: "button", class: "quiet", onclick: () => this.add() }, "Add a limit"),
        h("button", { type: "button", "data-rows": true, onclick: () => this.preview() }, "Preview"),
        h("button", { type: "submit", class: "primary", "data-rows": true }, "Save"),
        this.clear,
      ),
      this.seen,
    );
    this.form = form;
    this.rule = place.path.endsWith("/system") && outageRule(stored.on_unavailable);
    if (this.rule) form.insertBefore(this.rule.el, form.querySelector("fieldset"));
    for (const limit of stored.limits) this.add(limit);
    this.count();
    fill(out, form);
  }

  // Says that nothing is stored as long as there is no row, and does not offer to save nothing.
  count() {
    const rows = this.body.rows.length;
    this.none.hidden = rows > 0;
    this.form.querySelector("table").hidden = rows === 0;
    for (const button of this.form.querySelectorAll("[data-rows]")) button.disabled = rows === 0;
  }

  add(limit = { name: "tokens", capacity: 100, refill_amount: 100, refill_period_seconds: 60, soft: false }) {
    const cell = (label, props) => h("td", {}, input(label, props));
    const details = h("div", { class: "comesback" });
    const kind = h(
      "select",
      { name: "kind", "aria-label": "How it comes back", disabled: !may("admin") },
      options(KINDS, limit.cron ? "cron" : limit.reset_after ? "session" : (limit.every ?? "refill")),
    );
    const show = () => fill(details, detailsOf(kind.value, limit));
    kind.addEventListener("change", show);
    show();
    const row = h(
      "tr",
      {},
      cell("Name", { value: limit.name, name: "name", spellcheck: "false" }),
      cell("Capacity", { type: "number", min: 1, value: limit.capacity, name: "capacity" }),
      h("td", {}, kind),
      h("td", {}, details),
      h(
        "td",
        {},
        h("input", {
          type: "checkbox",
          name: "soft",
          checked: limit.soft,
          "aria-label": "Shadow mode: recorded, never refused",
        }),
      ),
      h(
        "td",
        {},
        may("admin") &&
          h(
            "button",
            {
              type: "button",
              class: "quiet danger",
              "aria-label": `Remove ${limit.name}`,
              onclick: () => {
                row.remove();
                this.count();
              },
            },
            "Remove",
          ),
      ),
    );
    this.body.append(row);
    this.count();
  }

  limits() {
    return [...this.body.rows].map((row) => {
      const of = (name) => row.querySelector(`[name=${name}]`);
      const number = (name) => Number(of(name).value);
      const kind = of("kind").value;
      const limit = { name: of("name").value, capacity: number("capacity"), soft: of("soft").checked };
      if (kind === "session") return { ...limit, reset_after: number("reset_after") };
      if (kind === "cron") return { ...limit, cron: of("cron").value.trim(), tz: of("tz").value.trim() };
      if (kind !== "refill") return { ...limit, every: kind, tz: of("tz").value.trim() };
      const refill_period_seconds = number("refill_period_seconds");
      return { ...limit, refill_amount: number("refill_amount"), refill_period_seconds };
    });
  }

  async preview() {
    if (!this.form.reportValidity()) return;
    await this.attempt(async () => {
      const { body } = await ask("POST", "/ui/preview", {
        namespace: seat.namespace,
        ...this.place.level,
        limits: this.limits(),
      });
      fill(
        this.seen,
        h(
          "h3",
          {},
          body.over_count
            ? `${count(body.over_count)} would be over the new limits`
            : "No bucket would be over the new limits",
        ),
        h(
          "p",
          { class: "dim" },
          `${count(body.looked_at)} buckets in use were looked at${body.whole ? "" : "; there are more"}. Levels carry over: nobody gets a full bucket.`,
        ),
        body.over_count > 0 &&
          table(
            "Buckets over the new limits",
            ["Entity", "Resource", "Limit", "#In use", "#Capacity now", "#Capacity then"],
            body.over.map((one) => [
              one.entity_id,
              one.resource,
              one.limit_name,
              count(one.in_use),
              count(one.capacity_before),
              count(one.capacity_after),
            ]),
          ),
      );
    });
  }

  async save() {
    await this.attempt(async () => {
      const rule = this.rule && this.rule.select.value;
      await ask("PUT", this.place.path, { limits: this.limits(), ...(rule && { on_unavailable: rule }) });
      fill(this.seen);
      this.clear.hidden = false;
      await this.list();
      say(`Saved. New limits for ${this.place.name} apply from the next request.`);
    });
  }

  async remove() {
    const told = h("p", {}, "The levels below give the limits from the next request on.");
    if (!(await confirmAction(`Remove all limits of ${this.place.name}?`, told, "Remove all"))) return;
    await this.attempt(async () => {
      const { plan, resource } = this.place.level;
      // To delete a plan is another thing than to take its limits away.
      if (plan && !resource) await ask("PUT", this.place.path, { limits: [] });
      else await ask("DELETE", this.place.path);
      await this.list();
      this.body.replaceChildren();
      this.clear.hidden = true;
      fill(this.none, nothingStored(await inForce(this.place)));
      this.count();
      say(`Removed: ${this.place.name}.`);
    });
  }

  // The plans below are shown as they are now.
  async list() {
    if (this.place.level.plan) document.getElementById("plans")?.replaceWith(listed(await plans()));
  }

  async attempt(flow) {
    try {
      await flow();
    } catch (problem) {
      say(problem.message, "bad");
    }
  }
}

function nothingStored(why) {
  const given = why?.limits ?? [];
  return [
    h("p", {}, "No limits are stored at this level."),
    given.length > 0 &&
      h(
        "ul",
        { class: "ladder" },
        given.map((one) =>
          h(
            "li",
            {},
            "In force instead: ",
            h("strong", {}, one.limit.name),
            ` ${limitText(one.limit)}, from ${sourceText(one)}`,
          ),
        ),
      ),
  ];
}

const RULES = [
  ["", "as the service was started"],
  ["allow", "allow, within this process's own bounds"],
  ["block", "block"],
];

function outageRule(chosen) {
  const select = h("select", { disabled: !may("admin") }, options(RULES, chosen ?? ""));
  return { select, el: h("div", { class: "fields" }, field("While the store is away", select)) };
}
