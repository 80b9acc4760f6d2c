// Draws what timeline_page.drawing() has put into the page: rows of slices, from `from` to `to` microseconds.
"use strict";
const trace = JSON.parse(document.getElementById("trace").textContent);
const canvas = document.getElementById("timeline");
const said = document.getElementById("said");
const allArrows = document.getElementById("arrows");
const paint = canvas.getContext("2d");

const AXIS = 22, ROW = 20, SLICE = 16, RANK_GAP = 8, GUTTER = 150;
const FONT = "12px system-ui, sans-serif";
let from = 0, to = trace.duration || 1;
let pointed = null; // {row, slice}

// Where each row lies; ranks stand a little apart.
let height = AXIS;
for (const [i, row] of trace.rows.entries()) {
  row.first = i === 0 || trace.rows[i - 1].rank !== row.rank;
  if (row.first) height += RANK_GAP;
  row.top = height;
  height += ROW;
  row.longest = 0;
  for (const slice of row.slices) row.longest = Math.max(row.longest, slice[2]);
}
height += 4;

const width = () => canvas.clientWidth;
const xOf = (time) => GUTTER + ((time - from) / (to - from)) * (width() - GUTTER);
const timeOf = (x) => from + ((x - GUTTER) / (width() - GUTTER)) * (to - from);
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

// With digits enough to tell times so far apart from one another.
function timeText(us, apart = Math.abs(us) / 1000) {
  const [unit, name] = Math.abs(us) >= 1e6 ? [1e6, "s"] : Math.abs(us) >= 1e3 ? [1e3, "ms"] : [1, "us"];
  const digits = apart > 0 ? Math.max(0, Math.min(9, -Math.floor(Math.log10(apart / unit) + 1e-9))) : 0;
  return +(us / unit).toFixed(digits) + " " + name;
}

// Shortened to the width, or nothing.
function fitting(text, room) {
  if (paint.measureText(text).width <= room) return text;
  for (let n = text.length - 1; n > 2; --n) {
    if (paint.measureText(text.slice(0, n) + "…").width <= room) return text.slice(0, n) + "…";
  }
  return "";
}

// The first slice that may reach beyond the time: none is longer than the longest.
function firstAt(row, time) {
  let low = 0, high = row.slices.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.slices[middle][1] < time - row.longest) low = middle + 1;
    else high = middle;
  }
  return low;
}

function drawSlices(row, colors) {
  const bottom = row.top + (ROW - SLICE) / 2;
  const filled = {}; // up to which pixel, by color: thousands may share one
  const fill = (name, begin, end) => {
    const left = Math.max(GUTTER, xOf(begin));
    const right = Math.min(width(), Math.max(xOf(end), left + 0.6));
    if (right <= GUTTER || right - (filled[name] ?? -1) < 0.5) return;
    filled[name] = right;
    paint.fillStyle = colors[name];
    paint.fillRect(left, bottom, right - left, SLICE);
  };
  for (let i = firstAt(row, from); i < row.slices.length && row.slices[i][1] <= to; ++i) {
    const [category, begin, lasts, name] = row.slices[i];
    if (begin + lasts < from) continue;
    const isStep = category === "step" || category === "part";
    fill(isStep ? "step" : category === "compute" ? "compute" : "hidden", begin, begin + lasts);
    for (let k = 5; k < row.slices[i].length; k += 2) fill("exposed", row.slices[i][k], row.slices[i][k + 1]);
    const left = Math.max(GUTTER, xOf(begin)), right = Math.min(width(), xOf(begin + lasts));
    if (right - left < 24) continue;
    paint.fillStyle = colors.page; // neighbours stay apart
    paint.fillRect(right - 1, bottom, 1, SLICE);
    paint.fillStyle = isStep ? colors.text : colors.on;
    paint.fillText(fitting(trace.texts[name], right - left - 8), left + 4, bottom + SLICE / 2);
  }
}

function drawAxis(colors) {
  const rough = (to - from) / Math.max(2, (width() - GUTTER) / 110);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  paint.textAlign = "center";
  for (let tick = Math.ceil(from / step) * step; tick <= to; tick += step) {
    const x = Math.round(xOf(tick)) + 0.5;
    paint.strokeStyle = colors.line;
    paint.beginPath();
    paint.moveTo(x, AXIS - 4);
    paint.lineTo(x, height);
    paint.stroke();
    const half = paint.measureText(timeText(tick, step)).width / 2;
    paint.fillStyle = colors.quiet;
    if (x - half > GUTTER && x + half < width()) paint.fillText(timeText(tick, step), x, AXIS / 2);
  }
  paint.textAlign = "left";
}

function drawArrow([fromRow, begin, toRow, end], colors) {
  const middle = (row) => trace.rows[row].top + ROW / 2;
  const x = xOf(begin), y = middle(fromRow), x2 = xOf(end), y2 = middle(toRow);
  paint.strokeStyle = paint.fillStyle = colors.arrow;
  paint.beginPath();
  paint.moveTo(x, y);
  paint.bezierCurveTo(x + (x2 - x) / 3, y, x2 - (x2 - x) / 3, y2, x2, y2);
  paint.stroke();
  const up = y2 < y ? -1 : 1;
  paint.beginPath();
  paint.moveTo(x2, y2);
  paint.lineTo(x2 - 4, y2 - 6 * up);
  paint.lineTo(x2 + 1, y2 - 7 * up);
  paint.fill();
}

