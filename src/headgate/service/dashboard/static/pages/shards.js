// How buckets are spread in the store: asked of the store, where it divides them.

import { get, query, seat } from "../api.js";
import { fill, h, say, title } from "../dom.js";
import { count } from "../format.js";
import { Gauge, quotaOf } from "../gauge.js";

const SHARED = {
  process: "this process alone",
  host: "the processes of this machine",
  network: "every process that reaches the store",
};

export async function show(box) {
  const gauges = [];
  const out = h("div", { class: "stack" });
  const look = async () => {
    const found = await get(`/ui/shards${query({ namespace: seat.namespace })}`);
    gauges.splice(0).forEach((gauge) => gauge.end());
    fill(out, shown(found, gauges));
  };
  const again = h(
    "button",
    { type: "button", onclick: () => look().catch((problem) => say(problem.message, "bad")) },
    "Look again",
  );
  fill(box, title("Shards", "How buckets are spread in the store.", again), store(), out);
  await look();
  return () => gauges.forEach((gauge) => gauge.end());
}

function store() {
  const found = seat.about.store;
  if (!found) return null;
  const facts = [
    ["Store", found.name],
    ["Seen by", SHARED[found.shared] ?? found.shared],
    ["Outlives a restart", found.durable ? "yes" : "no"],
    ["Workers here", String(seat.about.workers)],
  ];
  return h(
    "section",
    { class: "card", "aria-label": "Store" },
    h(
      "dl",
      { class: "facts" },
      facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]),
    ),
  );
}

function shown(found, gauges) {
  if (!found.sharding)
    return h(
      "p",
      { class: "card", id: "no-shards" },
      "This store does not shard: each bucket is one record, and the store bears the writes on it. Only DynamoDB, which bounds the writes to one record, divides busy buckets.",
    );
  const divided = found.buckets.filter((one) => one.shards.length > 1).length;
  return [
    h(
      "p",
      { class: "dim", id: "shards-sum" },
      `${count(found.buckets.length)} buckets looked at${found.whole ? "" : ", there are more"}; ${divided ? count(divided) : "none"} divided. A bucket that nears a thousand writes a second is split, each shard with its share of the tokens; shards that have gone quiet are merged again.`,
    ),
    found.buckets.map((one) => bucket(one, gauges)),
  ];
}

function bucket({ entity, resource, shards }, gauges) {
  return h(
    "section",
    { class: "card", "aria-label": `${entity} on ${resource}` },
    h(
      "div",
      { class: "cardhead" },
      h("h2", {}, entity, " ", h("em", {}, resource)),
      h(
        "span",
        { class: `badge ${shards.length > 1 ? "good" : ""}` },
        shards.length > 1 ? `${shards.length} shards` : "in one piece",
      ),
    ),
    h(
      "div",
      { class: "gauges" },
      shards.map((one) => shard(one, shards.length > 1, gauges)),
    ),
  );
}

function shard(one, divided, gauges) {
  const rows = one.limits.map((limit) => {
    const gauge = new Gauge(limit.name);
    gauge.set(
      limit.level_milli / 1000,
      limit.capacity_milli / 1000,
      limit.amount_milli / 1000 / limit.period_ms,
      quotaOf(limit),
    );
    gauges.push(gauge);
    return gauge.el;
  });
  const pace = one.written_per_s ? `${count(one.written_per_s)} writes/s` : "";
  return h(
    "article",
    { class: "bucket", "data-shard": one.number },
    divided &&
      h(
        "h3",
        {},
        h("span", {}, `Shard ${one.number}`),
        h("em", {}, `depth ${one.depth}, 1/${one.parts} of it${pace && `, ${pace}`}`),
      ),
    rows,
  );
}
