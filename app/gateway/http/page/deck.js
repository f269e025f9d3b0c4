// Deck: the dashboard. It takes what /live tells and shows it; whatever others wrote is text.

const STEPS_KEPT = 16_384;
const SPANS = [1, 8, 64]; // Steps of a column.
const RATE_MS = 10000;
const PAUSE_MS = 2000; // After one, the rate is that of what came since.
// As on the screen of the terminal.
const ENDINGS = { stop: "done", length: "cut off", abort: "stopped", error: "failed" };
const FLASH_MS = 400;
const OWNERS = 6;
const STATES = "surpcf"; // Of a block, as engine/api/block_map.py has them, the busiest first.
const STATE_NAMES = { s: "shared", u: "used", r: "reserved", p: "pinned", c: "cached", f: "free" };
const AXIS = { low: 0.001, high: 100 };

const find = (id) => document.getElementById(id);

export function make(tag, name = "", text = "") {
  const node = document.createElement(tag);
  if (name) node.className = name;
  if (text) node.textContent = text;
  return node;
}

function put(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Numbers as widgets/figures.py has them, so that page and terminal show equal figures.

/** With so many decimals; as in Python, a number halfway between two goes to the even one. */
function fixed(number, digits) {
  const scale = 10 ** digits;
  const low = Math.floor(number * scale);
  const isHalf = number * scale - low === 0.5 && (low + 0.5) / scale === number;
  return isHalf && low % 2 === 0 ? (low / scale).toFixed(digits) : number.toFixed(digits);
}

/** A time: 0.4ms, 21ms, 1.23s, 3m04s, 2h14m. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  if (seconds < 0.00995) return `${fixed(seconds * 1000, 1)}ms`;
  if (seconds < 0.9995) return `${fixed(seconds * 1000, 0)}ms`;
  if (seconds < 59.95) return `${fixed(seconds, seconds < 9.995 ? 2 : 1)}s`;
  const whole = Number(fixed(seconds, 0));
  const minutes = Math.floor(whole / 60);
  if (whole < 600) return whole % 60 ? `${minutes}m${String(whole % 60).padStart(2, "0")}s` : `${minutes}m`;
  if (whole < 3600) return `${minutes}m`;
  const hours = Math.floor(whole / 3600);
  if (hours < 10) return `${hours}h${String(minutes % 60).padStart(2, "0")}m`;
  return hours < 100 ? `${hours}h` : `${Math.floor(hours / 24)}d`;
}

/** A number in at most four characters: 47, 9.8k, 112k, 1.3M. */
export function compact(number) {
  if (number == null || !Number.isFinite(number)) return "–";
  let rest = number;
  for (const unit of ["", "k", "M", "G"]) {
    if (rest < 9.95) return (unit ? fixed(rest, 1) : fixed(rest, 1).replace(/\.0$/, "")) + unit;
    if (rest < 999.5) return fixed(rest, 0) + unit;
    rest /= 1000;
  }
  return `${fixed(rest, 0)}T`;
}

export function percent(share) {
  if (share == null || !Number.isFinite(share)) return "–";
  if (share > 0 && share < 0.01) return "<1%";
  if (share > 0.99 && share < 1) return "99%";
  return `${fixed(share * 100, 0)}%`;
}

const counted = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
const sum = (items, of) => items.reduce((total, item) => total + of(item), 0);

/** What of a model our kernels do not compute, as the terminal says it: 2 ops off kernels. */
function offKernels(model) {
  if (model.off_kernels) return "off kernels";
  const operations = sum(model.off_path, (one) => one.count);
  return operations ? `${counted(operations, "op")} off kernels` : "";
}

/** The same with what it costs and why. */
function whyOffKernels(model) {
  if (model.off_kernels) return `It runs module by module: ${model.off_kernels}.`;
  return model.off_path
    .map((one) => {
      const share = one.share == null ? "" : `, ${percent(one.share)} of a decode step`;
      return `By torch: ${one.name} of ${one.columns} columns (${counted(one.count, "operation")}${share}): ${one.reason}.`;
    })
    .join("\n");
}

/** A canvas as sharp as the screen is, and the colours of the style sheet. */
class Canvas {
  static colours = {};

  constructor(id, draw) {
    this.node = find(id);
    this.context = this.node.getContext("2d");
    this.width = this.height = 0;
    this.draw = draw;
    this.asked = false;
    new ResizeObserver(() => this.resize()).observe(this.node);
  }

  resize() {
    const box = this.node.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    this.width = box.width;
    this.height = box.height;
    this.node.width = Math.round(box.width * ratio);
    this.node.height = Math.round(box.height * ratio);
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.redraw();
  }

  /** Draw with the next frame of the screen, once. */
  redraw() {
    if (this.asked) return;
    this.asked = true;
    requestAnimationFrame((now) => {
      this.asked = false;
      if (this.width && this.draw(this.context, this.width, this.height, now)) this.redraw();
    });
  }

  static readColours() {
    const style = getComputedStyle(document.documentElement);
    const names = [
      "decode", "prefill", "waiting", "preempted", "bad", "pinned", "cached", "free", "line", "muted",
      "text", "turned", "panel", "flash", "sunk", "on",
    ];
    for (const name of names) Canvas.colours[name] = style.getPropertyValue(`--${name}`).trim();
    Canvas.owners = Array.from({ length: OWNERS }, (_, at) => style.getPropertyValue(`--own${at}`).trim());
  }
}

/** Steps that follow each other as one, with what they had on average. */
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
class StepStrip {
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

  /** The columns that there is room for, the newest last. */
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

/** Each block of the KV cache, or as many to a cell as there must be. */
class BlockMap {
  constructor(deck) {
    this.deck = deck;
    this.picked = null; // The number of a cell.
    this.total = 0;
    this.states = new Uint8Array(0);
    this.owners = new Int32Array(0);
    this.flashes = new Map(); // By cell, since when.
    this.stretches = [];
    this.base = document.createElement("canvas");
    this.isStale = true;
    this.canvas = new Canvas("blocks", (...args) => this.draw(...args));
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
    const node = this.canvas.node;
    node.addEventListener("pointermove", (event) => this.pick(this.at(event)));
    node.addEventListener("pointerleave", () => this.pick(null));
    node.addEventListener("click", (event) => this.choose(this.at(event)));
    node.addEventListener("keydown", (event) => this.key(event));
    node.addEventListener("blur", () => this.pick(null));
    new ResizeObserver(() => this.fit()).observe(node.parentElement);
  }

  take(blocks) {
    const isOther = blocks.total !== this.total;
    if (isOther) {
      this.total = blocks.total;
      this.states = new Uint8Array(this.total).fill(STATES.indexOf("f"));
      this.owners = new Int32Array(this.total).fill(-1);
    }
    this.stretches = blocks.stretches;
    const now = performance.now();
    const flashes = !isOther && !this.still.matches;
    for (const [first, count, state, holders, counts] of blocks.stretches) {
      const owner = holders.length ? holders[0] : -1;
      let at = first;
      // Of a stretch with several states it is told how many are of each, and not which.
      const runs = counts.length ? counts.map((many, place) => [place, many]) : [[STATES.indexOf(state), count]];
      for (const [place, many] of runs) {
        const whose = place < 3 ? owner : -1;
        for (const end = at + many; at < end; at++) {
          if (this.states[at] === place && this.owners[at] === whose) continue;
          this.states[at] = place;
          this.owners[at] = whose;
          // What is given is to be seen; what is let go loses its colour, and that is enough.
          if (flashes && place < 3) this.flashes.set(Math.floor(at / this.per), now);
        }
      }
    }
    this.isStale = true;
    if (isOther) this.fit();
    this.show();
  }

  /** Lay the cells out: as large as lets all blocks have one. */
  fit() {
    const panel = this.canvas.node.parentElement;
    const style = getComputedStyle(panel);
    const width = panel.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight);
    if (width <= 0 || !this.total) return;
    const tallest = width < 500 ? 200 : 230;
    this.size = 16;
    while (this.size > 3 && Math.ceil(this.total / Math.floor(width / this.size)) * this.size > tallest) this.size--;
    this.columns = Math.floor(width / this.size);
    this.flashes.clear();
    this.isStale = true;
    const cells = this.columns * Math.floor(tallest / this.size);
    this.per = Math.max(1, Math.ceil(this.total / cells));
    this.cells = Math.ceil(this.total / this.per);
    const height = Math.ceil(this.cells / this.columns) * this.size;
    this.canvas.node.style.height = `${height}px`;
    this.canvas.resize();
  }

  at(event) {
    const column = Math.floor(event.offsetX / this.size);
    const cell = Math.floor(event.offsetY / this.size) * this.columns + column;
    return column < this.columns && cell < this.cells ? cell : null;
  }

  key(event) {
    if (!this.cells) return;
    const now = this.picked ?? 0;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.choose(now);
      return;
    }
    const to = { ArrowLeft: now - 1, ArrowRight: now + 1, ArrowUp: now - this.columns, ArrowDown: now + this.columns, Home: 0, End: this.cells - 1 };
    if (!(event.key in to)) return;
    event.preventDefault();
    this.pick(Math.min(this.cells - 1, Math.max(0, to[event.key])));
  }

  pick(cell) {
    this.picked = cell;
    this.show();
  }

  /** Bring out whoever holds a cell. */
  choose(cell) {
    if (cell === null) return;
    const owner = this.owners[this.busiest(cell)];
    this.deck.choose(owner < 0 ? null : owner);
  }

  /** The block by which a cell is drawn. */
  busiest(cell) {
    let best = cell * this.per;
    const end = Math.min(best + this.per, this.total);
    for (let block = best + 1; block < end; block++) if (this.states[block] < this.states[best]) best = block;
    return best;
  }

  holders(block) {
    let low = 0;
    let high = this.stretches.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.stretches[middle][0] <= block) low = middle;
      else high = middle - 1;
    }
    return this.stretches[low]?.[3] ?? [];
  }

  words(cell) {
    const block = this.busiest(cell);
    const last = Math.min(this.total, (cell + 1) * this.per) - 1;
    const which = this.per === 1 ? `block ${block}` : `blocks ${cell * this.per} to ${last}`;
    const state = STATE_NAMES[STATES[this.states[block]]];
    const holders = this.states[block] < 3 ? this.holders(block) : [];
    const names = holders.slice(0, 6).map((one) => this.deck.nameOf(one));
    if (holders.length > 6) names.push(`${holders.length - 6} more`);
    return `${which}: ${state}${names.length ? ` by ${names.join(", ")}` : ""}`;
  }

  show() {
    const node = this.canvas.node;
    const text = this.picked === null || !this.cells
      ? this.per > 1 ? `a cell is ${this.per} blocks, drawn as the busiest of them` : "" : this.words(this.picked);
    put(find("block-detail"), text);
    node.setAttribute("aria-valuemax", Math.max(0, (this.cells ?? 1) - 1));
    node.setAttribute("aria-valuenow", this.picked ?? 0);
    if (document.activeElement === node) node.setAttribute("aria-valuetext", text);
    this.canvas.redraw();
  }

  /** Have all cells painted anew with the next frame. */
  repaint() {
    this.isStale = true;
    this.canvas.redraw();
  }

  draw(c, width, height, now) {
    if (!this.cells) return false;
    if (this.isStale || this.base.width !== c.canvas.width || this.base.height !== c.canvas.height) this.paint(width);
    c.clearRect(0, 0, width, height);
    c.drawImage(this.base, 0, 0, width, height);
    // What is given lights up for a moment. Only such cells are drawn with each frame.
    c.fillStyle = Canvas.colours.flash;
    const { size, columns } = this;
    const side = size - (size > 4 ? 1 : 0);
    for (const [cell, since] of this.flashes) {
      const age = Math.max(0, now - since);
      if (age >= FLASH_MS) {
        this.flashes.delete(cell);
        continue;
      }
      c.globalAlpha = 0.45 * (1 - age / FLASH_MS);
      c.fillRect((cell % columns) * size, Math.floor(cell / columns) * size, side, side);
    }
    c.globalAlpha = 1;
    if (this.picked !== null) {
      c.strokeStyle = Canvas.colours.text;
      c.lineWidth = 2;
      c.strokeRect((this.picked % columns) * size, Math.floor(this.picked / columns) * size, side, side);
    }
    return this.flashes.size > 0;
  }

  /** All cells as they stand, once for the frames until they change. */
  paint(width) {
    this.isStale = false;
    this.base.width = this.canvas.node.width;
    this.base.height = this.canvas.node.height;
    const c = this.base.getContext("2d");
    const ratio = this.base.width / width;
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    const { colours, owners } = Canvas;
    const { size, columns, states, deck } = this;
    const side = size - (size > 4 ? 1 : 0);
    const chosen = deck.chosen;
    for (let cell = 0; cell < this.cells; cell++) {
      const block = this.per === 1 ? cell : this.busiest(cell);
      const state = STATES[states[block]];
      const owner = this.owners[block];
      const x = (cell % columns) * size;
      const y = Math.floor(cell / columns) * size;
      const isIts = chosen === null || owner === chosen || (state === "s" && this.holders(block).includes(chosen));
      c.globalAlpha = isIts || state === "f" ? 1 : 0.22;
      if (owner >= 0) c.fillStyle = owners[owner % OWNERS];
      else c.fillStyle = state === "p" ? colours.pinned : state === "c" ? colours.cached : colours.free;
      c.fillRect(x, y, side, side);
      if (state === "r") {
        c.fillStyle = colours.panel;
        const edge = Math.max(1, Math.floor(side / 5));
        c.fillRect(x + edge, y + edge, side - 2 * edge, side - 2 * edge);
      } else if (state === "s") {
        c.fillStyle = colours.panel;
        const dot = Math.max(1, Math.round(side / 3));
        c.fillRect(x + (side - dot) / 2, y + (side - dot) / 2, dot, dot);
      }
    }
  }
}

