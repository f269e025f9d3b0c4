// Canvas: a canvas in the colours of the style sheet.

import { find } from "/page/dom.js";

export const OWNERS = 6; // Colours of requests, which the style sheet has.

/** A canvas at the screen's resolution, with the colours of the style sheet. */
export class Canvas {
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

  /** Draw once, with the screen's next frame. */
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
