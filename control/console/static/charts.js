// Line charts by uPlot, each with its last values in words for readers that see no canvas.

import uPlot from "./vendor/uplot/uPlot.esm.js";
import { h, setText } from "./dom.js";

const HEIGHT = 190;
const WIDE = 420;

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

/** Series of one function by metric and group, kept for `spanS` seconds, from answers that overlap. */
export class History {
  constructor() {
    this.lines = new Map();
    this.newest = null;
    this.step = 1;
  }

  clear() {
    this.lines.clear();
    this.newest = null;
  }

  add(series, spanS) {
    this.step = series.step_s;
    for (const line of series.lines) {
      const key = `${line.metric} ${line.group ?? ""}`;
      if (!this.lines.has(key)) this.lines.set(key, { metric: line.metric, group: line.group, points: new Map() });
      const { points } = this.lines.get(key);
      for (const [at, value] of line.points) {
        points.set(at, value);
        if (this.newest === null || at > this.newest) this.newest = at;
      }
    }
    if (this.newest === null) return;
    for (const { points } of this.lines.values()) {
      for (const at of points.keys()) {
        if (at >= this.newest - spanS) break;
        points.delete(at);
      }
    }
  }

  of(metric) {
    return [...this.lines.values()].filter((line) => line.metric === metric);
  }
}

/** One chart. update([{label, colour, points: Map(second -> value), steps, dashed}]) draws what changed. */
export class Chart {
  constructor(title, unit, format) {
    this.unit = unit;
    this.format = format;
    this.labels = null;
    this.words = h("figcaption", { class: "small quiet" }, "No data yet.");
    this.place = h("div", { class: "plot", "aria-hidden": "true" });
    this.element = h("figure", { class: "chart" }, h("h3", {}, title), this.place, this.words);
    new ResizeObserver(() => this.plot?.setSize({ width: this.place.clientWidth, height: HEIGHT })).observe(this.place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.labels = null;
    });
  }

  update(lines) {
    const shown = lines.filter((line) => line.points.size > 0);
    const times = [...new Set(shown.flatMap((line) => [...line.points.keys()]))].sort((a, b) => a - b);
    this.element.hidden = shown.length === 0;
    if (times.length === 0) return;
    const data = [times, ...shown.map((line) => times.map((at) => line.points.get(at) ?? null))];
    const labels = JSON.stringify(shown.map((line) => line.label));
    if (labels !== this.labels) {
      this.labels = labels;
      this.plot?.destroy();
      this.plot = new uPlot(this.options(shown), data, this.place);
      this.values = shown.map(() => h("span"));
      this.words.replaceChildren(...shown.flatMap((line, index) => [h("span", { class: "key" }, swatch(line), this.values[index]), " "]));
    } else {
      this.plot.setData(data);
    }
    shown.forEach((line, index) => setText(this.values[index], `${line.label} ${this.format(last(line.points))}`));
  }

  options(lines) {
    const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--grid"), width: 1 }, ticks: { stroke: colour("--grid"), width: 1 } };
    return {
      width: this.place.clientWidth || 320,
      height: HEIGHT,
      legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(high ?? 1, 1e-9) * 1.1] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => new Date(tick * 1000).toLocaleTimeString([], { hour12: false, hour: "2-digit", minute: "2-digit" })), space: this.place.clientWidth > WIDE ? 60 : 50, incrs: [60, 120, 300, 600, 1800, 3600] }, { ...axis, size: 62, values: (_, ticks) => ticks.map((tick) => this.format(tick)) }],
      series: [{}, ...lines.map((line) => ({
        label: line.label,
        stroke: colour(line.colour),
        width: 2,
        dash: line.dashed ? [6, 4] : undefined,
        points: { show: false },
        paths: line.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
        spanGaps: false,
      }))],
    };
  }
}

function swatch(line) {
  const mark = h("i", { class: line.dashed ? "swatch dashed" : "swatch" });
  mark.style.borderTopColor = `var(${line.colour})`;
  return mark;
}

function last(points) {
  let found = null;
  for (const value of points.values()) if (value !== null) found = value;
  return found;
}
