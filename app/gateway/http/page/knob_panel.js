// KnobPanel: the knobs, and the effect of a change.

import { find, make, put } from "/page/dom.js";
import { compact, duration, percent } from "/page/figures.js";

/** The knobs: their state, who changed them, and the effect. */
export class KnobPanel {
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
    put(find("knobs-sum"), this.may ? "a change acts from the next step on" : "read only; a key with operator = true may change them");
  }

  async send(message) {
    const wrong = find("knob-error");
    let knobs;
    try {
      knobs = await this.turn(message);
      wrong.hidden = true;
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
      this.take(this.state);
      return;
    }
    this.deck.takeKnobs(knobs);
  }

  /** Show the state of the knobs, as /live and /live/knobs send it. */
  take(state) {
    this.state = state;
    for (const [name, knob] of Object.entries(state.knobs)) {
      const row = this.rows.get(name) ?? this.add(name, knob);
      this.fill(row, name, knob);
    }
    this.showHistory(state.history);
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
      const { requested, allowed } = this.state.knobs[name];
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
      const by = [change.undoes ? "undone" : "", change.who ? `by ${change.who}` : ""].filter(Boolean).join(" ");
      if (by) line.append(make("span", "when", ` ${by}`));
      return line;
    });
    find("history").replaceChildren(...(lines.length ? lines : [make("li", "when", "nothing yet")]));
  }

  words(changed) {
    const parts = Object.entries(changed).map(([name, { before, after }]) => `${name} ${before} → ${after}`);
    return parts.join(", ") || "a knob that names users";
  }

  /** The effect of the last change, in the words of widgets/panels/knob_history.py. */
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
