// Who comes, who is denied, and how one of them stands.

import { get, send } from "./api.js";
import { actions, h, table, tell } from "./dom.js";
import { blockDialog } from "./blocks.js";
import { every } from "./pulse.js";
import { client, count, lasting, moment } from "./words.js";

const EVERY = 2000;
/// So many other buckets of a client are looked at.
const OTHERS = 20;

export function clients(main, query) {
  let known = [];
  const ranking = (caption, counted) => table(caption, [
    { head: "client", cell: (row) => h("span", { title: row.id }, client(row.client, row.id)), once: true },
    { head: "rule", cell: (row) => row.rule },
    { head: counted, number: true, cell: (row) => count(row[counted]) },
    {
      head: actions(), once: true, cell: (row) => h("span", { class: "row" },
        row.client !== null ? h("button", { type: "button", "aria-label": `Look up ${client(row.client, row.id)}`, onclick: () => look(row.rule, row.client) }, "Look up") : "",
        h("button", { type: "button", "aria-label": `Block ${client(row.client, row.id)}`, onclick: () => blockDialog({ id: row.id }) }, "Block")),
    },
  ], (row) => `${row.rule} ${row.id}`, "nobody yet");
  const busy = ranking("By traffic", "requests");
  const denied = ranking("By denials", "denials");
  const rule = h("select", { id: "rule", onchange: ask });
  const parts = h("span", { class: "row", id: "parts" });
  const form = h("form", { class: "row", id: "lookup", onsubmit: (event) => { event.preventDefault(); look(rule.value, named()); } },
    h("label", { class: "field" }, h("span", {}, "Rule"), rule), parts, h("button", { class: "main" }, "Look up"));
  const found = h("div", { id: "found", "aria-live": "polite" });
  main.append(h("h1", {}, "Clients"), h("section", {}, h("h2", {}, "Look one up"), form, found),
    h("div", { class: "columns" }, h("section", {}, busy.element), h("section", {}, denied.element)));

  /// A field for each attribute that the rule counts by; where it takes the first of several, which one it is.
  function ask() {
    const per = known.find(({ name }) => name === rule.value)?.per ?? [];
    parts.replaceChildren(...per.map((chain, place) => {
      const names = chain.split("|").map((name) => name.trim());
      const which = names.length > 1
        ? h("select", { "aria-label": "Attribute", "data-part": "name" }, names.map((name) => h("option", {}, name)))
        : h("span", { "data-part": "name" }, names[0]);
      return h("span", { class: "field part" }, which,
        h("input", { required: true, "aria-label": `Value of ${chain}`, id: place ? null : "client", "data-part": "value" }));
    }));
    if (per.length === 0) parts.replaceChildren(h("span", { class: "quiet" }, "one bucket for all"));
  }

  function named() {
    return Object.fromEntries([...parts.querySelectorAll(".part")].map((part) => {
      const name = part.querySelector("[data-part=name]");
      return [name.value ?? name.textContent, part.querySelector("[data-part=value]").value];
    }));
  }

  /// A client is called by a text or by the values of several attributes.
  async function look(name, who) {
    rule.value = name;
    ask();
    const per = known.find((rule) => rule.name === name)?.per ?? [];
    const first = per[0]?.split("|")[0].trim();
    const values = typeof who === "string" ? { [first]: who } : who;
    for (const part of parts.querySelectorAll(".part")) {
      const which = part.querySelector("[data-part=name]");
      const given = which.options ? [...which.options].map(({ value }) => value).find((option) => option in values) : which.textContent;
      if (which.options && given) which.value = given;
      part.querySelector("[data-part=value]").value = values[given] ?? "";
    }
    await show(name, values);
  }

  /// How the client stands under this rule, and under others that count by the same.
  async function show(name, values, method = "GET") {
    try {
      const standing = await stand(name, values, method);
      const again = () => show(name, values);
      const parts = [card(standing, values, again, () => show(name, values, "DELETE"))];
      const more = known.filter((rule) => rule.name !== name && rule.per.length > 0 && counted(rule, values)).slice(0, OTHERS);
      if (more.length > 0) {
        const others = buckets((row) => stand(row.rule, row.values, "DELETE").then(again, (problem) => tell(problem.message, "bad")));
        others.show(await Promise.all(more.map(async (rule) => {
          const own = counted(rule, values);
          return { ...await stand(rule.name, own, "GET"), values: own };
        })));
        parts.push(others.element);
      }
      found.replaceChildren(...parts);
      if (method === "DELETE") tell("It begins anew.", "good");
    } catch (problem) {
      found.replaceChildren(h("p", { class: "bad" }, problem.message));
    }
  }

  function stand(name, values, method) {
    const one = known.find((rule) => rule.name === name);
    const asked = one?.per.length ? `?${new URLSearchParams(values)}` : "";
    return send(method, `/v1/clients/${encodeURIComponent(name)}${asked}`);
  }

  get("/v1/rules").then((all) => {
    known = all.rules;
    rule.replaceChildren(...known.map(({ name }) => h("option", {}, name)));
    rule.value = query.get("rule") ?? known[0]?.name ?? "";
    ask();
  }, (problem) => tell(problem.message, "bad"));
  return every(EVERY, async () => {
    const [traffic, denials] = await Promise.all([get("/v1/top?by=traffic&limit=20"), get("/v1/top?by=denials&limit=20")]);
    busy.show(traffic.clients);
    denied.show(denials.clients);
  });
}

