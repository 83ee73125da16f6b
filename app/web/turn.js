// One turn of the conversation on the page: what was asked, and the answer, alone or as a race.

import { raceChart } from "./chart.js";
import { el, onFrame } from "./dom.js";
import { partsAt, speedup } from "./run.js";

const LANES = { spec: "Speculative", plain: "Plain" };
const ENDS = {
  stop: "complete",
  length: "cut at max tokens",
  stopped: "stopped",
  interrupted: "interrupted",
};
const FENCE = /^ *```/; // begins a line

export class TurnView {
  /** turn: {prompt, runs}. onPick(run, step): a token was clicked whose step can be shown. */
  constructor(turn, onPick) {
    this.turn = turn;
    this.onPick = onPick;
    this.answers = new Map();
    this.body = el("div", { className: "answers" });
    this.element = el("li", { className: "turn" }, said("You: "), el("p", { className: "asked", textContent: turn.prompt }), said("Answer: "), this.body);
    this.drawRace = onFrame(() => this.#drawRace());
    for (const run of turn.runs) this.addRun(run);
  }

  /** Shows a run; the second makes the turn a race. racing: a second one is to come. */
  addRun(run, racing = false) {
    if (racing || this.turn.runs.length > 1) this.#openRace();
    const view = new AnswerView(run, this.lanes ? LANES[run.lane] : "", this.onPick);
    this.answers.set(run, view);
    (this.lanes ?? this.body).append(view.element);
    if (this.lanes) this.drawRace();
  }

  /** run grew by pieces. */
  grow(run, pieces) {
    this.answers.get(run).grow(pieces);
    if (this.lanes) this.drawRace();
  }

  mark(run, step) {
    for (const [own, view] of this.answers) view.mark(own === run ? step : null);
  }

  #openRace() {
    if (this.lanes) return;
    this.lanes = el("div", { className: "lanes" });
    this.verdict = el("p", { className: "verdict" });
    this.chart = el("div");
    new ResizeObserver(this.drawRace).observe(this.chart); // its text keeps its size
    this.body.className = "race";
    this.body.prepend(this.verdict, this.chart, this.lanes);
  }

  #drawRace() {
    const [spec, plain] = this.turn.runs;
    const chart = raceChart(this.turn.runs, Math.max(240, this.chart.clientWidth));
    if (chart) this.chart.replaceChildren(chart);
    this.verdict.replaceChildren(...verdict(spec, plain));
  }
}

class AnswerView {
  constructor(run, lane, onPick) {
    this.run = run;
    this.line = ""; // the last one so far
    this.code = false;
    this.text = el("div", { className: "text" });
    this.thought = el("div", { className: "thought" });
    this.thoughts = el("details", { className: "thoughts", hidden: true, open: run.state === "running" }, el("summary", { textContent: "Thoughts" }), this.thought);
    this.meta = el("p", { className: "meta" });
    this.failure = el("div", { className: "failure", role: "alert" });
    this.element = el("div", { className: "answer", data: { lane: run.lane } });
    if (lane) this.element.append(el("h3", { className: `lane ${run.lane}`, textContent: lane }));
    this.element.append(this.thoughts, this.text, this.meta, this.failure);
    this.text.addEventListener("click", ({ target }) => {
      if (target.dataset.step && run.trees.length) onPick(run, Number(target.dataset.step));
    });
    this.grow(run.pieces);
  }

  grow(pieces) {
    for (const piece of this.run.thoughts.slice(this.thought.childElementCount)) this.thought.append(tokenOf(piece, false));
    this.thoughts.hidden = !this.run.thoughts.length;
    if (pieces.length && !this.text.hasChildNodes()) this.thoughts.open = false; // once: who wants them opens them again
    for (const piece of pieces) {
      const breaks = piece[0].match(/^\n*/)[0].length; // the rest stands on the next line
      this.#follow(piece[0].slice(0, breaks));
      this.text.append(tokenOf(piece, this.code || FENCE.test(this.line + piece[0])));
      this.#follow(piece[0].slice(breaks));
    }
    this.element.classList.toggle("running", this.run.state === "running");
    if (this.run.trees.length > 1) this.element.dataset.steps = this.run.trees.length;
    this.meta.replaceChildren(...metaOf(this.run));
    if (this.run.error && !this.failure.hasChildNodes()) this.failure.append(el("p", { className: "error", textContent: this.run.error }));
  }

  // Between two fences stands code.
  #follow(text) {
    const lines = (this.line + text).split("\n");
    this.line = lines.pop();
    for (const line of lines) if (FENCE.test(line)) this.code = !this.code;
  }

  mark(step) {
    for (const token of this.text.querySelectorAll(".shown")) token.classList.remove("shown");
    if (step === null) return;
    for (const token of this.text.querySelectorAll(`[data-step="${step}"]`)) token.classList.add("shown");
  }
}

function tokenOf([text, source, rescued, step], code) {
  const title = `${source}${rescued ? ", rescued" : ""}, ${step ? `step ${step}` : "first token"}`;
  const className = `token${rescued ? " rescued" : ""}${code ? " code" : ""}`;
  return el("span", { className, textContent: text, title, data: { source, step } });
}

function metaOf(run) {
  if (!run.tokens) return run.state === "stopped" ? [el("span", { textContent: ENDS.stopped })] : [];
  const seconds = `${run.tokens} tokens in ${(run.elapsed / 1000).toFixed(1)} s`;
  const items = [seconds];
  if (run.rate) items.unshift(el("strong", { textContent: `${run.rate.toFixed(1)} tokens/s` }));
  if (run.mat) items.push(`MAT ${run.mat.toFixed(2)}`);
  if (run.rescues) items.push(`${run.rescues} rescued`);
  if (ENDS[run.state]) items.push(ENDS[run.state]);
  return items.map((item) => (typeof item === "string" ? el("span", { textContent: item }) : item));
}

/** What a race says so far, or in the end. */
function verdict(spec, plain) {
  if (!plain) return [el("strong", { textContent: "Race" }), "First with speculation, then plain: neither slows the other down."];
  const ratio = speedup(spec, plain.rate);
  const size = ratio ? `${ratio.toFixed(ratio < 10 ? 2 : 1)}×` : "–";
  if (plain.state === "running") return [el("strong", { textContent: size }), "so far; plain decoding is on its way."];
  if (!ratio) return ["No comparison: a run was too short or broke off."];
  const word = ratio >= 1 ? "as fast as plain decoding" : "of plain decoding's speed";
  return [el("strong", { textContent: size }), word, el("span", { textContent: sameness(spec, plain) })];
}

function sameness(spec, plain) {
  const whole = [spec, plain].every((run) => run.state === "stop" || run.state === "length");
  const place = partsAt(spec, plain);
  if (place < 0) return "Same text, to the letter.";
  if (!whole) return "";
  const why = spec.figures?.verifier === "csd" ? "csd kept what the target would not have chosen" : "rounding outside float32 flips near ties";
  return `The texts part at token ${place}: ${why}.`;
}

function said(text) {
  return el("span", { className: "unseen", textContent: text });
}
