// The controls of sampling and speculation, and what they put into a request.

import { byId, el } from "./dom.js";
import { read, write } from "./store.js";

const NAME = "racer-settings";
const KEY = "racer-key";
const KEPT = ["temperature", "top_p", "max_tokens", "seed", "drafter", "verifier", "max_nodes", "lambda", "tau", "race"];
const DRAFTERS = { racer: "racer", draft_model: "draft model", hybrid: "hybrid", none: "none (plain)" };

export class Settings {
  /** onKey: the API key was changed. */
  constructor(onKey) {
    this.racer = null;
    this.kept = read(NAME) ?? {};
    byId("key").value = read(KEY) ?? "";
    byId("key").addEventListener("change", () => {
      write(KEY, byId("key").value.trim());
      onKey();
    });
    this.#restore();
    for (const id of KEPT) byId(id).addEventListener("input", () => this.#changed());
    byId("settings").addEventListener("submit", (event) => event.preventDefault());
  }

  get key() {
    return byId("key").value.trim();
  }

  get plain() {
    return byId("drafter").value === "none";
  }

  get race() {
    return byId("race").checked && !this.plain;
  }

  /** Offer what the server has: the `racer` object of its model. */
  offer(racer) {
    this.racer = racer;
    choices("drafter", racer.drafters.map((name) => [name, DRAFTERS[name] ?? name]), racer.drafter);
    choices("verifier", racer.verifiers.map((name) => [name, name]), racer.verifier);
    byId("verifier-field").hidden = racer.verifiers.length < 2;
    byId("speculation").hidden = racer.drafters.length < 2;
    byId("max_nodes").max = racer.max_nodes;
    byId("max_nodes").value = racer.max_nodes;
    byId("max_tokens").max = racer.max_context;
    byId("lambda").placeholder = racer.lambda ?? "";
    byId("tau").placeholder = racer.tau ?? "";
    this.#restore();
  }

  /** The members of a request for one lane, "spec" or "plain", beside model and messages. */
  request(lane, seed) {
    const body = { temperature: number("temperature"), top_p: number("top_p"), max_tokens: number("max_tokens"), seed };
    const speculative = { trace: true };
    if (lane === "plain") {
      Object.assign(speculative, { drafter: "none", verifier: "exact" });
    } else if (this.racer) {
      speculative.drafter = byId("drafter").value;
      if (number("max_nodes") !== this.racer.max_nodes) speculative.max_nodes = number("max_nodes");
      if (this.racer.verifiers.length > 1) speculative.verifier = byId("verifier").value;
      if (speculative.verifier === "csd") Object.assign(speculative, { lambda: number("lambda"), tau: number("tau") });
    }
    return { ...body, speculative }; // undefined members do not survive JSON
  }

  /** The seed of the next request: a race without one draws it, so that both runs share it. */
  seed(racing) {
    const given = number("seed");
    return given === undefined && racing && number("temperature") > 0 ? Math.floor(Math.random() * 2 ** 31) : given;
  }

  #changed() {
    this.kept = Object.fromEntries(KEPT.map((id) => [id, id === "race" ? byId(id).checked : byId(id).value]));
    write(NAME, this.kept);
    this.#show();
  }

  #restore() {
    for (const [id, value] of Object.entries(this.kept)) {
      const control = KEPT.includes(id) ? byId(id) : null;
      if (control?.type === "checkbox") control.checked = value;
      else if (control?.tagName === "SELECT") control.value = [...control.options].some((one) => one.value === value) ? value : control.value;
      else if (control) control.value = value;
    }
    this.#show();
  }

  #show() {
    for (const output of byId("settings").querySelectorAll("output")) output.value = byId(output.htmlFor.value).value;
    byId("csd-fields").hidden = byId("verifier").value !== "csd";
    byId("max_nodes-field").hidden = this.plain;
    byId("race").disabled = this.plain; // it would race against itself
  }
}

function choices(id, options, chosen) {
  byId(id).replaceChildren(...options.map(([value, textContent]) => el("option", { value, textContent })));
  byId(id).value = chosen;
}

// undefined where the field is empty. Values out of bounds are the server's to refuse: it says which field and why.
function number(id) {
  const { value } = byId(id);
  return value === "" ? undefined : Number(value);
}
