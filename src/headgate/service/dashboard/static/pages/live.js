// What happens now: buckets that drain and refill, decisions as they fall.

import { Chart } from "../chart.js";
import { enc } from "../api.js";
import { fill, h, title } from "../dom.js";
import { watch } from "../feed.js";
import { clock, count } from "../format.js";
import { Gauge } from "../gauge.js";

const SECONDS = 120;
const KINDS = ["admitted", "refused", "degraded"];
const LINES_MAX = 60;
const WORDS = {
  admitted: "admitted",
  refused: "refused",
  degraded: "without store",
  unavailable: "store away",
  adjusted: "adjusted",
  refunded: "refunded",
  shadowed: "on trial",
  credit_lost: "credit lost",
  debit_lost: "debit lost",
};

export function show(box) {
  const live = new Live(box);
  const stop = watch(
    (beat) => live.beat(beat),
    (state) => live.state(state),
  );
  const timer = setInterval(() => live.second(), 1000);
  return () => {
    stop();
    clearInterval(timer);
    live.end();
  };
}

class Live {
  constructor(box) {
    this.cards = new Map();
    this.counts = Object.fromEntries(KINDS.map((kind) => [kind, 0]));
    this.times = Array.from(
      { length: SECONDS },
      (_, place) => Math.floor(Date.now() / 1000) - SECONDS + place,
    );
    this.rates = Object.fromEntries(KINDS.map((kind) => [kind, Array(SECONDS).fill(0)]));
    this.light = h("span", { class: "light" }, "connecting");
    this.tiles = {
      admitted: tile("admitted a second"),
      refused: tile("refused a second"),
      share: tile("refused, last minute"),
      buckets: tile("buckets in view"),
    };
    this.gauges = h("div", { class: "gauges" });
    this.none = h(
      "p",
      { class: "empty" },
      "No bucket is in use. Fire a few requests in the ",
      h("a", { href: "#/playground" }, "playground"),
      ".",
    );
    this.lines = h("ol", { class: "stream", "aria-label": "Decisions, newest first" });
    this.pause = h(
      "button",
      { type: "button", class: "quiet", "aria-pressed": "false", onclick: () => this.hold() },
      "Pause",
    );
    const plot = h("div", {
      class: "plot",
      role: "img",
      "aria-label": "Admitted and refused requests per second, last two minutes",
    });
    fill(
      box,
      title("Live", "The busiest buckets and every decision on them, as they happen.", this.light),
      h(
        "section",
        { class: "tiles", "aria-label": "Numbers" },
        Object.values(this.tiles).map((one) => one.el),
      ),
      h(
        "div",
        { class: "split" },
        h(
          "section",
          { class: "card", "aria-labelledby": "gauges-title" },
          h("h2", { id: "gauges-title" }, "Buckets"),
          this.gauges,
          this.none,
        ),
        h(
          "div",
          { class: "stack" },
          h(
            "section",
            { class: "card", "aria-labelledby": "chart-title" },
            h(
              "div",
              { class: "cardhead" },
              h("h2", { id: "chart-title" }, "Requests per second"),
              h(
                "p",
                { class: "legend" },
                h("i", { class: "dot good" }),
                "admitted",
                h("i", { class: "dot bad" }),
                "refused",
                h("i", { class: "dot warn" }),
                "without store",
              ),
            ),
            plot,
          ),
          h(
            "section",
            { class: "card", "aria-labelledby": "stream-title" },
            h("div", { class: "cardhead" }, h("h2", { id: "stream-title" }, "Decisions"), this.pause),
            this.lines,
          ),
        ),
      ),
    );
    this.chart = new Chart(plot, {
      series: [
        { label: "admitted", colour: "--good" },
        { label: "refused", colour: "--bad" },
        { label: "without store", colour: "--warn" },
      ],
    });
    this.draw();
  }

  state(text) {
    this.light.textContent = text;
    this.light.className = `light ${text === "live" ? "on" : "off"}`;
  }

  hold() {
    this.held = !this.held;
    this.pause.setAttribute("aria-pressed", String(this.held));
    this.pause.textContent = this.held ? "Go on" : "Pause";
  }