/** The requests, a row for each, which stays the same row as long as it is told of. */
class SessionTable {
  static columns = [
    { name: "#", of: (view) => `${view.ordinal}` },
    { name: "asked by", left: true, only: true, of: (view) => SessionTable.asker(view) },
    { name: "state", left: true, of: (view) => SessionTable.state(view) },
    { name: "queue", wide: true, of: (view) => duration(view.queue) },
    { name: "TTFT", of: (view) => duration(view.ttft), late: (view, good) => good && view.ttft > good.ttft_target },
    { name: "TPOT", of: (view) => duration(view.tpot), late: (view, good) => good && view.tpot > good.tpot_target },
    { name: "ITL p99", wide: true, extra: true, of: (view) => duration(view.itl_p99) },
    { name: "prompt", wide: true, of: (view) => compact(view.prompt_tokens) },
    { name: "cached", wide: true, extra: true, of: (view) => (view.cached_tokens ? compact(view.cached_tokens) : "") },
    { name: "out", of: (view) => compact(view.output_tokens) },
    { name: "blocks", wide: true, of: (view) => (view.blocks ? `${view.blocks}` : "") },
    { name: "why", left: true, wide: true, why: true, of: (view) => view.error || view.wait },
  ];

  static asker(view) {
    const from = [view.user === "anybody" ? "" : view.user, view.source === "http" ? "" : view.source];
    return [view.title || view.id, ...from].filter(Boolean).join(" · ");
  }

