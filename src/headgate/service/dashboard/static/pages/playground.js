// Fire requests at a bucket and watch it run dry, refuse, and fill again.

import { ask, enc, get, howMuch, may, seat, space } from "../api.js";
import { field, fill, h, say, title } from "../dom.js";
import { watch } from "../feed.js";
import { clock, count, wait } from "../format.js";
import { quotaOf, Tank } from "../gauge.js";

const LINES_MAX = 40;
const SAID = { 200: "200 admitted", 429: "429 refused", 503: "503 unavailable" };
const PRACTICE = { name: "tokens", capacity: 10, refill_amount: 2, refill_period_seconds: 1 };

export function show(box, asked) {
  const play = new Playground(box, asked);
  const stop = watch(
    (beat) => {
      play.beat(beat);
      play.breaker?.(beat);
    },
    () => {},
  );
  const timer = setInterval(() => play.tick(), 100);
  play.look().catch(() => {});
  return () => {
    stop();
    clearInterval(timer);
    play.tank.end();
  };
}

class Playground {
  constructor(box, asked) {
    this.tank = new Tank();
    this.scope = h("input", { value: asked.get("scope") ?? "user", required: true, spellcheck: "false" });
    this.identifier = h("input", {
      value: asked.get("identifier") ?? "playground",
      required: true,
      spellcheck: "false",
    });
    this.resource = h("input", {
      value: asked.get("resource") ?? "playground",
      required: true,
      spellcheck: "false",
    });
    this.tokens = h("input", { type: "number", min: 1, max: 9007199254740991, value: "1", required: true });
    this.status = h("p", { class: "verdict", role: "status", id: "verdict" }, "Nothing fired yet");
    this.lines = h("ol", { class: "stream", "aria-label": "Answers, newest first" });
    this.sums = { 200: 0, 429: 0, other: 0, degraded: 0 };
    this.sum = h("p", { class: "dim", id: "sums" });
    const idle = !may("check");
    const once = h("button", { type: "submit", class: "primary", disabled: idle }, "Fire one");
    const ten = h("button", { type: "button", disabled: idle, onclick: () => this.volley(10) }, "Fire ten");
    this.stream = h(
      "button",
      { type: "button", disabled: idle, "aria-pressed": "false", onclick: () => this.toggle() },
      "Keep firing",
    );
    const practice =
      may("admin") &&
      h(
        "button",
        { type: "button", class: "quiet", onclick: () => this.practise() },
        "Give it a small limit (capacity 10, refills 2 per second)",
      );
    const form = h(
      "form",
      {
        class: "form",
        onsubmit: (event) => {
          event.preventDefault();
          this.fire();
        },
      },
      h(
        "div",
        { class: "fields" },
        field("Scope", this.scope),
        field("Identifier", this.identifier),
        field("Resource", this.resource),
        field("Tokens", this.tokens),
      ),
      h("div", { class: "row" }, once, ten, this.stream, practice),
    );
    form.addEventListener("change", () => {
      this.limits = null;
      this.look().catch(() => {});
    });
    fill(
      box,
      title("Playground", "Real requests to this service, in the chosen namespace. They count."),
      idle && h("p", { class: "card warn" }, "Firing needs a key with the scope check."),
      seat.about.switch && this.storeSwitch(seat.about.switch),
      h(
        "div",
        { class: "split even" },
        h("section", { class: "card", "aria-label": "Request" }, form, this.status, this.sum),
        h(
          "section",
          { class: "card", "aria-labelledby": "tank-title" },
          h("h2", { id: "tank-title" }, "The bucket"),
          this.tank.el,
        ),
      ),
      h(
        "section",
        { class: "card", "aria-labelledby": "answers-title" },
        h("h2", { id: "answers-title" }, "Answers"),
        this.lines,
      ),
    );
  }

  // In a demo alone: the store can be broken, and everything reacts as it would.
  storeSwitch({ mode, modes }) {
    const told = h("p", { class: "dim", role: "status", id: "switch-told" }, modes[mode]);
    const state = h("span", { class: "badge", id: "switch-breaker" }, "breaker: closed");
    this.breaker = (beat) => {
      state.textContent = `breaker: ${beat.breaker}`;
      state.className = `badge ${beat.breaker === "closed" ? "good" : "bad"}`;
    };
    const turn = async (event) => {
      try {
        const { body } = await ask("POST", "/ui/switch", { mode: event.target.value });
        seat.about.switch = body;
        told.textContent = body.modes[body.mode];
      } catch (problem) {
        say(problem.message, "bad");
      }
    };
    const choice = (name) =>
      h(
        "label",
        { class: "choice" },
        h("input", { type: "radio", name: "store", value: name, checked: name === mode, onchange: turn }),
        name,
      );
    return h(
      "fieldset",
      { class: "card", id: "switch", disabled: !may("admin"), "aria-label": "Break the store" },
      h("div", { class: "cardhead" }, h("h2", {}, "Break the store"), state),
      h("div", { class: "row" }, Object.keys(modes).map(choice)),
      told,
    );
  }

  get entity() {
    return this.entityId ?? `${this.scope.value}:${this.identifier.value}`;
  }

  async fire() {
    if (!this.limits) await this.look().catch(() => {});
    const request = {
      namespace: seat.namespace,
      scope: this.scope.value,
      identifier: this.identifier.value,
      resource: this.resource.value,
      ...howMuch(Number(this.tokens.value), this.limits ?? []),
    };
    try {
      const began = performance.now();
      const { status, body } = await ask("POST", "/v1/ratelimit/take", request, [429, 503]);
      this.answered(status, body, performance.now() - began, Number(this.tokens.value));
    } catch (problem) {
      this.aim(null);
      this.verdict(problem.message, "bad");
    }
    if (!this.seen || performance.now() - this.seen > 1000) this.look().catch(() => {});
  }

