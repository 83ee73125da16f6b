// The conversation, the settings and the key, kept for this tab's life and no longer.

import { Run } from "./run.js";

const CONVERSATION = "racer-conversation";
const SESSION = "racer-session";

/** Turns [{prompt, runs}] of before a reload. */
export function loadTurns() {
  const turns = read(CONVERSATION) ?? [];
  return turns.map((turn) => ({ prompt: turn.prompt, runs: turn.runs.map((run) => Run.fromJSON(run)) }));
}

/** The session_id under which the server keeps this conversation between its turns; with fresh, a new one. */
export function sessionId({ fresh = false } = {}) {
  const kept = fresh ? null : read(SESSION);
  if (kept) return kept;
  const id = Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  write(SESSION, id);
  return id;
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
