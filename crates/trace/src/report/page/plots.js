// The plots of a connection over time. They share the time axis: zoom and cursor apply to all of them.
"use strict";

/** Maximum number of intervals drawn; when zoomed out, neighbours are added up, so that lines stay readable. */
const INTERVALS = 400;
/** Maximum number of intervals without a sample that a round-trip time line spans. */
const GAP = 8;
/** Upper end of the round-trip time plot, relative to the greatest mean, so that outliers do not flatten the rest. */
const FARTHEST = 4;
const SHORTEST_ZOOM = 1e-5;

/**
 * What each subflow sent in one direction, on a common time axis.
 * `x` has the start of the connection, of each interval in which anything was sent, and of the following one; `subflows` has
 * the counts of each subflow in each of these intervals, if any; `busy` is the number of intervals in which anything was sent.
 */
function sampled(series, way, span) {
  let factor = 1;
  while (span / (series.interval_s * factor) > INTERVALS) factor *= 2;
  const interval = series.interval_s * factor;
  const cells = series.sent[way].map((columns) => mergedCells(columns, factor));
  const busy = new Set(cells.flatMap((subflow) => [...subflow.keys()]));
  const starts = new Set([...busy].flatMap((at) => [at, at + 1]));
  if (busy.size) starts.add(Math.min(...busy, Math.floor(-series.start_s / interval)));
  const order = [...starts].sort((a, b) => a - b);
  const subflows = cells.map((subflow) => order.map((at) => subflow.get(at)));
  // Intervals are aligned to the clock: the first one may start before the connection.
  const x = order.map((at) => Math.max(0, series.start_s + at * interval));
  return { interval, x, subflows, busy: busy.size };
}

function mergedCells(columns, factor) {
  const cells = new Map();
  columns.at.forEach((at, row) => {
    const place = Math.floor(at / factor);
    let cell = cells.get(place);
    if (!cell) {
      cell = { bytes: 0, new_bytes: 0, samples: 0, sum: 0, min: Infinity, max: 0, from: null, to: null };
      cells.set(place, cell);
    }
    cell.bytes += columns.bytes[row];
    cell.new_bytes += columns.new_bytes[row];
    if (columns.rtt_samples[row] > 0) {
      cell.samples += columns.rtt_samples[row];
      cell.sum += columns.rtt[row] * columns.rtt_samples[row];
      cell.min = Math.min(cell.min, columns.rtt_min[row]);
      cell.max = Math.max(cell.max, columns.rtt_max[row]);
    }
    if (columns.from[row] !== null) {
      cell.from = cell.from === null ? columns.from[row] : Math.min(cell.from, columns.from[row]);
      cell.to = cell.to === null ? columns.to[row] : Math.max(cell.to, columns.to[row]);
    }
  });
  return cells;
}

/** Colours are read at every drawing: the theme may have changed. */
const strokeOf = (index) => () => (index === null ? cssColour("--ink") : colourOf(index));
const fillOf = (index, opacity) => () => {
  const share = Math.round(opacity * 255).toString(16).padStart(2, "0");
  return colourOf(index) + share;
};

/**
 * The contents of a plot: `series` for uPlot, one or more per subflow; their `data`, from the samples; and `texts`, the
 * legend values at an index of the data, by subflow index (null: the total).
 */
