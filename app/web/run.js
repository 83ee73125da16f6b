// One answer as it grows: its text by tokens, its steps and their trees, and what can be measured from here.

import { alignTokens } from "./align.js";

export const SOURCES = ["retrieval", "copy_logit", "draft_model", "grammar", "target"];

export class Run {
  /** lane: "spec" or "plain". */
  constructor(lane) {
    this.lane = lane;
    this.pieces = []; // [text, source, rescued, step]
    this.thoughts = []; // the same, of what a reasoning model thinks before it answers
    this.tokens = 0;
    this.steps = 0; // verify steps; the first token comes before any
    this.bySource = Object.fromEntries(SOURCES.map((source) => [source, 0]));
    this.rescues = 0;
    this.points = []; // [milliseconds since the request, tokens until then]
    this.figures = null; // metrics.speculative_decoding of the last chunk
    this.state = "running"; // then: stop, length, stopped (by the user), interrupted (by a reload), failed
    this.error = "";
    this.trees = []; // {step, tree, last}; for this visit only
    this.startedAt = performance.now();
  }

  get text() {
    return this.pieces.map((piece) => piece[0]).join("");
  }

  /** Tokens per verify step; 0 before the first. */
  get mat() {
    if (this.figures) return this.figures.num_spec_steps ? this.figures.mean_acceptance_length : 0;
    return this.steps ? (this.tokens - 1) / this.steps : 0;
  }

  /** Tokens per second after the first chunk; 0 while unknown. */
  get rate() {
    if (this.points.length < 2) return 0;
    const [first, last] = [this.points[0], this.points.at(-1)];
    return last[0] > first[0] ? ((last[1] - first[1]) / (last[0] - first[0])) * 1000 : 0;
  }

  /** Milliseconds from the request to the last token. */
  get elapsed() {
    return this.points.at(-1)?.[0] ?? 0;
  }

  /** Takes one chunk in; returns the new pieces of the answer. */
  add(chunk) {
    if (chunk.metrics) this.figures = chunk.metrics.speculative_decoding;
    const choice = chunk.choices[0];
    if (!choice) return [];
    const trace = choice.trace ?? [];
    const placed = trace.map((token) => this.#count(token));
    if (trace.length) this.points.push([Math.round(performance.now() - this.startedAt), this.tokens]);
    if (choice.draft_tree) this.trees.push({ step: this.steps, tree: choice.draft_tree, last: trace.at(-1) });
    if (choice.finish_reason) this.state = choice.finish_reason;
    const share = (text) => alignTokens(text, placed).map(([part, token]) => [part, token.source, token.rescued, token.step ?? this.steps]);
    const thought = choice.delta.reasoning_content ?? "";
    if (thought) this.thoughts.push(...share(thought));
    const added = thought ? [] : share(choice.delta.content ?? ""); // a chunk has one or the other
    this.pieces.push(...added);
    return added;
  }

  // Every step ends in the target's own token.
  #count(token) {
    const first = this.tokens === 0;
    const step = first ? 0 : this.steps + 1;
    this.tokens += 1;
    this.bySource[token.source] += 1;
    this.rescues += token.rescued ? 1 : 0;
    if (token.source === "target" && !first) this.steps += 1;
    return { ...token, step };
  }

  /** What survives a reload. Of the trees that is the last, of the points a hundred. */
  toJSON() {
    const { startedAt: _, trees, points, ...rest } = this;
    const stride = Math.ceil(points.length / 100);
    return { ...rest, trees: trees.slice(-1), points: points.filter((_point, i) => i % stride === 0 || i === points.length - 1) };
  }

  static fromJSON(data) {
    const run = Object.assign(new Run(data.lane), data);
    if (run.state === "running") run.state = "interrupted";
    return run;
  }
}

/** How much faster than plain, as a ratio of tokens per second; 0 while unknown. */
export function speedup(spec, plainRate) {
  return spec.rate && plainRate ? spec.rate / plainRate : 0;
}

/** Where the texts of two runs part: -1 nowhere, else the token's place in the first, from 1. */
export function partsAt(one, other) {
  const text = other.text;
  let length = 0;
  for (const [place, piece] of one.pieces.entries()) {
    length += piece[0].length;
    if (one.text.slice(0, length) !== text.slice(0, length)) return place + 1;
  }
  return length === text.length ? -1 : one.pieces.length + 1;
}
