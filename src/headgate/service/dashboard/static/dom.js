// Elements from values. Text only ever becomes text: nothing here parses markup.

export function h(tag, props = {}, ...children) {
  const el = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) el.addEventListener(name.slice(2), value);
    else if (name === "class") el.className = value;
    else if (name === "value") el.value = value;
    else el.setAttribute(name, value === true ? "" : value);
  }
  el.append(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return el;
}

export function fill(el, ...children) {
  el.replaceChildren(...children.flat(3).filter((one) => one !== null && one !== undefined && one !== false));
  return el;
}

export function title(name, told, ...more) {
  return h(
    "div",
    { class: "head" },
    h("div", {}, h("h1", {}, name), h("p", { class: "lead" }, told)),
    ...more,
  );
}

let fields = 0;

export function field(label, input, note) {
  input.id ||= `field-${++fields}`;
  return h(
    "div",
    { class: "field" },
    h("label", { for: input.id }, label),
    input,
    note && h("small", {}, note),
  );
}

export function wide(el) {
  el.classList.add("wide");
  return el;
}

export function options(names, chosen) {
  return names.map(([value, text]) => h("option", { value, selected: value === chosen }, text));
}

export function table(caption, heads, rows, empty = "Nothing yet.") {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  return h(
    "div",
    { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "hidden" }, caption),
      h(
        "thead",
        {},
        h(
          "tr",
          {},
          heads.map((head) =>
            h("th", { scope: "col", class: head.startsWith("#") ? "num" : null }, head.replace("#", "")),
          ),
        ),
      ),
      h(
        "tbody",
        {},
        rows.map((cells) =>
          h(
            "tr",
            {},
            cells.map((cell, place) => h("td", { class: heads[place].startsWith("#") ? "num" : null }, cell)),
          ),
        ),
      ),
    ),
  );
}

// Asks before something that cannot be undone; true where it was confirmed.
export function confirmAction(question, told, action) {
  const dialog = h(
    "dialog",
    { "aria-labelledby": "confirm-title", id: "confirm" },
    h(
      "form",
      { method: "dialog" },
      h("h2", { id: "confirm-title" }, question),
      told,
      h(
        "div",
        { class: "row end" },
        h("button", { value: "no", class: "quiet" }, "Cancel"),
        h("button", { value: "yes", class: "primary danger" }, action),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((done) => {
    dialog.addEventListener("close", () => {
      dialog.remove();
      done(dialog.returnValue === "yes");
    });
  });
}

let hush;

export function say(text, kind = "") {
  const el = document.getElementById("say");
  el.textContent = text;
  el.className = `toast shown ${kind}`;
  clearTimeout(hush);
  hush = setTimeout(() => {
    el.className = "toast";
  }, 6000);
}

// To a page; also to the one that is shown, which is then shown anew.
export function go(hash) {
  if (location.hash === hash) dispatchEvent(new HashChangeEvent("hashchange"));
  else location.hash = hash;
}