const KINDS = {
  throughput: {
    title: (view) => (view.goodput ? "Goodput" : "Throughput"),
    unit: rateText,
    range: (min, max) => [0, max > 0 ? max * 1.06 : 1],
    series(indices, view) {
      const paths = uPlot.paths.stepped({ align: 1 });
      const lines = indices.map((index) => ({
        paths, stroke: strokeOf(index), width: 1.5, dash: dashesOf(index), points: { show: false },
        fill: view.stacked && index === indices[0] ? fillOf(index, 0.35) : undefined,
      }));
      if (indices.length > 1) {
        lines.push({ paths, stroke: strokeOf(null), width: 1, points: { show: false } });
      }
      return lines;
    },
    bands: (indices, view) =>
      view.stacked
        ? indices.slice(1).map((index, place) => ({ series: [place + 2, place + 1], fill: fillOf(index, 0.35) }))
        : [],
    data(sample, indices, view) {
      const rates = this.rates(sample, view);
      const below = sample.x.map(() => 0);
      const lines = indices.map((index) =>
        rates[index].map((rate, row) => (view.stacked ? (below[row] += rate) : rate)),
      );
      if (indices.length > 1) lines.push(sample.x.map((_, row) => sum(rates.map((rate) => rate[row]))));
      return lines;
    },
    rates: (sample, view) =>
      sample.subflows.map((cells) =>
        cells.map((cell) => ((cell?.[view.goodput ? "new_bytes" : "bytes"] ?? 0) * 8) / sample.interval),
      ),
    texts(sample, indices, view, row) {
      const rates = this.rates(sample, view);
      const texts = indices.map((index) => [index, rateText(rates[index][row])]);
      if (indices.length > 1) texts.push([null, rateText(sum(rates.map((rate) => rate[row])))]);
      return texts;
    },
  },

  rtt: {
    title: () => "Round-trip time",
    note: "mean, and range from least to greatest",
    unit: msText,
    range: (min, max, u) => [0, Math.min(max, FARTHEST * greatestMean(u)) * 1.06 || 1],
    series: (indices) =>
      indices.flatMap((index) => [
        { stroke: null, width: 0, points: { show: false }, gaps: longGaps },
        { stroke: null, width: 0, points: { show: false }, gaps: longGaps },
        {
          stroke: strokeOf(index), width: 1.5, dash: dashesOf(index), gaps: longGaps,
          points: { size: 4, fill: strokeOf(index), filter: lonely },
        },
      ]),
    bands: (indices) =>
      indices.map((index, place) => ({ series: [3 * place + 2, 3 * place + 1], fill: fillOf(index, 0.16) })),
    data: (sample, indices) =>
      indices.flatMap((index) => {
        const column = (value) => sample.subflows[index].map((cell) => (cell?.samples ? value(cell) : null));
        return [column((cell) => cell.min), column((cell) => cell.max), column((cell) => cell.sum / cell.samples)];
      }),
    texts: (sample, indices, view, row) =>
      indices.map((index) => {
        const cell = nearestSample(sample, index, row);
        if (!cell) return [index, NOTHING];
        const mean = msText(cell.sum / cell.samples);
        return [index, cell.samples > 1 ? `${mean} (${msText(cell.min)} to ${msText(cell.max)})` : mean];
      }),
  },

  sequence: {
    title: () => "Place in the stream",
    note: "which part of it each subflow carried",
    unit: bytesText,
    range: (min, max) => [Math.min(min, 0) === 0 && min < (max - min) * 0.2 ? 0 : min, max > min ? max : min + 1],
    series: (indices) =>
      indices.flatMap((index, place) => [
        { paths: () => null, points: { show: false } },
        { paths: extents(place, indices.length), fill: strokeOf(index), width: 0, points: { show: false } },
      ]),
    bands: () => [],
    data: (sample, indices) =>
      indices.flatMap((index) => {
        const cells = sample.subflows[index];
        return [cells.map((cell) => cell?.from ?? null), cells.map((cell) => cell?.to ?? null)];
      }),
    texts: (sample, indices, view, row) =>
      indices.map((index) => {
        const cell = sample.subflows[index][row];
        if (!cell || cell.from === null) return [index, NOTHING];
        return [index, `${bytesText(cell.to - cell.from)} from ${bytesText(cell.from)} on`];
      }),
  },
};


/** The counts of the nearest interval with round-trip samples, within the reach of a line. */
function nearestSample({ x, interval, subflows }, index, row) {
  const cells = subflows[index];
  const near = (place) => place >= 0 && place < x.length && Math.abs(x[place] - x[row]) <= GAP * interval;
  for (let away = 0; near(row - away) || near(row + away); away += 1) {
    for (const place of [row - away, row + away]) if (near(place) && cells[place]?.samples) return cells[place];
  }
  return null;
}

/** The greatest mean in view. */
function greatestMean(u) {
  const [first, last] = u.series[0].idxs ?? [0, -1];
  let greatest = 0;
  for (let series = 3; series < u.data.length; series += 3) {
    for (let row = first; row <= last; row += 1) greatest = Math.max(greatest, u.data[series][row] ?? 0);
  }
  return greatest;
}

/** Gaps, in pixels, that are too long for a line to span. */
function longGaps(u, series, first, last, gaps) {
  const x = u.data[0];
  if (x.length < 2) return gaps;
  const shortest = GAP * (u.valToPos(u.interval, "x", true) - u.valToPos(0, "x", true));
  return gaps.filter(([from, to]) => to - from > shortest);
}

