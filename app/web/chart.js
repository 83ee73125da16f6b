// A race as a chart: tokens over seconds, one line per run.

import { svg } from "./dom.js";

const HEIGHT = 150;
const INSET = { left: 34, right: 14, top: 10, bottom: 24 };

/** An SVG, width pixels wide, of the runs that have points; null before any has. */
export function raceChart(runs, width) {
  const drawn = runs.filter((run) => run.points.length);
  if (!drawn.length) return null;
  const time = Math.max(...drawn.map((run) => run.elapsed), 1) / 1000;
  const most = Math.max(...drawn.map((run) => run.tokens), 1);
  const x = (seconds) => INSET.left + (seconds / time) * (width - INSET.left - INSET.right);
  const y = (tokens) => HEIGHT - INSET.bottom - (tokens / most) * (HEIGHT - INSET.top - INSET.bottom);
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": describe(drawn) });
  for (const tokens of ticks(most, 3)) {
    chart.append(svg("line", { class: "grid", x1: INSET.left, x2: width - INSET.right, y1: y(tokens), y2: y(tokens) }));
    chart.append(text(tokens, INSET.left - 6, y(tokens) + 4, "end"));
  }
  for (const seconds of ticks(time, width > 480 ? 6 : 3)) chart.append(text(`${seconds} s`, x(seconds), HEIGHT - 7, seconds ? "middle" : "start"));
  for (const run of drawn) {
    const points = run.points.map(([milliseconds, tokens]) => `${x(milliseconds / 1000).toFixed(1)},${y(tokens).toFixed(1)}`);
    const [endX, endY] = points.at(-1).split(",");
    chart.append(svg("polyline", { class: run.lane, points: points.join(" ") }));
    chart.append(svg("circle", { class: run.lane, cx: endX, cy: endY, r: 4 }));
  }
  return chart;
}

function describe(runs) {
  const parts = runs.map((run) => `${run.lane === "spec" ? "speculative" : "plain"}: ${run.tokens} tokens in ${(run.elapsed / 1000).toFixed(1)} s`);
  return `Tokens over time. ${parts.join("; ")}.`;
}

function text(content, x, y, anchor) {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = content;
  return element;
}

/** Round numbers from 0 to at most `end`, about `count` of them. */
function ticks(end, count) {
  const rough = end / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough);
  const marks = [];
  for (let mark = 0; mark <= end * 1.0001; mark += step) marks.push(Number(mark.toFixed(6)));
  return marks;
}