// An arrow begins where its sender's slice does, and ends inside the receiver's.
function belongs(arrow, row, slice) {
  const inside = (time) => time >= slice[1] - 0.002 && time <= slice[1] + slice[2] + 0.002;
  return (arrow[0] === row && inside(arrow[1])) || (arrow[2] === row && inside(arrow[3]));
}

function drawArrows(colors) {
  paint.save();
  paint.beginPath();
  paint.rect(GUTTER, AXIS, width() - GUTTER, height);
  paint.clip();
  for (const arrow of trace.arrows) {
    if (Math.max(arrow[1], arrow[3]) < from || Math.min(arrow[1], arrow[3]) > to) continue;
    if (allArrows.checked || (pointed && belongs(arrow, pointed.row, pointed.slice))) drawArrow(arrow, colors);
  }
  paint.restore();
}

function draw() {
  const colors = {};
  for (const name of ["page", "text", "quiet", "line", "band", "compute", "hidden", "exposed", "step", "arrow", "on"]) colors[name] = color(name);
  const sharp = window.devicePixelRatio || 1;
  canvas.style.height = height + "px";
  canvas.width = width() * sharp;
  canvas.height = height * sharp;
  paint.setTransform(sharp, 0, 0, sharp, 0, 0);
  paint.font = FONT;
  paint.textBaseline = "middle";
  for (const row of trace.rows) {
    paint.fillStyle = colors.band;
    paint.fillRect(GUTTER, row.top, width() - GUTTER, ROW);
  }
  drawAxis(colors);
  for (const row of trace.rows) {
    drawSlices(row, colors);
    if (row.first) {
      paint.fillStyle = colors.text;
      paint.fillText(fitting(row.rank, 50), 0, row.top + ROW / 2);
    }
    paint.fillStyle = colors.quiet;
    paint.fillText(fitting(row.computes ? "computing" : row.track, GUTTER - 62), 56, row.top + ROW / 2);
  }
  drawArrows(colors);
}

let waiting = false;
function soon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    draw();
  });
}

function show(begin, end) {
  const least = 0.05;
  const lasts = Math.min(Math.max(end - begin, least), trace.duration || 1);
  from = Math.min(Math.max(0, begin), (trace.duration || 1) - lasts);
  to = from + lasts;
  soon();
}

function zoom(factor, around) {
  show(around - (around - from) * factor, around + (to - around) * factor);
}

// The innermost slice there, with two pixels' grace.
function find(x, y) {
  const index = trace.rows.findIndex((row) => y >= row.top && y < row.top + ROW);
  if (index < 0 || x < GUTTER) return null;
  const row = trace.rows[index], grace = (2 * (to - from)) / (width() - GUTTER), time = timeOf(x);
  let best = null;
  for (let i = firstAt(row, time - grace); i < row.slices.length && row.slices[i][1] <= time + grace; ++i) {
    const slice = row.slices[i];
    if (slice[1] + slice[2] >= time - grace && (!best || slice[2] <= best[2])) best = slice;
  }
  return best && { row: index, slice: best };
}

function say(event) {
  said.style.display = pointed ? "block" : "none";
  if (!pointed) return;
  const [, begin, lasts, name, more] = pointed.slice, row = trace.rows[pointed.row];
  said.textContent = `${trace.texts[name]}, ${timeText(lasts)}\n${row.rank}, ${row.track}, at ${timeText(begin, 0.1)}` +
    (trace.texts[more] ? "\n" + trace.texts[more] : "");
  const box = said.getBoundingClientRect();
  said.style.left = Math.max(4, Math.min(event.clientX + 14, window.innerWidth - box.width - 8)) + "px";
  said.style.top = Math.max(4, event.clientY + 14 + box.height > window.innerHeight ? event.clientY - box.height - 10 : event.clientY + 14) + "px";
}

let dragged = null;
canvas.addEventListener("pointerdown", (event) => {
  dragged = { x: event.offsetX, from, to };
  canvas.setPointerCapture(event.pointerId);
});
canvas.addEventListener("pointerup", () => (dragged = null));
canvas.addEventListener("pointercancel", () => (dragged = null));
canvas.addEventListener("pointermove", (event) => {
  if (dragged) {
    const moved = ((dragged.x - event.offsetX) / (width() - GUTTER)) * (dragged.to - dragged.from);
    show(dragged.from + moved, dragged.to + moved);
  }
  pointed = find(event.offsetX, event.offsetY);
  say(event);
  soon();
});
canvas.addEventListener("pointerleave", () => {
  pointed = null;
  said.style.display = "none";
  soon();
});
canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return;
  event.preventDefault();
  zoom(event.deltaY > 0 ? 1.25 : 0.8, timeOf(Math.max(GUTTER, event.offsetX)));
}, { passive: false });

const steps = document.getElementById("step");
for (const [i, [name]] of trace.steps.entries()) steps.add(new Option(name, i));
steps.addEventListener("change", () => {
  const [, begin, end] = steps.value === "" ? ["", 0, trace.duration] : trace.steps[steps.value];
  show(begin, end);
});
document.getElementById("nearer").addEventListener("click", () => zoom(0.5, (from + to) / 2));
document.getElementById("farther").addEventListener("click", () => zoom(2, (from + to) / 2));
allArrows.addEventListener("change", soon);
window.addEventListener("resize", soon);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", soon);

// A link may name a step: timeline.html#step-3.
const named = trace.steps.findIndex(([name]) => "#" + name.replace(/ /g, "-") === window.location.hash);
if (named >= 0) {
  steps.value = named;
  show(trace.steps[named][1], trace.steps[named][2]);
}
draw();