  static style(column) {
    const marks = { left: "left", wide: "wide", extra: "extra", only: "title", why: "why" };
    return Object.keys(marks).filter((mark) => column[mark]).map((mark) => marks[mark]).join(" ");
  }

  static state(view) {
    if (view.state === "finished") return ENDINGS[view.finish_reason] ?? "ended";
    if (view.state === "waiting") return "waits";
    if (view.state === "preempted") return "preempted";
    return view.prefilling ? "prefill" : "decode";
  }

  constructor(deck) {
    this.deck = deck;
    this.rows = new Map();
    this.body = find("sessions-rows");
  }

  head(isOperator) {
    this.columns = SessionTable.columns.filter((column) => isOperator || !column.only);
    find("sessions-head").replaceChildren(
      ...this.columns.map((column) => {
        const cell = make("th", SessionTable.style(column), column.name);
        cell.scope = "col";
        return cell;
      }),
    );
    this.body.replaceChildren();
    this.rows.clear();
  }

  take(requests, goodput) {
    const seen = new Set();
    let before = null;
    for (const view of requests) {
      seen.add(view.ordinal);
      const row = this.rows.get(view.ordinal) ?? this.add(view);
      this.fill(row, view, goodput);
      const place = before ? before.nextSibling : this.body.firstChild;
      // Moving a row takes the focus off what is in it.
      if (place !== row.node) this.body.insertBefore(row.node, place);
      before = row.node;
    }
    for (const [ordinal, row] of this.rows) {
      if (seen.has(ordinal)) continue;
      row.node.remove();
      this.rows.delete(ordinal);
    }
    find("sessions-none").hidden = requests.length > 0;
  }