/** Samples without a line to a neighbour. */
function lonely(u, series, show, gaps) {
  const [x, values] = [u.data[0], u.data[series]];
  const rows = [];
  values.forEach((value, row) => value !== null && rows.push(row));
  const near = (a, b) => a !== undefined && b !== undefined && x[b] - x[a] <= GAP * u.interval;
  return rows.filter((row, place) => !near(rows[place - 1], row) && !near(row, rows[place + 1]));
}

/** Boxes from the first byte to the end of the last; subflows are side by side within an interval. */
function extents(place, places) {
  return (u, series, first, last) => {
    const [x, from, to] = [u.data[0], u.data[series - 1], u.data[series]];
    const path = new Path2D();
    const least = 2 * devicePixelRatio;
    for (let row = Math.max(first - 1, 0); row <= last; row += 1) {
      if (to[row] === null || to[row] === undefined) continue;
      const left = u.valToPos(x[row] + (u.interval * place) / places, "x", true);
      const right = u.valToPos(x[row] + (u.interval * (place + 1)) / places, "x", true);
      const top = u.valToPos(to[row], "y", true);
      const bottom = u.valToPos(from[row], "y", true);
      path.rect(left, top, Math.max(right - left, least), Math.max(bottom - top, least));
    }
    return { stroke: null, fill: path, flags: 0 };
  };
}

/** Failovers as shaded intervals and events as ticks, in any plot. */
function marksOf(connection, way) {
  const since = (time) => time - connection.start;
  const own = connection.failovers.filter(({ direction }) => direction === way);
  const shades = (own.length ? own : connection.failovers).map((failover) => ({
    from: since(failover.from),
    to: failover.to === null ? connection.duration_s : since(failover.to),
    label: `subflow ${failover.subflow} silent`,
  }));
  const ticks = connection.events.map((event) => ({ at: since(event.time), label: eventText(event) }));
  return { shades, ticks };
}

function drawShades(u, shades) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  for (const { from, to } of shades) {
    const [left, right] = [u.valToPos(from, "x", true), u.valToPos(to, "x", true)];
    ctx.fillStyle = cssColour("--shade");
    ctx.fillRect(left, bbox.top, Math.max(right - left, devicePixelRatio), bbox.height);
    ctx.strokeStyle = cssColour("--soft");
    ctx.lineWidth = devicePixelRatio;
    ctx.setLineDash([2 * devicePixelRatio, 3 * devicePixelRatio]);
    for (const x of [left, right]) {
      ctx.beginPath();
      ctx.moveTo(x, bbox.top);
      ctx.lineTo(x, bbox.top + bbox.height);
      ctx.stroke();
    }
  }
  ctx.restore();
}

function drawLabels(u, { shades, ticks }) {
  const { ctx, bbox } = u;
  const pixel = devicePixelRatio;
  const [first, behind] = [bbox.left, bbox.left + bbox.width];
  ctx.save();
  ctx.font = `${11.5 * pixel}px ${getComputedStyle(document.body).fontFamily}`;
  ctx.textAlign = "left";
  ctx.textBaseline = "bottom";
  ctx.fillStyle = cssColour("--soft");
  let free = -Infinity;
  for (const { from, to, label } of shades) {
    const [left, right] = [u.valToPos(from, "x", true), u.valToPos(to, "x", true)];
    const width = ctx.measureText(label).width;
    const at = Math.max(first, Math.min(left, behind - width));
    if (right < first || left > behind || at < free) continue;
    ctx.fillText(label, at, bbox.top - 3 * pixel);
    free = at + width + 8 * pixel;
  }
  for (const { at } of ticks) {
    const x = u.valToPos(at, "x", true);
    if (x < first || x > behind) continue;
    ctx.beginPath();
    ctx.moveTo(x - 4 * pixel, bbox.top);
    ctx.lineTo(x + 4 * pixel, bbox.top);
    ctx.lineTo(x, bbox.top + 6 * pixel);
    ctx.fill();
  }
  ctx.restore();
}

/**
 * Options common to all plots over time: axes, a shared cursor, shaded intervals, and range selection by dragging.
 * `values` formats the vertical axis; `hover` is called when the pointer moves, `zoomTo` when a range was selected.
 */
