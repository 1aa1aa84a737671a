// The report: the list of connections, and the details of the selected one.
"use strict";

const REPORT = JSON.parse(byId("data").textContent);
const view = { direction: WAYS[0], goodput: false, stacked: false, hidden: new Set() };
const plots = new Plots(["throughput", "rtt", "sequence"].map(byId), (zoom) => {
  byId("reset").disabled = zoom === null;
  externalMetrics.setTimes(plots.times());
});
const externalMetrics = new ExternalMetrics(byId("external-metrics"), REPORT.totals.external_metrics, {
  marks: () => plots.marks,
  zoomTo: (from, to) => plots.zoomTo(from, to),
  reset: () => plots.reset(),
});
let chosen = null;

/** The header: what was read, and any problems with it. */
function showHead() {
  const { captures, totals, connections, omitted } = REPORT;
  const names = captures.map((capture) => (capture === "-" ? "standard input" : capture.split("/").pop()));
  const title = names.length > 2 ? `${names[0]} and ${plural(names.length - 1, "more capture")}` : names.join(" and ");
  byId("title").textContent = title;
  byId("title").title = captures.join("\n");
  document.title = `${title} – plait report`;
  const first = Math.min(...connections.map(({ start }) => start));
  const skipped = Object.values(totals.skipped).reduce((sum, count) => sum + count, 0);
  byId("read").textContent = [
    connections.length ? dateText(first) : null,
    plural(totals.packets, "packet"),
    plural(connections.length + omitted.connections, "connection"),
    skipped ? skippedText(totals.skipped, skipped) : null,
    totals.unanswered_joins ? plural(totals.unanswered_joins, "unanswered join") : null,
    totals.evicted_connections ? `${plural(totals.evicted_connections, "connection")} not followed to the end: too many at once` : null,
    totals.partial_connections ? `${plural(totals.partial_connections, "connection")} whose opening was not captured` : null,
    totals.unmapped_bytes ? `${bytesText(totals.unmapped_bytes)} of payload with no known place` : null,
  ].filter((part) => part).join("  ·  ");
  byId("warnings").append(...totals.damaged.map(({ capture, error }) =>
    element("p", { class: "warning" }, `${capture}: ${error}; what comes before that is used`)));
  if (omitted.connections) {
    byId("left-out").textContent =
      `These are the ${connections.length} most important ones: MPTCP before plain TCP, then those that carried ` +
      `most. ${plural(omitted.connections, "more connection")} with ${bytesText(omitted.bytes)} ` +
      `${omitted.connections === 1 ? "is" : "are"} in connections.csv.`;
  }
}

/** The reasons why packets were skipped. */
const SKIPPED = {
  not_ip: "not IP", not_tcp: "not TCP", fragments: "later fragments", malformed: "malformed",
  duplicate: "duplicates from another capture",
};

function skippedText(skipped, sum) {
  const reasons = Object.entries(skipped).filter(([, count]) => count > 0);
  const parts = reasons.map(([reason, count]) => `${countText(count)} ${SKIPPED[reason] ?? reason}`);
  return `${countText(sum)} skipped (${parts.join(", ")})`;
}

/** The columns of the connection table: displayed value and sort key. */
const COLUMNS = [
  { name: "#", key: ({ id }) => id },
  { name: "protocol", text: true, key: ({ version }) => versionText(version) },
  { name: "from", text: true, address: true, key: ({ subflows }) => subflows[0]?.src ?? "" },
  { name: "to", text: true, address: true, key: ({ subflows }) => subflows[0]?.dst ?? "" },
  { name: "start", key: ({ start }) => start, show: (start) => `${(start - earliest()).toFixed(3)} s` },
  { name: "duration", key: ({ duration_s }) => duration_s, show: secondsText },
  { name: "→ server", key: ({ bytes }) => bytes.client_to_server, show: bytesText },
  { name: "→ client", key: ({ bytes }) => bytes.server_to_client, show: bytesText },
  { name: "subflows", key: ({ subflows, omitted }) => subflows.length + omitted.subflows },
  { name: "failovers", key: ({ failovers, omitted }) => failovers.length + omitted.failovers },
  { name: "reinjected", key: ({ reinjected }) => reinjected.bytes, show: bytesText },
  { name: "notes", text: true, key: (connection) => notes(connection).join(", ") },
];
let order = null;

