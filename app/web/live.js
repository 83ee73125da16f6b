// The side's figures, its legend, and the browser of draft trees, for the run that is looked at.

import { byId, el, onFrame } from "./dom.js";
import { SOURCES, speedup } from "./run.js";
import { describe, drawTree } from "./tree.js";

const NAMES = {
  retrieval: ["retrieval", "seen before"],
  copy_logit: ["copy-logit", "ranked high before"],
  draft_model: ["draft model", "written ahead by it"],
  grammar: ["grammar", "nothing else fits"],
  target: ["target", "the model itself"],
};

const NO_BASE = { rate: 0, from: "", measured: false };

export class Live {
  /** onStep(run, step or null): the step whose tree is drawn has changed. */
  constructor(onStep) {
    this.onStep = onStep;
    this.run = null;
    this.base = NO_BASE;
    this.place = -1; // in run.trees; -1 follows the latest
    this.counts = {};
    this.draw = onFrame(() => this.#draw());
    byId("step-back").addEventListener("click", () => this.#move(-1));
    byId("step-on").addEventListener("click", () => this.#move(1));
    for (const source of SOURCES) this.#addLegend(source, ...NAMES[source]);
    this.#addLegend("rescued", "rescued", "kept by csd");
    this.#legend("grammar").hidden = true; // until an answer has it
  }

  /** What the server can do: sources it never has are left out of the legend. */
  offer(racer) {
    this.#legend("draft_model").hidden = !racer.draft;
    this.#legend("rescued").hidden = !racer.verifiers.includes("csd");
  }

  /** Look at a run, or at none. base: {rate, from, measured}: plain tokens per second to compare with, 0 if unknown. */
  show(run, base = NO_BASE) {
    if (run !== this.run) {
      this.place = -1;
      this.onStep(run, null);
    }
    Object.assign(this, { run, base });
    this.draw();
  }

  /** Draw the tree of a step, by its number. */
  pick(step) {
    const trees = this.run?.trees ?? [];
    const place = trees.findIndex((one) => one.step >= step);
    if (place >= 0) this.#go(place);
  }

  #move(by) {
    const last = this.run.trees.length - 1;
    this.#go((this.place < 0 ? last : this.place) + by);
  }

  #go(place) {
    const last = this.run.trees.length - 1;
    this.place = Math.max(0, Math.min(place, last));
    this.onStep(this.run, this.run.trees[this.place].step);
    if (this.place === last && this.run.state === "running") this.place = -1;
    this.draw();
  }

  #draw() {
    const { run } = this;
    const ratio = run && run.lane === "spec" ? speedup(run, this.base.rate) : 0;
    figure("mat", run?.mat ? run.mat.toFixed(2) : "–");
    figure("rate", run?.rate ? run.rate.toFixed(1) : "–");
    figure("speedup", ratio ? `${this.base.measured ? "" : "≈"}${ratio.toFixed(ratio < 10 ? 2 : 1)}×` : "–");
    byId("speedup-note").textContent = ratio ? this.base.from : "race to measure";
    byId("mat-note").textContent = run?.steps ? `${run.steps} steps` : "tokens a step";
    this.#drawShares();
    this.#drawTree();
  }

  #drawShares() {
    const { run } = this;
    const bars = SOURCES.filter((source) => run?.bySource[source]).map((source) => {
      const bar = el("span", { data: { source } });
      bar.style.flexGrow = run.bySource[source];
      return bar;
    });
    byId("shares").replaceChildren(...bars);
    for (const source of SOURCES) {
      const count = run?.bySource[source] ?? 0;
      this.counts[source].textContent = count ? `${count} · ${Math.round((count / run.tokens) * 100)} %` : "";
    }
    this.#legend("grammar").hidden = !run?.bySource.grammar;
    this.counts.rescued.textContent = run?.rescues || "";
  }

  #drawTree() {
    const trees = this.run?.trees ?? [];
    const place = this.place < 0 ? trees.length - 1 : Math.min(this.place, trees.length - 1);
    const one = trees[place];
    byId("step-back").disabled = place <= 0;
    byId("step-on").disabled = place >= trees.length - 1;
    byId("step-place").value = one ? `step ${one.step} of ${this.run.steps}` : "no step yet";
    byId("tree-caption").textContent = one ? describe(one.tree, one.last) : "";
    if (one) drawTree(byId("tree"), one.tree, one.last);
    else byId("tree").replaceChildren(el("p", { className: "hint", textContent: "The tree of the last step is drawn here." }));
  }

  #legend(source) {
    return byId("legend").querySelector(`[data-of=${source}]`);
  }

  #addLegend(source, name, what) {
    const sample = el("span", { className: "token sample", textContent: "abc", data: { source } });
    if (source === "rescued") sample.classList.add("rescued");
    this.counts[source] = el("span", { className: "count" });
    const text = el("span", { className: "what" }, el("b", { textContent: name }), ` ${what}`);
    byId("legend").append(el("li", { data: { of: source } }, sample, text, this.counts[source]));
  }
}

function figure(name, text) {
  for (const place of document.querySelectorAll(`[data-figure=${name}]`)) place.textContent = text;
}
