// The editor of the rules: validates the document during typing, compares it with the active rules, and pushes it.

import { ApiError, get, request } from "./api.js";
import { diffView } from "./diff.js";
import { actionsHeading, field, h, notify } from "./dom.js";
import { dateTime } from "./format.js";

/// Time in milliseconds without input after which the document is validated.
const TYPING_PAUSE_MILLIS = 300;

/// Returns the editor. `onPushed` is called after a push.
export function editor(onPushed) {
  /// The document of the active rules, and the entity tag that a push has to match.
  let active = "";
  let tag = null;
  /// The last valid document.
  let checked = null;
  /// The reason why rules can't be pushed here; null if they can.
  let readOnlyReason = null;
  let timer = 0;

  const text = h("textarea", { id: "document", spellcheck: "false", autocapitalize: "off", wrap: "off", rows: 18, "aria-describedby": "checked" });
  const numbers = h("pre", {});
  const verdict = h("div", { id: "checked", class: "verdict", role: "status" });
  const changes = h("div", { class: "changes" });
  const note = h("input", { id: "note", maxlength: 200, placeholder: "reason" });
  const by = h("input", { id: "by", maxlength: 200, placeholder: "author" });
  const push = h("button", { type: "button", id: "push", class: "main", disabled: true, onclick: send }, "Push");
  const undo = h("button", { type: "button", disabled: true, onclick: () => { text.value = active; onChange(); } }, "Discard changes");
  const older = h("div", { class: "scroll" });
  const conflict = h("p", { class: "warning", hidden: true });
  const heading = h("h2", {}, "Edit");
  const element = h("section", { class: "editor" }, heading, conflict,
    h("label", { for: "document" }, "Document, in YAML"),
    h("div", { class: "paper" }, h("div", { class: "numbers", "aria-hidden": "true" }, numbers), text),
    verdict, changes,
    h("div", { class: "row" }, field("By", by), field("Note", note), push, undo),
    h("details", { id: "history", ontoggle: (event) => event.target.open && history() }, h("summary", {}, "Versions"), older));

  text.addEventListener("input", onChange);
  text.addEventListener("scroll", scrollNumbers);

  async function open() {
    try {
      const response = await request("GET", "/v1/rules", { headers: { accept: "application/yaml" } });
      active = response.body;
      tag = response.headers.get("etag");
      text.value = active;
      conflict.hidden = true;
    } catch (error) {
      text.value = "";
      text.disabled = true;
      verdict.textContent = error.message;
      return;
    }
    try {
      await get("/v1/rules/history?limit=1");
      readOnlyReason = null;
    } catch (error) {
      readOnlyReason = error.status === 409 ? error.message : null;
    }
    heading.textContent = readOnlyReason ? "Try" : "Edit";
    onChange();
  }

  /// Scrolls the line numbers along with the text.
  function scrollNumbers() {
    numbers.style.transform = `translateY(${-text.scrollTop}px)`;
  }

  function onChange() {
    const count = text.value.split("\n").length;
    numbers.textContent = Array.from({ length: count }, (_, line) => line + 1).join("\n");
    scrollNumbers();
    checked = null;
    push.disabled = true;
    undo.disabled = text.value === active;
    clearTimeout(timer);
    timer = setTimeout(check, TYPING_PAUSE_MILLIS);
  }

  async function check() {
    const document = text.value;
    if (document === active) {
      changes.replaceChildren();
      verdict.className = "verdict";
      verdict.textContent = readOnlyReason ? `No changes. ${sentence(readOnlyReason)}` : "No changes.";
      return;
    }
    try {
      const response = await request("POST", "/v1/rules/diff", { body: document });
      if (text.value !== document) return;
      checked = document;
      push.disabled = readOnlyReason !== null;
      verdict.className = "verdict good";
      verdict.textContent = readOnlyReason ? `All rules are valid. ${sentence(readOnlyReason)}` : "All rules are valid. A push would change:";
      changes.replaceChildren(...[warningList(response.body.warnings), summary(response.body), diffView(active, document)].filter(Boolean));
    } catch (error) {
      if (text.value !== document) return;
      verdict.className = "verdict bad";
      changes.replaceChildren();
      verdict.replaceChildren(error instanceof ApiError ? sentence(error.message) : String(error), errorList(error));
    }
  }

  function errorList(error) {
    return h("ul", {}, lineItems(error.body?.errors ?? []));
  }

  /// Returns the list of warnings; null if there are none.
  function warningList(warnings = []) {
    return warnings.length ? h("ul", { id: "warnings", class: "warning", "aria-label": "Warnings" }, lineItems(warnings)) : null;
  }

  function lineItems(errors) {
    return errors.map(({ line, message }) => h("li", {},
      line ? h("button", { type: "button", onclick: () => selectLine(line) }, `line ${line}`) : null, ` ${message}`));
  }

  /// Selects a line and scrolls to it.
  function selectLine(line) {
    const starts = text.value.split("\n").slice(0, line - 1).reduce((sum, each) => sum + each.length + 1, 0);
    const ends = text.value.indexOf("\n", starts);
    text.focus();
    text.setSelectionRange(starts, ends < 0 ? text.value.length : ends);
    const lineHeight = text.scrollHeight / Math.max(text.value.split("\n").length, 1);
    text.scrollTop = Math.max((line - 4) * lineHeight, 0);
  }

  async function send() {
    if (checked === null || checked !== text.value) return;
    push.disabled = true;
    const headers = { "if-match": tag, "content-type": "application/yaml" };
    if (by.value.trim()) headers["tidegate-by"] = encodeURIComponent(by.value.trim());
    if (note.value.trim()) headers["tidegate-note"] = encodeURIComponent(note.value.trim());
    try {
      const response = await request("PUT", "/v1/rules", { body: checked, headers });
      notify(`Version ${response.body.version} is active.`, "good");
      note.value = "";
      onPushed();
      await open();
      if (element.querySelector("#history").open) history();
    } catch (error) {
      push.disabled = false;
      verdict.className = "verdict bad";
      verdict.textContent = sentence(error.message);
      if (error.status === 412) {
        showConflict(error.body?.version);
        // The push button is at the bottom of the page, so the warning may be out of view.
        conflict.scrollIntoView({ block: "center" });
      }
    }
  }

  /// Warns that another version was activated meanwhile. The text stays until the operator loads that version.
  function showConflict(number) {
    conflict.hidden = false;
    conflict.replaceChildren(`Version ${number} is active now, and this text is based on an older version. `,
      h("button", { type: "button", onclick: open }, `Load version ${number}`));
  }

  async function history() {
    try {
      const { versions } = await get("/v1/rules/history?limit=20");
      older.replaceChildren(h("table", {}, h("caption", {}, "Versions"),
        h("thead", {}, h("tr", {}, ["version", "when", "by", "note", actionsHeading()].map((head) => h("th", { scope: "col" }, head)))),
        h("tbody", {}, versions.map((item) => h("tr", {},
          h("th", { scope: "row" }, String(item.version)), h("td", {}, dateTime(item.at)), h("td", {}, item.by), h("td", {}, item.note),
          h("td", {}, h("button", { type: "button", "aria-label": `Restore version ${item.version} in the editor`, onclick: () => restore(item.version) }, "Restore")))))));
    } catch (error) {
      older.replaceChildren(h("p", { class: "quiet" }, sentence(error.message)));
    }
  }

  async function restore(number) {
    try {
      text.value = (await request("GET", `/v1/rules?version=${number}`)).body;
      onChange();
    } catch (error) {
      notify(error.message, "bad");
    }
  }

  return {
    element,
    open,
    /// Selects the line of a rule.
    selectRule(name) {
      const index = text.value.split("\n").findIndex((line) => ruleNameIn(line) === name);
      selectLine(index < 0 ? 1 : index + 1);
    },
    /// Loads the new version, or shows a conflict if the text was edited.
    onVersionChange(number) {
      if (text.value === active) open(); else showConflict(number);
    },
  };
}

/// Returns the rule name in a line; undefined if it has none.
function ruleNameIn(line) {
  const found = /(?:^|[\s{-])name:\s*("(?:[^"\\]|\\.)*"|'[^']*'|[^,}#]+)/.exec(line)?.[1].trim();
  return found?.replace(/^(["'])(.*)\1$/, "$2");
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}

/// Returns the changes, rule by rule.
function summary({ added, removed, changed, same }) {
  const items = [
    ...added.map((name) => h("li", { class: "more" }, `added: ${name}`)),
    ...removed.map((name) => h("li", { class: "less" }, `removed: ${name}`)),
    ...changed.map(({ rule, fields }) => h("li", {}, `${rule}: `, fields.map(({ field, from, to }) => `${field} ${from ?? "nothing"} → ${to ?? "nothing"}`).join("; "))),
  ];
  if (items.length === 0) items.push(h("li", {}, "no rule changes"));
  return h("ul", { id: "summary" }, items, h("li", { class: "quiet" }, `${same} unchanged`));
}