  add(view) {
    const node = make("tr");
    const cells = this.columns.map((column, place) => {
      const cell = make("td", SessionTable.style(column));
      node.append(cell);
      if (place) return cell;
      const button = make("button", `own${view.ordinal % OWNERS}`);
      button.type = "button";
      button.title = "Bring out its blocks";
      button.addEventListener("click", () => this.deck.choose(this.deck.chosen === view.ordinal ? null : view.ordinal));
      cell.append(button);
      return button;
    });
    const row = { node, cells };
    this.rows.set(view.ordinal, row);
    return row;
  }

  fill(row, view, goodput) {
    const isChosen = this.deck.chosen === view.ordinal;
    row.node.classList.toggle("finished", view.state === "finished");
    row.node.classList.toggle("mine", this.deck.mine.has(view.id));
    row.node.classList.toggle("chosen", isChosen);
    row.cells[0].setAttribute("aria-pressed", isChosen);
    this.columns.forEach((column, place) => {
      const cell = row.cells[place];
      const text = column.of(view) ?? "";
      put(cell, text);
      if (column.only || column.why) cell.title = text;
      if (column.late) cell.classList.toggle("late", Boolean(column.late(view, goodput)));
      if (column.name === "state") {
        cell.className = view.state === "finished" && text !== "failed" ? "left state" : `left state s-${text}`;
        cell.title = view.wait;
      }
    });
  }
}

