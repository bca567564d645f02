// "Would it pass?" without taking anything.

import { ask, get, howMuch, may, seat } from "./api.js";
import { field, h, wide } from "./dom.js";
import { count, wait } from "./format.js";

// `who` tells scope, identifier and resource when it is asked.
export function whatIf(who, ...more) {
  const tokens = h("input", { type: "number", min: 1, max: 9007199254740991, value: "1", required: true });
  const out = h("p", { class: "verdict", role: "status", id: "what-if", hidden: true });
  const tell = ([text, kind]) => {
    out.hidden = false;
    out.textContent = text;
    out.className = `verdict ${kind}`;
  };
  const form = h(
    "form",
    {
      class: "form",
      onsubmit: async (event) => {
        event.preventDefault();
        try {
          const asked = Number(tokens.value);
          const whom = { ...who(), namespace: seat.namespace };
          const { limits } = await get(`/v1/explain?${new URLSearchParams(whom)}`);
          const request = { ...whom, ...howMuch(asked, limits) };
          tell(told(await ask("POST", "/v1/ratelimit/peek", request, [429, 503]), asked));
        } catch (problem) {
          tell([problem.message, "bad"]);
        }
      },
    },
    h(
      "div",
      { class: "fields" },
      more,
      wide(field("What if it asked for this many tokens now?", tokens)),
      h(
        "div",
        { class: "field act" },
        h("button", { type: "submit", disabled: !may("check") }, "Would it pass?"),
      ),
    ),
    out,
  );
  return form;
}

function told({ status, body }, tokens) {
  if (status === 200)
    return [
      `It would be admitted: there are ${body.tokens_remaining ?? "no limits, and any number of"} tokens.`,
      "good",
    ];
  if (status === 503) return ["The store gives no answer.", "bad"];
  const again = body.retry_after_seconds === null ? "no wait will help" : `there is room in ${wait(body.retry_after_seconds)}`;
  const limits = (body["violated-policies"] ?? []).join(" and ");
  return [`It would be refused${limits && ` by ${limits}`}: ${count(tokens)} asked, ${again}.`, "bad"];
}
