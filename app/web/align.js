// Which part of a chunk's text each traced token stands for.

/**
 * Splits text into pieces [text, token], in order; joined they are the text, always. token is an entry of trace.
 *
 * A token's own text may differ from its share of the answer: half a character shows as U+FFFD, a leading space may be
 * missing, an end-of-sequence or stop token shows nothing. Tokens that only together make visible text share one piece,
 * named after the last of them.
 */
export function alignTokens(text, trace) {
  const pieces = [];
  let rest = text;
  let open = null; // the last token whose text was not found yet
  for (const token of trace) {
    const at = find(rest, token.text, open !== null);
    if (at < 0) {
      open = token;
      continue;
    }
    if (at > 0 && open !== null) {
      pieces.push([rest.slice(0, at), open]);
      rest = rest.slice(at);
    }
    const end = (open === null ? at : 0) + token.text.length;
    pieces.push([rest.slice(0, end), token]);
    rest = rest.slice(end);
    open = null;
  }
  if (rest) {
    const last = open ?? trace.at(-1) ?? { source: "target", rescued: false };
    pieces.push([rest, last]);
  }
  return pieces;
}

// Where a token's text begins in rest, or -1. Behind tokens that were not found it may lie further on, else at most a
// space ahead.
function find(rest, text, afterUnknown) {
  if (!text || text.includes("\ufffd")) return -1;
  if (rest.startsWith(text)) return 0;
  if (afterUnknown) return rest.indexOf(text);
  return rest.startsWith(` ${text}`) ? 1 : -1;
}
