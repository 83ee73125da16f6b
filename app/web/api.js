// The server as the page sees it: what it offers, and chats that stream. Paths are relative: a proxy may add a prefix.

import { eventData } from "./sse.js";

/** A request that failed; message is for people. status: HTTP status, 0 where no reply came or the stream broke. */
export class RequestFailed extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** The served model: an entry of GET /v1/models. */
export async function servedModel(key) {
  const reply = await ask("v1/models", { headers: headersOf(key) });
  return (await reply.json()).data[0];
}

/** Yields the chunks of one chat completion. Raises RequestFailed, and AbortError after signal.abort(). */
export async function* chat(body, key, signal) {
  const headers = { ...headersOf(key), "Content-Type": "application/json" };
  const reply = await ask("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
  try {
    for await (const data of eventData(reply.body)) {
      if (data === "[DONE]") return;
      const chunk = JSON.parse(data);
      if (chunk.error) throw new RequestFailed(chunk.error.message);
      yield chunk;
    }
  } catch (error) {
    if (error.name === "AbortError" || error instanceof RequestFailed) throw error;
  }
  throw new RequestFailed("The connection broke before the answer was complete.");
}

/** Plain tokens per second by the server's calibration, 0 where its metrics have none or cannot be read. */
export async function calibratedPlainRate() {
  try {
    return plainRateIn(await (await ask("metrics")).text());
  } catch {
    return 0;
  }
}

/** The same out of a page of metrics. */
export function plainRateIn(page) {
  const seconds = Number(page.match(/^racer_plain_step_seconds (\S+)$/m)?.[1] ?? 0);
  return seconds > 0 ? 1 / seconds : 0;
}

function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

async function ask(path, options) {
  let reply;
  try {
    reply = await fetch(path, { cache: "no-store", ...options });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestFailed(error instanceof TypeError && /header|ISO-8859-1|ByteString/i.test(error.message)
      ? "The API key holds characters that no key can have." : "The server cannot be reached.");
  }
  if (!reply.ok) throw new RequestFailed(await explain(reply), reply.status);
  return reply;
}

async function explain(reply) {
  let message = `The server answered ${reply.status}.`;
  try {
    message = (await reply.json()).error.message;
  } catch {
    // not our server's error object: a proxy in between, for one
  }
  if (reply.status === 401) message += " Enter one under Settings, Access.";
  const wait = reply.headers.get("Retry-After");
  return wait ? `${message} Try again in ${wait} s.` : message;
}
