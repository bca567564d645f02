// What happens now: buckets that drain and refill, decisions as they fall.

import { Chart } from "../chart.js";
import { enc, Problem, seat } from "../api.js";
import { fill, h, title } from "../dom.js";
import { watch } from "../feed.js";
import { clock, count, refusalText } from "../format.js";
import { Gauge, quotaOf } from "../gauge.js";

const SECONDS = 120;
const KINDS = ["admitted", "refused", "degraded"];
const LINES_MAX = 60;
const WORDS = {
  admitted: "admitted",
  refused: "refused",
  degraded: "degraded",
  unavailable: "unavailable",
  adjusted: "adjusted",
  refunded: "refunded",
  shadowed: "shadow mode",
  credit_lost: "credit lost",
  debit_lost: "debit lost",
};

// What the store's trouble means for whoever looks at this page.
const TROUBLE = {
  store_denied: "The store refuses the service; its log names the missing right",
  store_throttled: "The store throttles the service",
  store_full: "The store is full",
  store_busy: "The store is too busy to be read",
  record_damaged: "A bucket's record in the store is damaged",
};

const turnAway = (problem) => dispatchEvent(new CustomEvent("turned-away", { detail: problem }));

export function show(box) {
  const live = new Live(box);
  const stop = watch(
    (beat) => live.beat(beat),
    (state) => live.state(state),
    turnAway,
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
    this.now = Math.floor(Date.now() / 1000); // the second that is being counted
    this.times = Array.from({ length: SECONDS }, (_, place) => this.now - SECONDS + place);
    // null: nobody watched then, which is not the same as nothing happened.
    this.rates = Object.fromEntries(KINDS.map((kind) => [kind, Array(SECONDS).fill(null)]));
    this.watching = false;
    this.partly = true; // not all of the current second was watched
    this.light = h("span", { class: "light" }, "connecting");
    this.tiles = {
      admitted: tile("admitted a second"),
      refused: tile("refused a second"),
      share: tile("refused, last minute"),
      buckets: tile("buckets in view"),
    };
    this.gauges = h("div", { class: "gauges" });
    this.outage = h("div", { class: "notice", role: "status", id: "outage", hidden: true });
    this.none = h(
      "p",
      { class: "empty", hidden: true },
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
      title("Live", `The busiest buckets and every decision on them, as they happen.${ofWorkers()}`, this.light),
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
          this.outage,
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
                "degraded",
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
        { label: "degraded", colour: "--warn" },
      ],
    });
    this.draw();
  }

  state(text) {
    this.advance();
    this.watching = text === "live";
    this.partly = true;
    this.shine(text);
  }

  shine(text) {
    this.light.textContent = text;
    this.light.className = `light ${text === "live" ? "on" : "off"}`;
  }

  hold() {
    this.held = !this.held;
    this.pause.setAttribute("aria-pressed", String(this.held));
    this.pause.textContent = this.held ? "Go on" : "Pause";
  }

  beat(beat) {
    if (beat.trouble === "no_such_namespace") return turnAway(new Problem(404, null));
    this.advance();
    for (const kind of KINDS) this.counts[kind] += beat.counts[kind] ?? 0;
    this.shine(beat.trouble === null ? "live" : "no store");
    this.show(beat);
    this.tellOutage(beat);
    if (!this.held) this.tell(beat);
    return undefined;
  }

  // Cards stay where they are while their bucket is in view: what moves is the level.
  show({ buckets, trouble }) {
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
    this.none.hidden = this.cards.size > 0 || trouble !== null;
    this.tiles.buckets.set(trouble === null ? count(this.cards.size) : "—");
  }

  tellOutage({ trouble, outage, breaker }) {
    this.outage.hidden = trouble === null;
    if (trouble === null) return;
    const n = outage.degraded_admitted;
    const since = outage.since_ms === null ? "since the service started" : `since ${clock(outage.since_ms)}`;
    const told = `${count(n)} degraded admission${n === 1 ? "" : "s"}`;
    const text = `${TROUBLE[trouble] ?? "Store unreachable"}: ${told} ${since}`;
    const more = `Breaker: ${breaker}. Levels are shown again once the store answers.`;
    if (this.outage.textContent !== text + more) fill(this.outage, h("h3", {}, text), h("p", {}, more));
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
        one.refusal && h("span", { class: "why" }, refusalText(one.refusal, one.entity_id)),
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

  // Ends the seconds that have passed. A tab in the background is told of time late, so several may.
  advance() {
    const now = Math.floor(Date.now() / 1000);
    for (; this.now < now; this.now++) {
      this.times.push(this.now);
      this.times.shift();
      const seen = this.watching && !this.partly;
      for (const kind of KINDS) {
        this.rates[kind].push(seen ? this.counts[kind] : null);
        this.rates[kind].shift();
        this.counts[kind] = 0;
      }
      this.partly = !this.watching;
      if (now - this.now > SECONDS) this.now = now - SECONDS;
    }
  }

  second() {
    this.advance();
    this.draw();
  }

  draw() {
    const { admitted, refused, degraded } = this.rates;
    const sum = (list) => list.slice(-60).reduce((all, one) => all + one, 0);
    const last = (list) => (list.at(-1) === null ? "—" : count(list.at(-1)));
    this.chart.set([this.times, admitted, refused, degraded]);
    this.tiles.admitted.set(last(admitted));
    this.tiles.refused.set(last(refused));
    const all = sum(admitted) + sum(refused) + sum(degraded);
    const watched = admitted.slice(-60).filter((one) => one !== null).length;
    this.tiles.share.set(
      all ? `${Math.round((100 * sum(refused)) / all)} %` : "—",
      watched && watched < 60 ? `refused, last ${watched} s` : "refused, last minute",
    );
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
        quotaOf(limit),
      );
    }
  }

  end() {
    for (const gauge of this.gauges.values()) gauge.end();
    this.el.remove();
  }
}

function tile(told) {
  const number = h("strong", {}, "—");
  const label = h("span", {}, told);
  return {
    el: h("div", { class: "tile" }, number, label),
    set: (text, relabel = told) => {
      number.textContent = text;
      label.textContent = relabel;
    },
  };
}

const ofWorkers = () =>
  seat.about.workers > 1
    ? ` Decisions are those of one of the service's ${seat.about.workers} workers; buckets are everybody's.`
    : "";