  async volley(count) {
    for (let shot = 0; shot < count; shot++) await this.fire();
  }

  answered(status, body, took, asked) {
    this.sums[status === 200 || status === 429 ? status : "other"] += 1;
    const text = body.degraded && status === 200 ? "200 degraded" : SAID[status];
    const kind = status !== 200 ? "refused" : body.degraded ? "degraded" : "admitted";
    const note =
      status === 200
        ? `${body.tokens_remaining} left${body.degraded ? `, without the store (${body.degraded_reason})` : ""}`
        : refused(body, asked, body.retry_after_seconds);
    const why = body.instance && h("a", { href: `#/explain?${body.instance.split("?")[1]}` }, "why?");
    this.lines.prepend(
      h(
        "li",
        { class: kind },
        h("time", {}, clock(Date.now())),
        h("span", { class: "kind" }, text),
        h("span", { class: "whom" }, note, why && [" ", why]),
        h("span", { class: "times" }, `${took.toFixed(0)} ms`),
      ),
    );
    while (this.lines.childElementCount > LINES_MAX) this.lines.lastElementChild.remove();
    if (kind === "degraded") this.sums.degraded += 1;
    const apart = this.sums.degraded ? ` (${this.sums.degraded} without the store)` : "";
    this.sum.textContent = `${this.sums[200]} admitted${apart}, ${this.sums[429]} refused`;
    this.told = (seconds) => `${text}: ${refused(body, asked, seconds)}`;
    if (status !== 200) this.verdict(this.told(body.retry_after_seconds), "bad");
    this.aim(status === 200 ? null : body.retry_after_seconds);
    if (status === 200) this.verdict(text, body.degraded ? "warn" : "good");
  }

  // From a refusal on: the time until the same request would pass.
  aim(seconds) {
    this.until = seconds === null || seconds === undefined ? null : performance.now() + seconds * 1000;
    this.tick();
  }

  tick() {
    if (this.until === null || this.until === undefined) return;
    const left = (this.until - performance.now()) / 1000;
    if (left > 0) this.verdict(this.told(left), "bad");
    else {
      this.until = null;
      this.verdict("There is room again", "good");
    }
  }

  verdict(text, kind) {
    this.status.textContent = text;
    this.status.className = `verdict ${kind}`;
  }

  toggle() {
    const on = !this.timer;
    clearInterval(this.timer);
    this.timer = on
      ? setInterval(() => (this.status.isConnected ? this.fire() : clearInterval(this.timer)), 150)
      : null;
    this.stream.setAttribute("aria-pressed", String(on));
    this.stream.textContent = on ? "Stop firing" : "Keep firing";
  }

  beat(beat) {
    const mine = beat.buckets.find(
      (one) => one.entity === this.entity && one.resource === this.resource.value,
    );
    const limit = mine && tightest(mine.limits, (one) => one.level_milli / one.capacity_milli);
    if (!limit) return;
    this.seen = performance.now();
    this.tank.set(
      limit.level_milli / 1000,
      limit.capacity_milli / 1000,
      limit.amount_milli / 1000 / limit.period_ms,
      quotaOf(limit),
    );
  }

  async look() {
    const query = new URLSearchParams({
      namespace: seat.namespace,
      scope: this.scope.value,
      identifier: this.identifier.value,
      resource: this.resource.value,
    });
    const why = await get(`/v1/explain?${query}`);
    this.entityId = why.entity_id;
    this.limits = why.limits;
    const found = await get(
      `${space()}/buckets/${enc(why.entity_id)}?${new URLSearchParams({ resource: this.resource.value })}`,
    );
    const limit = tightest(found.items, (one) => one.tokens_remaining / one.tokens_capacity);
    if (limit)
      this.tank.set(
        limit.tokens_remaining,
        limit.tokens_capacity,
        limit.refill_amount / limit.refill_period_seconds / 1000,
        quotaOf(limit),
      );
    else if (why.limits.length) {
      const given = why.limits[0].limit;
      const perMs = given.refill_amount / given.refill_period_seconds / 1000;
      const { every, cron, reset_after, tz } = given;
      const resets = "refill_amount" in given ? null : { every, cron, reset_after, tz };
      this.tank.set(given.capacity, given.capacity, perMs || 0, quotaOf({ ...why.limits[0], resets }));
    }
  }

  async practise() {
    try {
      await this.look();
      await ask("PUT", `${space()}/limits/entities/${enc(this.entity)}/${this.resource.value}`, {
        limits: [PRACTICE],
      });
      say(`Saved. ${this.entity} has capacity 10 and refills 2 per second.`);
      await this.look();
    } catch (problem) {
      say(problem.message, "bad");
    }
  }
}

// A refusal by its limit, its amount and its wait.
function refused(body, tokens, seconds) {
  const again = seconds === null || seconds === undefined ? "no wait will help" : `again in ${wait(seconds)}`;
  const limits = (body["violated-policies"] ?? []).join(" and ");
  return limits ? `${limits}: ${count(tokens)} asked, ${again}` : again;
}

function tightest(limits, part) {
  return limits.reduce((least, one) => (!least || part(one) < part(least) ? one : least), null);
}