const earliest = () => Math.min(...REPORT.connections.map(({ start }) => start));

function notes({ partial, evicted, fallback, failovers }) {
  return [
    partial ? "partial" : null,
    evicted ? "not followed to its end" : null,
    fallback ? "fallback" : null,
    failovers.length ? "failover" : null,
  ].filter((note) => note);
}

function showConnections() {
  const table = byId("connection-table");
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter((word) => word);
  const rows = REPORT.connections.filter((connection) => {
    const { token_client, token_server, subflows } = connection;
    const addresses = subflows.flatMap(({ src, dst }) => [src, dst]);
    const text = [...COLUMNS.filter(({ text }) => text).map(({ key }) => key(connection)), token_client, token_server,
      ...addresses].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (order) rows.sort((a, b) => compared(order.column.key(a), order.column.key(b)) * order.sign);
  const heads = COLUMNS.map((column) => {
    const button = element("button", { type: "button" }, column.name);
    button.addEventListener("click", () => sortBy(column));
    const sorted = order?.column === column && (order.sign > 0 ? "ascending" : "descending");
    return element("th", { class: column.text && "text", scope: "col", "aria-sort": sorted }, button);
  });
  const body = rows.map((connection) => {
    const cells = COLUMNS.map(({ key, show, text, address }) =>
      element("td", { class: address ? "text address" : text && "text" }, String(show ? show(key(connection)) : key(connection))));
    const selected = String(connection === chosen);
    const row = element("tr", { tabindex: 0, "aria-selected": selected, "data-id": connection.id }, ...cells);
    row.addEventListener("click", () => choose(connection));
    row.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" && event.key !== " ") return;
      event.preventDefault();
      choose(connection);
      table.querySelector('[aria-selected="true"]')?.focus();
    });
    return row;
  });
  if (!body.length) body.push(element("tr", {}, element("td", { class: "text", colspan: COLUMNS.length }, "None.")));
  table.replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...body));
}

const compared = (a, b) => (typeof a === "string" ? a.localeCompare(b, "en", { numeric: true }) : a - b);

function sortBy(column) {
  const turned = order?.column === column ? -order.sign : column.text || column.name === "#" || column.name === "start" ? 1 : -1;
  order = { column, sign: turned };
  showConnections();
  byId("connection-table").querySelectorAll("th button")[COLUMNS.indexOf(column)].focus();
}

/** Shows a connection, initially in the direction that carried more. */
function choose(connection) {
  chosen = connection;
  const { bytes } = connection;
  view.direction = bytes.client_to_server >= bytes.server_to_client ? WAYS[0] : WAYS[1];
  view.hidden.clear();
  byId("chosen").hidden = false;
  const rows = byId("connection-table").querySelectorAll("tr[data-id]");
  rows.forEach((row) => row.setAttribute("aria-selected", String(row.dataset.id === String(connection.id))));
  showFacts();
  showFailovers();
  showEvents();
  showView();
}

/** Updates everything that depends on the view. */
function showView() {
  for (const button of document.querySelectorAll("[data-set]")) {
    button.setAttribute("aria-pressed", String(String(view[button.dataset.set]) === button.dataset.value));
  }
  showKeys();
  showShare();
  showSubflows();
  // Hidden elements have no width to draw in.
  byId("plots").hidden = false;
  plots.show(chosen, view);
  externalMetrics.show(chosen);
  const why = plots.whyNone();
  byId("plots").hidden = why !== "";
  byId("plots-note").hidden = why !== "";
  byId("no-plots").hidden = why === "";
  byId("no-plots").textContent = why;
}

