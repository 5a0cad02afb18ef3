// What differs between two texts, line by line.

import { h } from "./dom.js";

/// Longer texts are not compared line by line: it would take a while, and nobody reads it.
const MOST = 3000;
/// So many lines around a change are shown.
const AROUND = 2;

/// `[mark, line]` in order, where the mark is "+", "-" or " "; null for texts that are too long.
export function lines(before, after) {
  const from = before.split("\n");
  const to = after.split("\n");
  if (from.length > MOST || to.length > MOST) return null;
  let head = 0;
  while (head < from.length && head < to.length && from[head] === to[head]) head += 1;
  let tail = 0;
  while (tail < from.length - head && tail < to.length - head && from.at(-1 - tail) === to.at(-1 - tail)) tail += 1;
  const [a, b] = [from.slice(head, from.length - tail), to.slice(head, to.length - tail)];
  // The longest lines in common, from the end to the start.
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
    }
  }
  const found = from.slice(0, head).map((line) => [" ", line]);
  let [i, j] = [0, 0];
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) { found.push([" ", a[i]]); i += 1; j += 1; }
    else if (i < a.length && (j === b.length || common[i + 1][j] >= common[i][j + 1])) { found.push(["-", a[i]]); i += 1; }
    else { found.push(["+", b[j]]); j += 1; }
  }
  return found.concat(from.slice(from.length - tail).map((line) => [" ", line]));
}

/// The changes with a few lines around them; nothing where nothing differs.
export function shown(before, after) {
  const all = lines(before, after);
  if (all === null) return h("p", { class: "quiet" }, "too long to be compared line by line");
  const near = (place) => all.slice(Math.max(place - AROUND, 0), place + AROUND + 1).some(([mark]) => mark !== " ");
  const kinds = { "+": "more", "-": "less", " ": "same" };
  const rows = [];
  let skipped = false;
  all.forEach(([mark, line], place) => {
    if (near(place)) {
      if (skipped) rows.push(h("span", { class: "cut" }, "⋯"));
      rows.push(h("span", { class: kinds[mark] }, `${mark} ${line}`));
      skipped = false;
    } else skipped = rows.length > 0;
  });
  return rows.length ? h("pre", { class: "diff", tabindex: "0", "aria-label": "What differs, line by line" }, rows) : null;
}
