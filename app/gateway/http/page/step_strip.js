// StepStrip: the batch of each step.

import { Canvas } from "/page/canvas.js";
import { find, put } from "/page/dom.js";
import { compact, counted, duration, sum } from "/page/figures.js";

const SPANS = [1, 8, 64]; // Steps of a column.

/** Consecutive steps as one, with their averages. */
function together(steps) {
  if (steps.length === 1) return { ...steps[0], first: steps[0].step };
  const mean = (name) => sum(steps, (step) => step[name]) / steps.length;
  const means = ["decode_rows", "prefill_rows", "decode_tokens", "prefill_tokens", "waiting", "seconds", "budget"];
  const sums = ["admitted", "finished", "preempted", "hit_tokens"];
  return {
    ...steps.at(-1),
    first: steps[0].step,
    ...Object.fromEntries(means.map((name) => [name, mean(name)])),
    ...Object.fromEntries(sums.map((name) => [name, sum(steps, (step) => step[name])])),
    error: steps.find((step) => step.error)?.error ?? "",
  };
}

/** The batch of each step: sequences above, tokens below, and when a knob was turned. It stands
    still while somebody looks at one of its steps. */
export class StepStrip {
  constructor(deck) {
    this.deck = deck;
    this.picked = null; // The number of a step; null is the newest.
    this.held = null; // The newest step when the picking began.
    this.span = SPANS[0];
    this.column = 5;
    find("more-steps").addEventListener("click", () => this.zoom(1));
    find("fewer-steps").addEventListener("click", () => this.zoom(-1));
    this.canvas = new Canvas("steps", (...args) => this.draw(...args));
    const node = this.canvas.node;
    node.addEventListener("pointermove", (event) => this.pick(this.at(event)));
    node.addEventListener("pointerleave", () => this.pick(null));
    node.addEventListener("keydown", (event) => this.key(event));
    node.addEventListener("blur", () => this.pick(null));
  }

  zoom(by) {
    const place = SPANS.indexOf(this.span) + by;
    this.span = SPANS[Math.min(SPANS.length - 1, Math.max(0, place))];
    put(find("span"), `a column is ${counted(this.span, "step")}`);
    find("more-steps").disabled = this.span === SPANS.at(-1);
    find("fewer-steps").disabled = this.span === SPANS[0];
    this.show();
  }

  /** The columns that fit, newest last. */
  get shown() {
    const room = Math.max(1, Math.floor(this.canvas.width / this.column));
    const { steps } = this.deck;
    let end = steps.length;
    if (this.held !== null) while (end && steps[end - 1].step > this.held) end--;
    const columns = [];
    while (end && columns.length < room) {
      let begin = end - 1;
      const which = Math.floor(steps[begin].step / this.span);
      while (begin && Math.floor(steps[begin - 1].step / this.span) === which) begin--;
      columns.push(together(steps.slice(begin, end)));
      end = begin;
    }
    return columns.reverse();
  }

  at(event) {
    const fromRight = this.canvas.width - event.offsetX;
    const shown = this.shown;
    return shown[shown.length - 1 - Math.floor(fromRight / this.column)]?.step ?? null;
  }

