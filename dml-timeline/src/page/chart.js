"use strict";
// Shared by the page's scripts: numbers as text, and the drawing of lanes. Times are nanoseconds since the
// run began.

const text = {
  scale(value, steps, digits = 3) {
    const step = steps.find(([least]) => Math.abs(value) >= least) || steps[steps.length - 1];
    const scaled = value / step[2];
    const whole = Math.abs(scaled) >= 1 ? Math.floor(Math.log10(Math.abs(scaled))) + 1 : 1;
    const figure = Number.isInteger(scaled) ? String(scaled) : scaled.toFixed(Math.max(0, digits - whole));
    return `${figure} ${step[1]}`.trim();
  },
  time(ns, digits = 4) {
    return text.scale(ns, [[1e9, "s", 1e9], [1e6, "ms", 1e6], [1e3, "us", 1e3], [0, "ns", 1]], digits);
  },
  // A time, with enough digits to tell both ends of a range of `span` apart.
  moment(ns, span) {
    const [, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [0, "ns"]].find(([least]) => ns >= least);
    const size = { s: 1e9, ms: 1e6, us: 1e3, ns: 1 }[unit];
    const digits = Math.ceil(-Math.log10(Math.max(span, 1) / size)) + 2;
    return `${(ns / size).toFixed(Math.max(0, Math.min(9, digits)))} ${unit}`;
  },
  bytes(bytes) {
    return text.scale(bytes, [[1e12, "TB", 1e12], [1e9, "GB", 1e9], [1e6, "MB", 1e6], [1e3, "kB", 1e3], [0, "B", 1]]);
  },
  count(count) {
    return text.scale(count, [[1e12, "T", 1e12], [1e9, "G", 1e9], [1e6, "M", 1e6], [1e4, "k", 1e3], [0, "", 1]]);
  },
  whole(count) {
    return Math.round(count).toLocaleString("en-US");
  },
  counted(count, noun) {
    return `${text.whole(count)} ${noun}${count === 1 ? "" : "s"}`;
  },
  percent(part) {
    const all = part * 100;
    if (all > 0 && all < 0.05) return "<0.1%";
    return `${all > 0 && all < 0.95 ? all.toFixed(1) : all.toFixed(0)}%`;
  },
};

// The smallest round distance between ticks of at least `least`.
function niceStep(least) {
  const power = 10 ** Math.floor(Math.log10(Math.max(least, 1e-9)));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}

const AXIS_PX = 30;
const PAD_PX = 8;
const ROWS = {
  data: { height: 11, name: "handed out" },
  computing: { height: 28, name: "computing" },
  results: { height: 11, name: "results" },
  in: { height: 11, name: "copies in" },
  out: { height: 11, name: "copies out" },
  wait: { height: 11, name: "waits" },
  speed: { height: 24, name: "items/s" },
};
// Minimum width of a separate span, in pixels. Narrower ones are merged with their neighbours into one block.
const NARROW_PX = 3;

