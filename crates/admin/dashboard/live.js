// The page "Live": checks, latency and denials of the last minutes.

import { get } from "./api.js";
import { timeChart } from "./chart.js";
import { h, setContent, table } from "./dom.js";
import { clientName, count, micros, rate } from "./format.js";
import { subscribe } from "./live_feed.js";

/// Seconds that the numbers of the tiles are averaged over, so that they do not flicker.
const MEAN_SECONDS = 5;

export function live(main) {
  const tile = (name, kind, longName = name) => {
    const value = h("strong", { class: kind }, "–");
    return { value, element: h("div", { class: "tile", role: "group", "aria-label": longName }, h("span", {}, name), value) };
  };
  const tiles = {
    allowed: tile("allowed/s", "allowed", "allowed per second"),
    denied: tile("denied/s", "denied", "denied per second"),
    failedOpen: tile("failed open/s", "failed", "failed open per second"),
    p50: tile("p50"),
    p99: tile("p99"),
    blocked: tile("block list entries"),
  };
  const decisions = timeChart("Checks per second", [
    { name: "allowed", kind: "allowed", of: (second) => second.allowed, area: true },
    { name: "denied", kind: "denied", of: (second) => second.denied + second.blocked, area: true },
    { name: "failed open", kind: "failed", of: (second) => second.failedOpen },
    { name: "unavailable", kind: "unavailable", of: (second) => second.unavailable },
  ], (value) => count(value));
  const latency = timeChart("Check latency", [
    { name: "p99", kind: "p99", of: (second) => second.p99Micros },
    { name: "p50", kind: "p50", of: (second) => second.p50Micros },
  ], micros);
  const rules = table("Activity by rule", [
    { head: "rule", cell: (row) => row.rule },
    { head: "allowed/s", number: true, cell: (row) => rate(row.perSecond.allowed) },
    { head: "denied/s", number: true, cell: (row) => rate(row.perSecond.denied + row.perSecond.blocked) },
    { head: "failed open/s", number: true, cell: (row) => rate(row.perSecond.failedOpen) },
    { head: "allowed", number: true, cell: (row) => count(row.total.allowed) },
    { head: "denied", number: true, cell: (row) => count(row.total.denied + row.total.blocked) },
  ], (row) => row.rule);
  const denied = table("Most denials in the last minutes", [
    { head: "client", cell: (row) => h("span", { title: row.id }, clientName(row.client, row.id)), once: true },
    { head: "rule", cell: (row) => row.rule },
    { head: "denials", number: true, cell: (row) => count(row.denials) },
  ], (row) => `${row.rule} ${row.id}`, "none");

  main.append(
    h("h1", {}, "Live"),
    h("div", { class: "tiles" }, Object.values(tiles).map(({ element }) => element)),
    decisions.element,
    latency.element,
    h("div", { class: "columns" }, h("section", {}, rules.element), h("section", {}, denied.element)),
  );

  let updates = 0;
  return subscribe(async ({ seconds, now }) => {
    const last = seconds.slice(-MEAN_SECONDS);
    const mean = (of) => last.reduce((sum, second) => sum + of(second), 0) / Math.max(last.length, 1);
    const withChecks = [...last].reverse().find((second) => second.p50Micros !== null);
    setContent(tiles.allowed.value, rate(mean((second) => second.allowed)));
    setContent(tiles.denied.value, rate(mean((second) => second.denied + second.blocked)));
    setContent(tiles.failedOpen.value, rate(mean((second) => second.failedOpen)));
    setContent(tiles.p50.value, micros(withChecks?.p50Micros));
    setContent(tiles.p99.value, micros(withChecks?.p99Micros));
    setContent(tiles.blocked.value, count(now.blocked));
    // Shortly after the start, the chart shows a shorter period in full width.
    const span = Math.min(Math.max(seconds.length, 60), 300);
    decisions.draw(seconds, span);
    latency.draw(seconds, span);
    const activity = (row) => row.perSecond.allowed + row.perSecond.denied + row.perSecond.blocked;
    rules.show([...now.rules].sort((one, other) => activity(other) - activity(one)).slice(0, 20));
    updates += 1;
    if (updates % 2 === 1) denied.show((await get("/v1/top?by=denials&limit=10").catch(() => ({ clients: [] }))).clients);
  });
}
