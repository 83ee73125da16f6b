// The playground: one conversation, one answer or race at a time.

import { hear, hearEnd, say } from "./announce.js";
import { calibratedPlainRate, chat, servedModel } from "./api.js";
import { byId, el } from "./dom.js";
import { Live } from "./live.js";
import { Run } from "./run.js";
import { Settings } from "./settings.js";
import { loadTurns, saveTurns, sessionId } from "./store.js";
import { TurnView } from "./turn.js";

const RETRY_AFTER = 2000; // milliseconds until the server is asked again whether its model is loaded
const SAVE_EVERY = 1000; // milliseconds, while an answer streams
const EXAMPLES = [
  ["Copy with a change", "retrieval", "Rewrite this function so that it is called area:\n\ndef size(width, height):\n    result = width * height\n    return result"],
  ["Write code", "code repeats itself", "Write a Python class Stack with push, pop and peek, with docstrings."],
  ["Explain something", "prose is harder to draft", "Why is the sky blue? Answer in one paragraph."],
  ["Make a list", "lists have a form", "List the seven days of the week, each with a short sentence."],
];

class Playground {
  constructor() {
    this.model = null;
    this.abort = null; // of the answer that runs
    this.plainRate = 0; // tokens per second of the latest plain run
    this.calibrated = 0; // the same by the server's own measurement, where it has one
    this.savedAt = 0;
    this.leaving = false;
    this.settings = new Settings(() => this.connect());
    this.live = new Live((run, step) => this.mark(run, step));
    this.turns = loadTurns();
    this.session = sessionId();
    this.views = this.turns.map((turn) => this.#view(turn));
    this.#restore();
    this.#listen();
    this.connect();
  }

  /** Learn what the server offers; asks again while it loads or is away. */
  async connect() {
    clearTimeout(this.retry);
    try {
      const model = await servedModel(this.settings.key);
      this.model = model;
      document.title = `${model.id} · racer-csd playground`;
      this.#state("ready", model.id);
      this.settings.offer(model.racer);
      this.live.offer(model.racer);
      this.calibrated = await calibratedPlainRate();
    } catch (error) {
      const wrongKey = error.status === 401;
      this.#state(error.status === 503 ? "loading" : "failed", error.status === 503 ? "model loading" : wrongKey ? "needs a key" : "not reachable");
      if (!wrongKey) this.retry = setTimeout(() => this.connect(), RETRY_AFTER);
    }
  }

  /** Ask; with the switch on, the same again plainly. */
  async send(prompt) {
    const messages = [...this.#history(), { role: "user", content: prompt }];
    const turn = { prompt, runs: [] };
    const view = this.#view(turn);
    this.turns.push(turn);
    this.views.push(view);
    this.#busy(new AbortController());
    byId("log").scrollTop = byId("log").scrollHeight;
    const racing = this.settings.race;
    const seed = this.settings.seed(racing);
    for (const lane of racing ? ["spec", "plain"] : [this.settings.plain ? "plain" : "spec"]) {
      const body = { model: this.model?.id, messages, stream: true, ...this.settings.request(lane, seed) };
      if (!racing) body.session_id = this.session; // in a race both read the whole prompt, or one would start ahead
      if (!(await this.#answer(turn, view, new Run(lane), body, racing))) break;
    }
    this.#busy(null);
    saveTurns(this.turns);
  }

  stop() {
    this.abort?.abort();
  }

  clear() {
    this.stop();
    this.turns = [];
    this.views = [];
    this.session = sessionId({ fresh: true });
    byId("turns").replaceChildren();
    byId("welcome").hidden = false;
    this.live.show(null);
    saveTurns(this.turns);
    byId("prompt").focus();
    say("New chat.");
  }

  mark(run, step) {
    for (const view of this.views) view.mark(run, step);
  }

  // Streams one run to its end; false if it was stopped or failed.
  async #answer(turn, view, run, body, racing) {
    const { signal } = this.abort;
    const aloud = turn.runs.length === 0; // a race's second run has nothing new to say
    if (!aloud) say("Now plain decoding.");
    turn.runs.push(run);
    view.addRun(run, racing);
    this.#grown(turn, view, run, []);
    try {
      for await (const chunk of chat(body, this.settings.key, signal)) {
        const pieces = run.add(chunk);
        if (aloud) hear(pieces.map((piece) => piece[0]).join(""));
        this.#grown(turn, view, run, pieces);
      }
    } catch (error) {
      run.state = error.name === "AbortError" ? "stopped" : this.leaving ? "interrupted" : "failed";
      run.error = run.state === "failed" ? error.message : "";
      if (error.status === 401 || error.status === 0) this.connect();
    }
    if (run.lane === "plain" && run.state !== "failed") this.plainRate = run.rate;
    this.#grown(turn, view, run, []);
    const closing = `${aloud ? "Answer" : "Plain run"} ${run.state === "stopped" ? "stopped" : "complete"}: ${run.tokens} tokens, ${run.rate.toFixed(0)} a second.`;
    if (run.state !== "failed") (aloud ? hearEnd : say)(closing); // a failure is an alert of its own
    return run.state !== "failed" && run.state !== "stopped";
  }

  #grown(turn, view, run, pieces) {
    const log = byId("log");
    const following = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
    view.grow(run, pieces);
    if (following) log.scrollTop = log.scrollHeight;
    if (this.turns.includes(turn)) this.#look(turn); // else the chat was cleared meanwhile
    if (performance.now() - this.savedAt > SAVE_EVERY) {
      this.savedAt = performance.now();
      saveTurns(this.turns);
    }
  }

  #look(turn) {
    this.live.show(turn.runs[0], this.#base(turn));
  }

  // What a turn's speed is compared with: its own race, else the last plain run, else the server's calibration.
  #base(turn) {
    const rate = turn.runs[1]?.rate;
    if (rate) return { rate, from: "in the race", measured: true };
    if (this.plainRate) return { rate: this.plainRate, from: "last plain run", measured: false };
    return { rate: this.calibrated, from: "by calibration", measured: false };
  }

  // Turns that failed are seen, but the model is not told of them.
  #history() {
    return this.turns.filter((turn) => turn.runs[0]?.text).flatMap((turn) => [
      { role: "user", content: turn.prompt },
      { role: "assistant", content: turn.runs[0].text },
    ]);
  }