function showFacts() {
  const { id, bytes, new_bytes, reinjected } = chosen;
  byId("chosen-title").textContent = `Connection ${id}`;
  const badges = [[versionText(chosen.version), ""]];
  if (chosen.partial) badges.push(["partial: its opening was not captured; version, client and server are guesses", "alert"]);
  if (chosen.evicted) badges.push(["not followed to its end: too many connections at once", "alert"]);
  if (chosen.fallback) badges.push([`fallback to TCP: ${chosen.fallback}`, "alert"]);
  byId("badges").replaceChildren(...badges.map(([text, alert]) => element("span", { class: `badge ${alert}` }, text)));
  const repeated = (way) => (bytes[way] > new_bytes[way] ? `${bytesText(new_bytes[way])} of them new` : null);
  const facts = [
    ["Start", dateText(chosen.start).slice(11, 23), `${dateText(chosen.start).slice(0, 10)}, UTC`],
    ["Duration", secondsText(chosen.duration_s)],
    ...WAYS.map((way) => [WAY_TEXT[way], bytesText(bytes[way]), repeated(way)]),
    ...WAYS.filter((way) => chosen.completion_s[way] !== null).map((way) =>
      [`Completed, ${WAY_TEXT[way]}`, secondsText(chosen.completion_s[way]), meanRate(way)]),
    ...WAYS.filter((way) => carrying(way).length > 1 && chosen.aggregation_benefit[way] !== null).map((way) =>
      [`Aggregation, ${WAY_TEXT[way]}`, `${chosen.aggregation_benefit[way].toFixed(2)} ×`, "of the best single path"]),
    ["Reinjected", bytesText(reinjected.bytes), plural(reinjected.segments, "segment")],
    ["Tokens", [chosen.token_client, chosen.token_server].map((token) => token ?? "unknown").join(" / "), "client / server"],
  ];
  byId("facts").replaceChildren(...facts.map(([name, value, more]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, value, more ? element("small", {}, more) : null))));
  byId("start").textContent = dateText(chosen.start);
}

/** The subflows that carried something in a direction, with their indices. */
const carrying = (way) =>
  chosen.subflows.map((subflow, index) => ({ subflow, index })).filter(({ subflow }) => subflow.bytes[way] > 0);

function meanRate(way) {
  const seconds = chosen.completion_s[way];
  return seconds > 0 ? `${rateText((chosen.new_bytes[way] * 8) / seconds)} on average` : null;
}

/** A button for each subflow that carried something, to show or hide it. */
function showKeys() {
  byId("subflow-keys").replaceChildren(...carrying(view.direction).map(({ subflow, index }) => {
    const pressed = String(!view.hidden.has(index));
    const key = element("button", { type: "button", "aria-pressed": pressed, "data-index": index },
      lineSample(index), `${index + 1}: ${pathText(subflow)}`);
    key.addEventListener("click", () => {
      if (!view.hidden.delete(index)) view.hidden.add(index);
      showView();
      byId("subflow-keys").querySelector(`[data-index="${index}"]`).focus();
    });
    return key;
  }));
}

function showShare() {
  const paths = new Map();
  chosen.subflows.forEach((subflow, index) => {
    const bytes = subflow.bytes[view.direction];
    if (!bytes) return;
    const path = pathText(subflow);
    paths.set(path, [...(paths.get(path) ?? []), { index, bytes }]);
  });
  const total = chosen.bytes[view.direction];
  byId("share").replaceChildren(...[...paths].map(([path, parts]) => {
    const bytes = sum(parts.map((part) => part.bytes));
    const track = element("div", { class: "track" }, ...parts.map((part) => {
      const bar = element("div", { class: "part", title: `subflow ${part.index + 1}: ${bytesText(part.bytes)}` });
      bar.style.width = `${(part.bytes / total) * 100}%`;
      bar.style.background = `var(--s${part.index % COLOURS})`;
      return bar;
    }));
    return element("div", { class: "share" }, element("span", {}, path),
      element("span", {}, `${percentText(bytes / total)}  `, element("span", { class: "soft" }, bytesText(bytes))), track);
  }));
  if (!paths.size) byId("share").textContent = "Nothing was sent in this direction.";
}