// Returns a lane for each device, from the top, and one for the copies and waits of no device. Each row of a
// lane is a list of spans {from, to, kind, at}, where `at` is an index into the trace's list of packages,
// transfers or waits.
function lanesOf(trace, summary) {
  const lanes = trace.devices.map((device, index) => ({
    device, index, name: device.name, arena: device.arena, rows: {}, gaps: [], marks: [], figures: summary.devices[index],
    leftOut: summary.devices[index].left_out,
  }));
  const other = { name: "memories", index: null, rows: {}, gaps: [], marks: [], leftOut: false };
  const add = (lane, row, span) => (lane.rows[row] ||= []).push(span);
  trace.packages.forEach((package_, at) => {
    const lane = lanes[package_.device];
    const span = (kind, from, to) => ({ from, to, kind, at });
    if (package_.begun_ns > package_.start_ns) add(lane, "data", span("data", package_.start_ns, package_.begun_ns));
    add(lane, "computing", span("computing", package_.begun_ns, package_.computed_ns));
    if (package_.end_ns > package_.computed_ns) add(lane, "results", span("results", package_.computed_ns, package_.end_ns));
    add(lane, "speed", span("speed", package_.begun_ns, package_.computed_ns));
  });
  trace.transfers.forEach((transfer, at) => {
    const span = { from: transfer.begin_ns, to: transfer.end_ns, at };
    let isShown = false;
    for (const lane of lanes) {
      const isHost = lane.device.is_host;
      const ends = [transfer.from, transfer.to];
      // The host's memory is one end of most copies. These are shown in the lane of the other device only.
      const ofOther = lanes.some((each) => !each.device.is_host && each.arena !== null && ends.includes(each.arena));
      if (lane.arena === null || (isHost && ofOther)) continue;
      if (transfer.to === lane.arena) add(lane, "in", { ...span, kind: "in" });
      else if (transfer.from === lane.arena) add(lane, "out", { ...span, kind: "out" });
      else continue;
      isShown = true;
    }
    if (!isShown) add(other, "in", { ...span, kind: "in" });
  });
  trace.waits.forEach((wait, at) => {
    const lane = lanes.find((each) => each.arena !== null && each.arena === wait.arena) || other;
    add(lane, "wait", { from: wait.begin_ns, to: wait.end_ns, kind: "wait", at });
  });
  trace.decisions.forEach((decision, at) => {
    if (decision.kind === "called_up" || decision.kind === "gave_up") {
      lanes[decision.device].marks.push({ at: decision.at_ns, kind: decision.kind, decision: at });
    }
  });
  const shown = Object.keys(other.rows).length > 0 ? [...lanes, other] : lanes;
  let top = AXIS_PX;
  for (const lane of shown) {
    Object.values(lane.rows).forEach((spans) => spans.sort((one, next) => one.from - next.from));
    lane.gaps = gapsOf(lane, trace.duration_ns);
    lane.top = top;
    lane.places = {};
    let at = top + PAD_PX;
    for (const [row, { height }] of Object.entries(ROWS)) {
      if (!lane.rows[row]) continue;
      lane.places[row] = at;
      at += height + 3;
    }
    lane.height = Math.max(at + PAD_PX - 3 - top, lane.leftOut || lane.index === null ? 46 : 78);
    top += lane.height;
  }
  shown.height = top;
  return shown;
}

// Returns the spans in which a device has no package.
function gapsOf(lane, duration) {
  const spans = ["data", "computing", "results"].flatMap((row) => lane.rows[row] || []);
  spans.sort((one, next) => one.from - next.from);
  const gaps = [];
  let until = 0;
  for (const span of spans) {
    if (span.from > until) gaps.push({ from: until, to: span.from, kind: "idle" });
    until = Math.max(until, span.to);
  }
  if (until < duration) gaps.push({ from: until, to: duration, kind: "idle" });
  return gaps;
}

// Draws lanes on a canvas, and finds what is drawn at a position.
class Chart {
  constructor(canvas, overview, trace, lanes, end) {
    Object.assign(this, { canvas, overview, trace, lanes, end });
    this.view = { from: 0, to: end };
    this.hits = [];
    this.selected = null;
    this.topRate = topRate(trace.packages);
    this.readColours();
  }

  readColours() {
    const style = getComputedStyle(document.documentElement);
    this.colours = {};
    for (const name of ["page", "card", "ink", "soft", "faint", "line", "track", "accent", "bad", "computing", "data", "results", "in", "out", "wait", "idle", "on-computing", "speed"]) {
      this.colours[name] = style.getPropertyValue(`--${name}`).trim();
    }
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = this.colours.idle;
    pen.lineWidth = 1.4;
    for (const shift of [-8, 0, 8]) {
      pen.beginPath();
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
      pen.stroke();
    }
    this.hatch = tile;
  }

  show(from, to) {
    const least = Math.min(this.end, Math.max(20, this.end / 1e6));
    const length = Math.min(this.end, Math.max(least, to - from));
    const begin = Math.min(Math.max(0, from), this.end - length);
    this.view = { from: begin, to: begin + length };
  }

  isWhole() {
    return this.view.to - this.view.from > this.end * (1 - 1e-9);
  }

  x(ns) {
    return ((ns - this.view.from) / (this.view.to - this.view.from)) * this.width;
  }

  time(x) {
    return this.view.from + (x / this.width) * (this.view.to - this.view.from);
  }

  pen(canvas, height) {
    const ratio = window.devicePixelRatio || 1;
    const width = canvas.parentElement.clientWidth;
    canvas.style.height = `${height}px`;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const pen = canvas.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    this.width = width;
    return pen;
  }

  draw() {
    this.drawOverview();
    const pen = this.pen(this.canvas, this.lanes.height);
    this.hits = [];
    this.drawAxis(pen);
    for (const lane of this.lanes) this.drawLane(pen, lane);
    this.drawEnd(pen);
  }

