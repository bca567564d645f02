// The feed as server-sent events, read with fetch: so that a key can go along in a header field.

import { at, headers, Problem, query, seat } from "./api.js";

const AGAIN_MS = 1500;

// `onDenied` gets the problem where asking again is of no use: no key, not this key, no such namespace.
export function watch(onBeat, onState, onDenied = () => {}) {
  const stop = new AbortController();
  run(stop.signal, onBeat, onState, onDenied);
  return () => stop.abort();
}

const DENIED = [400, 401, 403, 404];

async function run(signal, onBeat, onState, onDenied) {
  while (!signal.aborted) {
    try {
      const reply = await fetch(at(`/ui/feed${query({ namespace: seat.namespace })}`), {
        headers: headers(),
        signal,
      });
      if (DENIED.includes(reply.status)) {
        onState("not watching");
        onDenied(new Problem(reply.status, await reply.json().catch(() => null)));
        return;
      }
      if (!reply.ok) {
        onState(`the feed answered ${reply.status}`);
      } else {
        onState("live");
        await read(reply.body.getReader(), onBeat);
        onState("connecting again");
      }
    } catch {
      if (!signal.aborted) onState("the service cannot be reached");
    }
    if (!signal.aborted) await new Promise((done) => setTimeout(done, AGAIN_MS));
  }
}

async function read(reader, onBeat) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const blocks = (rest + decoder.decode(value, { stream: true })).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").find((line) => line.startsWith("data: "));
      if (data) onBeat(JSON.parse(data.slice(6)));
    }
  }
}