/** The knobs: how they stand, who turned them, and what that did. */
class KnobPanel {
  constructor(deck, turn) {
    this.deck = deck;
    this.turn = turn;
    this.rows = new Map();
    this.specs = {};
    find("undo").addEventListener("click", () => this.send({ undo: true }));
  }

  greet(hello) {
    this.specs = hello.knobs;
    this.may = hello.operator;
    this.rows.clear();
    find("knob-list").replaceChildren();
    find("undo").hidden = !this.may;
    put(find("knobs-sum"), this.may ? "a change acts from the next step on" : "to be seen; a key with operator = true may turn them");
  }

  async send(message) {
    const wrong = find("knob-error");
    let told;
    try {
      told = await this.turn(message);
      wrong.hidden = true;
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
      this.take(this.told);
      return;
    }
    this.deck.takeKnobs(told);
  }

  take(told) {
    this.told = told;
    for (const [name, knob] of Object.entries(told.knobs)) {
      const row = this.rows.get(name) ?? this.add(name, knob);
      this.fill(row, name, knob);
    }
    this.showHistory(told.history);
  }

  add(name, knob) {
    const spec = this.specs[name] ?? { meaning: "", unit: "", step: 0 };
    const node = make("div", "knob");
    const label = make("label", "", name);
    const value = make("span", "value");
    const isSwitch = knob.allowed.choices?.includes(true);
    const isNumber = knob.allowed.low !== undefined;
    let input;
    if (knob.allowed.choices && !isSwitch) {
      input = make("select");
      for (const choice of knob.allowed.choices) input.append(new Option(choice, choice));
    } else {
      input = make("input", isNumber || isSwitch ? "" : "long");
      input.type = isSwitch ? "checkbox" : "text";
      if (isNumber) input.inputMode = "decimal";
    }
    input.id = label.htmlFor = `knob-${name}`;
    input.disabled = !this.may;
    const meaning = make("p", "meaning", spec.unit ? `${spec.meaning} (${spec.unit})` : spec.meaning);
    const note = make("span", "note");
    meaning.id = `about-${name}`;
    input.setAttribute("aria-describedby", meaning.id);
    meaning.append(" ", note);
    const row = { node, input, note, isSwitch, isNumber };
    const buttons = isNumber && this.may ? ["−", "+"].map((sign) => this.button(name, sign, row, spec)) : [];
    value.append(...buttons.slice(0, 1), input, ...buttons.slice(1));
    node.append(label, value, meaning);
    input.addEventListener("change", () => this.entered(name, row));
    find("knob-list").append(node);
    this.rows.set(name, row);
    return row;
  }