  key(event) {
    const shown = this.shown;
    if (!shown.length) return;
    const last = shown.length - 1;
    const now = this.picked === null ? last : shown.findIndex((step) => step.step === this.picked);
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: last, PageUp: now - 20, PageDown: now + 20 };
    if (!(event.key in to)) return;
    event.preventDefault();
    this.pick(shown[Math.min(last, Math.max(0, to[event.key]))].step);
  }

  pick(step) {
    if (step === null) this.held = null;
    else this.held ??= this.deck.steps.at(-1).step;
    this.picked = step;
    this.show();
  }

  show() {
    const shown = this.shown;
    const step = shown.find((one) => one.step === this.picked) ?? shown.at(-1);
    const text = step ? this.words(step) : "No step has run yet.";
    put(find("step-detail"), text);
    const node = this.canvas.node;
    node.setAttribute("aria-valuemin", shown[0]?.step ?? 0);
    node.setAttribute("aria-valuemax", shown.at(-1)?.step ?? 0);
    node.setAttribute("aria-valuenow", step?.step ?? 0);
    if (document.activeElement === node) node.setAttribute("aria-valuetext", text);
    this.canvas.redraw();
  }

  words(step) {
    const parts = [
      step.first === step.step ? `step ${step.step}` : `steps ${step.first} to ${step.step}, on average`,
      `${compact(step.decode_rows)} decode + ${compact(step.prefill_rows)} prefill`,
      `${compact(step.decode_tokens + step.prefill_tokens)} of ${compact(step.budget)} tokens`,
      duration(step.seconds),
      `${compact(step.waiting)} waiting`,
    ];
    if (step.admitted) parts.push(`${step.admitted} admitted`);
    if (step.finished) parts.push(`${step.finished} ended`);
    if (step.preempted) parts.push(`${step.preempted} preempted`);
    if (step.hit_tokens) parts.push(`${step.hit_tokens} prompt tokens cached`);
    parts.push(step.policy);
    if (step.error) parts.push(step.error);
    return parts.join(" · ");
  }

  draw(c, width, height) {
    const colours = Canvas.colours;
    const shown = this.shown;
    c.clearRect(0, 0, width, height);
    const label = 13;
    const gap = 19; // Marks, and the caption of the tokens.
    const upper = Math.round((height - label - gap) * 0.58);
    const lowerTop = label + upper + gap;
    const lower = height - lowerTop;
    const mostRows = Math.max(4, ...shown.map((s) => Math.max(s.decode_rows + s.prefill_rows, Math.min(s.waiting, 4096))));
    const mostTokens = Math.max(16, ...shown.map((s) => s.decode_tokens + s.prefill_tokens));
    // Most steps have a token for each sequence, and one with a prompt a hundred times as many.
    const tall = (tokens) => lower * Math.sqrt(tokens / mostTokens);
    c.strokeStyle = colours.line;
    c.lineWidth = 1;
    for (const y of [label + upper + 0.5, height - 0.5]) {
      c.beginPath();
      c.moveTo(0, y);
      c.lineTo(width, y);
      c.stroke();
    }
    const bar = this.column - 1;
    const x = (place) => width - (shown.length - place) * this.column;
    for (const [kind, rows, tokens] of [["decode", "decode_rows", "decode_tokens"], ["prefill", "prefill_rows", "prefill_tokens"]]) {
      c.fillStyle = colours[kind];
      shown.forEach((step, place) => {
        const below = kind === "prefill" ? step.decode_rows : 0;
        const h = (upper * step[rows]) / mostRows;
        c.fillRect(x(place), label + upper - (upper * below) / mostRows - h, bar, h);
        const under = kind === "prefill" ? tall(step.decode_tokens) : 0;
        const all = kind === "prefill" ? tall(step.decode_tokens + step.prefill_tokens) : tall(step.decode_tokens);
        c.fillRect(x(place), height - all, bar, all - under);
      });
    }
    c.strokeStyle = colours.waiting;
    c.lineWidth = 1.5;
    c.beginPath();
    shown.forEach((step, place) => {
      const y = label + upper - (upper * step.waiting) / mostRows - 0.75;
      c.lineTo(x(place), y);
      c.lineTo(x(place) + this.column, y);
    });
    c.stroke();
    shown.forEach((step, place) => {
      if (step.preempted || step.error) {
        c.fillStyle = step.error ? colours.bad : colours.preempted;
        c.fillRect(x(place), label + upper + 1, bar, 4);
      }
    });
    c.font = "10.5px system-ui, sans-serif";
    c.textBaseline = "top";
    for (const change of this.deck.changes) {
      const place = shown.findIndex((step) => step.step > change.step);
      if (place < 0 || (place === 0 && shown[0].first > change.step + 1)) continue;
      const left = x(place) - 1;
      c.fillStyle = colours.turned;
      c.fillRect(left, 0, 1, height);
      const name = change.label;
      const wide = c.measureText(name).width + 6;
      c.fillText(name, left + wide > width ? Math.max(0, left - wide + 3) : left + 4, 0);
    }
    const at = shown.findIndex((step) => step.step === this.picked);
    if (at >= 0) {
      c.strokeStyle = colours.text;
      c.lineWidth = 1;
      c.strokeRect(x(at) - 0.5, label - 0.5, bar + 1, height - label);
    }
    this.caption(c, -1, `${compact(mostRows)} sequences`);
    this.caption(c, lowerTop - label + 1, `${compact(mostTokens)} tokens, square root`);
    return false;
  }

  caption(c, y, text) {
    const wide = c.measureText(text).width;
    c.globalAlpha = 0.8;
    c.fillStyle = Canvas.colours.panel;
    c.fillRect(0, y, wide + 6, 13);
    c.globalAlpha = 1;
    c.fillStyle = Canvas.colours.muted;
    c.fillText(text, 2, y + 1);
  }
}
