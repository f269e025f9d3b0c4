// The page: its chats and its dashboard, each with a stream of events, and its keys.

import { ChatList } from "/page/chat_list.js";
import { ChatView } from "/page/chat_view.js";
import { Deck } from "/page/deck.js";
import { find } from "/page/dom.js";
import { send } from "/page/server.js";
import { Stream } from "/page/stream.js";

const OPEN = "batchdeck.open";

function showLink(text, kind) {
  find("link").textContent = text;
  find("link").className = kind;
}

function showNotice(text) {
  find("notice").textContent = text;
  find("notice").hidden = !text;
}

function showLost(error) {
  showLink("connection lost", "lost");
  if (error) showNotice(error.message);
}

// --- The live data.

const deck = new Deck((message) => send("POST", "/live/knobs", message));

new Stream(
  () => "/live",
  (kind, payload) => {
    if (kind === "hello") {
      deck.greet(payload);
      showLink(payload.user === "anybody" ? "live" : `live as ${payload.user}`, "live");
      showNotice("");
    } else if (kind === "frame") deck.take(payload);
  },
  showLost,
);

// --- Chats.

let list = null;
let stream = null;

const view = new ChatView((id) => {
  if (id) sessionStorage.setItem(OPEN, id);
  else sessionStorage.removeItem(OPEN);
  list?.opened(id);
  stream?.restart();
}, deck.mine);
list = new ChatList(view);
view.open(sessionStorage.getItem(OPEN));
stream = new Stream(
  () => (view.id ? `/chats/events?chat=${view.id}` : "/chats/events"),
  (kind, payload) => {
    if (kind === "chats") list.take(payload);
    else if (kind === "chat") view.take(payload);
    else if (kind === "reply") view.grow(payload);
  },
  (error) => {
    // The chat was deleted elsewhere.
    if (error?.status === 404 && view.id) view.open(null);
    else showLost(error);
  },
);

// --- Keys.

find("draft").addEventListener("keydown", (event) => {
  if (event.isComposing) return;
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    view.send();
  } else if (event.key === "Escape") {
    if (view.isBusy) view.stop();
    else if (view.editing) view.cancelEdit();
    else find("messages").focus();
  } else if (event.key === "ArrowUp" && !event.target.value) {
    event.preventDefault();
    view.edit(view.last("user"));
  }
});

const shortcuts = {
  n: () => view.open(null),
  "/": () => list.show(true),
  e: () => view.edit(view.last("user")),
  r: () => view.isBusy || view.actions.regenerate(view.last("assistant")?.head.id),
  g: () => view.state?.resumable && view.actions.resume(),
  c: () => view.last("assistant")?.copy(),
  p: () => find("pin-chat").click(),
  x: () => find("export-chat").click(),
  s: () => {
    find("options").open = !find("options").open;
    find("system").focus();
  },
  Delete: () => find("delete-chat").click(),
  "?": () => find("keys-dialog").showModal(),
  i: () => find("draft").focus(),
  Enter: () => find("draft").focus(),
  Escape: () => view.stop(),
  ArrowLeft: () => turn(-1),
  ArrowRight: () => turn(1),
};

/** Switch the version of the focused message, or else of the last one that has several. */
function turn(steps) {
  const focused = document.activeElement.closest?.(".message")?.dataset.id;
  const id = focused ?? view.state?.messages.findLast((head) => head.place)?.id;
  if (id && !view.isBusy) view.actions.turn(id, steps);
}

document.addEventListener("keydown", (event) => {
  const { target, key } = event;
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (target.id === "search" && key === "Escape") list.show(false);
  const isOfChat = target === document.body || target.id === "messages" || target.matches(".message");
  if (!isOfChat || !Object.hasOwn(shortcuts, key)) return;
  event.preventDefault();
  shortcuts[key]();
});

find("show-keys").addEventListener("click", () => find("keys-dialog").showModal());
find("close-keys").addEventListener("click", () => find("keys-dialog").close());

// --- Which part is on view, if both do not fit.

function show(name) {
  document.body.dataset.view = name;
  find("show-chat").setAttribute("aria-pressed", name === "chat");
  find("show-deck").setAttribute("aria-pressed", name === "deck");
}

find("show-chat").addEventListener("click", () => show("chat"));
find("show-deck").addEventListener("click", () => show("deck"));
