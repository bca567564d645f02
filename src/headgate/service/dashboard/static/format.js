// Numbers and times for people.

const plain = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

// Levels are rounded down: what is not there yet is not shown.
export const whole = (n) =>
  (Math.abs(n) >= 10000 ? short.format(Math.floor(n / 100) * 100) : plain.format(Math.floor(n))).replace(
    "-",
    "−",
  );
export const pace = (n) =>
  n >= 1000 ? short.format(n) : n && n < 0.1 ? n.toPrecision(1) : plain.format(Math.round(n * 10) / 10);
export const count = (n) =>
  (Math.abs(n) >= 100000 ? short.format(n) : plain.format(Math.round(n * 10) / 10)).replace("-", "−");

export const exact = (n) => plain.format(n);

const UNITS = [
  [86400, "day"],
  [3600, "hour"],
  [60, "minute"],
  [1, "second"],
];

export function period(seconds) {
  const [size, word] = UNITS.find(([size]) => seconds >= size && seconds % size === 0) ?? [1, "second"];
  const n = seconds / size;
  return n === 1 ? word : `${count(n)} ${word}s`;
}

// What resets a quota: "per calendar month, Europe/Berlin".
export function scheduleText({ every, cron, reset_after, tz }) {
  if (every) return `per calendar ${every}, ${tz}`;
  return cron ? `per window of cron ${cron}, ${tz}` : `in ${period(reset_after)} from the first use`;
}

// A moment as the clocks of a quota's zone show it: "1 Dec 2026, 00:00 Europe/Berlin".
export function dateIn(ms, { tz = "UTC" }) {
  const shape = { dateStyle: "medium", timeStyle: "short", hourCycle: "h23" };
  try {
    return `${new Intl.DateTimeFormat("en-GB", { ...shape, timeZone: tz }).format(ms)} ${tz}`;
  } catch {
    return dateIn(ms, {}); // a zone that this browser does not know
  }
}

// When the window began that ends with a reset; null where only the service knows.
export function windowStart(endMs, { every, reset_after }) {
  if (reset_after) return endMs - reset_after * 1000;
  const start = new Date(endMs);
  if (every === "month") start.setUTCMonth(start.getUTCMonth() - 1);
  else if (every === "year") start.setUTCFullYear(start.getUTCFullYear() - 1);
  else if (every) start.setUTCDate(start.getUTCDate() - (every === "week" ? 7 : 1));
  return every ? start.getTime() : null;
}

// The next reset of a limit that is explained, where the calendar tells it.
export const resetText = (given) =>
  given.reset_at ? `; next reset ${dateIn(Date.parse(given.reset_at), given.limit)}` : "";

export function limitText(limit) {
  if (!("refill_amount" in limit)) return `${count(limit.capacity)} ${scheduleText(limit)}`;
  const refill = limit.refill_amount
    ? `refills ${count(limit.refill_amount)} per ${period(limit.refill_period_seconds)}`
    : "never refills";
  return `capacity ${count(limit.capacity)}, ${refill}`;
}

export function wait(seconds) {
  if (seconds === null || seconds === undefined) return "never";
  if (seconds < 1) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 120) return `${seconds.toFixed(1)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86400)} days`;
}

// Where a limit comes from; what no level stores is a policy's.
export const sourceText = (given) => (given.level === "limiter" ? `${given.source}, not stored` : given.source);

// What a refusal lacked: the limit, what was asked of it, what it had, and when it has enough.
export function refusalText({ entity_id, limit_name, requested, available, capacity, retry_after_ms }, entity) {
  const whose = entity_id === entity ? "" : ` of ${entity_id}`;
  const again = retry_after_ms === null ? "no wait will help" : `again in ${wait(retry_after_ms / 1000)}`;
  return `${limit_name}${whose}: ${count(requested)} asked, ${count(available)} of ${count(capacity)} left, ${again}`;
}

export const clock = (ms) => new Date(ms).toTimeString().slice(0, 8);
export const moment = (text) => (text ? text.replace("T", " ").replace(/(\.\d+)?(Z|\+00:00)$/, " UTC") : "—");

// "user:ann@2esmith" was made of a scope and an identifier; the bytes after @ are its own.
export function identityOf(id) {
  const at = id.indexOf(":");
  if (at < 1) return null;
  const written = id.slice(at + 1);
  if (written.startsWith("@@") || written === "@shared") return null;
  try {
    const text = decodeURIComponent(written.replace(/%/g, "%25").replace(/@([0-9a-f]{2})/g, "%$1"));
    return { scope: id.slice(0, at), identifier: text };
  } catch {
    return null;
  }
}
