// What a screen reader hears: an answer sentence by sentence while it streams, instead of token by token.

import { byId } from "./dom.js";

const SENTENCE = /^[\s\S]*(?:[.!?:;。！？]["')\]]*\s|\n)/; // up to the last end of a sentence or line
const LONGEST = 240; // characters held back where no sentence ends

let held = "";

export function say(text) {
  if (text.trim()) byId("announce").append(Object.assign(document.createElement("p"), { textContent: text }));
  while (byId("announce").childElementCount > 20) byId("announce").firstElementChild.remove();
}

/** More of the answer. */
export function hear(text) {
  held += text;
  const end = held.match(SENTENCE)?.[0].length ?? (held.length > LONGEST ? held.length : 0);
  if (end) {
    say(held.slice(0, end));
    held = held.slice(end);
  }
}

/** The answer is over: its rest, and a closing word. */
export function hearEnd(closing) {
  say(held);
  held = "";
  say(closing);
}
