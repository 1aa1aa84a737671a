// Shows the updates that plait web sends, until the page is closed.
"use strict";

/** Samples that the plots show. */
const HISTORY = 120;
const MAX_EVENTS = 200;
/** Milliseconds until the stream is opened again. */
const RETRY = 2000;

const PROTECTIONS = {
  sealed: { style: "sealed", text: "sealed" },
  stream: { style: "stream", text: "stream" },
  xor64: { style: "xor64", text: "xor64" },
  off: { style: "readable", text: "off" },
  none: { style: "readable", text: "not by plait" },
};

const token = location.hash.slice(1) || null;
const headers = token ? { Authorization: `Bearer ${token}` } : {};
const samples = [];
const order = [];
let update = null;

// Theme

const THEME = "plait-theme";
function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  for (const plot of Object.values(plots)) plot.redraw();
}
const plots = {};
setTheme(sessionStorage.getItem(THEME) ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => {
  const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  sessionStorage.setItem(THEME, theme);
  setTheme(theme);
});

// Paths

/** The index of a path, for its colour: in the order in which paths appeared. */
function indexOf(name) {
  if (!order.includes(name)) order.push(name);
  return order.indexOf(name);
}

function pathCard(path) {
  const index = indexOf(path.name);
  const facts = [
    ["Sent", rateText(path.sent_bps)],
    ["Received", rateText(path.received_bps)],
    ["Round-trip time", msText(path.rtt_ms)],
    ["Retransmitted", path.retransmitted === null ? NOTHING : percentText(path.retransmitted)],
  ];
  return element("article", { class: "card", "aria-label": `path ${path.name}` },
    element("h3", {}, lineSample(index), path.name,
      path.role ? element("span", { class: "badge" }, path.role) : null,
      element("span", { class: "badge" }, plural(path.subflows, "subflow"))),
    element("dl", {}, ...facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    ...exposure(path),
    ...(path.quota ? quota(path.quota) : []));
}

/** What was used of a path's quota: a bar and a sentence. */
function quota({ bytes, per, used, left, reset, used_up }) {
  const bar = element("progress", { max: bytes, value: Math.min(used, bytes), "aria-label": "quota" });
  const use = left > 0 ? `${bytesText(used)} of ${bytesText(bytes)} used` : `${bytesText(bytes)} used up`;
  const forecast = left > 0 && used_up ? ` At this rate, it is used up on ${used_up.slice(0, 10)}.` : "";
  const text = `Quota per ${per}: ${use}, reset on ${reset}.${forecast}`;
  return [bar, element("p", { class: left > 0 ? "exposure" : "exposure alert" }, text)];
}

/** What somebody who listens on a path could read now: a bar and a sentence. */
function exposure(path) {
  const rates = Object.entries(PROTECTIONS).map(([name, { style }]) => [name, style, path.exposure[`${name}_bps`]]);
  const total = sum(rates.map(([, , rate]) => rate));
  if (total === 0) return [element("p", { class: "exposure soft" }, "Nothing to read: it carries no data now.")];
  const bar = element("div", { class: "track", "aria-hidden": "true" },
    ...rates.filter(([, , rate]) => rate > 0).map(([, style, rate]) => {
      const part = element("span", { class: style });
      part.style.width = `${(100 * rate) / total}%`;
      return part;
    }));
  const share = (names) => sum(rates.filter(([name]) => names.includes(name)).map(([, , rate]) => rate)) / total;
  const parts = [];
  const readable = share(["off", "none"]);
  if (readable > 0) parts.push(`${percentText(readable)} as programs send it`);
  if (share(["xor64"]) > 0) parts.push(`${percentText(share(["xor64"]))} by an attack on xor64`);
  if (share(["stream"]) > 0) parts.push(`${percentText(share(["stream"]))} after listening on the trusted path, too`);
  const text = parts.length ? `Somebody here could read ${parts.join(", ")}.` : "Somebody here could read nothing: all is sealed.";
  return [bar, element("p", { class: "exposure" }, text)];
}

/** The time of day of a Unix time, in UTC. */
const timeText = (seconds) => new Date(seconds * 1000).toISOString().slice(11, 19);

// Plots

function drawPlots() {
  const names = order;
  const x = samples.map((sample) => sample.time);
  const column = (value) => names.map((name) => samples.map((sample) => {
    const path = sample.paths.find((one) => one.name === name);
    return path ? value(path) : null;
  }));
  draw("throughput", names, [x, ...column((path) => path.sent_bps + path.received_bps)], rateText);
  draw("rtt", names, [x, ...column((path) => path.rtt_ms)], msText);
}

function draw(id, names, data, unit) {
  const holder = document.querySelector(`#${id} .plot`);
  if (plots[id]?.names !== names.length) {
    plots[id]?.destroy();
    const line = (name) => {
      const index = indexOf(name);
      return { label: name, stroke: () => colourOf(index), dash: dashesOf(index), width: 1.5, points: { show: false } };
    };
    const soft = () => cssColour("--soft");
    const rule = { stroke: () => cssColour("--rule"), width: 1 };
    const axis = { stroke: soft, grid: rule, ticks: rule, font: "12px system-ui, sans-serif" };
    const range = (u, min, max) => [0, max > 0 ? max * 1.06 : 1];
    plots[id] = new uPlot({
      width: holder.clientWidth, height: 150, legend: { show: false }, cursor: { show: false },
      scales: { y: { range } },
      axes: [
        { ...axis, space: 90, values: (u, ticks) => ticks.map(timeText) },
        { ...axis, size: 84, values: (u, ticks) => ticks.map((value) => (value === 0 ? "0" : unit(value))) },
      ],
      series: [{}, ...names.map(line)],
    }, data, holder);
    plots[id].names = names.length;
  } else {
    plots[id].setData(data);
  }
}

new ResizeObserver(() => {
  for (const [id, plot] of Object.entries(plots)) {
    plot.setSize({ width: document.querySelector(`#${id} .plot`).clientWidth, height: 150 });
  }
}).observe(byId("throughput"));

// Connections

function drawConnections() {
  const wanted = byId("filter").value.trim().toLowerCase();
  const rows = [];
  for (const connection of update.connections) {
    const own = connectionRow(connection);
    const subflows = connection.subflows.map(subflowRow);
    const text = [own, ...subflows].map((row) => row.textContent).join(" ").toLowerCase();
    if (text.includes(wanted)) rows.push(own, ...subflows);
  }
  if (rows.length === 0) {
    const text = wanted ? "No connection matches the filter." : "No MPTCP connection is open.";
    rows.push(element("tr", {}, element("td", { class: "text soft", colspan: 8 }, text)));
  }
  document.querySelector("#connections tbody").replaceChildren(...rows);
  byId("omitted").textContent = update.omitted ? `${plural(update.omitted, "further connection")} not shown.` : "";
}

function connectionRow(connection) {
  const { style, text } = PROTECTIONS[connection.protection];
  const level = connection.level ? ` ${connection.level}` : "";
  const mark = element("span", { class: `badge ${style === "readable" ? "alert" : ""}` }, text + level);
  const names = [connection.program, connection.gateway ? `plait ${connection.gateway}` : null].filter(Boolean);
  const paths = [...new Set(connection.subflows.filter((one) => !one.closed).map((one) => one.path))];
  return element("tr", { class: "connection" },
    cell("text", [...names, connection.remote ?? "ended"].join(" · ")), element("td", { class: "text" }, mark),
    cell("text", paths.join(", ")), cell("", rateText(connection.sent_bps)), cell("", rateText(connection.received_bps)),
    cell("", ""), cell("", ""), cell("text", connection.fallback ? "fell back to TCP" : ""));
}

function subflowRow(subflow) {
  const states = [
    subflow.closed ? "closed" : null, subflow.silent ? "silent" : null, subflow.backup ? "backup" : null, subflow.scheduling,
    subflow.retransmissions ? plural(subflow.retransmissions, "retransmission") : null,
  ].filter(Boolean);
  return element("tr", { class: subflow.closed ? "subflow gone" : "subflow" },
    cell("text", `${subflow.local} → ${subflow.remote}`), cell("text", ""), cell("text", subflow.path),
    cell("", rateText(subflow.sent_bps)), cell("", rateText(subflow.received_bps)), cell("", msText(subflow.rtt_ms)),
    cell("", percentText(subflow.share)), cell(subflow.silent ? "text alert" : "text", states.join(", ")));
}

const cell = (style, text) => element("td", { class: style || null }, text);

// Events

const EVENTS = {
  "connection-opened": () => "opened",
  "connection-closed": () => "closed",
  "subflow-opened": (event) => `subflow on ${event.path} opened`,
  "subflow-closed": (event) => `subflow on ${event.path} closed`,
  failover: (event) => `failover from ${event.path} to ${event.to.join(", ")}`,
  silent: (event) => `no answer on ${event.path}`,
  answers: (event) => `${event.path} answers again`,
};

function addEvents(events) {
  const list = byId("events");
  for (const event of events) {
    const alert = ["failover", "silent"].includes(event.kind);
    const who = [event.program, event.remote ?? event.token].filter(Boolean).join(" · ");
    list.prepend(element("li", { class: alert ? "alert" : null },
      element("time", { datetime: new Date(event.time * 1000).toISOString() }, timeText(event.time)), ` ${who}: `, element("b", {}, EVENTS[event.kind](event))));
  }
  while (list.children.length > MAX_EVENTS) list.lastChild.remove();
}

// Captures

function drawCaptures({ recording_since, reports, error }) {
  const button = byId("capture");
  const recording = recording_since !== null;
  button.textContent = recording ? "End the capture" : "Start a capture";
  button.dataset.action = recording ? "captures/end" : "captures";
  button.disabled = token === null;
  if (recording) setText("capture-state", `Recording for ${secondsText(Math.max(0, Math.round(update.time - recording_since)))}.`);
  else if (error) setText("capture-state", error);
  else if (token !== null) setText("capture-state", "All interfaces are captured, for ten minutes at most.");
  const list = byId("reports");
  if (list.children.length !== reports.length) {
    const address = (number) => `captures/${number}${token ? `?token=${token}` : ""}`;
    const link = (number) => element("a", { href: address(number), target: "_blank", rel: "noopener" }, `Report of capture ${number}`);
    list.replaceChildren(...reports.map((number) => element("li", {}, link(number))));
  }
}

/** Changes a text only if it differs: a status that is set is read out again. */
function setText(id, text) {
  if (byId(id).textContent !== text) byId(id).textContent = text;
}

byId("capture").addEventListener("click", async ({ target }) => {
  // A disabled button would lose the focus of the keyboard.
  if (target.getAttribute("aria-busy") === "true") return;
  target.setAttribute("aria-busy", "true");
  try {
    const answer = await fetch(target.dataset.action, { method: "POST", headers });
    if (!answer.ok) setText("capture-state", await answer.text());
  } finally {
    target.setAttribute("aria-busy", "false");
  }
});

// The stream

byId("filter").addEventListener("input", () => update && drawConnections());

function show(kind, data) {
  if (kind === "past") {
    samples.splice(0, samples.length, ...data.paths);
    samples.forEach((sample) => sample.paths.forEach((path) => indexOf(path.name)));
    byId("events").replaceChildren();
    addEvents(data.events);
    return;
  }
  update = data;
  setText("state", `${plural(update.connections.length + update.omitted, "MPTCP connection")} over ${plural(update.paths.length, "path")}.`);
  byId("paths").replaceChildren(...update.paths.map(pathCard));
  samples.push({ time: update.time, paths: update.paths });
  samples.splice(0, Math.max(0, samples.length - HISTORY));
  drawPlots();
  drawConnections();
  addEvents(update.events);
  drawCaptures(update.captures);
}

/** Reads server-sent events by fetch, which can send the token, as EventSource cannot. */
async function follow() {
  const answer = await fetch("updates", { headers });
  if (!answer.ok) throw new Error(await answer.text());
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ""; ; ) {
    const { value, done } = await reader.read();
    if (done) throw new Error("plait web has ended");
    const events = (text + value).split("\n\n");
    text = events.pop();
    for (const event of events) {
      const field = (name) => event.match(new RegExp(`^${name}: ?(.*)$`, "m"))?.[1];
      const data = field("data");
      if (data) show(field("event"), JSON.parse(data));
    }
  }
}

async function followForever() {
  for (;;) {
    try {
      await follow();
    } catch (error) {
      setText("state", `No data: ${error.message.trim()}.`);
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}
followForever();
