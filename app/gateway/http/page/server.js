// Requests to the server, with the key or this browser's secret.

import { find } from "/page/dom.js";

const KEY = "batchdeck.key";
const BROWSER = "batchdeck.browser";

/** A refusal by the server. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const keys = {
  get: () => sessionStorage.getItem(KEY),
  waiting: null,

  /** Ask the user for a key. Calls made meanwhile wait for the same one. */
  enter(why) {
    const stated = keys.get();
    keys.waiting ??= new Promise((entered) => {
      const dialog = find("key-dialog");
      const wrong = find("key-error");
      wrong.hidden = !stated;
      wrong.textContent = stated ? why : "";
      find("key").value = "";
      find("key-form").onsubmit = (event) => {
        event.preventDefault();
        sessionStorage.setItem(KEY, find("key").value.trim());
        dialog.close();
        keys.waiting = null;
        entered();
      };
      // Without a key, nothing else on this page works.
      dialog.oncancel = (event) => event.preventDefault();
      dialog.showModal();
    });
    return keys.waiting;
  },
};

/** The secret by which the server finds this browser's chats where there are no keys. */
function browser() {
  let secret = localStorage.getItem(BROWSER);
  if (!secret) {
    secret = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    localStorage.setItem(BROWSER, secret);
  }
  return secret;
}

/** Send a request; if the key is missing or wrong, ask for one and send it again. */
export async function ask(path, options = {}) {
  for (;;) {
    const key = keys.get();
    const headers = { ...options.headers, "x-batchdeck-browser": browser() };
    if (key) headers.authorization = `Bearer ${key}`;
    const answer = await fetch(path, { ...options, headers, cache: "no-store", credentials: "omit" });
    if (answer.ok) return answer;
    const payload = await answer.json().catch(() => null);
    const message = payload?.error?.message ?? `the server answered ${answer.status}`;
    if (answer.status !== 401) throw new Refusal(answer.status, message);
    // Another request may have got a valid key meanwhile.
    if (keys.get() === key) await keys.enter(message);
  }
}

/** Send data; returns those of the answer. */
export async function send(method, path, data) {
  const body = data === undefined ? {} : { headers: { "content-type": "application/json" }, body: JSON.stringify(data) };
  return (await ask(path, { method, ...body })).json();
}

/** The server-sent events of an answer, as [kind, data]. */
export async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  const pieces = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    pieces.push(value);
    if (!value.includes("\n")) continue;
    const whole = pieces.join("").split("\n\n");
    pieces.splice(0, pieces.length, whole.pop());
    for (const event of whole) {
      const lines = event.split("\n");
      const kind = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "message";
      const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
      if (data !== undefined) yield [kind, data];
    }
  }
}
