// ChatList: the chats of the store, with search, names, pins and deletion.

import { find, make } from "/page/dom.js";
import { ask, send } from "/page/server.js";

const SEARCH_MS = 200;

export class ChatList {
  constructor(view) {
    this.view = view;
    this.chats = [];
    this.found = null;
    this.unread = new Set();
    this.deleted = null;
    find("show-chats").addEventListener("click", () => this.show(find("chat-list").hidden));
    find("new-chat").addEventListener("click", () => view.open(null));
    find("search").addEventListener("input", () => {
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.search(), SEARCH_MS);
    });
    find("title").addEventListener("change", ({ target }) => target.value.trim() && this.change({ title: target.value.trim() }));
    find("pin-chat").addEventListener("click", () => this.change({ pinned: !this.current?.pinned }));
    find("export-chat").addEventListener("click", () => this.export());
    find("delete-chat").addEventListener("click", () => this.delete());
    find("undo-delete").addEventListener("click", () => this.undo());
  }

  get current() {
    return this.chats.find((chat) => chat.id === this.view.id);
  }

  show(isShown) {
    find("chat-list").hidden = !isShown;
    find("show-chats").setAttribute("aria-expanded", isShown);
    if (isShown) find("search").focus();
  }

  take({ chats }) {
    const busy = new Set(this.chats.filter((chat) => chat.busy).map((chat) => chat.id));
    for (const chat of chats) {
      if (busy.has(chat.id) && !chat.busy && chat.id !== this.view.id) this.unread.add(chat.id);
    }
    this.chats = chats;
    this.paint();
  }

  opened(id) {
    this.unread.delete(id);
    this.show(false);
    this.paint();
    this.view.draft.focus({ preventScroll: true });
  }

  paint() {
    const shown = this.found ?? this.chats;
    const items = shown.map((chat) => {
      const item = make("li");
      const { busy } = this.chats.find((one) => one.id === chat.id) ?? chat;
      const button = make("button", busy ? "busy" : this.unread.has(chat.id) ? "unread" : "", chat.title || "New chat");
      button.type = "button";
      button.title = chat.hit ?? chat.title;
      button.setAttribute("aria-current", chat.id === this.view.id);
      if (chat.pinned) button.prepend(make("span", "pin", "▲ "));
      button.addEventListener("click", () => this.view.open(chat.id));
      item.append(button);
      return item;
    });
    find("chats").replaceChildren(...items);
    find("no-chats").hidden = items.length > 0;
    find("no-chats").textContent = this.found ? "No chat has these words." : "No chat yet.";
    const others = this.chats.filter((chat) => chat.busy && chat.id !== this.view.id).length;
    find("show-chats").textContent = `Chats${others ? ` (${others} busy)` : this.unread.size ? ` (${this.unread.size} new)` : ""}`;
    const { current } = this;
    find("chat-title").textContent = current?.title ?? "New chat";
    if (document.activeElement !== find("title")) find("title").value = current?.title ?? "";
    find("pin-chat").textContent = current?.pinned ? "Unpin" : "Pin";
    for (const id of ["title", "pin-chat", "export-chat", "delete-chat"]) find(id).disabled = !current;
  }

  async search() {
    const words = find("search").value.trim();
    if (!words) {
      this.found = null;
      this.paint();
      return;
    }
    await this.view.act(async () => {
      const { chats } = await (await ask(`/chats?search=${encodeURIComponent(words)}`)).json();
      if (find("search").value.trim() !== words) return;
      this.found = chats;
      this.paint();
    });
  }

  change(labels) {
    return this.view.act(() => send("PATCH", `/chats/${this.view.id}`, labels));
  }

  async export() {
    await this.view.act(async () => {
      const file = await (await ask(`/chats/${this.view.id}/export`)).blob();
      const link = make("a");
      link.href = URL.createObjectURL(file);
      link.download = `${this.current.title.replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 40) || "chat"}.json`;
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  async delete() {
    const chat = this.current;
    if (!chat || !(await this.view.act(() => send("DELETE", `/chats/${chat.id}`)))) return;
    this.deleted = chat;
    find("deleted-title").textContent = `“${chat.title}” is deleted.`;
    find("deleted").hidden = false;
    this.view.open(null);
    find("undo-delete").focus();
  }

  async undo() {
    const { deleted } = this;
    find("deleted").hidden = true;
    if (await this.view.act(() => send("POST", `/chats/${deleted.id}/restore`))) this.view.open(deleted.id);
  }
}
