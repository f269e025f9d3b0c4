// Deck: the dashboard. It shows the frames of /live; everything written by users is set as text.

import { BlockMap } from "/page/block_map.js";
import { Canvas } from "/page/canvas.js";
import { find, make, put } from "/page/dom.js";
import { compact, counted, duration, percent, sum } from "/page/figures.js";
import { KnobPanel } from "/page/knob_panel.js";
import { SessionTable } from "/page/session_table.js";
import { StepStrip } from "/page/step_strip.js";

const STEPS_KEPT = 16_384;
const RATE_MS = 10000;
const PAUSE_MS = 2000; // After one, the rate is that of what came since.
const AXIS = { low: 0.001, high: 100 };

/** The number of a model's operations that our kernels do not compute, as in the terminal: 2 ops off kernels. */
function offKernels(model) {
  if (model.off_kernels) return "off kernels";
  const operations = sum(model.off_path, (one) => one.count);
  return operations ? `${counted(operations, "op")} off kernels` : "";
}

/** The same with the cost and the reason. */
function whyOffKernels(model) {
  if (model.off_kernels) return `It runs module by module: ${model.off_kernels}.`;
  return model.off_path
    .map((one) => {
      const share = one.share == null ? "" : `, ${percent(one.share)} of a decode step`;
      return `By torch: ${one.name} of ${one.columns} columns (${counted(one.count, "operation")}${share}): ${one.reason}.`;
    })
    .join("\n");
}

export class Deck {
  /**
   * @param turn sends a control message; returns the state of the knobs, or throws the refusal.
   */
  constructor(turn) {
    Canvas.readColours();
    this.steps = [];
    this.arrivals = []; // When steps came, with their tokens, for the rates.
    this.changes = [];
    this.requests = [];
    this.mine = new Set(); // The ids of requests of chats that were on view here.
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
    for (const [name, node] of this.legend) node.dataset.name = name;
    find("cache-legend").append(...this.legend.values());
  }

  greet(hello) {
    this.hello = hello;
    this.table.head(hello.operator);
    this.panel.greet(hello);
    this.explain();
    // The next frame has the knobs and the last steps again.
    this.epoch = null;
  }

  /** Explain the figures where the pointer is. */
  explain() {
    for (const node of document.querySelectorAll("#deck dt, #deck .key, #deck th")) this.gloss(node, node.dataset.name ?? node.textContent);
    this.gloss(find("goodput"), "goodput");
  }

  gloss(node, name) {
    const words = this.hello?.glosses[name];
    if (words) node.title = words;
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

  takeKnobs(state) {
    this.changes = state.history.map((change) => {
      const parts = Object.entries(change.changed).map(([name, { after }]) => `${name} ${after}`);
      return { step: change.step, changed: change.changed, label: parts.join(", ").slice(0, 40) };
    });
    this.panel.take(state);
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
        this.gloss(one, name);
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
    this.gloss(head, label);
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

/** The place of a time on the axis, in percent. */
function place(seconds) {
  if (seconds == null) return 0;
  const share = Math.log(seconds / AXIS.low) / Math.log(AXIS.high / AXIS.low);
  return 100 * Math.min(1, Math.max(0, share));
}