  beat(beat) {
    for (const kind of KINDS) this.counts[kind] += beat.counts[kind] ?? 0;
    if (beat.trouble) this.state(`the store gives no answer; breaker ${beat.breaker}`);
    else if (!this.light.classList.contains("on")) this.state("live");
    if (!beat.trouble) this.show(beat.buckets);
    if (!this.held) this.tell(beat);
  }

  // Cards stay where they are while their bucket is in view: what moves is the level.
  show(buckets) {
    const seen = new Set();
    for (const bucket of buckets) {
      const key = `${bucket.entity}\n${bucket.resource}`;
      seen.add(key);
      let card = this.cards.get(key);
      if (!card) {
        card = new Card(bucket);
        this.cards.set(key, card);
        this.gauges.append(card.el);
      }
      card.set(bucket.limits);
    }
    for (const [key, card] of this.cards) {
      if (!seen.has(key)) {
        card.end();
        this.cards.delete(key);
      }
    }
    this.none.hidden = this.cards.size > 0;
    this.tiles.buckets.set(count(this.cards.size));
  }

  tell(beat) {
    const time = clock(Date.now());
    if (this.breaker && this.breaker !== beat.breaker)
      this.lines.prepend(
        h(
          "li",
          { class: beat.breaker === "closed" ? "admitted" : "unavailable" },
          h("time", {}, time),
          h("span", { class: "kind" }, "breaker"),
          h("span", { class: "whom" }, `${this.breaker} → ${beat.breaker}`),
        ),
      );
    this.breaker = beat.breaker;
    const fresh = beat.decisions.map((one) =>
      h(
        "li",
        { class: one.kind },
        h("time", {}, time),
        h("span", { class: "kind" }, WORDS[one.kind] ?? one.kind),
        h("span", { class: "whom" }, one.entity_id || "the breaker", h("em", {}, one.resource)),
        h("span", { class: "times" }, one.times > 1 ? `×${count(one.times)}` : ""),
      ),
    );
    if (beat.left_out)
      fresh.push(
        h(
          "li",
          {},
          h("time", {}, time),
          h("span", { class: "kind" }, "more"),
          h("span", {}, `${count(beat.left_out)} elsewhere`),
        ),
      );
    this.lines.prepend(...fresh.reverse());
    while (this.lines.childElementCount > LINES_MAX) this.lines.lastElementChild.remove();
  }

  second() {
    this.times.push(Math.floor(Date.now() / 1000));
    this.times.shift();
    for (const kind of KINDS) {
      this.rates[kind].push(this.counts[kind]);
      this.rates[kind].shift();
      this.counts[kind] = 0;
    }
    this.draw();
  }

  draw() {
    const { admitted, refused, degraded } = this.rates;
    const sum = (list) => list.slice(-60).reduce((all, one) => all + one, 0);
    this.chart.set([this.times, admitted, refused, degraded]);
    this.tiles.admitted.set(count(admitted.at(-1)));
    this.tiles.refused.set(count(refused.at(-1)));
    const all = sum(admitted) + sum(refused);
    this.tiles.share.set(all ? `${Math.round((100 * sum(refused)) / all)} %` : "—");
  }

  end() {
    this.chart.end();
    for (const card of this.cards.values()) card.end();
  }
}

class Card {
  constructor(bucket) {
    this.gauges = new Map();
    const link = `#/explain?entity=${enc(bucket.entity)}&resource=${enc(bucket.resource)}`;
    this.el = h(
      "article",
      { class: "bucket" },
      h(
        "h3",
        {},
        h("a", { href: link, title: "Why these limits?" }, bucket.entity),
        h("em", {}, bucket.resource),
      ),
    );
  }

  set(limits) {
    for (const limit of limits) {
      let gauge = this.gauges.get(limit.name);
      if (!gauge) {
        gauge = new Gauge(limit.name);
        this.gauges.set(limit.name, gauge);
        this.el.append(gauge.el);
      }
      gauge.set(
        limit.level_milli / 1000,
        limit.capacity_milli / 1000,
        limit.amount_milli / 1000 / limit.period_ms,
      );
    }
  }

  end() {
    for (const gauge of this.gauges.values()) gauge.end();
    this.el.remove();
  }
}

function tile(told) {
  const number = h("strong", {}, "0");
  return {
    el: h("div", { class: "tile" }, number, h("span", {}, told)),
    set: (text) => {
      number.textContent = text;
    },
  };
}
