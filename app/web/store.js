// The conversation, the settings and the key, kept for this tab's life and no longer.

import { Run } from "./run.js";

const CONVERSATION = "racer-conversation";

/** Turns [{prompt, runs}] of before a reload. */
export function loadTurns() {
  const turns = read(CONVERSATION) ?? [];
  return turns.map((turn) => ({ prompt: turn.prompt, runs: turn.runs.map((run) => Run.fromJSON(run)) }));
}

/** Where storage is full, the latest turns are kept alone. */
export function saveTurns(turns) {
  return write(CONVERSATION, turns) || write(CONVERSATION, turns.slice(-3));
}

export function read(name) {
  try {
    return JSON.parse(sessionStorage.getItem(name));
  } catch {
    return null; // storage is off, or holds what another version wrote
  }
}

/** False where it does not fit, or storage is off: the page goes on without. */
export function write(name, value) {
  try {
    sessionStorage.setItem(name, JSON.stringify(value));
    return true;
  } catch {
    return false;
  }
}