  button(name, sign, row, spec) {
    const button = make("button", "", sign);
    button.type = "button";
    button.setAttribute("aria-label", `${sign === "+" ? "More" : "Less"} ${name}`);
    button.addEventListener("click", () => {
      const { requested, allowed } = this.told.knobs[name];
      const up = sign === "+";
      // As in the terminal: small shares are added, all else is doubled and halved.
      let next = spec.step < 1 ? requested + (up ? spec.step : -spec.step) : up ? requested * 2 || 1 : requested / 2;
      if (spec.step >= 1) next = up ? Math.round(next) : Math.floor(next);
      next = Math.min(allowed.high, Math.max(allowed.low, Number(next.toFixed(6))));
      if (next !== requested) this.send({ set: { [name]: next } });
    });
    return button;
  }

  entered(name, row) {
    const { input } = row;
    let value = row.isSwitch ? input.checked : input.value;
    if (row.isNumber && input.value.trim() !== "" && Number.isFinite(Number(input.value))) value = Number(input.value);
    this.send({ set: { [name]: value } });
  }

  fill(row, name, knob) {
    const { input } = row;
    if (row.isSwitch) input.checked = knob.requested;
    else if (!row.isNumber || document.activeElement !== input || input.value === row.shown) input.value = `${knob.requested}`;
    row.shown = input.value;
    const differs = knob.requested !== knob.effective;
    put(row.note, [differs ? `in force: ${knob.effective}` : "", knob.note].filter(Boolean).join("; "));
    row.node.classList.toggle("idle", knob.note.startsWith("ignored") && !differs);
    row.node.classList.toggle("changed", this.deck.changes.some((change) => name in change.changed));
  }

  showHistory(history) {
    find("undo").disabled = !history.length;
    const lines = [...history].reverse().map((change) => {
      const line = make("li");
      line.append(make("span", "when", `step ${change.step} `), this.words(change.changed));
      const by = [change.undoes ? "taken back" : "", change.who ? `by ${change.who}` : ""].filter(Boolean).join(" ");
      if (by) line.append(make("span", "when", ` ${by}`));
      return line;
    });
    find("history").replaceChildren(...(lines.length ? lines : [make("li", "when", "nothing yet")]));
  }

  words(changed) {
    const told = Object.entries(changed).map(([name, { before, after }]) => `${name} ${before} → ${after}`);
    return told.join(", ") || "a knob that names users";
  }

  /** The effect of the last change, in the words of widgets/panels/effect.py. */
  showEffect(effect) {
    put(find("effect"), effect ? `${this.words(effect.changed)}: ${effectLine(effect)}` : "");
  }
}

const TEXTS = { number: compact, seconds: duration, share: percent };

function effectLine({ obstacle, figures }) {
  if (obstacle) return `not comparable: ${obstacle.words.replace("{}", `${compact(obstacle.was)}→${compact(obstacle.now)}`)}`;
  const [known, few] = [[], []];
  for (const figure of figures) {
    const [then, now] = [figure.before, figure.since].map(TEXTS[figure.unit]);
    if (figure.few) few.push(`${figure.name} not comparable: ${figure.few}`);
    else if (then !== "–" || now !== "–") known.push(`${figure.name} ${course(then, now)}`);
  }
  return [...known, ...few].join(" · ");
}

/** Both values, with a common unit only once. */
function course(then, now) {
  const [was, unit] = [then, now].map((text) => text.replace(/^[0-9.]*/, ""));
  return `${was === unit ? then.slice(0, then.length - unit.length) : then}→${now}`;
}

