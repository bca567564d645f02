// uPlot in the page's own colours, as wide as its place, in light and dark.

import uPlot from "./vendor/uplot.js";

const dark = matchMedia("(prefers-color-scheme: dark)");
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

export class Chart {
  constructor(el, { series, height = 180, bars = null }) {
    Object.assign(this, { el, series, height, bars, data: [[], ...series.map(() => [])] });
    this.redo = () => this.build();
    this.watcher = new ResizeObserver(() => this.plot?.setSize({ width: el.clientWidth, height }));
    this.watcher.observe(el);
    dark.addEventListener("change", this.redo);
    this.build();
  }

  build() {
    this.plot?.destroy();
    const axis = {
      stroke: colour("--dim"),
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const paths = this.bars ? uPlot.paths.bars({ size: [0.8, 40] }) : undefined;
    this.plot = new uPlot(
      {
        width: Math.max(200, this.el.clientWidth),
        height: this.height,
        legend: { show: false },
        cursor: { y: false, points: { show: !this.bars } },
        scales: {
          x: { time: true, range: (plot, least, most) => this.span(least, most) },
          y: { range: (plot, least, most) => [0, Math.max(1, (most || 0) * 1.1)] },
        },
        axes: [
          { ...axis, space: 84, size: 30, values: (plot, marks) => marks.map((one) => this.label(one)) },
          { ...axis, size: 44, space: 32 },
        ],
        series: [
          {},
          ...this.series.map((one) => ({
            label: one.label,
            stroke: colour(one.colour),
            fill: colour(this.bars ? one.colour : `${one.colour}-soft`),
            width: this.bars ? 0 : 1.75,
            points: { show: false },
            paths,
          })),
        ],
      },
      this.data,
      this.el,
    );
  }

  // With bars, whose width in seconds `bars` is: room for two dozen, so that one is not a wall.
  span(least, most) {
    const times = this.data[0];
    if (!this.bars || !times.length) return [least ?? 0, most ?? 1];
    const last = times.at(-1);
    return [Math.min(times[0], last - 23 * this.bars) - this.bars / 2, last + this.bars / 2];
  }

  label(seconds) {
    const text = new Date(seconds * 1000).toISOString();
    if (!this.bars) return new Date(seconds * 1000).toTimeString().slice(0, 8);
    return this.bars > 3600 ? text.slice(0, 10) : text.slice(5, 16).replace("T", " ");
  }

  set(data) {
    this.data = data;
    this.plot.setData(data);
  }

  end() {
    this.watcher.disconnect();
    dark.removeEventListener("change", this.redo);
    this.plot.destroy();
  }
}
