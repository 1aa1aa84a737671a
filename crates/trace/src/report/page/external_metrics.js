// Metrics of other tools, below the plots of a connection and on the same time axis.
"use strict";

/** Maximum number of lines per metric. */
const LINES = 12;

class ExternalMetrics {
  /** `all`: as in the document. `marks` returns the intervals to shade; `zoomTo` is called with a selected time range. */
  constructor(figure, all, { marks, zoomTo, reset }) {
    Object.assign(this, { figure, all, marks, zoomTo, reset });
    this.choice = figure.querySelector("select");
    this.choice.addEventListener("change", () => this.build());
    new ResizeObserver(() => this.plot?.setSize({ width: figure.clientWidth, height: this.plot.height })).observe(figure);
  }

  /** Lists the metrics of a connection. */
  show(connection) {
    this.connection = connection;
    this.lines = new Map();
    for (const metric of this.all) {
      const index = this.subflowOf(metric.subject);
      if (index === null) continue;
      const { source, unit } = metric;
      const name = `${source}: ${metric.metric}${unit && ` (${unit})`}`;
      this.lines.set(name, [...(this.lines.get(name) ?? []), { ...metric, index }]);
    }
    this.figure.hidden = !this.lines.size;
    const before = this.choice.value;
    // Metrics of subflows come first.
    const ofSubflows = (name) => this.lines.get(name).some(({ index }) => index >= 0);
    const names = [...this.lines.keys()].sort((a, b) => ofSubflows(b) - ofSubflows(a));
    this.choice.replaceChildren(...names.map((name) => element("option", {}, name)));
    if (this.lines.has(before)) this.choice.value = before;
    this.build();
  }

  /** The subflow of a metric; -1 if it applies to all, null if it belongs to another connection. */
  subflowOf(subject) {
    const ends = subject.replace("connection ", "").split(" -> ");
    if (ends.length !== 2) return -1;
    const [a, b] = ends;
    const place = this.connection.subflows.findIndex(({ src, dst }) => (src === a && dst === b) || (src === b && dst === a));
    return place < 0 ? null : subject.startsWith("connection ") ? -1 : place;
  }

  build() {
    this.plot?.destroy();
    this.plot = null;
    if (this.figure.hidden) return;
    this.shown = this.lines.get(this.choice.value).slice(0, LINES);
    let free = this.connection.subflows.length;
    for (const line of this.shown) line.look = line.index < 0 ? free++ : line.index;
    const tables = this.shown.map(({ points }) =>
      [points.map(([time]) => time - this.connection.start), points.map(([, value]) => value)]);
    const options = {
      ...overTime(this.figure, {
        height: 230,
        values: (u, at) => at.map(this.valueText),
        shades: () => this.marks().shades,
        hover: (u) => this.caption(u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null),
        zoomTo: this.zoomTo,
        reset: this.reset,
      }),
      scales: { x: { time: false }, y: { range: (u, min, max) => [Math.min(0, min ?? 0), max > 0 ? max * 1.06 : 1] } },
      series: [{}, ...this.shown.map(({ look }) => (
        { stroke: strokeOf(look), width: 1.5, dash: dashesOf(look), spanGaps: true, points: { size: 4 } }))],
    };
    this.plot = new uPlot(options, uPlot.join(tables), this.figure.querySelector(".plot"));
    this.caption(null);
    this.apply();
  }

  valueText = (value) => inUnit(value, ["", "k", "M", "G", "T"]).trim();

  /** Shows the same time range as the plots. */
  setTimes(times) {
    this.times = times;
    this.apply();
  }

  apply() {
    if (!this.plot || !this.times) return;
    const [min, max] = this.times;
    this.plot.setScale("x", { min, max });
  }

  redraw() {
    this.plot?.redraw();
  }

  /** Shows the legend, or the values nearest to a time. */
  caption(time) {
    const values = this.shown.map(({ subject, look, points, unit }) => {
      const text = time === null ? subject.replace("->", "→") : `${this.nearest(points, time)} ${unit}`;
      return element("span", { class: "value" }, lineSample(look), text);
    });
    const title = element("b", {}, "Other tools");
    const at = time === null ? "" : `at ${secondsText(time)}`;
    this.figure.querySelector("figcaption").replaceChildren(title, at, element("span", { class: "values" }, ...values));
  }

  nearest(points, time) {
    const away = ([at]) => Math.abs(at - this.connection.start - time);
    const nearest = points.reduce((best, point) => (best && away(best) <= away(point) ? best : point), null);
    return nearest ? this.valueText(nearest[1]) : NOTHING;
  }
}
