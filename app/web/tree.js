// The draft tree of a step as SVG: root on the left, the accepted path straight along the top.

import { svg } from "./dom.js";

const ROW = 26;
const HEIGHT = 20;
const GAP = 24; // between columns where something branches
const LINK = 8; // where nothing does: long copies are long chains
const CHARACTER = 7.3; // width of one in the drawing's font
const LONGEST = 14; // characters shown of a token
const MARGIN = 4;

/**
 * Nodes with their column, row and label, the accepted child of each first.
 *
 * tree: {tokens, parents, sources, accepted}. last: the token the target put at the end of the step: a node of its own,
 * unless a node below the accepted path carries it.
 */
export function layOut(tree, last) {
  const accepted = new Set(tree.accepted);
  const nodes = tree.tokens.map((text, index) => ({
    text,
    source: tree.sources[index],
    parent: tree.parents[index],
    kept: accepted.has(index),
    children: [],
  }));
  nodes.forEach((node, index) => {
    if (index) nodes[node.parent].children.push(index);
  });
  if (last) addLast(nodes, tree.accepted.at(-1), last);
  for (const node of nodes) node.children.sort((a, b) => nodes[b].kept - nodes[a].kept || a - b);
  let rows = 1; // taken so far
  const place = (index, column, row) => {
    const node = nodes[index];
    Object.assign(node, { column, row });
    node.children.forEach((child, rank) => place(child, column + 1, rank ? rows++ : row));
  };
  place(0, 0, 0);
  return nodes;
}

function addLast(nodes, end, last) {
  const foreseen = nodes[end].children.find((child) => nodes[child].text === last.text);
  if (foreseen !== undefined) {
    nodes[foreseen].kept = true;
    return;
  }
  nodes[end].children.push(nodes.length);
  nodes.push({ text: last.text, source: "target", parent: end, kept: true, children: [] });
}

/** Draws into box. */
export function drawTree(box, tree, last) {
  const nodes = layOut(tree, last);
  const widths = [];
  const gaps = [];
  for (const node of nodes) {
    node.label = label(node.text);
    node.width = Math.max(HEIGHT, [...node.label].length * CHARACTER + 12);
    widths[node.column] = Math.max(widths[node.column] ?? 0, node.width);
    gaps[node.column] = Math.max(gaps[node.column] ?? LINK, node.children.length > 1 ? GAP : LINK);
  }
  const lefts = [MARGIN];
  widths.forEach((width, column) => lefts.push(lefts[column] + width + gaps[column]));
  const width = lefts.at(-1) - gaps.at(-1) + MARGIN;
  const height = (Math.max(...nodes.map((node) => node.row)) + 1) * ROW + MARGIN;
  const edges = svg("g");
  const pills = svg("g");
  // what was kept is drawn last, above the rest
  for (const node of [...nodes].sort((a, b) => a.kept - b.kept)) {
    const at = { x: lefts[node.column], y: node.row * ROW + ROW / 2 };
    if (node.parent >= 0) edges.append(edge(nodes[node.parent], lefts, at, node.kept));
    pills.append(pill(node, at));
  }
  const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(tree, last) });
  drawing.append(edges, pills);
  box.replaceChildren(drawing);
}

/** The step in a sentence. */
export function describe(tree, last) {
  const drafted = tree.tokens.length - 1;
  const kept = tree.accepted.length - 1;
  if (!drafted) return "Nothing was drafted: a plain step of one token.";
  const own = last ? ` The target's own token: ${label(last.text)}.` : "";
  return `${drafted} drafted, ${kept} kept.${own}`;
}

function edge(parent, lefts, to, kept) {
  const from = { x: lefts[parent.column] + parent.width, y: parent.row * ROW + ROW / 2 };
  const fork = to.x - GAP + 4; // past the widest node of the parent's column
  const bend = from.y === to.y ? `H${to.x}` : `H${fork}C${fork + 10} ${from.y} ${to.x - 12} ${to.y} ${to.x} ${to.y}`;
  return svg("path", { class: kept ? "edge kept" : "edge", d: `M${from.x} ${from.y}${bend}` });
}

function pill(node, at) {
  const text = svg("text", { x: at.x + node.width / 2, y: at.y + 4, "text-anchor": "middle" });
  text.textContent = node.label;
  const shape = svg("rect", { x: at.x, y: at.y - HEIGHT / 2, width: node.width, height: HEIGHT, rx: 6 });
  const group = svg("g", { class: node.kept ? "kept" : "left", "data-source": node.source }, shape, text);
  const title = svg("title");
  title.textContent = `${JSON.stringify(node.text)}, ${node.source}${node.kept ? ", kept" : ""}`;
  group.append(title);
  return group;
}

// White space is made visible: it is half of what tokens differ in.
function label(text) {
  const shown = text.replace(/ /g, "·").replace(/\n/g, "↵").replace(/\t/g, "⇥") || "∅";
  const characters = [...shown];
  return characters.length > LONGEST ? characters.slice(0, LONGEST - 1).join("") + "…" : shown;
}
