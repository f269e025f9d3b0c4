// MessageView: one message of a chat, with its actions.

import { make } from "/page/dom.js";
import { duration } from "/page/figures.js";
import { copy, GrowingBlocks, nodesOf } from "/page/reply.js";

const NAMES = { user: "You", assistant: "Reply", tool: "Tool" };
const LINE_CHARS = 70;
const LINE_PX = 21;

function figures(head) {
  const { figures: of, state } = head;
  const parts = [];
  if (of) {
    if (of.ttft !== null) parts.push(`TTFT ${duration(of.ttft)}`);
    if (of.tpot !== null) parts.push(`TPOT ${duration(of.tpot)}`);
    if (of.queue !== null) parts.push(`queue ${duration(of.queue)}`);
    parts.push(`${of.output} tokens in ${duration(of.whole)}`, `prompt ${of.prompt}${of.cached ? `, ${of.cached} cached` : ""}`);
  }
  if (state === "cut") parts.push("cut off at the token limit");
  if (state === "stopped") parts.push("stopped");
  return parts.join(" · ");
}

function fold(summary) {
  const details = make("details");
  const inside = make("div", "blocks");
  details.append(make("summary", "", summary), inside);
  return { details, inside };
}

export class MessageView {
  /**
   * @param actions functions of the chat: edit, regenerate, resume, turn.
   */
  constructor(head, actions) {
    this.actions = actions;
    this.node = make("article", `message ${head.role}`);
    this.node.dataset.id = head.id;
    this.node.tabIndex = -1;
    // Until its content is here, it takes about as much room as that will.
    this.node.style.setProperty("--room", `${40 + LINE_PX * Math.ceil(head.chars / LINE_CHARS)}px`);
    this.stamp = null;
    this.body = null;
  }

  get isFilled() {
    return this.body !== null || this.growing !== undefined;
  }

  /** Show all but the content. */
  update(head, isLast, isBusy, isResumable) {
    const shown = JSON.stringify([head, isLast, isBusy, isResumable]);
    if (shown === this.shown) return;
    this.shown = shown;
    this.head = head;
    this.isLast = isLast;
    this.node.classList.toggle("running", head.state === "running");
    this.node.setAttribute("aria-busy", head.state === "running");
    if (head.state === "running") this.begin();
    this.frame ??= this.makeFrame();
    this.frame.who.replaceChildren(NAMES[head.role] ?? head.role, ...this.branches(isBusy));
    this.frame.wrong.hidden = !head.error;
    this.frame.wrong.textContent = head.error;
    const text = head.state === "running" ? "" : figures(head);
    this.frame.stats.hidden = !text;
    this.frame.stats.textContent = text;
    this.frame.tools.replaceChildren(...this.tools(isBusy, isResumable));
  }

  makeFrame() {
    const frame = { who: make("p", "who"), text: make("div", "text blocks"), wrong: make("p", "wrong"), stats: make("p", "stats"), tools: make("p", "tools") };
    this.node.append(frame.who, frame.text, frame.wrong, frame.stats, frame.tools);
    return frame;
  }

  branches(isBusy) {
    const { place } = this.head;
    if (!place) return [];
    const box = make("span", "place");
    const button = (label, steps, name) => {
      const one = make("button", "", label);
      one.type = "button";
      one.disabled = isBusy;
      one.setAttribute("aria-label", name);
      one.addEventListener("click", () => this.actions.turn(this.head.id, steps));
      return one;
    };
    box.append(button("‹", -1, "Previous version"), ` ${place[0]}/${place[1]} `, button("›", 1, "Next version"));
    return [" ", box];
  }

  tools(isBusy, isResumable) {
    const { role, state, error } = this.head;
    const list = [];
    const add = (label, act) => {
      const button = make("button", label.toLowerCase(), label);
      button.type = "button";
      button.addEventListener("click", () => act(button));
      list.push(button);
    };
    if (state === "running") return list;
    add("Copy", (button) => this.copy(button));
    if (isBusy) return list;
    if (role === "user") add("Edit", () => this.actions.edit(this));
    if (role !== "assistant") return list;
    if (error) add("Retry", () => this.actions.regenerate(this.head.id));
    else add("Regenerate", () => this.actions.regenerate(this.head.id));
    if (this.isLast && isResumable) add("Continue", () => this.actions.resume());
    return list;
  }

  copy(button) {
    if (this.body) copy(button ?? this.frame.tools.querySelector(".copy"), this.body.text);
  }

  /** Show the content. */
  fill(body, stamp) {
    if (this.stamp === stamp) return;
    this.stamp = stamp;
    this.body = body;
    this.growing = undefined;
    const wasOpen = this.thoughts?.details.open;
    this.thoughts?.details.remove();
    this.thoughts = undefined;
    for (const node of this.node.querySelectorAll(":scope > .extra-part")) node.remove();
    const { text } = this.frame;
    if (!body.blocks) {
      text.replaceChildren(this.head.role === "tool" && body.name ? `${body.name}: ` : "", body.text);
      for (const file of body.files) this.insertFold(file.name, [make("pre", "", file.text)]);
      return;
    }
    text.replaceChildren(...nodesOf(body.blocks));
    if (body.thinking.length) {
      const seconds = this.head.figures?.thinking;
      this.thoughts = this.insertFold(seconds ? `Thought for ${duration(seconds)}` : "Thought", nodesOf(body.thinking));
      this.thoughts.details.open = Boolean(wasOpen);
    }
    for (const call of body.calls) {
      const card = nodesOf([call])[0];
      card.classList.add("extra-part");
      this.node.insertBefore(card, this.frame.wrong);
    }
  }

  insertFold(summary, nodes) {
    const part = fold(summary);
    part.details.classList.add("extra-part");
    part.inside.append(...nodes);
    this.node.insertBefore(part.details, this.frame.text);
    return part;
  }

  /** Begin to show a growing content. */
  begin() {
    if (this.growing) return;
    this.frame ??= this.makeFrame();
    this.stamp = null;
    this.growing = { text: new GrowingBlocks(this.frame.text), thinking: null };
  }

  grow({ thinking, text }) {
    this.begin();
    if (thinking && (thinking.final.length || thinking.open.length)) {
      this.thoughts ??= this.insertFold("Thinking…", []);
      this.growing.thinking ??= new GrowingBlocks(this.thoughts.inside);
      this.growing.thinking.take(thinking);
    }
    if (text) this.growing.text.take(text);
  }
}
