// Helpers for elements. Data always becomes text, never markup: no function here parses HTML.

const SVG = "http://www.w3.org/2000/svg";

/// Returns an element: `h("a", {href: "#/live", class: "x", onclick: f}, "text", child)`.
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/// Returns an SVG element.
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

/// Returns a table that can be updated. Rows with the same key keep their elements, so an update does not disturb the
/// selection, the focus or a screen reader.
///
/// Columns are `{head, cell, number, once, hideEmpty}`. `cell(row)` returns a text or an element. With `once` it is called
/// only for new rows. A column with `hideEmpty` is hidden while all of its cells are empty.
export function table(caption, columns, key, empty = "nothing yet") {
  const body = h("tbody");
  const known = new Map();
  const heads = columns.map(({ head, number }) => h("th", { scope: "col", class: number ? "number" : null }, head));
  const element = h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", {}, h("caption", {}, caption), h("thead", {}, h("tr", {}, heads)), body));
  const placeholder = h("tr", {}, h("td", { colspan: columns.length, class: "quiet" }, empty));
  function newRow() {
    const cells = columns.map(({ number }, index) => index === 0
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
      if (isNew) known.set(name, newRow());
      const line = known.get(name);
      columns.forEach(({ cell, once }, index) => {
        if (once && !isNew) return;
        setContent(line.children[index], cell(row));
      });
      const next = before ? before.nextSibling : body.firstChild;
      if (next !== line) body.insertBefore(line, next);
      before = line;
    }
    for (const [name, line] of known) {
      if (!seen.has(name)) { line.remove(); known.delete(name); }
    }
    columns.forEach(({ hideEmpty }, index) => {
      if (!hideEmpty) return;
      const cells = [...known.values()].map((line) => line.children[index]);
      const isEmpty = cells.every((cell) => cell.textContent === "");
      for (const cell of [heads[index], ...cells]) cell.hidden = isEmpty;
    });
    if (seen.size === 0) body.append(placeholder); else placeholder.remove();
  }
  show([]);
  return { element, show };
}

/// Replaces the content of an element by a text or an element. An equal text is left unchanged.
export function setContent(element, content) {
  if (content instanceof Node) element.replaceChildren(content);
  else if (element.textContent !== String(content ?? "")) element.textContent = String(content ?? "");
}

/// Time in milliseconds that a notice is shown.
const NOTICE_MILLIS = 8000;

/// Shows a notice. Screen readers read it, because it is a live region.
export function notify(text, kind = "") {
  const notice = document.getElementById("notice");
  notice.className = kind;
  notice.textContent = text;
  clearTimeout(notify.timer);
  notify.timer = setTimeout(() => { notice.textContent = ""; notice.className = ""; }, NOTICE_MILLIS);
}

/// Returns an input with its label.
export function field(name, input, hint) {
  return h("label", { class: "field" }, h("span", {}, name), input, hint ? h("small", {}, hint) : null);
}

/// Returns the heading of a column of buttons, for screen readers only.
export function actionsHeading() {
  return h("span", { class: "visually-hidden" }, "actions");
}