function showFailovers() {
  const since = (time) => secondsText(time - chosen.start);
  byId("failovers").hidden = !chosen.failovers.length;
  byId("failover-list").replaceChildren(...chosen.failovers.map((failover) => {
    const { path, subflow, direction, from, to, resumed, stall_s, taken_over_by, reinjected } = failover;
    const silence = to === null
      ? `silent from ${since(from)} to the end`
      : `silent from ${since(from)} to ${since(to)}: ${secondsText(to - from)}`;
    const details = [
      `subflow ${subflow}, ${WAY_TEXT[direction]}`,
      taken_over_by === null ? "no subflow took over" :
        `subflow ${failover.taken_over_by_subflow} took over (${taken_over_by.replace("->", "→")})`,
      `reinjected ${countedText(reinjected)}`,
      stall_s === null ? null : `the application waited up to ${secondsText(stall_s)}`,
      resumed === null ? null : `data resumed at ${since(resumed)}`,
    ].filter((detail) => detail);
    return element("p", { class: "failover" }, element("b", {}, path.replace("->", "→")), ` ${silence}`,
      element("br"), element("span", { class: "soft" }, details.join("; ")));
  }));
  omittedNote(byId("failover-list"), chosen.omitted.failovers, "failover");
}

function omittedNote(after, omitted, what) {
  if (omitted) after.append(element("p", { class: "soft small" }, `${plural(omitted, `more ${what}`)} in analysis.json.`));
}

/** The table of subflows, with mean and standard deviation as in measurement papers. */
function showSubflows() {
  const way = view.direction;
  byId("subflow-direction").textContent = WAY_TEXT[way];
  const counted = ({ segments, bytes }) => [countText(segments), segments ? bytesText(bytes) : null];
  const columns = [
    ["", (s, sent, index) => [element("span", {}, lineSample(index), ` ${index + 1}`)], "text"],
    ["path", ({ src, dst }) => [src, `→\u00a0${dst}`], "text address"],
    ["carried", (s, { bytes, share }) => [bytesText(bytes), bytes ? percentText(share) : null]],
    ["RTT mean ± σ", (s, { rtt_ms, rtt_source, ack_rtt_ms }) => (rtt_ms
      ? [`${msText(rtt_ms.mean).replace(" ms", "")} ± ${msText(rtt_ms.stddev)}`,
        `p50 ${msText(rtt_ms.p50)}, p95 ${msText(rtt_ms.p95)}`,
        rtt_source === "timestamps" ? "at the receiver, by timestamps" : null]
      : [NOTHING, ack_rtt_ms ? "not shown by the captures" : null])],
    ["SYN RTT", ({ syn_rtt_ms }) => [msText(syn_rtt_ms)]],
    ["jitter", (s, { jitter_ms, interarrival_ms }) => [
      jitter_ms ? msText(jitter_ms.mean) : NOTHING,
      jitter_ms ? `max ${msText(jitter_ms.max)}` : null,
      interarrival_ms ? `arrivals ±${msText(interarrival_ms.stddev)}` : null]],
    ["retransmitted", (s, sent) => counted(sent.retransmitted)],
    ["reinjected", (s, sent) => counted(sent.reinjected)],
    ["out of order", (s, sent) => counted(sent.out_of_order)],
    ["head of line", (s, { head_of_line_ms: times }) =>
      (times ? [msText(times.mean), `p95 ${msText(times.p95)}`] : [NOTHING])],
    ["exposure", (s, { bytes, exposure }) =>
      (bytes ? [percentText(exposure.fraction), `run ${bytesText(exposure.longest_run)}`] : [NOTHING])],
    ["opened, closed", (s) => [openText(s), closeText(s.close)], "text wrap"],
  ];
  const heads = columns.map(([name, , kind]) => element("th", { class: kind, scope: "col" }, name));
  const rows = chosen.subflows.map((subflow, index) => element("tr", {}, ...columns.map(([, show, kind]) => {
    const [main, ...more] = show(subflow, subflow.directions[way], index);
    const below = more.filter((text) => text).map((text) => element("div", { class: "soft" }, text));
    return element("td", { class: kind }, main, ...below);
  })));
  byId("subflow-table").replaceChildren(element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...rows));
  byId("subflow-note").textContent = chosen.omitted.subflows
    ? `${plural(chosen.omitted.subflows, "more subflow")} in subflows.csv; they are in no plot.` : "";
}

