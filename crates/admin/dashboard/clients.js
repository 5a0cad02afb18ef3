// The page "Clients": the clients with most requests and denials, and the state of one client.

import { get, send } from "./api.js";
import { actionsHeading, h, notify, table } from "./dom.js";
import { blockDialog } from "./blocks.js";
import { clientName, count, dateTime, duration } from "./format.js";
import { poll } from "./live_feed.js";

const POLL_MILLIS = 2000;
/// Maximum number of other rules for which the page shows a client's buckets.
const MAX_OTHER_BUCKETS = 20;

export function clients(main, query) {
  let known = [];
  const ranking = (caption, counted) => table(caption, [
    { head: "client", cell: (row) => h("span", { title: row.id }, clientName(row.client, row.id)), once: true },
    { head: "rule", cell: (row) => row.rule },
    { head: counted, number: true, cell: (row) => count(row[counted]) },
    {
      head: actionsHeading(), once: true, cell: (row) => h("span", { class: "row" },
        row.client !== null ? h("button", { type: "button", "aria-label": `Look up ${clientName(row.client, row.id)}`, onclick: () => lookUp(row.rule, row.client) }, "Look up") : "",
        h("button", { type: "button", "aria-label": `Block ${clientName(row.client, row.id)}`, onclick: () => blockDialog({ id: row.id }) }, "Block")),
    },
  ], (row) => `${row.rule} ${row.id}`, "none yet");
  const byTraffic = ranking("By traffic", "requests");
  const byDenials = ranking("By denials", "denials");
  const rule = h("select", { id: "rule", onchange: showFields });
  const parts = h("span", { class: "row", id: "parts" });
  const form = h("form", { class: "row", id: "lookup", onsubmit: (event) => { event.preventDefault(); lookUp(rule.value, enteredValues()); } },
    h("label", { class: "field" }, h("span", {}, "Rule"), rule), parts, h("button", { class: "main" }, "Look up"));
  const found = h("div", { id: "found", "aria-live": "polite" });
  main.append(h("h1", {}, "Clients"), h("section", {}, h("h2", {}, "Look up a client"), form, found),
    h("div", { class: "columns" }, h("section", {}, byTraffic.element), h("section", {}, byDenials.element)));

  /// Shows a field for each `per` entry of the rule. An entry with alternatives also has a choice of the attribute.
  function showFields() {
    const per = known.find(({ name }) => name === rule.value)?.per ?? [];
    parts.replaceChildren(...per.map((chain, index) => {
      const names = chain.split("|").map((name) => name.trim());
      const which = names.length > 1
        ? h("select", { "aria-label": "Attribute", "data-part": "name" }, names.map((name) => h("option", {}, name)))
        : h("span", { "data-part": "name" }, names[0]);
      return h("span", { class: "field part" }, which,
        h("input", { required: true, "aria-label": `Value of ${chain}`, id: index ? null : "client", "data-part": "value" }));
    }));
    if (per.length === 0) parts.replaceChildren(h("span", { class: "quiet" }, "one bucket for all clients"));
  }

  function enteredValues() {
    return Object.fromEntries([...parts.querySelectorAll(".part")].map((part) => {
      const name = part.querySelector("[data-part=name]");
      return [name.value ?? name.textContent, part.querySelector("[data-part=value]").value];
    }));
  }

  /// Fills the form and shows the client, which is a text or an object with the values of several attributes.
  async function lookUp(name, client) {
    rule.value = name;
    showFields();
    const per = known.find((rule) => rule.name === name)?.per ?? [];
    const first = per[0]?.split("|")[0].trim();
    const values = typeof client === "string" ? { [first]: client } : client;
    for (const part of parts.querySelectorAll(".part")) {
      const which = part.querySelector("[data-part=name]");
      const given = which.options ? [...which.options].map(({ value }) => value).find((option) => option in values) : which.textContent;
      if (which.options && given) which.value = given;
      part.querySelector("[data-part=value]").value = values[given] ?? "";
    }
    await show(name, values);
  }

  /// Shows the state of the client under this rule, and under other rules with the same attributes. DELETE resets it first.
  async function show(name, values, method = "GET") {
    try {
      const status = await requestStatus(name, values, method);
      const refresh = () => show(name, values);
      const parts = [card(status, values, refresh, () => show(name, values, "DELETE"))];
      const more = known.filter((rule) => rule.name !== name && rule.per.length > 0 && valuesOfRule(rule, values)).slice(0, MAX_OTHER_BUCKETS);
      if (more.length > 0) {
        const others = buckets((row) => requestStatus(row.rule, row.values, "DELETE").then(refresh, (error) => notify(error.message, "bad")));
        others.show(await Promise.all(more.map(async (rule) => {
          const own = valuesOfRule(rule, values);
          return { ...await requestStatus(rule.name, own, "GET"), values: own };
        })));
        parts.push(others.element);
      }
      found.replaceChildren(...parts);
      if (method === "DELETE") notify("Client reset.", "good");
    } catch (error) {
      found.replaceChildren(h("p", { class: "bad" }, error.message));
    }
  }

  function requestStatus(name, values, method) {
    const one = known.find((rule) => rule.name === name);
    const search = one?.per.length ? `?${new URLSearchParams(values)}` : "";
    return send(method, `/v1/clients/${encodeURIComponent(name)}${search}`);
  }

  get("/v1/rules").then((all) => {
    known = all.rules;
    rule.replaceChildren(...known.map(({ name }) => h("option", {}, name)));
    rule.value = query.get("rule") ?? known[0]?.name ?? "";
    showFields();
  }, (error) => notify(error.message, "bad"));
  return poll(POLL_MILLIS, async () => {
    const [traffic, denials] = await Promise.all([get("/v1/top?by=traffic&limit=20"), get("/v1/top?by=denials&limit=20")]);
    byTraffic.show(traffic.clients);
    byDenials.show(denials.clients);
  });
}