/// The values that a rule counts by; nothing if one of them is not known.
function counted(rule, values) {
  const names = rule.per.map((chain) => chain.split("|").map((name) => name.trim()).find((name) => name in values));
  return names.every((name) => name !== undefined) ? Object.fromEntries(names.map((name) => [name, values[name]])) : null;
}

const state = (standing) => standing.blocked ? "blocked" : standing.allowed ? "would be allowed" : "would be denied";
const left = ({ limit, remaining }) => limit === undefined || limit === null ? "the rule is off" : `${count(remaining ?? 0)} of ${count(limit)}`;

/// The same client under other rules.
function buckets(reset) {
  return table("Its other buckets", [
    { head: "rule", cell: (row) => row.rule },
    { head: "left", number: true, cell: left },
    { head: "now", cell: (row) => h("span", { class: row.allowed ? "good" : "bad" }, state(row)) },
    { head: "full again", cell: (row) => moment(row.resetTime) },
    { head: actions(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `Reset under ${row.rule}`, onclick: () => reset(row) }, "Reset") },
  ], (row) => row.rule);
}

/// How a client stands under a rule.
function card(standing, values, again, reset) {
  const who = Object.values(values).join(", ") || "everybody";
  const [some, most] = [standing.remaining ?? 0, standing.limit ?? 0];
  const facts = [
    ["left", left(standing)],
    ["full again", standing.resetTime ? moment(standing.resetTime) : ""],
    ["comes in after", standing.allowed ? "" : lasting(standing.retryAfter)],
  ].filter(([, value]) => value);
  return h("article", { class: "card client" },
    h("h3", {}, who, " ", h("small", {}, `under ${standing.rule}`)),
    h("p", {}, h("span", { class: standing.allowed ? "good" : "bad", id: "standing" }, state(standing))),
    most ? h("meter", { min: 0, max: most, low: most / 4, optimum: most, value: some, "aria-label": `${some} of ${most} left` }) : null,
    h("dl", { class: "facts" }, facts.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    h("div", { class: "row" },
      h("button", { type: "button", onclick: again }, "Look again"),
      h("button", { type: "button", id: "reset", onclick: reset }, "Reset"),
      standing.id ? h("button", { type: "button", id: "block", onclick: () => blockDialog({ id: standing.id }, again) }, "Block") : null));
}
