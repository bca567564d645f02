// The frame around the pages: which one is shown, for whom, in which namespace.

import { get, learn, may, seat, useKey, useNamespace } from "./api.js";
import { fill, h, say } from "./dom.js";

const PAGES = [
  ["live", "Live"],
  ["playground", "Playground"],
  ["explain", "Explain"],
  ["entities", "Entities"],
  ["limits", "Limits"],
  ["usage", "Usage"],
  ["audit", "Audit"],
  ["health", "Health"],
  ["shards", "Shards"],
];
const main = document.getElementById("main");
let leave = null;
let turn = 0;

function place() {
  const [path, search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const known = PAGES.find(([name]) => name === path) ?? PAGES[0];
  return { name: known[0], title: known[1], asked: new URLSearchParams(search) };
}

async function show({ focus = true } = {}) {
  const { name, title, asked } = place();
  const mine = ++turn;
  if (asked.get("namespace")) sitIn(asked.get("namespace"));
  leave?.();
  leave = null;
  document.title = `${title} · headgate`;
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.page === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.querySelector("#nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  const box = h("div", { class: "page" });
  fill(main, box);
  try {
    const page = await import(`./pages/${name}.js`);
    const end = await page.show(box, asked);
    if (mine !== turn) end?.();
    else leave = end ?? null;
  } catch (problem) {
    if (mine === turn) fill(box, h("h1", {}, title), trouble(problem));
  }
  if (focus && mine === turn) main.focus({ preventScroll: true });
}

function trouble(problem) {
  const ask = problem.status === 401 || problem.status === 403;
  return h(
    "div",
    { class: "card warn", role: "alert" },
    h("h2", {}, ask ? "This needs a key" : "That did not work"),
    h("p", {}, problem.message),
    ask && h("button", { class: "primary", type: "button", onclick: openKey }, "Use a key…"),
  );
}

function sitIn(namespace) {
  useNamespace(namespace);
  document.getElementById("namespace").value = namespace;
}

function openKey() {
  document.getElementById("key-dialog").showModal();
}

async function sit() {
  const about = await learn();
  document.getElementById("namespace").value = seat.namespace;
  document.getElementById("who").textContent = about.dev
    ? "Dev mode: no keys, this machine only"
    : about.principal
      ? `${about.principal}: ${about.scopes.join(", ")}`
      : "No key yet";
  document.getElementById("key-open").hidden = about.dev;
  document.body.classList.toggle("may-change", may("admin"));
  if (may("read") && about.namespace === "*") {
    const found = await get("/v1/namespaces").catch(() => ({ items: [] }));
    fill(
      document.getElementById("namespaces"),
      found.items.map((one) => h("option", { value: one.name })),
    );
  }
}

function furnish() {
  fill(
    document.getElementById("nav"),
    h(
      "ul",
      {},
      PAGES.map(([name, title]) => h("li", {}, h("a", { href: `#/${name}`, "data-page": name }, title))),
    ),
  );
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  document.getElementById("key-open").addEventListener("click", openKey);
  document.getElementById("namespace").addEventListener("change", (event) => {
    sitIn(event.target.value.trim() || "default");
    show({ focus: false });
  });
  const text = document.getElementById("key-text");
  const change = async (key) => {
    useKey(key);
    text.value = "";
    await start();
    say(key ? "The key is used in this tab." : "The key is forgotten.");
  };
  document.getElementById("key-form").addEventListener("submit", () => change(text.value.trim()));
  document.getElementById("key-forget").addEventListener("click", () => {
    document.getElementById("key-dialog").close();
    change("");
  });
  addEventListener("hashchange", () => show());
}

async function start() {
  try {
    await sit();
  } catch (problem) {
    say(problem.message, "bad");
  }
  await show({ focus: false });
}

furnish();
start();