  drawAxis(pen) {
    const { colours, view } = this;
    const step = niceStep(((view.to - view.from) / this.width) * 95);
    pen.font = "11.5px system-ui, sans-serif";
    pen.textBaseline = "middle";
    const unit = [[1e9, "s"], [1e6, "ms"], [1e3, "us"], [1, "ns"]].find(([least]) => view.to >= least * 1.5 || least === 1);
    const digits = Math.max(0, Math.min(9, Math.ceil(-Math.log10(step / unit[0]) - 1e-9)));
    for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) {
      const x = Math.round(this.x(at)) + 0.5;
      pen.strokeStyle = colours.line;
      pen.lineWidth = 1;
      pen.beginPath();
      pen.moveTo(x, AXIS_PX - 6);
      pen.lineTo(x, this.lanes.height);
      pen.stroke();
      pen.fillStyle = colours.soft;
      const label = `${(at / unit[0]).toFixed(digits)} ${unit[1]}`;
      const half = pen.measureText(label).width / 2;
      pen.textAlign = "center";
      pen.fillText(label, Math.min(Math.max(x, half + 2), this.width - half - 2), 13);
    }
  }

  drawLane(pen, lane) {
    const { colours } = this;
    pen.strokeStyle = colours.line;
    pen.beginPath();
    pen.moveTo(0, Math.round(lane.top) + 0.5);
    pen.lineTo(this.width, Math.round(lane.top) + 0.5);
    pen.stroke();
    if (lane.leftOut) return this.drawLeftOut(pen, lane);
    for (const [row, { height }] of Object.entries(ROWS)) {
      const y = lane.places[row];
      if (y === undefined) continue;
      if (row === "speed") {
        this.drawSpeed(pen, lane, y, height);
        continue;
      }
      pen.fillStyle = colours.track;
      pen.fillRect(0, y, this.width, height);
      if (row === "computing") this.drawGaps(pen, lane, y, height);
      this.drawSpans(pen, lane, row, y, height);
    }
    if (lane.places.computing === undefined && lane.index !== null) {
      const y = lane.top + PAD_PX;
      this.drawGaps(pen, lane, y, ROWS.computing.height);
    }
    for (const mark of lane.marks) this.drawMark(pen, lane, mark);
  }

  drawLeftOut(pen, lane) {
    const [y, height] = [lane.top + PAD_PX, lane.height - 2 * PAD_PX];
    const from = Math.max(0, this.x(0));
    const to = Math.min(this.width, this.x(this.trace.duration_ns));
    pen.fillStyle = pen.createPattern(this.hatch, "repeat");
    pen.fillRect(from, y, to - from, height);
    const decision = this.trace.decisions.find((each) => each.device === lane.index && each.kind === "left_out");
    this.label(pen, `left out: ${decision.reason}`, from + 10, y + height / 2, to - from - 20, true);
    this.hits.push({ x0: from, x1: to, y0: y, y1: y + height, lane, kind: "left_out", decision });
  }

  // Draws text on a background, cut to the width.
  label(pen, said, x, y, most, isBold = false) {
    pen.font = `${isBold ? "600 12.5px" : "11.5px"} system-ui, sans-serif`;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    let cut = said;
    while (cut.length > 4 && pen.measureText(cut).width > most - 10) cut = cut.slice(0, Math.max(3, Math.floor(cut.length * 0.92) - 2)) + "\u2026";
    if (pen.measureText(cut).width > most) return;
    pen.fillStyle = this.colours.card;
    pen.globalAlpha = 0.9;
    pen.fillRect(x - 5, y - 9, pen.measureText(cut).width + 10, 18);
    pen.globalAlpha = 1;
    pen.fillStyle = this.colours.ink;
    pen.fillText(cut, x, y + 0.5);
  }

  drawGaps(pen, lane, y, height) {
    pen.fillStyle = pen.createPattern(this.hatch, "repeat");
    for (const gap of lane.gaps) {
      const [x0, x1] = [Math.max(0, this.x(gap.from)), Math.min(this.width, this.x(gap.to))];
      if (x1 - x0 < NARROW_PX) continue;
      pen.fillStyle = pen.createPattern(this.hatch, "repeat");
      pen.fillRect(x0, y, x1 - x0, height);
      this.hits.push({ x0, x1, y0: y, y1: y + height, lane, kind: "idle", span: gap });
      if (x1 - x0 > 90) this.label(pen, `idle ${text.time(gap.to - gap.from, 3)}`, x0 + 12, y + height / 2, x1 - x0 - 16);
    }
  }

  // Merges spans that are too narrow to separate into one block. Its fill height is the part that they cover.
  drawSpans(pen, lane, row, y, height) {
    const spans = lane.rows[row];
    let block = null;
    const flush = () => {
      if (block === null) return;
      const [x0, x1] = [block.x0, Math.max(block.x1, block.x0 + 1.5)];
      if (block.spans.length === 1) {
        this.bar(pen, lane, block.spans[0], x0, x1, y, height);
      } else {
        const part = Math.min(1, Math.max(0.12, block.covered / (x1 - x0)));
        pen.fillStyle = this.colours[row];
        pen.globalAlpha = 0.3;
        pen.fillRect(x0, y, x1 - x0, height);
        pen.globalAlpha = 1;
        pen.fillRect(x0, y + height * (1 - part), x1 - x0, height * part);
        this.hits.push({ x0, x1, y0: y, y1: y + height, lane, kind: row, spans: block.spans, covered: part });
        if (row === "computing" && x1 - x0 > 110) {
          this.label(pen, `${text.whole(block.spans.length)} packages`, x0 + 10, y + height / 2, x1 - x0 - 14);
        }
      }
      block = null;
    };
    for (const span of spans) {
      if (span.to < this.view.from || span.from > this.view.to) continue;
      const x0 = Math.max(-2, this.x(span.from));
      const x1 = Math.min(this.width + 2, this.x(span.to));
      if (x1 - x0 >= NARROW_PX) {
        flush();
        this.bar(pen, lane, span, x0, x1, y, height);
      } else if (block !== null && x0 <= block.x1 + 1.2) {
        block.covered += Math.max(0, x1 - Math.max(x0, block.x1));
        block.x1 = Math.max(block.x1, x1);
        block.spans.push(span);
      } else {
        flush();
        block = { x0, x1, covered: x1 - x0, spans: [span] };
      }
    }
    flush();
  }

  bar(pen, lane, span, x0, x1, y, height) {
    const { colours } = this;
    const gap = x1 - x0 > 5 ? 0.75 : 0;
    const failed = (span.kind === "in" || span.kind === "out") && !this.trace.transfers[span.at].arrived;
    pen.fillStyle = failed ? colours.bad : colours[span.kind];
    pen.fillRect(x0, y, x1 - x0 - gap, height);
    if (span.kind === "wait") {
      pen.fillStyle = pen.createPattern(this.hatch, "repeat");
      pen.fillRect(x0, y, x1 - x0 - gap, height);
    }
    this.hits.push({ x0, x1, y0: y, y1: y + height, lane, kind: span.kind, span });
    const isPackage = ["computing", "data", "results"].includes(span.kind);
    if (isPackage && this.selected !== null && span.at === this.selected) {
      pen.strokeStyle = colours.ink;
      pen.lineWidth = 2;
      pen.strokeRect(x0, y, Math.max(2, x1 - x0 - gap), height);
    }
    if (span.kind !== "computing") return;
    const [left, right] = [Math.max(0, x0), Math.min(this.width, x1)];
    const package_ = this.trace.packages[span.at];
    const says = [`#${package_.index}  ${text.whole(package_.items)} items`, `#${package_.index}  ${text.count(package_.items)}`, `#${package_.index}`];
    pen.font = "11.5px system-ui, sans-serif";
    const said = says.find((each) => pen.measureText(each).width < right - left - 10);
    if (said === undefined) return;
    pen.fillStyle = colours["on-computing"];
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(said, left + 6, y + height / 2 + 0.5);
  }

  // Draws the items per second of each package, on one scale for all devices. Packages in one pixel are
  // averaged.
  drawSpeed(pen, lane, y, height) {
    const { colours } = this;
    pen.strokeStyle = colours.line;
    pen.lineWidth = 1;
    pen.beginPath();
    pen.moveTo(0, y + height + 0.5);
    pen.lineTo(this.width, y + height + 0.5);
    pen.stroke();
    pen.fillStyle = colours.speed;
    const columns = new Map();
    for (const span of lane.rows.speed) {
      if (span.to < this.view.from || span.from > this.view.to) continue;
      const [x0, x1] = [Math.max(0, this.x(span.from)), Math.min(this.width, this.x(span.to))];
      const part = Math.min(1, rateOf(this.trace.packages[span.at]) / this.topRate);
      if (x1 - x0 >= 1.5) {
        pen.fillRect(x0, y + height * (1 - part), x1 - x0 - (x1 - x0 > 5 ? 0.75 : 0), height * part);
      } else {
        const column = columns.get(Math.floor(x0)) || [0, 0];
        columns.set(Math.floor(x0), [column[0] + part, column[1] + 1]);
      }
    }
    for (const [x, [sum, count]] of columns) pen.fillRect(x, y + height * (1 - sum / count), 1.2, (height * sum) / count);
    this.hits.push({ x0: 0, x1: this.width, y0: y, y1: y + height, lane, kind: "speed" });
  }

  drawMark(pen, lane, mark) {
    const x = this.x(mark.at);
    if (x < -4 || x > this.width + 4) return;
    const isBad = mark.kind === "gave_up";
    const colour = isBad ? this.colours.bad : this.colours.accent;
    pen.strokeStyle = pen.fillStyle = colour;
    pen.lineWidth = 2;
    pen.beginPath();
    pen.moveTo(x, lane.top + 2);
    pen.lineTo(x, lane.top + lane.height - 2);
    pen.stroke();
    const said = isBad ? "gave up" : "called up";
    pen.font = "600 11px system-ui, sans-serif";
    const width = pen.measureText(said).width + 8;
    const left = x + width > this.width ? x - width : x;
    pen.fillRect(left, lane.top + 2, width, 15);
    pen.fillStyle = this.colours.card;
    pen.textAlign = "left";
    pen.textBaseline = "middle";
    pen.fillText(said, left + 4, lane.top + 10);
    this.hits.push({ x0: left, x1: left + width, y0: lane.top, y1: lane.top + 18, lane, kind: mark.kind, decision: this.trace.decisions[mark.decision] });
  }

  // Dims the time after the last package, which is not part of the run.
  drawEnd(pen) {
    const x = this.x(this.trace.duration_ns);
    if (x > this.width - 0.5 || x < 0) return;
    pen.fillStyle = this.colours.page;
    pen.globalAlpha = 0.55;
    pen.fillRect(x, AXIS_PX, this.width - x, this.lanes.height);
    pen.globalAlpha = 1;
    pen.strokeStyle = this.colours.soft;
    pen.lineWidth = 1.5;
    pen.setLineDash([5, 4]);
    pen.beginPath();
    pen.moveTo(x, AXIS_PX - 4);
    pen.lineTo(x, this.lanes.height);
    pen.stroke();
    pen.setLineDash([]);
  }

  // Draws the whole trace, with the range that is shown below.
  drawOverview() {
    const pen = this.pen(this.overview, 34);
    const { colours } = this;
    const devices = this.lanes.filter((lane) => lane.index !== null);
    const height = Math.max(1.5, Math.min(8, 26 / devices.length - 1));
    pen.fillStyle = colours.track;
    pen.fillRect(0, 0, this.width, 30);
    const scale = this.width / this.end;
    devices.forEach((lane, index) => {
      pen.fillStyle = colours.computing;
      const y = 2 + index * (26 / devices.length);
      for (const span of lane.rows.computing || []) pen.fillRect(span.from * scale, y, Math.max(0.3, (span.to - span.from) * scale), height);
    });
    const [x0, x1] = [this.view.from * scale, this.view.to * scale];
    pen.fillStyle = colours.page;
    pen.globalAlpha = 0.72;
    pen.fillRect(0, 0, x0, 30);
    pen.fillRect(x1, 0, this.width - x1, 30);
    pen.globalAlpha = 1;
    pen.strokeStyle = colours.accent;
    pen.lineWidth = 1.5;
    pen.strokeRect(x0 + 0.75, 0.75, Math.max(3, x1 - x0 - 1.5), 28.5);
  }

  // Returns what is drawn at a position: the narrowest of several.
  at(x, y) {
    const near = this.hits.filter((hit) => x >= hit.x0 - 1.5 && x <= hit.x1 + 1.5 && y >= hit.y0 - 1 && y <= hit.y1 + 1);
    near.sort((one, next) => one.x1 - one.x0 - (next.x1 - next.x0));
    const hit = near[0];
    if (hit === undefined || hit.kind !== "speed") return hit;
    const now = this.time(x);
    const span = hit.lane.rows.speed.find((each) => each.from <= now && now <= each.to);
    return span === undefined ? undefined : { ...hit, kind: "computing", span };
  }
}

// Returns the top of the rate scale: 1.2 times the highest rate within 97% of the computing time. So a few
// packages that are too short to measure do not stretch the scale.
function topRate(packages) {
  const timed = packages.filter((each) => each.computed_ns > each.begun_ns).map((each) => [rateOf(each), each.computed_ns - each.begun_ns]);
  timed.sort((one, next) => one[0] - next[0]);
  let left = timed.reduce((sum, [, time]) => sum + time, 0) * 0.97;
  const top = timed.find(([, time]) => (left -= time) <= 0);
  return top === undefined ? 1 : top[0] * 1.2;
}

function rateOf(package_) {
  const time = package_.computed_ns - package_.begun_ns;
  return time > 0 ? (package_.items * 1e9) / time : 0;
}
