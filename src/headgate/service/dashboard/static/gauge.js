// A level that moves by itself: the service says how much there was when, and how fast it refills.

import { h } from "./dom.js";
import { count, dateIn, pace, scheduleText, wait, whole, windowStart } from "./format.js";

const running = new Set();
const calm = matchMedia("(prefers-reduced-motion: reduce)");
let due = false;

function frame() {
  due = false;
  const now = performance.now();
  for (const one of running) one.draw(now);
  schedule();
}

function schedule() {
  if (due || !running.size) return;
  due = true;
  if (calm.matches) setTimeout(frame, 500);
  else requestAnimationFrame(frame);
}

export class Level {
  constructor() {
    Object.assign(this, { at: performance.now(), start: 0, capacity: 1, perMs: 0, quota: null });
  }

  set(level, capacity, perMs, quota = null) {
    Object.assign(this, { at: performance.now(), start: level, capacity, perMs, quota });
  }

  now(time = performance.now()) {
    const passed = time - this.at;
    const reset = this.quota?.inMs !== undefined && passed >= this.quota.inMs ? this.capacity : 0;
    return Math.min(this.capacity, this.start + passed * this.perMs + reset);
  }
}

// The quota of a limit as a feed or a bucket tells it: its schedule, and in how long it is reset.
export function quotaOf({ resets, reset_in_ms, reset_at }) {
  if (!resets) return null;
  return { resets, inMs: reset_at ? Date.parse(reset_at) - Date.now() : reset_in_ms };
}

// "resets 1 Dec 2026, 00:00 Europe/Berlin, in 11 days"
function resetLine({ resets, inMs }) {
  if (inMs === undefined) return `full; ${scheduleText(resets)}`;
  return `resets ${dateIn(Date.now() + inMs, resets)}, in ${wait(Math.max(0, inMs) / 1000)}`;
}

// How much of the window is left, from 0 to 1; a budget that is used evenly has as much left.
function partLeft({ resets, inMs }) {
  const end = Date.now() + inMs;
  const start = inMs === undefined ? null : windowStart(end, resets);
  return start === null ? null : Math.min(1, Math.max(0, inMs / (end - start)));
}

// One limit as a bar. All of it is the capacity, so that a full bucket fills it; in debt the bar shows
// what is owed instead, from its right end: where the debt is paid both are empty.
export class Gauge {
  constructor(label) {
    this.level = new Level();
    this.fill = h("div", { class: "fill" });
    this.debt = h("div", { class: "debt" });
    this.number = h("span", { class: "number" });
    this.rate = h("span", { class: "rate" });
    this.bar = h(
      "div",
      { class: "bar", role: "meter", "aria-label": label, "aria-valuemin": 0 },
      this.debt,
      this.fill,
    );
    this.reset = h("span", { class: "reset", hidden: true });
    this.even = h("div", { class: "even", hidden: true, title: "what an even use would have left by now" });
    this.bar.append(this.even);
    this.el = h(
      "div",
      { class: "gauge" },
      h("span", { class: "name" }, label),
      this.bar,
      this.number,
      this.rate,
      this.reset,
    );
    running.add(this);
    schedule();
  }

  set(level, capacity, perMs, quota = null) {
    this.level.set(level, capacity, perMs, quota);
    this.rate.textContent = quota ? "" : perMs ? `+${pace(perMs * 1000)}/s` : "no refill";
    this.reset.hidden = !quota;
    const part = quota && partLeft(quota);
    this.even.hidden = part === null;
    if (quota) this.reset.textContent = resetLine(quota);
    if (part !== null) this.even.style.left = `${part * 100}%`;
    this.bar.setAttribute("aria-valuemax", capacity);
    this.bar.setAttribute("aria-valuenow", Math.floor(level));
  }

  draw(now) {
    const level = this.level.now(now);
    const part = level / this.level.capacity;
    this.fill.style.transform = `scaleX(${Math.max(0, part)})`;
    this.debt.style.transform = `scaleX(${Math.min(1, Math.max(0, -part))})`;
    const state = level < 0 ? "owing" : part < 0.02 ? "dry" : part < 0.25 ? "low" : "";
    if (this.state !== state) this.el.className = `gauge ${(this.state = state)}`;
    const text = `${whole(level)} / ${whole(this.level.capacity)}`;
    if (this.text !== text) this.number.textContent = this.text = text;
  }

  end() {
    running.delete(this);
  }
}

// One limit as a tank, for a closer look.
export class Tank {
  constructor() {
    this.level = new Level();
    this.water = h("div", { class: "water" });
    this.number = h("strong", { class: "big" }, "—");
    this.told = h("span", { class: "rate" });
    this.box = h(
      "div",
      { class: "tank", role: "meter", "aria-label": "Tokens in the bucket", "aria-valuemin": 0 },
      this.water,
    );
    this.el = h(
      "div",
      { class: "tankbox" },
      this.box,
      h("div", { class: "tanktext" }, this.number, this.told),
    );
    running.add(this);
    schedule();
  }

  set(level, capacity, perMs, quota = null) {
    this.level.set(level, capacity, perMs, quota);
    this.known = true;
    const refill = perMs ? `+${pace(perMs * 1000)} a second` : "never refills";
    this.told.textContent = `of ${count(capacity)}, ${quota ? resetLine(quota) : refill}`;
    this.box.setAttribute("aria-valuemax", capacity);
    this.box.setAttribute("aria-valuenow", Math.floor(level));
  }

  draw(now) {
    if (!this.known) return;
    const level = this.level.now(now);
    const part = Math.min(1, Math.max(0, level / this.level.capacity));
    this.water.style.transform = `scaleY(${part})`;
    const state = level < 1 ? "dry" : part < 0.25 ? "low" : "";
    if (this.state !== state) this.box.className = `tank ${(this.state = state)}`;
    const text = whole(level);
    if (this.text !== text) this.number.textContent = this.text = text;
  }

  end() {
    running.delete(this);
  }
}
