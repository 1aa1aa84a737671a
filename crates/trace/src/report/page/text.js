// Human-readable numbers and times, and elements that hold text.
"use strict";

const WAYS = ["client_to_server", "server_to_client"];
const WAY_TEXT = { client_to_server: "client → server", server_to_client: "server → client" };
const NOTHING = "–";

/** A value with three significant digits, in the best unit of a list. */
function inUnit(value, names, size = 1000) {
  let index = 0;
  while (Math.abs(value) >= size && index < names.length - 1) {
    value /= size;
    index += 1;
  }
  const digits = index === 0 ? 0 : Math.max(0, 2 - Math.floor(Math.log10(Math.max(Math.abs(value), 1))));
  return `${value.toFixed(digits)} ${names[index]}`;
}

const bytesText = (bytes) => inUnit(bytes, ["B", "kB", "MB", "GB", "TB"]);
const rateText = (bits) => inUnit(bits, ["b/s", "kb/s", "Mb/s", "Gb/s", "Tb/s"]);
const countText = (count) => count.toLocaleString("en-GB");
const percentText = (share) => (share === null ? NOTHING : `${(share * 100).toFixed(1)} %`);

/** Milliseconds, with the significant digits only. */
function msText(ms) {
  if (ms === null || ms === undefined) return NOTHING;
  return `${ms.toFixed(ms < 1 ? 3 : ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`;
}

function secondsText(seconds) {
  if (seconds === null || seconds === undefined) return NOTHING;
  if (seconds < 1) return msText(seconds * 1000);
  if (seconds < 120) return `${seconds.toFixed(seconds < 10 ? 3 : 2)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 120) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** A Unix time in UTC; empty for an invalid time. */
function dateText(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "" : `${date.toISOString().slice(0, 23).replace("T", " ")} UTC`;
}

/** Segments and bytes. */
const countedText = ({ segments, bytes }) =>
  segments ? `${plural(segments, "segment")} (${bytesText(bytes)})` : "nothing";

const versionText = (version) => (version === null ? "TCP" : `MPTCP v${version}`);
const hostText = (address) => address.replace(/:\d+$/, "").replace(/^\[(.*)\]$/, "$1");
const pathText = ({ src, dst }) => `${hostText(src)} → ${hostText(dst)}`;
const plural = (count, one, many = `${one}s`) => `${countText(count)} ${count === 1 ? one : many}`;

/** How a subflow closed, which side closed it, and the reason. */
function closeText({ kind, by, reason }) {
  const names = { half_closed: "half closed", fin: "FIN", fastclose: "MP_FASTCLOSE" };
  const side = by === null ? "" : by === "client_to_server" ? " by client" : " by server";
  return (names[kind] ?? kind) + side + (reason === null ? "" : `, reason ${reason}`);
}

const sum = (values) => values.reduce((total, value) => total + value, 0);

const byId = (id) => document.getElementById(id);

/** An element with attributes and children; strings become text nodes, never markup. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** The style of a subflow, by index: a colour, and a dash pattern for greyscale. */
const COLOURS = 6;
const DASHES = [[], [8, 3], [2, 3], [10, 3, 2, 3], [5, 2], [1, 2]];
const colourOf = (index) => cssColour(`--s${index % COLOURS}`);
const dashesOf = (index) => DASHES[index % DASHES.length];
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** A sample of the line style of a subflow or of the total. */
function lineSample(index) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const line = document.createElementNS(space, "path");
  svg.setAttribute("class", "line");
  svg.setAttribute("viewBox", "0 0 26 8");
  svg.setAttribute("aria-hidden", "true");
  line.setAttribute("d", "M0 4h26");
  line.style.stroke = index === null ? "var(--ink)" : `var(--s${index % COLOURS})`;
  line.setAttribute("stroke-width", index === null ? 1.2 : 2.4);
  line.setAttribute("stroke-dasharray", index === null ? "" : dashesOf(index).join(" "));
  svg.append(line);
  return svg;
}
