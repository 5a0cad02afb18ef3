// Requests to the admin API.

/// The key of the token in the session storage of the tab.
const TOKEN_KEY = "tidegate-token";

/// An error response of the admin API. Status 0 means that there was no response.
export class ApiError extends Error {
  constructor(status, detail, body) {
    super(detail);
    this.status = status;
    this.body = body;
  }
}

let prompting = null;

/// Opens the token dialog. Concurrent requests share one dialog.
function promptForToken(message) {
  prompting ??= new Promise((resolve) => {
    const dialog = document.getElementById("lock");
    const input = document.getElementById("token");
    if (message) document.getElementById("lock-message").textContent = message;
    input.value = "";
    // The dialog can't be cancelled: no page works without the token.
    dialog.oncancel = (event) => event.preventDefault();
    dialog.onclose = () => {
      sessionStorage.setItem(TOKEN_KEY, input.value.trim());
      input.value = "";
      prompting = null;
      resolve();
    };
    dialog.showModal();
  });
  return prompting;
}

/// Sends a request and returns `{status, headers, body}`. A JSON body is parsed. Throws an `ApiError` on an error status.
export async function request(method, path, { body, headers = {}, signal } = {}) {
  for (;;) {
    const token = sessionStorage.getItem(TOKEN_KEY);
    const allHeaders = token ? { authorization: `Bearer ${token}`, ...headers } : headers;
    let response;
    try {
      response = await fetch(path, { method, body, headers: allHeaders, signal, cache: "no-store" });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(0, "the server does not respond", null);
    }
    const text = await response.text();
    const type = response.headers.get("content-type") ?? "";
    const content = type.includes("json") && text ? JSON.parse(text) : text;
    if (response.status === 401) {
      await promptForToken(token ? "Wrong token. Enter the value of admin.token or admin.read_token." : null);
      continue;
    }
    if (!response.ok) throw new ApiError(response.status, content?.detail ?? `status ${response.status}`, content);
    return { status: response.status, headers: response.headers, body: content };
  }
}

export const get = async (path, options) => (await request("GET", path, options)).body;

export const send = async (method, path, value) => (await request(method, path, {
  body: value === undefined ? undefined : JSON.stringify(value),
  headers: value === undefined ? {} : { "content-type": "application/json" },
})).body;
