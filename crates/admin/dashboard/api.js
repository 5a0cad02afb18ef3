// The one way to ask the admin listener.

const KEPT = "tidegate-token";

/// What the listener says when it does not do as asked.
export class Problem extends Error {
  constructor(status, detail, body) {
    super(detail);
    this.status = status;
    this.body = body;
  }
}

let unlocking = null;

/// Asks for the token once, however many questions wait for it.
function unlock(why) {
  unlocking ??= new Promise((resolve) => {
    const dialog = document.getElementById("lock");
    const input = document.getElementById("token");
    if (why) document.getElementById("lock-why").textContent = why;
    input.value = "";
    // Without the token there is nothing to see, so there is no way around it.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      sessionStorage.setItem(KEPT, input.value.trim());
      input.value = "";
      unlocking = null;
      resolve();
    };
    dialog.showModal();
  });
  return unlocking;
}

/// Answers with `{status, headers, body}`; the body is read as JSON where it is that.
export async function ask(method, path, { body, headers = {}, signal } = {}) {
  for (;;) {
    const token = sessionStorage.getItem(KEPT);
    const bearing = token ? { authorization: `Bearer ${token}`, ...headers } : headers;
    let response;
    try {
      response = await fetch(path, { method, body, headers: bearing, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "the server does not answer", null);
    }
    const text = await response.text();
    const kind = response.headers.get("content-type") ?? "";
    const read = kind.includes("json") && text ? JSON.parse(text) : text;
    if (response.status === 401) {
      await unlock(token ? "That was another token. It is the one in admin.token." : null);
      continue;
    }
    if (!response.ok) throw new Problem(response.status, read?.detail ?? `status ${response.status}`, read);
    return { status: response.status, headers: response.headers, body: read };
  }
}

export const get = async (path, options) => (await ask("GET", path, options)).body;

export const send = async (method, path, value) => (await ask(method, path, {
  body: value === undefined ? undefined : JSON.stringify(value),
  headers: value === undefined ? {} : { "content-type": "application/json" },
})).body;
