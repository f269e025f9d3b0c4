// SessionTable: the requests.

import { OWNERS } from "/page/canvas.js";
import { find, make, put } from "/page/dom.js";
import { compact, duration } from "/page/figures.js";

// As on the screen of the terminal.
const ENDINGS = { stop: "done", length: "cut off", abort: "stopped", error: "failed" };

/** The requests, a row for each. A request keeps its row as long as frames have it. */
export class SessionTable {
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
    if (view.state === "waiting") return "queued";
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
      // Moving a row removes the focus from its elements.
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
      button.title = "Highlight its blocks";
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
