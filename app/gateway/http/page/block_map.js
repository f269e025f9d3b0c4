// BlockMap: the blocks of the KV cache.

import { Canvas, OWNERS } from "/page/canvas.js";
import { find, put } from "/page/dom.js";

const FLASH_MS = 400;
const STATES = "surpcf"; // Of a block, as engine/api/block_map.py has them, the busiest first.
const STATE_NAMES = { s: "shared", u: "used", r: "reserved", p: "pinned", c: "cached", f: "free" };

/** The blocks of the KV cache; a cell shows one block, or several if they do not all fit. */
export class BlockMap {
  constructor(deck) {
    this.deck = deck;
    this.picked = null; // The number of a cell.
    this.total = 0;
    this.states = new Uint8Array(0);
    this.owners = new Int32Array(0);
    this.flashes = new Map(); // By cell, since when.
    this.segments = [];
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
    this.segments = blocks.segments;
    const now = performance.now();
    const flashes = !isOther && !this.still.matches;
    for (const [first, count, state, holders, counts] of blocks.segments) {
      const owner = holders.length ? holders[0] : -1;
      let at = first;
      // For a segment with several states only the count of each is known, not which blocks.
      const runs = counts.length ? counts.map((many, place) => [place, many]) : [[STATES.indexOf(state), count]];
      for (const [place, many] of runs) {
        const whose = place < 3 ? owner : -1;
        for (const end = at + many; at < end; at++) {
          if (this.states[at] === place && this.owners[at] === whose) continue;
          this.states[at] = place;
          this.owners[at] = whose;
          // An allocation is animated; a released block just loses its colour.
          if (flashes && place < 3) this.flashes.set(Math.floor(at / this.per), now);
        }
      }
    }
    this.isStale = true;
    if (isOther) this.fit();
    this.show();
  }

  /** Lay the cells out, as large as possible with a cell for each block. */
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

  /** Highlight the request that holds a cell. */
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
    let high = this.segments.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.segments[middle][0] <= block) low = middle;
      else high = middle - 1;
    }
    return this.segments[low]?.[3] ?? [];
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

  /** Repaint all cells with the next frame. */
  repaint() {
    this.isStale = true;
    this.canvas.redraw();
  }

  draw(c, width, height, now) {
    if (!this.cells) return false;
    if (this.isStale || this.base.width !== c.canvas.width || this.base.height !== c.canvas.height) this.paint(width);
    c.clearRect(0, 0, width, height);
    c.drawImage(this.base, 0, 0, width, height);
    // Newly allocated cells light up for a moment. Only these are drawn with each frame.
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

  /** Draw all cells once, for all frames until they change. */
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