function openText(subflow) {
  return [
    subflow.joined ? "joined" : "first",
    subflow.accepted ? null : "not accepted",
    subflow.backup ? "backup" : null,
    subflow.authentic === null ? null : subflow.authentic ? "HMAC valid" : "HMAC invalid",
  ].filter((part) => part).join(", ");
}

function showEvents() {
  const { events, events_dropped, omitted } = chosen;
  byId("events").hidden = !events.length;
  byId("events").firstElementChild.textContent = plural(events.length + omitted.events + events_dropped, "event");
  const rows = events.map((event) => element("tr", {},
    element("td", {}, `${(event.time - chosen.start).toFixed(3)} s`),
    element("td", {}, String(event.subflow)),
    element("td", { class: "text" }, event.direction === WAYS[0] ? "client" : "server"),
    element("td", { class: "text wrap" }, eventText(event))));
  const heads = [["time"], ["subflow"], ["by", "text"], ["event", "text"]];
  byId("event-table").replaceChildren(
    element("thead", {}, element("tr", {}, ...heads.map(([name, kind]) => element("th", { class: kind }, name)))),
    element("tbody", {}, ...rows));
  byId("events").querySelectorAll("p").forEach((note) => note.remove());
  omittedNote(byId("events"), omitted.events, "event");
}

function eventText({ event, address, address_ids = [], backup, reason, data_seq, authentic }) {
  const name = event.startsWith("mp_") ? event.toUpperCase() : event.toUpperCase().replace("_ECHO", " echo");
  return [
    name,
    address,
    address_ids.length ? `id ${address_ids.join(", ")}` : null,
    backup === undefined ? null : backup ? "backup" : "no backup",
    reason === undefined ? null : `reason ${reason}`,
    data_seq ? `at ${data_seq}` : null,
    authentic === undefined ? null : authentic ? "HMAC valid" : "HMAC invalid",
  ].filter((part) => part).join(" ");
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  plots.redraw();
  externalMetrics.redraw();
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const theme = () => document.documentElement.dataset.theme;
let shown = null;
setTheme(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
byId("theme").addEventListener("click", () => setTheme(theme() === "dark" ? "light" : "dark"));
addEventListener("beforeprint", () => {
  shown = theme();
  byId("events").open = true;
  setTheme("light");
});
addEventListener("afterprint", () => setTheme(shown));

for (const button of document.querySelectorAll("[data-set]")) {
  button.addEventListener("click", () => {
    const { set, value } = button.dataset;
    view[set] = set === "direction" ? value : value === "true";
    showView();
  });
}
byId("reset").addEventListener("click", () => plots.reset());
byId("filter").addEventListener("input", showConnections);
byId("plots").addEventListener("keydown", (event) => {
  const moves = { "+": [0.5, 0], "=": [0.5, 0], "-": [2, 0], ArrowLeft: [1, -0.2], ArrowRight: [1, 0.2] };
  if (event.key === "0" || event.key === "Escape") plots.reset();
  else if (moves[event.key]) plots.move(...moves[event.key]);
  else return;
  event.preventDefault();
});

byId("filter").hidden = REPORT.connections.length < 6;
showHead();
showConnections();
if (REPORT.connections.length) choose(REPORT.connections[0]);
