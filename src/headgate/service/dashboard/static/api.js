// The REST API and who is asking it. The key lives in this tab alone.

const KEY = "headgate.key";
const SPACE = "headgate.namespace";

export const seat = {
  about: { dev: false, scopes: [] },
  namespace: sessionStorage.getItem(SPACE) || "default",
};
export const may = (scope) => seat.about.scopes.includes(scope);
export const space = () => `/v1/namespaces/${encodeURIComponent(seat.namespace)}`;
export const enc = encodeURIComponent;

export function useKey(text) {
  if (text) sessionStorage.setItem(KEY, text);
  else sessionStorage.removeItem(KEY);
}

export function useNamespace(name) {
  seat.namespace = name;
  sessionStorage.setItem(SPACE, name);
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function headers(more = {}) {
  const key = sessionStorage.getItem(KEY);
  return key ? { authorization: `Bearer ${key}`, ...more } : more;
}

export class Problem extends Error {
  constructor(status, body) {
    const field = body?.field ? `${body.field} ` : "";
    super(body?.detail ? field + body.detail : `The service answered ${status}.`);
    this.status = status;
    this.code = body?.code ?? body?.error?.code ?? "";
  }
}

// Root-relative paths would miss a service behind a path; everything is taken from where the page is.
export const at = (path) =>
  new URL(path.startsWith("/ui/") ? path.slice(4) : `..${path}`, document.baseURI).href;

export async function ask(method, path, body, accept = []) {
  const init = { method, headers: headers(body === undefined ? {} : { "content-type": "application/json" }) };
  if (body !== undefined) init.body = JSON.stringify(body);
  let reply;
  try {
    reply = await fetch(at(path), init);
  } catch {
    throw new Problem(0, { detail: "The service cannot be reached." });
  }
  const text = await reply.text();
  let found = null;
  try {
    found = text ? JSON.parse(text) : null;
  } catch {
    found = text;
  }
  if (!reply.ok && !accept.includes(reply.status)) throw new Problem(reply.status, found);
  return { status: reply.status, body: found, headers: reply.headers };
}

export const get = async (path) => (await ask("GET", path)).body;

export async function getOr(path, otherwise) {
  try {
    return await get(path);
  } catch (problem) {
    if (problem.status === 404) return otherwise;
    throw problem;
  }
}

export async function learn() {
  seat.about = await get("/ui/about");
  if (seat.about.namespace && seat.about.namespace !== "*" && seat.namespace !== seat.about.namespace)
    useNamespace(seat.about.namespace);
  return seat.about;
}

export function query(values) {
  const given = Object.entries(values).filter(
    ([, value]) => value !== "" && value !== null && value !== undefined,
  );
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

// How much a request asks: tokens where there is one limit, as many of each where there are several.
export function howMuch(tokens, limits) {
  if (limits.length < 2) return { tokens };
  return { amounts: Object.fromEntries(limits.map((one) => [one.limit.name, tokens])) };
}
