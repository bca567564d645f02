// How buckets are spread in the store.

import { seat } from "../api.js";
import { fill, h, title } from "../dom.js";

const SHARED = {
  process: "this process alone",
  host: "the processes of this machine",
  network: "every process that reaches the store",
};

export function show(box) {
  const store = seat.about.store;
  fill(
    box,
    title("Shards", "How buckets are spread in the store."),
    store
      ? h(
          "section",
          { class: "card" },
          h("h2", {}, `Store: ${store.name}`),
          h(
            "dl",
            { class: "facts" },
            h("dt", {}, "Seen by"),
            h("dd", {}, SHARED[store.shared] ?? store.shared),
            h("dt", {}, "Outlives a restart"),
            h("dd", {}, store.durable ? "yes" : "no"),
            h("dt", {}, "Workers here"),
            h("dd", {}, String(seat.about.workers)),
          ),
          h(
            "p",
            {},
            store.name === "dynamodb"
              ? "A bucket that nears a thousand writes a second is split into shards, each with its share of the tokens; shards that have gone quiet are merged again. Gauges show a bucket's shards added up."
              : "This store keeps each bucket in one record, so there are no shards. Only DynamoDB, which bounds the writes on one record, splits busy buckets.",
          ),
        )
      : h("p", { class: "card warn" }, "This needs a key."),
  );
}
