// The router of the pages, and the colour theme.

import { blocks } from "./blocks.js";
import { clients } from "./clients.js";
import { fleet } from "./fleet.js";
import { lab } from "./lab.js";
import { live } from "./live.js";
import { startFeed } from "./live_feed.js";
import { rules } from "./rules.js";

const PAGES = { live, rules, clients, fleet, blocks, lab };
const THEME_KEY = "tidegate-theme";

let leavePage = () => {};

/// Shows the page of the URL. A page is a function that fills `main` and returns a function that stops its updates.
function show(focus) {
  const [name, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  if (focus && name === "page") return;
  const page = PAGES[name] ?? live;
  leavePage();
  for (const link of document.querySelectorAll("nav a")) {
    const current = PAGES[link.hash.slice(2)] === page;
    if (current) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  const main = document.getElementById("page");
  main.replaceChildren();
  leavePage = page(main, new URLSearchParams(query)) ?? (() => {});
  document.title = `${main.querySelector("h1")?.textContent ?? "Tidegate"} – Tidegate`;
  if (focus) main.focus({ preventScroll: true });
}

const theme = document.getElementById("theme");
function applyTheme() {
  document.documentElement.dataset.theme = theme.value;
}
theme.value = localStorage.getItem(THEME_KEY) ?? "";
theme.addEventListener("change", () => {
  localStorage.setItem(THEME_KEY, theme.value);
  applyTheme();
});
applyTheme();

window.addEventListener("hashchange", () => show(true));
show(false);
startFeed();