  #view(turn) {
    const view = new TurnView(turn, (run, step) => {
      this.live.show(run, this.#base(turn));
      this.live.pick(step);
    });
    byId("turns").append(view.element);
    byId("welcome").hidden = true;
    return view;
  }

  #restore() {
    for (const run of this.turns.flatMap((turn) => turn.runs)) if (run.lane === "plain") this.plainRate = run.rate;
    if (this.turns.length) this.#look(this.turns.at(-1));
    byId("log").scrollTop = byId("log").scrollHeight;
  }

  #busy(abort) {
    this.abort = abort;
    const focused = document.activeElement === byId("stop");
    byId("stop").hidden = !abort;
    byId("send").hidden = Boolean(abort);
    if (focused) byId("prompt").focus();
  }

  #state(state, text) {
    byId("state-dot").dataset.state = state;
    if (byId("served").textContent !== text) byId("served").textContent = text;
  }

  #submit() {
    const prompt = byId("prompt").value.trim();
    if (!prompt || this.abort) return;
    byId("prompt").value = "";
    this.send(prompt);
  }

  #listen() {
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#submit();
    });
    byId("prompt").addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.#submit();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.stop();
    });
    byId("stop").addEventListener("click", () => this.stop());
    byId("clear").addEventListener("click", () => this.clear());
    addEventListener("pagehide", () => saveTurns(this.turns));
    addEventListener("beforeunload", () => {
      this.leaving = true; // what breaks from here on is no failure
      setTimeout(() => (this.leaving = false), 1000); // the user may have stayed
    });
    for (const button of document.querySelectorAll(".views button")) button.addEventListener("click", () => turnTo(button.dataset.view));
    for (const [title, what, prompt] of EXAMPLES) {
      const button = el("button", { type: "button" }, el("b", { textContent: title }), el("span", { textContent: what }));
      button.addEventListener("click", () => {
        byId("prompt").value = prompt;
        byId("prompt").focus();
        this.#submit();
      });
      byId("examples").append(el("li", {}, button));
    }
  }
}

/** On narrow screens: the chat or the side. */
function turnTo(view) {
  document.body.dataset.view = view;
  for (const button of document.querySelectorAll(".views button")) {
    button.setAttribute("aria-pressed", String(button.dataset.view === view));
  }
}

new Playground();