/// Returns the values that a rule counts by; null if one of them is missing.
function valuesOfRule(rule, values) {
  const names = rule.per.map((chain) => chain.split("|").map((name) => name.trim()).find((name) => name in values));
  return names.every((name) => name !== undefined) ? Object.fromEntries(names.map((name) => [name, values[name]])) : null;
}

const stateText = (status) => status.blocked ? "blocked" : status.allowed ? "would be allowed" : "would be denied";
const remainingText = ({ limit, remaining }) => limit === undefined || limit === null ? "the rule is off" : `${count(remaining ?? 0)} of ${count(limit)}`;

/// Returns a table of the same client under other rules.
function buckets(reset) {
  return table("Buckets under other rules", [
    { head: "rule", cell: (row) => row.rule },
    { head: "remaining", number: true, cell: remainingText },
    { head: "state", cell: (row) => h("span", { class: row.allowed ? "good" : "bad" }, stateText(row)) },
    { head: "full at", cell: (row) => dateTime(row.resetTime) },
    { head: actionsHeading(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `Reset under ${row.rule}`, onclick: () => reset(row) }, "Reset") },
  ], (row) => row.rule);
}

/// Returns the state of a client under a rule.
function card(status, values, refresh, reset) {
  const client = Object.values(values).join(", ") || "all clients";
  const [remaining, limit] = [status.remaining ?? 0, status.limit ?? 0];
  const facts = [
    ["remaining", remainingText(status)],
    ["full at", status.resetTime ? dateTime(status.resetTime) : ""],
    ["retry after", status.allowed ? "" : duration(status.retryAfter)],
  ].filter(([, value]) => value);
  return h("article", { class: "card client" },
    h("h3", {}, client, " ", h("small", {}, `under ${status.rule}`)),
    h("p", {}, h("span", { class: status.allowed ? "good" : "bad", id: "client-state" }, stateText(status))),
    limit ? h("meter", { min: 0, max: limit, low: limit / 4, optimum: limit, value: remaining, "aria-label": `${remaining} of ${limit} remaining` }) : null,
    h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "row" },
      h("button", { type: "button", onclick: refresh }, "Refresh"),
      h("button", { type: "button", id: "reset", onclick: reset }, "Reset"),
      status.id ? h("button", { type: "button", id: "block", onclick: () => blockDialog({ id: status.id }, refresh) }, "Block") : null));
}
