// The frame around the pages: which one is shown, for whom, in which namespace.

import { ask, get, hasKey, learn, may, Problem, seat, space, useKey, useNamespace } from "./api.js";
import { field, fill, go, h, say } from "./dom.js";

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
    await mustBeLetIn();
    const page = await import(`./pages/${name}.js`);
    const end = await page.show(box, asked);
    if (mine !== turn) end?.();
    else leave = end ?? null;
  } catch (problem) {
    if (mine === turn) await explain(box, title, problem);
  }
  if (focus && mine === turn) main.focus({ preventScroll: true });
}

// Raises what stands in the way of every page: no key, or a namespace that is not there.
async function mustBeLetIn() {
  if (!seat.about.dev && !seat.about.principal) throw new Problem(401, null);
  // Until its first use the default namespace is nowhere; everybody may use it all the same.
  if (may("read") && seat.namespace !== "default") await get(space());
}

// The page in place of one that cannot be shown.
async function explain(box, title, problem) {
  if (problem.status === 401) return keyPage(box);
  if (problem.status === 404 && seat.namespace !== "default") {
    const missing = await get(space()).then(() => false).catch((found) => found.status === 404);
    if (missing) return namespacePage(box);
  }
  const denied = problem.status === 403;
  return fill(
    box,
    h("h1", {}, title),
    h(
      "div",
      { class: "card warn", role: "alert" },
      h("h2", {}, denied ? "This key may not do that" : "That did not work"),
      h("p", {}, problem.message),
      denied && h("button", { class: "primary", type: "button", onclick: openKey }, "Use another key…"),
    ),
  );
}

function keyPage(box) {
  const text = h("input", {
    type: "password",
    required: true,
    autocomplete: "off",
    spellcheck: "false",
    placeholder: "hg_…",
  });
  fill(
    box,
    h("h1", {}, "This service needs a key"),
    hasKey() &&
      h(
        "p",
        { class: "card warn keypage", role: "alert" },
        "The key was not accepted. It is mistyped, unknown or revoked.",
      ),
    h(
      "form",
      {
        class: "card form keypage",
        "aria-label": "Open with a key",
        onsubmit: (event) => {
          event.preventDefault();
          changeKey(text.value.trim());
        },
      },
      h(
        "p",
        {},
        "Reading needs the scope ",
        h("code", {}, "read"),
        ", trying limits ",
        h("code", {}, "check"),
        ", changing them ",
        h("code", {}, "admin"),
        ". The key stays in this tab and is sent with every request.",
      ),
      field("API key", text),
      h("div", { class: "row" }, h("button", { type: "submit", class: "primary" }, "Open the dashboard")),
      h(
        "small",
        {},
        "No key yet? Whoever runs the service makes one: ",
        h("code", {}, "python -m headgate.service key --keys FILE --scopes check,read,admin"),
      ),
    ),
  );
}

async function namespacePage(box) {
  const known = may("read") && seat.about.namespace === "*" ? (await get("/v1/namespaces")).items : [];
  const name = seat.namespace;
  const create = async () => {
    try {
      await ask("PUT", space());
      await start();
      say(`The namespace ${name} is created.`);
    } catch (problem) {
      say(problem.message, "bad");
    }
  };
  fill(
    box,
    h("h1", {}, "Unknown namespace"),
    h(
      "div",
      { class: "card warn keypage", role: "alert" },
      h("p", {}, "There is no namespace ", h("strong", {}, name), ". It was never created, or it was deleted."),
      h(
        "div",
        { class: "row" },
        known
          .slice(0, 12)
          .map((one) => h("button", { type: "button", onclick: () => moveTo(one.name) }, `Open ${one.name}`)),
        !known.length && h("button", { type: "button", onclick: () => moveTo("default") }, "Open default"),
        may("admin") && h("button", { type: "button", class: "quiet", onclick: create }, `Create ${name}`),
      ),
    ),
  );
}

function sitIn(namespace) {
  useNamespace(namespace);
  document.getElementById("namespace").value = namespace;
}

// To the same page in another namespace, whatever the link that led here names.
function moveTo(namespace) {
  sitIn(namespace);
  const { name, asked } = place();
  asked.delete("namespace");
  go(`#/${name}${asked.size ? `?${asked}` : ""}`);
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
    moveTo(event.target.value.trim() || "default");
  });
  const text = document.getElementById("key-text");
  document.getElementById("key-form").addEventListener("submit", () => {
    changeKey(text.value.trim());
    text.value = "";
  });
  document.getElementById("key-forget").addEventListener("click", () => {
    document.getElementById("key-dialog").close();
    changeKey("");
  });
  addEventListener("hashchange", () => show());
  // The feed was refused after the page was shown: the key was revoked, or the namespace deleted.
  addEventListener("turned-away", ({ detail }) => {
    leave?.();
    leave = null;
    explain(fill(main, h("div", { class: "page" })).firstChild, place().title, detail);
  });
}

async function changeKey(key) {
  useKey(key);
  await start();
  if (!key) say("The key is forgotten.");
  else if (seat.about.principal) say("The key is used in this tab.");
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
