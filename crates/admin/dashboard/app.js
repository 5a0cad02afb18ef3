// Which page is shown, and in which colours.

import { blocks } from "./blocks.js";
import { clients } from "./clients.js";
import { fleet } from "./fleet.js";
import { lab } from "./lab.js";
import { live } from "./live.js";
import { start } from "./pulse.js";
import { rules } from "./rules.js";

const PAGES = { live, rules, clients, fleet, blocks, lab };
const THEME = "tidegate-theme";

let leave = () => {};

/// A page is a function that fills `main` and answers how to leave it.
function show(focus) {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  if (focus && name === "page") return;
  const page = PAGES[name] ?? live;
  leave();
  for (const link of document.querySelectorAll("nav a")) {
    const current = PAGES[link.hash.slice(2)] === page;
    if (current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const main = document.getElementById("page");
  main.replaceChildren();
  leave = page(main, new URLSearchParams(query)) ?? (() => {});
  document.title = `${main.querySelector("h1")?.textContent ?? "Tidegate"} – Tidegate`;
  if (focus) main.focus({ preventScroll: true });
}

const theme = document.getElementById("theme");
function paint() {
  document.documentElement.dataset.theme = theme.value;
}
theme.value = localStorage.getItem(THEME) ?? "";
theme.addEventListener("change", () => {
  localStorage.setItem(THEME, theme.value);
  paint();
});
paint();

window.addEventListener("hashchange", () => show(true));
show(false);
start();