function overTime(figure, { height, values, shades, hover, zoomTo, reset }, hooks = {}, cursor = {}) {
  const axis = { stroke: () => cssColour("--soft"), font: `12px ${getComputedStyle(document.body).fontFamily}` };
  const rule = { stroke: () => cssColour("--rule"), width: 1 };
  return {
    width: figure.clientWidth,
    height,
    padding: [18, 12, 0, 0],
    legend: { show: false },
    axes: [
      { ...axis, grid: { show: false }, ticks: { ...rule, size: 5 }, size: 30, values: (u, at) => secondTicks(at) },
      { ...axis, grid: rule, ticks: { show: false }, size: 78, values },
    ],
    cursor: {
      y: false,
      drag: { x: true, y: false, setScale: false },
      sync: { key: "time", scales: ["x", null], filters: { pub: (type) => /^mouse(move|leave|enter)$/.test(type) } },
      bind: { dblclick: () => () => reset() },
      ...cursor,
    },
    hooks: {
      drawClear: [(u) => drawShades(u, shades())],
      setCursor: [hover],
      setSelect: [(u) => takeTimes(u, zoomTo)],
      ...hooks,
    },
  };
}

/** Zooms to the selected range, unless it was only a click. */
function takeTimes(u, zoomTo) {
  const { left, width } = u.select;
  u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
  if (width > 3) zoomTo(u.posToVal(left, "x"), u.posToVal(left + width, "x"));
}

/** The plots of one connection in one view. */
class Plots {
  /** `zoomed` is called whenever the time range shown changes. */
  constructor(figures, zoomed) {
    this.figures = figures;
    this.zoomed = zoomed;
    this.plots = [];
    this.zoom = null;
    new ResizeObserver(() => this.fit()).observe(figures[0]);
  }

  /** Shows a connection; keeps the time range if it is the same one. */
  show(connection, view) {
    if (connection !== this.connection) this.zoom = null;
    this.connection = connection;
    this.view = view;
    const { series } = connection;
    const sent = series.sent[view.direction];
    const last = Math.max(0, ...WAYS.flatMap((way) => series.sent[way].map(({ at }) => (at.at(-1) ?? -1) + 1)));
    this.end = Math.max(connection.duration_s, series.start_s + last * series.interval_s, 1e-6);
    this.marks = marksOf(connection, view.direction);
    this.indices = [...sent.keys()].filter((index) => sent[index].bytes.some((bytes) => bytes > 0));
    this.indices = this.indices.filter((index) => !view.hidden.has(index));
    this.build();
  }

  build() {
    this.plots.forEach(({ plot }) => plot?.destroy());
    this.sample();
    this.plots = this.figures.map((figure) => {
      const kind = KINDS[figure.id];
      const holder = figure.querySelector(".plot");
      const data = kind.data(this.sampled, this.indices, this.view);
      const empty = !data.some((column) => column.some((value) => value !== null));
      holder.replaceChildren(...(empty ? [element("p", { class: "empty" }, "Nothing of it in the captures.")] : []));
      const plot = empty ? null : new uPlot(this.options(kind, figure), [this.sampled.x, ...data], holder);
      if (plot) plot.interval = this.sampled.interval;
      return { kind, figure, plot };
    });
    this.plots.forEach((shown) => this.caption(shown, null));
    this.apply();
  }

  /** The reason why there is nothing to draw; empty if there is something. */
  whyNone() {
    const { busy, interval } = this.sampled;
    if (!busy) return "Nothing was sent in this direction.";
    if (busy > 1) return "";
    return `All of it lies in one interval of ${secondsText(interval)}, too short for plots over time.` +
      " The option --interval of plait analyze makes intervals shorter.";
  }

  sample() {
    const [from, to] = this.times();
    this.sampled = sampled(this.connection.series, this.view.direction, to - from);
  }

  times() {
    return this.zoom ?? [0, this.end];
  }

  zoomTo(from, to) {
    from = Math.max(from, 0);
    to = Math.min(to, this.end);
    if (!(to - from >= SHORTEST_ZOOM)) return;
    this.zoom = from <= 0 && to >= this.end ? null : [from, to];
    this.refresh();
  }

  /** Shows the whole time range. */
  reset() {
    this.zoom = null;
    this.refresh();
  }

  /** Zooms by a factor around the middle, and pans by a fraction of the time range shown. */
  move(factor, share) {
    const [from, to] = this.times();
    const [middle, half] = [(from + to) / 2 + share * (to - from), ((to - from) / 2) * factor];
    const shift = Math.max(0 - (middle - half), 0) + Math.min(this.end - (middle + half), 0);
    this.zoomTo(middle - half + (factor === 1 ? shift : 0), middle + half + (factor === 1 ? shift : 0));
  }

