// The page: its key, its stream of events, and its chats, which this browser alone keeps.

import { Deck } from "/page/deck.js";
import { find, make } from "/page/dom.js";
import { duration } from "/page/figures.js";

const KEY = "batchdeck.key";
const CHAT = "batchdeck.chat.";
const TITLE = 40;
const LAST_PAUSE_MS = 10_000;
const SAVE_MS = 1000;

/** A refusal by the server. */
class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

// --- The key, and requests with it.

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

/** Send a request; if the key is missing or wrong, ask for one and send it again. */
async function ask(path, options = {}) {
  for (;;) {
    const key = keys.get();
    const headers = { ...options.headers };
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

function post(path, data, signal) {
  return ask(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(data), signal });
}

/** The server-sent events of an answer, as [kind, data]. */
async function* events(answer) {
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

// --- The live data.

const turn = async (message) => (await post("/live/knobs", message)).json();

const deck = new Deck(turn);
let switchesThinking = false;
/** What the page asks for where neither the model nor the server's settings state it: it is a chat, and over HTTP plain
sampling holds. */
let chatSampling = {};
let statedSampling = [];

function showLink(text, kind) {
  find("link").textContent = text;
  find("link").className = kind;
}

function showNotice(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

async function watch() {
  let pause = 500;
  for (;;) {
    // A hidden page needs no live data, so the engine need not be polled for it.
    if (document.hidden) await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
    const ending = new AbortController();
    const hide = () => document.hidden && ending.abort();
    document.addEventListener("visibilitychange", hide);
    try {
      const answer = await ask("/live", { signal: ending.signal });
      for await (const [kind, data] of events(answer)) {
        const payload = JSON.parse(data);
        if (kind === "hello") {
          deck.greet(payload);
          statedSampling = payload.sampling;
          showLink(payload.user === "anybody" ? "live" : `live as ${payload.user}`, "live");
          showNotice("");
          pause = 500;
        } else if (kind === "frame") {
          deck.take(payload);
          view.timed(payload.requests);
          switchesThinking = Boolean(payload.engine?.model.switches_thinking);
          chatSampling = payload.engine?.model.chat_sampling ?? {};
        }
      }
      showLink("connection lost", "lost");
    } catch (error) {
      if (!ending.signal.aborted) {
        showLink("connection lost", "lost");
        if (error instanceof Refusal) showNotice(error.message);
      }
    } finally {
      document.removeEventListener("visibilitychange", hide);
      ending.abort();
    }
    if (!document.hidden) await new Promise((go) => setTimeout(go, pause));
    pause = Math.min(2 * pause, LAST_PAUSE_MS);
  }
}

// --- Chats.

/** One chat: its stored part, and its running reply. */
class Chat {
  constructor(kept) {
    this.id = kept.id;
    this.born = kept.born;
    this.messages = kept.messages;
    this.settings = kept.settings;
    this.draft = "";
    this.stopping = null;
    this.unread = false;
    this.saved = 0;
  }

  static begin() {
    const id = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    return new Chat({ id, born: Date.now(), messages: [], settings: { system: "", temperature: "", most: "", thinking: true } });
  }

  /** The chats of this browser, oldest first. Unreadable ones are skipped. */
  static all() {
    const found = [];
    for (let at = 0; at < localStorage.length; at++) {
      const name = localStorage.key(at);
      if (!name.startsWith(CHAT)) continue;
      try {
        found.push(new Chat(JSON.parse(localStorage.getItem(name))));
      } catch {
        continue;
      }
    }
    return found.sort((one, other) => one.born - other.born);
  }

  get title() {
    const first = this.messages.find((message) => message.role === "user")?.content ?? "New chat";
    const line = first.trim().replace(/\s+/g, " ");
    return line.length > TITLE ? `${line.slice(0, TITLE - 1)}…` : line;
  }

  save(isSoon = false) {
    if (isSoon && performance.now() - this.saved < SAVE_MS) return;
    this.saved = performance.now();
    const { id, born, messages, settings } = this;
    try {
      localStorage.setItem(CHAT + id, JSON.stringify({ id, born, messages, settings }));
    } catch {
      showNotice("This browser has no more space for chats; delete some to keep new ones.");
    }
  }

  /** The messages to send. Questions without a reply are left out, because roles must alternate. */
  request() {
    const { system, temperature, most, thinking } = this.settings;
    const turns = [];
    for (const { role, content } of this.messages) {
      if (role === "assistant" && !content) turns.pop();
      else turns.push({ role, content });
    }
    const asked = {
      messages: system ? [{ role: "system", content: system }, ...turns] : turns,
      stream: true,
      stream_options: { include_usage: true },
    };
    for (const [name, value] of Object.entries(chatSampling)) if (!statedSampling.includes(name)) asked[name] = value;
    if (temperature !== "") asked.temperature = numeric(temperature);
    if (most !== "") asked.max_tokens = numeric(most);
    if (switchesThinking) asked.chat_template_kwargs = { enable_thinking: thinking };
    return asked;
  }

  /** Send the last question; its reply becomes the last message. */
  async answer() {
    const asked = this.request();
    const reply = { role: "assistant", content: "", thinking: "", stats: null, error: "" };
    this.messages.push(reply);
    this.stopping = new AbortController();
    view.changed(this);
    const began = performance.now();
    let [first, last, tokens] = [0, 0, null];
    try {
      const answer = await post("/v1/chat/completions", asked, this.stopping.signal);
      for await (const [, data] of events(answer)) {
        if (data === "[DONE]") break;
        const payload = JSON.parse(data);
        if (payload.error) throw new Refusal(0, payload.error.message);
        reply.id ??= payload.id.replace(/^chatcmpl-/, "");
        deck.mine.add(reply.id);
        const choice = payload.choices?.[0];
        const delta = choice?.delta ?? {};
        if (delta.content || delta.reasoning_content) {
          last = performance.now();
          first ||= last;
          if (delta.reasoning_content) reply.thinking += delta.reasoning_content;
          if (delta.content) reply.content += delta.content;
          if (delta.content && reply.thinking) reply.thought ??= (last - first) / 1000;
        }
        if (choice?.finish_reason === "length") reply.cut = true;
        if (payload.usage) tokens = payload.usage;
        this.save(true);
        view.streamed(this);
      }
    } catch (error) {
      if (this.stopping.signal.aborted) reply.stopped = true;
      else reply.error = error instanceof Refusal ? error.message : "the connection to the server was lost";
    }
    if (first) {
      reply.stats = stats(began, first, last, tokens);
      if (deck.hello?.operator) view.untimed.set(reply.id, this);
    }
    this.stopping = null;
    this.unread = view.chat !== this;
    this.save();
    view.changed(this);
  }

  stop() {
    this.stopping?.abort();
  }
}

/** A text as a number; other texts are sent unchanged, and the server refuses them with a reason. */
function numeric(text) {
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

/** Times of a reply in seconds, as seen by this browser, which gets several tokens at once. */
function stats(began, first, last, usage) {
  return {
    first: (first - began) / 1000,
    whole: (last - began) / 1000,
    output: usage ? usage.completion_tokens : null,
    prompt: usage ? usage.prompt_tokens : null,
    cached: usage ? usage.prompt_tokens_details.cached_tokens : null,
  };
}

function statsText(reply) {
  const { stats: of } = reply;
  const parts = [];
  if (of) {
    if (of.engine) {
      parts.push(`TTFT ${duration(of.engine.ttft)}`);
      if (of.engine.tpot !== null) parts.push(`TPOT ${duration(of.engine.tpot)}`);
      parts.push(`queue ${duration(of.engine.queue)}`);
    }
    parts.push(`first text here after ${duration(of.first)}`);
    if (of.output !== null) parts.push(`${of.output} tokens in ${duration(of.whole)}`, `prompt ${of.prompt}${of.cached ? `, ${of.cached} cached` : ""}`);
  }
  if (reply.cut) parts.push("cut off at the token limit");
  if (reply.stopped) parts.push("stopped");
  return parts.join(" · ");
}

/** The chat on view, and the list of all. */
class ChatView {
  constructor() {
    this.chats = Chat.all();
    this.nodes = [];
    this.asked = false;
    this.untimed = new Map(); // Chats by the ids of replies whose times in the engine have not come.
    find("new-chat").addEventListener("click", () => this.open(this.fresh()));
    find("delete-chat").addEventListener("click", () => this.remove());
    find("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("stop").addEventListener("click", () => this.chat.stop());
    const draft = find("draft");
    draft.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.send();
      } else if (event.key === "Escape") this.chat.stop();
    });
    for (const [id, name] of [["system", "system"], ["temperature", "temperature"], ["max-tokens", "most"], ["thinking", "thinking"]]) {
      find(id).addEventListener("change", ({ target }) => {
        this.chat.settings[name] = target.type === "checkbox" ? target.checked : target.value.trim();
        this.chat.save();
      });
    }
  }

  /** Open an empty chat. */
  fresh() {
    const empty = this.chats.find((chat) => !chat.messages.length);
    if (empty) return empty;
    const chat = Chat.begin();
    this.chats.push(chat);
    return chat;
  }

  open(chat) {
    if (this.chat) this.chat.draft = find("draft").value;
    this.chat = chat;
    chat.unread = false;
    find("draft").value = chat.draft;
    find("system").value = chat.settings.system;
    find("temperature").value = chat.settings.temperature;
    find("max-tokens").value = chat.settings.most;
    find("thinking").checked = chat.settings.thinking;
    find("messages").replaceChildren();
    this.nodes = [];
    this.changed(chat);
    find("messages").scrollTop = find("messages").scrollHeight;
    find("draft").focus({ preventScroll: true });
  }

  remove() {
    if (!window.confirm(`Delete the chat “${this.chat.title}”? It exists only in this browser.`)) return;
    this.chat.stop();
    localStorage.removeItem(CHAT + this.chat.id);
    this.chats = this.chats.filter((chat) => chat !== this.chat);
    this.open(this.chats.at(-1) ?? this.fresh());
  }

  send() {
    const text = find("draft").value;
    if (!text.trim() || this.chat.stopping) return;
    find("draft").value = "";
    this.chat.messages.push({ role: "user", content: text });
    this.chat.save();
    this.chat.answer();
    find("messages").scrollTop = find("messages").scrollHeight;
  }

  /** A reply begins or has ended, or another chat is on view. */
  changed(chat) {
    this.list();
    if (chat !== this.chat) return;
    const isBusy = Boolean(chat.stopping);
    find("stop").hidden = !isBusy;
    find("send").hidden = isBusy;
    this.paint();
  }

  /** Frames for operators have the times of requests, which are shown at their replies. */
  timed(requests) {
    for (const { id, state, queue, ttft, tpot } of requests) {
      const chat = this.untimed.get(id);
      if (!chat || state !== "finished") continue;
      this.untimed.delete(id);
      const reply = chat.messages.find((message) => message.id === id);
      if (!reply) continue;
      reply.stats.engine = { queue, ttft, tpot };
      chat.save();
      this.changed(chat);
    }
  }

  /** More of a reply has come; it is shown with the screen's next frame. */
  streamed(chat) {
    if (chat !== this.chat || this.asked) return;
    this.asked = true;
    requestAnimationFrame(() => {
      this.asked = false;
      this.paint();
    });
  }

  list() {
    const items = this.chats.map((chat) => {
      const item = make("li");
      const button = make("button", chat.stopping ? "busy" : chat.unread ? "unread" : "", chat.title);
      button.type = "button";
      button.setAttribute("aria-current", chat === this.chat);
      button.addEventListener("click", () => this.open(chat));
      item.append(button);
      return item;
    });
    find("chats").replaceChildren(...items.reverse());
  }

  paint() {
    const { chat } = this;
    const box = find("messages");
    const isAtEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    if (!chat.messages.length) {
      box.replaceChildren(make("p", "empty", "Ask something. Chats stay in this browser, and several can be answered at once."));
      this.nodes = [];
      return;
    }
    if (!this.nodes.length) box.replaceChildren();
    chat.messages.forEach((message, place) => {
      this.nodes[place] ??= this.add(message);
      this.fill(this.nodes[place], message, chat.stopping !== null && place === chat.messages.length - 1);
    });
    if (isAtEnd) box.scrollTop = box.scrollHeight;
  }

  add(message) {
    const node = make("article", `message ${message.role}`);
    node.append(make("p", "who", message.role === "user" ? "You" : "Reply"));
    const parts = { node, thoughts: null, text: make("div", "text"), stats: make("p", "stats"), wrong: make("p", "wrong"), shown: null };
    node.append(parts.text, parts.wrong, parts.stats);
    find("messages").append(node);
    return parts;
  }

  fill(parts, message, isRunning) {
    const { node } = parts;
    node.classList.toggle("running", isRunning);
    node.setAttribute("aria-busy", isRunning);
    if (message.thinking) {
      if (!parts.thoughts) {
        const fold = make("details");
        fold.append(make("summary"), make("div"));
        parts.thoughts = fold;
        node.insertBefore(fold, parts.text);
      }
      const [summary, thought] = parts.thoughts.children;
      summary.textContent = message.thought ? `Thought for ${duration(message.thought)}` : isRunning ? "Thinking…" : "Thought";
      if (thought.textContent.length !== message.thinking.length) thought.textContent = message.thinking;
    }
    if (parts.shown !== message.content || parts.wasRunning !== isRunning) {
      // Code is separated once the reply is complete, because its fences come in pieces.
      if (isRunning) parts.text.textContent = message.content;
      else parts.text.replaceChildren(...blocks(message.content));
      parts.shown = message.content;
      parts.wasRunning = isRunning;
    }
    parts.wrong.hidden = !message.error;
    parts.wrong.textContent = message.error ?? "";
    const text = isRunning ? "" : statsText(message);
    parts.stats.hidden = !text;
    parts.stats.textContent = text;
  }
}

/** Split a text at its fences: the pieces between two fences are code. */
function blocks(text) {
  return text.split(/^```[^\n]*\n?/m).flatMap((piece, place, all) => {
    if (place % 2) return [make("pre", "", piece.replace(/\n$/, ""))];
    let plain = place ? piece.replace(/^\n+/, "") : piece;
    if (place + 1 < all.length) plain = plain.replace(/\n+$/, "");
    return plain ? [document.createTextNode(plain)] : [];
  });
}

// --- Which part is on view, if both do not fit.

function show(name) {
  document.body.dataset.view = name;
  find("show-chat").setAttribute("aria-pressed", name === "chat");
  find("show-deck").setAttribute("aria-pressed", name === "deck");
}

find("show-chat").addEventListener("click", () => show("chat"));
find("show-deck").addEventListener("click", () => show("deck"));
window.addEventListener("pagehide", () => view.chats.forEach((chat) => chat.messages.length && chat.save()));

const view = new ChatView();
view.open(view.chats.at(-1) ?? view.fresh());
watch();
