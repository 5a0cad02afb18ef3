// Elements. What comes from elsewhere becomes text, never markup: there is no way here to do otherwise.

const SVG = "http://www.w3.org/2000/svg";

/// An element: `h("a", {href: "#/live", class: "x", onclick: f}, "text", child)`.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/// The same in a picture.
export function s(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") element[name] = value;
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/// A table that is filled again and again. Rows stay where they are as long as their key does, so that
/// who reads, selects or tabs through it is not thrown out.
///
/// Columns are `{head, cell, number, once, rare}`: `cell(row)` is a text or an element; with `once` it is asked for only
/// when the row is new, and what is `rare` is not shown while nobody has it.
export function table(caption, columns, key, empty = "nothing yet") {
  const body = h("tbody");
  const known = new Map();
  const heads = columns.map(({ head, number }) => h("th", { scope: "col", class: number ? "number" : null }, head));
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
  const nothing = h("tr", {}, h("td", { colspan: columns.length, class: "quiet" }, empty));
  function fresh() {
    const cells = columns.map(({ number }, place) => place === 0
      ? h("th", { scope: "row" }) : h("td", { class: number ? "number" : null }));
    return h("tr", {}, cells);
  }
  function show(rows) {
    const seen = new Set();
    let before = null;
    for (const row of rows) {
      const name = String(key(row));
      if (seen.has(name)) continue;
      seen.add(name);
      const isNew = !known.has(name);
      if (isNew) known.set(name, fresh());
      const line = known.get(name);
      columns.forEach(({ cell, once }, place) => {
        if (once && !isNew) return;
        put(line.children[place], cell(row));
      });
      const next = before ? before.nextSibling : body.firstChild;
      if (next !== line) body.insertBefore(line, next);
      before = line;
    }
    for (const [name, line] of known) {
      if (!seen.has(name)) { line.remove(); known.delete(name); }
    }
    columns.forEach(({ rare }, place) => {
      if (!rare) return;
      const cells = [...known.values()].map((line) => line.children[place]);
      const nobody = cells.every((cell) => cell.textContent === "");
      for (const cell of [heads[place], ...cells]) cell.hidden = nobody;
    });
    if (seen.size === 0) body.append(nothing); else nothing.remove();
  }
  show([]);
  return { element, show };
}

/// Puts a text or an element where another may be.
export function put(where, what) {
  if (what instanceof Node) where.replaceChildren(what);
  else if (where.textContent !== String(what ?? "")) where.textContent = String(what ?? "");
}

/// Says something to everybody, also to those who do not see the page.
export function tell(text, kind = "") {
  const told = document.getElementById("told");
  told.className = kind;
  told.textContent = text;
  clearTimeout(tell.timer);
  tell.timer = setTimeout(() => { told.textContent = ""; told.className = ""; }, 8000);
}

/// A field with its name before it.
export function field(name, input, hint) {
  return h("label", { class: "field" }, h("span", {}, name), input, hint ? h("small", {}, hint) : null);
}

/// The head of a column of buttons, for those who do not see that it is one.
export function actions() {
  return h("span", { class: "unseen" }, "actions");
}