  refresh() {
    this.sample();
    for (const { kind, plot } of this.plots) {
      if (!plot) continue;
      plot.interval = this.sampled.interval;
      plot.setData([this.sampled.x, ...kind.data(this.sampled, this.indices, this.view)], false);
    }
    this.plots.forEach((shown) => this.caption(shown, null));
    this.apply();
  }

  apply() {
    const [min, max] = this.times();
    this.plots.forEach(({ plot }) => plot?.setScale("x", { min, max }));
    this.zoomed(this.zoom);
  }

  /** Redraws with the colours of the current theme. */
  redraw() {
    this.plots.forEach(({ plot }) => plot?.redraw());
  }

  fit() {
    this.plots.forEach(({ plot, figure }) => plot?.setSize({ width: figure.clientWidth, height: plot.height }));
  }

  options(kind, figure) {
    return {
      ...overTime(figure, {
        height: figure.id === "rtt" ? 230 : 280,
        values: (u, at) => unitTicks(at, kind.unit),
        shades: () => this.marks.shades,
        hover: (u) => this.hover(u),
        zoomTo: (from, to) => this.zoomTo(from, to),
        reset: () => this.reset(),
      }, { draw: [(u) => drawLabels(u, this.marks)] }, { points: { show: false } }),
      scales: { x: { time: false }, y: { range: (u, min, max) => kind.range(min ?? 0, max ?? 0, u) } },
      series: [{}, ...kind.series(this.indices, this.view)],
      bands: kind.bands(this.indices, this.view),
    };
  }

  hover(u) {
    const shown = this.plots.find(({ plot }) => plot === u);
    if (shown) this.caption(shown, u.cursor.left >= 0 ? u.posToVal(u.cursor.left, "x") : null);
  }

  /** Shows the legend of a plot, and its values at a time. */
  caption({ kind, figure, plot }, time) {
    const caption = figure.querySelector("figcaption");
    const note = kind.note ?? `in intervals of ${secondsText(this.sampled.interval)}`;
    const title = element("b", {}, kind.title(this.view));
    if (time === null || !plot) {
      caption.replaceChildren(title, note);
      return;
    }
    const values = element("span", { class: "values" });
    const row = this.rowAt(time);
    if (row !== null) {
      for (const [index, text] of kind.texts(this.sampled, this.indices, this.view, row)) {
        const label = index === null ? "total " : `${index + 1}: `;
        values.append(element("span", { class: "value" }, lineSample(index), label + text));
      }
    }
    const near = (4 / plot.over.clientWidth) * (this.times()[1] - this.times()[0]);
    const marks = this.marks.ticks.filter(({ at }) => Math.abs(at - time) <= near).slice(0, 2);
    const mark = marks.map(({ label }) => element("span", { class: "mark" }, label));
    caption.replaceChildren(title, `at ${secondsText(time)}`, ...mark, values);
  }

  /**
   * The index in the data of the interval that contains a time; in a gap, in which nothing was sent, that of the empty
   * interval at its start. Null before the first one.
   */
  rowAt(time) {
    const { x } = this.sampled;
    let [low, high] = [0, x.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] <= time) low = middle + 1;
      else high = middle;
    }
    return low > 0 ? low - 1 : null;
  }
}

/** Number of decimals that evenly spaced values need. */
function digitsOf(values) {
  const step = values.length > 1 ? values[1] - values[0] : 1;
  const exact = (digits) => Math.abs(step * 10 ** digits - Math.round(step * 10 ** digits)) < 1e-3;
  return [0, 1, 2, 3, 4, 5, 6, 7, 8].find(exact) ?? 9;
}

/** Axis labels in seconds, the last one with the unit. */
function secondTicks(at) {
  const digits = digitsOf(at);
  return at.map((value, place) => value.toFixed(digits) + (place === at.length - 1 ? " s" : ""));
}

/** Axis labels in the unit of the greatest value, which alone shows it. */
function unitTicks(at, text) {
  const greatest = Math.max(...at.map(Math.abs));
  const unit = text(greatest).split(" ")[1];
  const size = { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[unit.length > 1 && unit !== "ms" ? unit[0] : ""] ?? 1;
  const values = at.map((value) => value / size);
  const digits = digitsOf(values);
  return values.map((value, place) => value.toFixed(digits) + (Math.abs(at[place]) === greatest ? ` ${unit}` : ""));
}
