// The page "Block list".

import { get, send } from "./api.js";
import { actionsHeading, field, h, notify, table } from "./dom.js";
import { clientName, dateTime, duration } from "./format.js";
import { poll } from "./live_feed.js";

const POLL_MILLIS = 2000;
const PAGE_ENTRIES = 200;

export function blocks(main) {
  let after = [];
  const list = table("Entries", [
    { head: "client", cell: (row) => h("span", { title: row.id }, clientName(row.ip, row.id)), once: true },
    { head: "effect", cell: (row) => row.action === "allow" ? "allowed" : "blocked" },
    { head: "time left", number: true, cell: (row) => duration(row.secondsLeft) },
    { head: "by", cell: (row) => row.rule ? `${row.by} of ${row.rule}` : row.by },
    { head: "reason", cell: (row) => row.reason ?? "" },
    { head: "since", cell: (row) => dateTime(row.added) },
    { head: actionsHeading(), once: true, cell: (row) => h("button", { type: "button", "aria-label": `${removal(row)} ${row.ip ?? row.id}`, onclick: () => remove(row.id) }, removal(row)) },
  ], (row) => row.id, "none");
  const full = h("p", { class: "warning", hidden: true });
  const next = h("button", { type: "button", hidden: true }, "Next page");
  const first = h("button", { type: "button", hidden: true, onclick: () => { after = []; load(); } }, "First page");
  main.append(h("h1", {}, "Block list"),
    h("section", {}, h("h2", {}, "Block or allow"), blockForm(null, load)), full, list.element, h("div", { class: "row" }, first, next));

  async function remove(id) {
    try {
      await send("DELETE", "/v1/block", { id });
      notify(`${id} is removed from the list.`, "good");
    } catch (error) {
      notify(error.message, "bad");
    }
    await load();
  }

  async function load() {
    const from = after.at(-1);
    const now = await get(`/v1/block?limit=${PAGE_ENTRIES}${from ? `&after=${encodeURIComponent(from)}` : ""}`);
    list.show(now.entries);
    full.hidden = !now.refused;
    full.textContent = `The list was full ${now.refused} times: those clients were not blocked.`;
    next.hidden = !now.next;
    next.onclick = () => { after.push(now.next); load(); };
    first.hidden = after.length === 0;
  }
  return poll(POLL_MILLIS, load);
}

/// Returns the name of the action that removes an entry.
function removal(row) {
  return row.action === "allow" ? "Remove" : "Unblock";
}

/// Returns a form that blocks or allows a client for some time. Without `subject` the form has fields for the client.
function blockForm(subject, done) {
  const attribute = h("input", { value: "ip", id: "attribute", required: true });
  const value = h("input", { id: "value", required: true, placeholder: "192.0.2.7 or 10.0.0.0/8" });
  const action = h("select", { id: "action" }, h("option", { value: "block" }, "Block"), h("option", { value: "allow" }, "Allow"));
  const length = h("input", { id: "length", value: "10m", required: true, size: 8 });
  const reason = h("input", { id: "reason", maxlength: 200 });
  const failure = h("p", { class: "bad", role: "alert" });
  return h("form", { class: "row", onsubmit: submit },
    subject ? null : field("Attribute", attribute), subject ? null : field("Value", value),
    field("Effect", action), field("For", length), field("Reason", reason), h("button", { class: "main" }, "Add"), failure);

  async function submit(event) {
    event.preventDefault();
    const blocked = subject ?? { attribute: attribute.value.trim(), value: value.value };
    const body = { ...blocked, action: action.value, for: length.value };
    if (reason.value.trim()) body.reason = reason.value.trim();
    try {
      const entry = await send("POST", "/v1/block", body);
      failure.textContent = "";
      value.value = "";
      notify(`${entry.ip ?? entry.id} is ${entry.action === "allow" ? "allowed" : "blocked"} until ${dateTime(entry.until)}.`, "good");
      done?.();
    } catch (error) {
      failure.textContent = error.message;
    }
  }
}

/// Opens the form as a dialog, for a client of another page.
export function blockDialog(subject, done) {
  const dialog = h("dialog", { "aria-label": "Block", onclose: () => dialog.remove() },
    h("h2", {}, `Block ${clientName(null, subject.id)}`),
    blockForm(subject, () => { dialog.close(); done?.(); }),
    h("button", { type: "button", onclick: () => dialog.close() }, "Cancel"));
  document.body.append(dialog);
  dialog.showModal();
}
