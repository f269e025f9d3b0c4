// ChatView: the chat on view, its composer and its settings.

import { find, make } from "/page/dom.js";
import { MessageView } from "/page/message_view.js";
import { Refusal, ask, send } from "/page/server.js";

const DRAFT = "batchdeck.draft.";
const AT_END_PX = 40;
const FIRST = 24; // The messages that are laid out first: more than a screen has.

/** A text as a number; other texts are sent unchanged, and the server refuses them with a reason. */
function numeric(text) {
  return Number.isFinite(Number(text)) ? Number(text) : text;
}

export class ChatView {
  /**
   * @param opened called with the id of the chat on view, or null, once it is another one.
   * @param mine a set that gets the ids of the requests of chats.
   */
  constructor(opened, mine) {
    this.opened = opened;
    this.mine = mine;
    this.id = null;
    this.state = null;
    this.editing = null;
    this.views = new Map();
    this.bodies = new Map();
    this.wanted = new Set();
    this.box = find("messages");
    this.draft = find("draft");
    this.actions = {
      edit: (view) => this.edit(view),
      regenerate: (message) => this.turn({ action: "regenerate", message }),
      resume: () => this.turn({ action: "resume" }),
      turn: (message, steps) => this.act(() => send("POST", `/chats/${this.id}/branch`, { message, steps })),
    };
    this.observer = new IntersectionObserver((entries) => this.seen(entries), { root: this.box, rootMargin: "400px" });
    // Only the user leaves the end, which grows by itself.
    for (const kind of ["wheel", "touchmove", "keydown", "pointerup"]) {
      this.box.addEventListener(
        kind,
        () => requestAnimationFrame(() => (this.sticks = this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < AT_END_PX)),
        { passive: true },
      );
    }
    find("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    find("stop").addEventListener("click", () => this.stop());
    find("cancel-edit").addEventListener("click", () => this.cancelEdit());
    this.draft.addEventListener("input", () => this.keepDraft());
    for (const id of ["system", "temperature", "max-tokens", "thinking"]) {
      find(id).addEventListener("change", () => this.configure());
    }
  }

  get isBusy() {
    return Boolean(this.state?.running);
  }

  /** Run a call to the server, and show its refusal. */
  async act(call) {
    try {
      await call();
      this.showError("");
      return true;
    } catch (error) {
      this.showError(error instanceof Refusal ? error.message : "the server cannot be reached");
      return false;
    }
  }

  showError(text) {
    find("chat-error").textContent = text;
    find("chat-error").hidden = !text;
  }

  /** Put a chat on view; null is a new one. */
  open(id) {
    this.id = id;
    this.state = null;
    this.editing = null;
    this.sticks = true;
    this.views.clear();
    this.bodies.clear();
    this.observer.disconnect();
    this.draft.value = localStorage.getItem(DRAFT + (id ?? "")) ?? "";
    this.showError("");
    this.showSettings({ system: "", sampling: {} });
    this.box.replaceChildren(...(id ? [] : [make("p", "empty", "Ask something. Chats are kept on the server, and several can be answered at once.")]));
    this.showButtons();
    this.opened(id);
    this.draft.focus({ preventScroll: true });
  }

  /** A chat's event: all of it, but the contents that are here already. */
  take(state) {
    if (state.id !== this.id) return;
    const isFirst = this.state === null;
    this.state = state;
    if (isFirst) this.showSettings(state);
    for (const [id, body] of Object.entries(state.bodies)) this.bodies.set(id, body);
    const first = isFirst ? Math.max(0, state.messages.length - FIRST) : 0;
    this.layOut(state.messages.slice(first));
    // The messages above what is on view come after it was drawn.
    if (first) requestAnimationFrame(() => setTimeout(() => this.state === state && this.layOut(state.messages)));
    this.showButtons();
    if (state.unsaved) this.showError(state.unsaved);
  }

  layOut(heads) {
    const nodes = heads.map((head, place) => this.show(head, place === heads.length - 1));
    const known = new Set(heads.map((head) => head.id));
    for (const [id, view] of this.views) {
      if (known.has(id)) continue;
      view.node.remove();
      this.views.delete(id);
    }
    nodes.forEach((node, place) => {
      const there = this.box.children[place];
      if (there !== node) this.box.insertBefore(node, there ?? null);
    });
    while (this.box.children.length > nodes.length) this.box.lastChild.remove();
    if (this.sticks) this.goToEnd();
  }

  /** Show the end. Messages have their exact sizes only once they are on view, so it moves meanwhile. */
  goToEnd(frames = 3) {
    this.sticks = true;
    this.box.scrollTop = this.box.scrollHeight;
    if (frames) requestAnimationFrame(() => this.sticks && this.goToEnd(frames - 1));
  }

  show(head, isLast) {
    let view = this.views.get(head.id);
    if (!view) {
      view = new MessageView(head, this.actions);
      this.views.set(head.id, view);
      this.observer.observe(view.node);
    }
    if (head.request) this.mine.add(head.request);
    const body = this.bodies.get(head.id);
    // A message far from the view is an empty box.
    if (head.state === "running" || body || view.frame) view.update(head, isLast, this.isBusy, this.state.resumable);
    view.latest = [head, isLast];
    if (body && head.stamp) view.fill(body, head.stamp);
    return view.node;
  }

  /** Messages have come near the view: ask for the contents that are not here. */
  seen(entries) {
    for (const { isIntersecting, target } of entries) {
      const view = this.views.get(target.dataset.id);
      if (isIntersecting && view && !view.isFilled) this.wanted.add(target.dataset.id);
    }
    if (this.wanted.size) queueMicrotask(() => this.fetch());
  }

  async fetch() {
    const ids = [...this.wanted].slice(0, 64);
    for (const id of ids) this.wanted.delete(id);
    if (!ids.length) return;
    const chat = this.id;
    await this.act(async () => {
      const { bodies } = await (await ask(`/chats/${chat}/messages?ids=${ids.join(",")}`)).json();
      if (chat !== this.id) return;
      for (const [id, body] of Object.entries(bodies)) {
        this.bodies.set(id, body);
        const view = this.views.get(id);
        if (view) this.show(...view.latest);
      }
    });
  }

  /** More of the reply in progress. */
  grow(reply) {
    const view = this.views.get(reply.id);
    if (!view) return;
    view.grow(reply);
    if (this.sticks) this.goToEnd(0);
  }

  showButtons() {
    find("stop").hidden = !this.isBusy;
    find("send").hidden = this.isBusy;
    find("cancel-edit").hidden = !this.editing;
    find("send").textContent = this.editing ? "Send as another version" : "Send";
    for (const node of this.box.querySelectorAll(".editing")) node.classList.remove("editing");
    if (this.editing) this.views.get(this.editing)?.node.classList.add("editing");
  }

  // --- The draft.

  keepDraft() {
    if (this.editing) return;
    const name = DRAFT + (this.id ?? "");
    try {
      if (this.draft.value) localStorage.setItem(name, this.draft.value);
      else localStorage.removeItem(name);
    } catch {
      this.showError("This browser has no space left for drafts.");
    }
  }

  setDraft(text) {
    this.draft.value = text;
    this.keepDraft();
  }

  async send() {
    const text = this.draft.value;
    if (!text.trim() || this.isBusy || this.isSending) return;
    this.isSending = true;
    const message = this.editing;
    const asked = message ? { action: "edit", message, text } : { action: "send", text };
    if (message) this.cancelEdit();
    else this.setDraft("");
    const isSent = await this.act(async () => {
      if (!this.id) {
        const { id } = await send("POST", "/chats", this.stated({}));
        this.open(id);
        this.setDraft("");
      }
      this.goToEnd();
      await send("POST", `/chats/${this.id}/turns`, asked);
    });
    this.isSending = false;
    if (!isSent && !this.draft.value) this.setDraft(text);
  }

  turn(asked) {
    return this.act(() => send("POST", `/chats/${this.id}/turns`, asked));
  }

  stop() {
    if (this.isBusy) this.act(() => send("POST", `/chats/${this.id}/stop`));
  }

  edit(view) {
    if (!view?.body || this.isBusy) return;
    this.editing = view.head.id;
    this.draft.value = view.body.text;
    this.showButtons();
    this.draft.focus();
  }

  cancelEdit() {
    this.editing = null;
    this.draft.value = localStorage.getItem(DRAFT + (this.id ?? "")) ?? "";
    this.showButtons();
  }

  /** The last message of a role, if its content is here. */
  last(role) {
    const head = this.state?.messages.findLast((one) => one.role === role);
    return head && this.views.get(head.id);
  }

  // --- Settings.

  showSettings({ system, sampling }) {
    find("system").value = system;
    find("temperature").value = sampling.temperature ?? "";
    find("max-tokens").value = sampling.max_tokens ?? "";
    find("thinking").checked = sampling.chat_template_kwargs?.enable_thinking !== false;
  }

  /** The settings as the fields state them; others of the chat stay. */
  stated(before) {
    const sampling = { ...before };
    for (const [id, name] of [["temperature", "temperature"], ["max-tokens", "max_tokens"]]) {
      const text = find(id).value.trim();
      if (text === "") delete sampling[name];
      else sampling[name] = numeric(text);
    }
    const { enable_thinking: _, ...others } = sampling.chat_template_kwargs ?? {};
    if (!find("thinking").checked) others.enable_thinking = false;
    if (Object.keys(others).length) sampling.chat_template_kwargs = others;
    else delete sampling.chat_template_kwargs;
    return { system: find("system").value.trim(), sampling };
  }

  configure() {
    if (this.id) this.act(() => send("PATCH", `/chats/${this.id}`, this.stated(this.state?.sampling ?? {})));
  }
}