export class Deck {
  /**
   * @param turn sends a control message; returns how the knobs stand, or throws what is wrong.
   */
  constructor(turn) {
    Canvas.readColours();
    this.steps = [];
    this.arrivals = []; // When steps came, with their tokens, for the rates.
    this.changes = [];
    this.requests = [];
    this.mine = new Set(); // The ids of what was asked from this page.
    this.chosen = null;
    this.epoch = null;
    this.strip = new StepStrip(this);
    this.map = new BlockMap(this);
    this.table = new SessionTable(this);
    this.panel = new KnobPanel(this, turn);
    this.kpis = new Map();
    this.latencies = new Map();
    this.makeLegend();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      Canvas.readColours();
      this.strip.canvas.redraw();
      this.map.repaint();
    });
  }

  makeLegend() {
    const names = ["used", "shared", "reserved", "pinned", "cached", "free"];
    this.legend = new Map(names.map((name) => [name, make("span", `key ${name}`, name)]));
    find("cache-legend").append(...this.legend.values());
  }

  greet(hello) {
    this.hello = hello;
    this.table.head(hello.operator);
    this.panel.greet(hello);
    // The knobs and the last steps come again with the next frame.
    this.epoch = null;
  }

  take(frame) {
    const isAnew = frame.epoch !== this.epoch;
    if (isAnew) {
      this.epoch = frame.epoch;
      this.steps = [];
      this.arrivals = [];
      this.changes = [];
    }
    const now = performance.now();
    this.steps.push(...frame.steps);
    if (this.steps.length > STEPS_KEPT) this.steps.splice(0, this.steps.length - STEPS_KEPT);
    if (!isAnew && frame.steps.length && !(now - this.arrivals.at(-1)?.now < PAUSE_MS)) {
      this.arrivals = [];
      this.busySince = this.takenAt ?? now;
    }
    this.takenAt = now;
    if (!isAnew) for (const step of frame.steps) this.arrivals.push({ now, output: step.output_tokens, prefill: step.prefill_tokens });
    while (this.arrivals.length && this.arrivals[0].now < now - RATE_MS) this.arrivals.shift();
    this.requests = frame.requests;
    this.showStatus(frame.status, frame.engine);
    if (frame.knobs?.knobs) this.takeKnobs(frame.knobs);
    this.table.take(frame.requests, frame.engine?.goodput);
    const { engine } = frame;
    if (engine) {
      this.map.take(engine.blocks);
      this.showCache(engine);
      this.showKpis(engine);
      this.showLatencies(engine);
      put(find("sessions-sum"), `${engine.running} running, ${engine.waiting} waiting${engine.head_wait ? `: ${engine.head_wait}` : ""}`);
    }
    this.strip.show();
    this.panel.showEffect(frame.effect);
  }

  takeKnobs(told) {
    this.changes = told.history.map((change) => {
      const parts = Object.entries(change.changed).map(([name, { after }]) => `${name} ${after}`);
      return { step: change.step, changed: change.changed, label: parts.join(", ").slice(0, 40) };
    });
    this.panel.take(told);
    this.strip.canvas.redraw();
  }

  choose(ordinal) {
    this.chosen = ordinal;
    this.table.take(this.requests, this.goodput);
    this.map.repaint();
  }

  nameOf(ordinal) {
    const view = this.requests.find((one) => one.ordinal === ordinal);
    return view?.title ? `#${ordinal} ${view.title}` : `#${ordinal}`;
  }

  showStatus(status, engine) {
    const model = engine?.model;
    const parts = model
      ? [model.name, model.has_chat_template ? "" : "completion", model.quantize === "none" ? model.dtype : model.quantize, model.device, `${compact(model.parameters)} parameters`]
      : [status.model];
    if (status.phase !== "ready") {
      parts.push(status.phase, status.detail);
      if (status.total_bytes) parts.push(percent(status.loaded_bytes / status.total_bytes));
    }
    if (model) parts.push(offKernels(model));
    put(find("model"), parts.filter(Boolean).join(" · ") || "no model");
    find("model").title = model ? whyOffKernels(model) : "";
  }

  showCache(engine) {
    const { blocks } = engine;
    const held = blocks.used;
    put(find("cache-sum"), `${blocks.total} blocks of ${engine.block_size} tokens, ${percent(held / blocks.total)} used${blocks.host ? `; host ${blocks.host_used} of ${blocks.host}` : ""}`);
    const numbers = { ...blocks, used: held - blocks.shared - blocks.reserved, cached: blocks.cached - blocks.pinned };
    for (const [name, node] of this.legend) put(node, `${name} ${numbers[name]}`);
  }

  showKpis(engine) {
    const { latency, totals, goodput } = engine;
    this.goodput = goodput;
    const isBusy = this.takenAt - this.arrivals.at(-1)?.now < PAUSE_MS;
    const seconds = isBusy ? Math.max(PAUSE_MS, Math.min(RATE_MS, this.takenAt - this.busySince)) / 1000 : Infinity;
    const hit = totals.prefix_queried_tokens ? totals.prefix_hit_tokens / totals.prefix_queried_tokens : null;
    const last = this.steps.at(-1);
    const figures = [
      ["output tok/s", compact(sum(this.arrivals, (one) => one.output) / seconds)],
      ["prompt tok/s", compact(sum(this.arrivals, (one) => one.prefill) / seconds)],
      ["running", `${engine.running}`],
      ["waiting", `${engine.waiting}`, engine.stalled],
      ["KV used", percent(engine.blocks.used / engine.blocks.total)],
      ["prefix hits", percent(hit)],
      ["TTFT p50", duration(latency.ttft.p50), goodput && latency.ttft.p50 > goodput.ttft_target],
      ["TPOT p50", duration(latency.tpot.p50), goodput && latency.tpot.p50 > goodput.tpot_target],
      ["step", duration(last?.seconds)],
      ["preempted", compact(totals.preemptions)],
    ];
    for (const [name, text, isBad] of figures) {
      let one = this.kpis.get(name);
      if (!one) {
        one = make("div");
        one.append(make("dt", "", name), make("dd"));
        find("kpis").append(one);
        this.kpis.set(name, one);
      }
      put(one.lastChild, text);
      one.classList.toggle("bad", Boolean(isBad));
    }
  }

  showLatencies(engine) {
    const { latency, goodput } = engine;
    put(find("latencies-sum"), `of the last ${compact(latency.window)} s`);
    for (const [name, label] of [["ttft", "TTFT"], ["tpot", "TPOT"], ["itl", "ITL"], ["queue", "queue"], ["e2e", "E2E"]]) {
      const row = this.latencies.get(name) ?? this.addLatency(name, label);
      const of = latency[name];
      put(row.p50, duration(of.p50));
      put(row.p99, duration(of.p99));
      put(row.count, compact(of.count));
      const target = goodput?.[`${name}_target`];
      row.p50.classList.toggle("late", Boolean(target && of.p50 > target));
      row.bar.hidden = row.mid.hidden = of.p50 == null;
      row.target.hidden = !target;
      const [low, high] = [place(of.p50), place(of.p99)];
      row.bar.style.left = `${low}%`;
      row.bar.style.width = `${Math.max(0, high - low)}%`;
      row.mid.style.left = `${low}%`;
      if (target) row.target.style.left = `${place(target)}%`;
    }
    put(
      find("goodput"),
      goodput?.share != null
        ? `${percent(goodput.share)} of requests met both targets (TTFT ${duration(goodput.ttft_target)}, TPOT ${duration(goodput.tpot_target)}) in ${compact(goodput.window)} s` +
          (goodput.late ? `; ${goodput.late} under way miss one` : "")
        : "",
    );
  }

  addLatency(name, label) {
    const row = make("tr");
    const head = make("th", "left", label);
    head.scope = "row";
    const [p50, p99, count] = [make("td"), make("td"), make("td")];
    const axis = make("td", "axis");
    const range = make("div", "range");
    const [bar, mid, target] = [make("i", "bar"), make("i", "mid"), make("i", "target")];
    range.setAttribute("aria-hidden", "true");
    range.append(bar, mid, target);
    axis.append(range);
    row.append(head, p50, p99, count, axis);
    find("latency-rows").append(row);
    const made = { p50, p99, count, bar, mid, target };
    this.latencies.set(name, made);
    return made;
  }
}

/** Where a time stands on the axis, in percent. */
function place(seconds) {
  if (seconds == null) return 0;
  const share = Math.log(seconds / AXIS.low) / Math.log(AXIS.high / AXIS.low);
  return 100 * Math.min(1, Math.max(0, share));
}
