// The feed as server-sent events, read with fetch: so that a key can go along in a header field.

import { at, headers, query, seat } from "./api.js";

const AGAIN_MS = 1500;

export function watch(onBeat, onState) {
  const stop = new AbortController();
  run(stop.signal, onBeat, onState);
  return () => stop.abort();
}

async function run(signal, onBeat, onState) {
  while (!signal.aborted) {
    try {
      const reply = await fetch(at(`/ui/feed${query({ namespace: seat.namespace })}`), {
        headers: headers(),
        signal,
      });
      if (!reply.ok) {
        onState(
          reply.status === 401 ? "a key with the scope read is needed" : `the feed answered ${reply.status}`,
        );
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
