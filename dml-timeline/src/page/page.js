"use strict";
// The page: figures, tables and interaction. Names come from the trace and are only ever inserted as text.

(function () {
  const { trace, summary, findings, end_ns: end } = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);

  window.addEventListener("error", (event) => {
    find("fault").hidden = false;
    find("fault").textContent = `The page could not be drawn: ${event.message}`;
  });

  // Creates an element with text or other elements in it.
  function make(tag, classes, ...children) {
    const element = document.createElement(tag);
    if (classes) element.className = classes;
    element.append(...children.map((child) => (child instanceof Node ? child : String(child))));
    return element;
  }

  const arena = (index) => (index === null ? "zeros" : trace.arenas[index].name);
  const latest = (spans) => spans.reduce((most, span) => Math.max(most, span.to), 0);
  const isKnown = (value) => value !== null && value !== undefined;

  function heading() {
    find("label").textContent = trace.label;
    const kernel = trace.kernel === trace.label ? "" : `kernel ${trace.kernel}, `;
    find("subtitle").textContent =
      `${kernel}${text.whole(trace.items)} items on ${trace.devices.map((device) => device.name).join(", ")}; policy ${trace.policy}`;
    find("footer").textContent = `dml timeline, format ${trace.format} ${trace.version}. Times count from the start of the run.`;
  }

  function tiles() {
    const tile = (name, value, note, part) => {
      const body = make("div", "tile", make("div", "name", name), make("div", "value", value));
      if (isKnown(part)) {
        const fill = make("i");
        fill.style.width = `${Math.max(0, Math.min(1, part)) * 100}%`;
        body.append(make("div", "meter", fill));
      }
      body.append(make("div", "note", note));
      find("tiles").append(body);
    };
    tile("Time", text.time(trace.total_ns), trace.total_ns > trace.duration_ns ? `${text.time(trace.duration_ns)} to the end of the last package` : "start to the end of the last package");
    if (isKnown(summary.speedup)) {
      tile("Speedup", `${summary.speedup.toFixed(2)}\u00d7`, `over the fastest device alone; ${summary.s_max.toFixed(2)}\u00d7 is possible`);
      tile("Efficiency", summary.efficiency.toFixed(2), "of the possible speedup; 1 is ideal", summary.efficiency);
    } else {
      tile("Speedup", "\u2013", "the time of each device alone was not measured");
    }
    tile("Balance", summary.balance.toFixed(2), "earliest over latest end of a device; 1 is ideal", summary.balance);
    const worked = summary.devices.filter((device) => device.items > 0).length;
    tile("Packages", text.whole(trace.packages.length), `on ${worked} of ${trace.devices.length} devices`);
    tile("Data moved", text.bytes(summary.bytes), `in ${text.counted(trace.transfers.length, "transfer")}`);
  }

  function showFindings() {
    const names = { outcome: "result", slow: "speed", data: "data", idle: "idle", left_out: "left out", called_up: "called up", failure: "failure" };
    for (const finding of findings) {
      const kind = finding.kind === "slow" && finding.device === null ? "even" : finding.kind;
      find("findings").append(make("li", kind, make("span", "tag", names[finding.kind] || finding.kind), make("span", "text", finding.text)));
    }
  }

  function legend(lanes) {
    const has = (row) => lanes.some((lane) => lane.rows[row]);
    const entries = [
      ["computing", "computing a package", has("computing")], ["data", "handed out: waiting for input or for the package before", has("data")],
      ["results", "returning results", has("results")], ["in", "copy into the device's memory", has("in")],
      ["out", "copy out of the device's memory", has("out")], ["wait", "waiting for another user of a buffer", has("wait")],
      ["idle", "idle: no package, or left out", true], ["speed", "items per second of a package", has("speed")],
      ["merged", "several in one block; the fill is the part that they cover", trace.packages.length > 200],
    ];
    for (const [name, said, isThere] of entries) {
      if (isThere) find("legend").append(make("span", "", make("i", `swatch c-${name}`), said));
    }
  }

  function gutter(lanes, chart) {
    find("gutter").replaceChildren();
    find("gutter").style.height = `${lanes.height + 34}px`;
    find("gutter").append(make("span", "axis", "whole trace"), make("span", "axis below", "time since the run began"));
    for (const lane of lanes) {
      const element = make("div", "lane");
      element.style.top = `${lane.top + 34}px`;
      element.style.height = `${lane.height}px`;
      const about = lane.index === null ? "copies and waits of no device's memory" : aboutDevice(lane);
      element.append(make("div", "device", make("b", "", lane.name), ...badges(lane), make("small", "", about)));
      for (const [row, y] of Object.entries(lane.places)) {
        const { height, name } = ROWS[row];
        const label = row === "speed" ? `0 to ${text.count(chart.topRate)}/s` : name;
        const tag = make("span", "row", label);
        tag.style.top = `${y - lane.top + height / 2 - 8}px`;
        if (!lane.leftOut) element.append(tag);
      }
      element.title = lane.device ? lane.device.description : "";
      find("gutter").append(element);
    }
  }

  // The findings about a device, as badges of one or two words.
  function badges(lane) {
    const words = { slow: "slow", data: "waits for data", idle: "idle", left_out: "left out", failure: "gave up", called_up: "called up" };
    const kinds = findings.filter((finding) => finding.device !== null && finding.device === lane.index && words[finding.kind]).map((finding) => finding.kind);
    return [...new Set(kinds)].slice(0, 2).map((kind) => make("em", kind, words[kind]));
  }

  function aboutDevice(lane) {
    if (lane.leftOut) return "";
    const share = `${text.percent(lane.figures.share)} of the items`;
    return `${share}, busy ${text.percent(lane.figures.busy_part)} of the run`;
  }

  // Fills a table. A cell is text or an element; numbers are right-aligned.
  function table(id, columns, rows, nothing) {
    const head = make("tr", "", ...columns.map(([name, kind]) => make("th", kind || "", name)));
    const cells = (row) => make("tr", "", ...row.map((cell, at) => make("td", columns[at][1] || "", cell)));
    if (rows.length === 0) find(id).replaceChildren(make("caption", "none", nothing));
    else find(id).replaceChildren(make("thead", "", head), make("tbody", "", ...rows.map(cells)));
  }

  function deviceTable() {
    const columns = [["device", "name"], ["time", "wide"], ["computing", "number"], ["waiting for input", "number"], ["returning results", "number"], ["idle", "number"],
      ["packages", "number"], ["items", "number"], ["items/s while computing", "number"], ["time alone", "number"]];
    const rows = summary.devices.map((figures, index) => {
      const device = trace.devices[index];
      const whole = Math.max(1, figures.computing_ns + figures.fetching_ns + figures.returning_ns + figures.idle_ns);
      const parts = [["computing", figures.computing_ns], ["data", figures.fetching_ns, "waiting for input"], ["results", figures.returning_ns, "returning results"], ["idle", figures.idle_ns]];
      const bars = parts.filter(([, time]) => time > 0).map(([name, time, words = name]) => {
        const bar = make("i", `c-${name}`);
        bar.style.width = `${(time / whole) * 100}%`;
        bar.title = `${words}: ${text.time(time)}`;
        return bar;
      });
      const cell = ([, time]) => make("span", "", text.percent(time / whole), make("small", "", text.time(time, 3)));
      return [
        make("span", "", device.name, make("small", "", `${device.kind}, ${device.units} compute unit${device.units === 1 ? "" : "s"}`)),
        make("div", "stack", ...bars), ...parts.map(cell), text.whole(figures.packages),
        make("span", "", text.whole(figures.items), make("small", "", text.percent(figures.share))),
        figures.items > 0 ? text.count(figures.computing_items_per_s) : "\u2013",
        isKnown(device.alone_ns) ? text.time(device.alone_ns) : "\u2013",
      ];
    });
    table("devices", columns, rows, "No devices.");
  }

  function linkTable() {
    const columns = [["from", "name"], ["to", "name"], ["mechanism"], ["bytes", "number"], ["copies", "number"], ["bytes per copy", "number"],
      ["time with a copy in flight", "number"], ["throughput in that time", "number"]];
    const rows = summary.links.map((link) => [
      link.from, link.to, link.mechanism, text.bytes(link.bytes),
      link.failed > 0 ? `${text.whole(link.copies)}, and ${text.whole(link.failed)} failed` : text.whole(link.copies),
      link.copies > 0 ? text.bytes(link.bytes / link.copies) : "\u2013",
      make("span", "", text.time(link.moving_ns), make("small", "", `${text.percent(link.moving_ns / Math.max(1, trace.duration_ns))} of the run`)),
      link.bytes_per_s > 0 ? `${text.bytes(link.bytes_per_s)}/s` : "\u2013",
    ]);
    table("links", columns, rows, "No bytes were copied, or transfers were not recorded.");
  }

  function decisionTable() {
    const names = { began: "took part from the start", called_up: "called up", left_out: "left out", gave_up: "gave up" };
    const rows = trace.decisions.map((decision) => [
      text.time(decision.at_ns), trace.devices[decision.device].name, names[decision.kind] || decision.kind, decision.reason || "\u2013",
    ]);
    table("decisions", [["time", "number"], ["device", "name"], ["decision"], ["reason"]], rows, "No decisions.");
  }

  // Describes what is under the pointer, as pairs of a name and a value. The first pair is the heading.
  function describe(hit) {
    if (hit.kind === "left_out" || hit.kind === "gave_up" || hit.kind === "called_up") {
      return [[hit.lane.name, ""], [hit.kind.replace("_", " "), hit.decision.reason], ["at", text.time(hit.decision.at_ns)]];
    }
    if (hit.kind === "idle") {
      return [[`${hit.lane.name} had no package`, ""], ["for", text.time(hit.span.to - hit.span.from)], ["from", text.time(hit.span.from)], ["to", text.time(hit.span.to)]];
    }
    if (hit.spans) return describeMany(hit);
    const of = hit.span;
    if (hit.kind === "in" || hit.kind === "out") {
      const transfer = trace.transfers[of.at];
      const time = transfer.end_ns - transfer.begin_ns;
      return [
        [`copy ${arena(transfer.from)} \u2192 ${arena(transfer.to)}`, ""], ["bytes", `${text.bytes(transfer.bytes)} (${text.whole(transfer.bytes)} B)`],
        ["rate", time > 0 ? `${text.bytes((transfer.bytes * 1e9) / time)}/s` : "\u2013"], ["time", text.time(time)], ["from", text.time(transfer.begin_ns)],
        ["to", text.time(transfer.end_ns)], ["mechanism", transfer.mechanism], ["buffer", `b${transfer.buffer}, from byte ${text.whole(transfer.first_byte)}`],
        ...(transfer.arrived ? [] : [["failed", "the bytes did not arrive"]]),
      ];
    }
    if (hit.kind === "wait") {
      const wait = trace.waits[of.at];
      return [[`${hit.lane.name} waits for another user of buffer b${wait.buffer}`, ""], ["time", text.time(wait.end_ns - wait.begin_ns)], ["from", text.time(wait.begin_ns)]];
    }
    return describePackage(of.at);
  }

  function describePackage(at) {
    const package_ = trace.packages[at];
    const time = (from, to) => text.time(to - from);
    const usual = summary.devices[package_.device].computing_items_per_s;
    const rate = rateOf(package_);
    const beside = usual > 0 && rate > 0 ? `, ${(rate / usual).toFixed(2)} of the device's mean` : "";
    return [
      [`package ${package_.index} on ${trace.devices[package_.device].name}`, ""],
      ["items", `${text.whole(package_.items)} (${text.percent(package_.items / Math.max(1, trace.items))} of all), from ${text.whole(package_.first_item)}`],
      ["rate", rate > 0 ? `${text.count(rate)} items/s${beside}` : "\u2013"], ["computing", time(package_.begun_ns, package_.computed_ns)],
      ["waiting before", time(package_.start_ns, package_.begun_ns)], ["returning results", time(package_.computed_ns, package_.end_ns)],
      ["handed out at", text.time(package_.start_ns)], ["done at", text.time(package_.end_ns)],
    ];
  }

  function describeMany(hit) {
    const many = hit.spans.length;
    const [from, to] = [hit.spans[0].from, latest(hit.spans)];
    const rows = [];
    if (hit.kind === "in" || hit.kind === "out") {
      const bytes = hit.spans.reduce((sum, span) => sum + trace.transfers[span.at].bytes, 0);
      rows.push([`${text.whole(many)} copies ${hit.kind === "in" ? "into" : "out of"} the memory of ${hit.lane.name}`, ""], ["bytes", text.bytes(bytes)],
        ["rate", to > from ? `${text.bytes((bytes * 1e9) / (to - from))}/s` : "\u2013"]);
    } else if (hit.kind === "wait") {
      rows.push([`${text.whole(many)} waits of ${hit.lane.name}`, ""]);
    } else {
      const items = hit.spans.reduce((sum, span) => sum + trace.packages[span.at].items, 0);
      const what = { computing: "packages", data: "packages handed out and not begun", results: "packages returning results" }[hit.kind];
      rows.push([`${text.whole(many)} ${what}, on ${hit.lane.name}`, ""], ["items", text.whole(items)]);
      if (hit.kind === "computing") rows.push(["rate", to > from ? `${text.count((items * 1e9) / (to - from))} items/s` : "\u2013"]);
    }
    rows.push(["coverage", text.percent(hit.covered)], ["from", text.time(from)], ["to", text.time(to)], ["", "zoom in to separate them"]);
    return rows;
  }

  const lanes = lanesOf(trace, summary);
  const chart = new Chart(find("canvas"), find("overview"), trace, lanes, end);
  const canvas = find("canvas");

  let isWaiting = false;
  function redraw() {
    const { from, to } = chart.view;
    find("range").textContent = chart.isWhole() ? `whole trace: ${text.time(end)}`
      : `${text.moment(from, to - from)} to ${text.moment(to, to - from)}: ${text.time(to - from)} of ${text.time(end)}`;
    if (isWaiting) return;
    isWaiting = true;
    requestAnimationFrame(() => {
      isWaiting = false;
      chart.draw();
    });
  }

  function show(from, to) {
    chart.show(from, to);
    hideTip();
    redraw();
  }

  function zoom(factor, middle = (chart.view.from + chart.view.to) / 2) {
    const { from, to } = chart.view;
    show(middle - (middle - from) * factor, middle + (to - middle) * factor);
  }

  function pan(part) {
    const { from, to } = chart.view;
    show(from + (to - from) * part, to + (to - from) * part);
  }

  function details(rows) {
    const list = find("details");
    list.hidden = rows === null;
    list.replaceChildren();
    (rows || []).forEach(([name, value], at) => {
      if (at === 0) list.append(make("dt", "head", name));
      else if (name) list.append(make("dt", "", name), make("dd", "", value));
    });
  }

  // Selects a package: brings it into view, and shows its details below the chart.
  function select(at) {
    chart.selected = at;
    details(at === null ? null : describePackage(at));
    if (at !== null) {
      const package_ = trace.packages[at];
      const { from, to } = chart.view;
      const isNarrow = chart.x(package_.computed_ns) - chart.x(package_.begun_ns) < 2 * NARROW_PX;
      if (isNarrow || package_.end_ns < from || package_.start_ns > to) {
        const room = Math.max(package_.end_ns - package_.start_ns, 1) * (isNarrow ? 8 : 0.5);
        if (isNarrow) chart.show(package_.start_ns - room, package_.end_ns + room);
        else chart.show(package_.start_ns - (to - from) / 3, package_.start_ns + ((to - from) * 2) / 3);
      }
      link(`package=${package_.index}`);
    }
    redraw();
  }

  // Puts the selected package into the page's address, if the browser allows it.
  function link(fragment) {
    try {
      history.replaceState(null, "", `#${fragment}`);
    } catch {
      // The page has no address of its own.
    }
  }

  function follow() {
    const [, wanted] = /^#package=(\d+)$/.exec(location.hash) || [];
    const at = wanted === undefined ? -1 : trace.packages.findIndex((package_) => String(package_.index) === wanted);
    if (at >= 0) select(at);
  }

  function hideTip() {
    find("tip").hidden = true;
  }

  function tip(x, y) {
    const hit = chart.at(x, y);
    if (hit === undefined) return hideTip();
    const box = find("tip");
    const [[head], ...rows] = describe(hit);
    box.replaceChildren(make("b", "", head), ...rows.map(([name, value]) => make("div", "", name ? `${name}: ${value}` : value)));
    box.hidden = false;
    const width = find("plot").clientWidth;
    box.style.left = `${Math.max(0, Math.min(x + 14, width - box.offsetWidth - 4))}px`;
    const below = y + 34 + 18;
    box.style.top = `${below + box.offsetHeight > lanes.height + 160 ? Math.max(0, y + 34 - box.offsetHeight - 12) : below}px`;
  }

  function place(event) {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x] = place(event);
    drag = { x, view: { ...chart.view }, isSelecting: event.shiftKey, hasMoved: false };
    try {
      canvas.setPointerCapture(event.pointerId);
    } catch {
      // The pointer is no longer active.
    }
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (drag === null) return tip(x, y);
    if (Math.abs(x - drag.x) < 4 && !drag.hasMoved) return;
    drag.hasMoved = true;
    hideTip();
    if (drag.isSelecting) {
      chart.draw();
      const pen = canvas.getContext("2d");
      pen.fillStyle = chart.colours.accent;
      pen.globalAlpha = 0.25;
      pen.fillRect(Math.min(x, drag.x), AXIS_PX, Math.abs(x - drag.x), lanes.height);
      pen.globalAlpha = 1;
    } else {
      canvas.classList.add("moving");
      const shift = ((drag.x - x) / chart.width) * (drag.view.to - drag.view.from);
      show(drag.view.from + shift, drag.view.to + shift);
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const [x, y] = place(event);
    const { hasMoved, isSelecting, x: from } = drag;
    drag = null;
    canvas.classList.remove("moving");
    if (hasMoved && isSelecting) return show(chart.time(Math.min(from, x)), chart.time(Math.max(from, x)));
    if (hasMoved) return;
    const hit = chart.at(x, y);
    if (hit === undefined) return select(null);
    if (hit.span && ["computing", "data", "results"].includes(hit.kind)) return select(hit.span.at);
    if (hit.spans) return show(hit.spans[0].from, latest(hit.spans));
    chart.selected = null;
    details(describe(hit));
    redraw();
  });
  canvas.addEventListener("pointercancel", () => {
    drag = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("pointerleave", hideTip);
  canvas.addEventListener("dblclick", () => show(0, end));
  canvas.addEventListener("wheel", (event) => {
    const isSideways = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    // The whole trace is shown: leave the event to the page, which scrolls.
    if (chart.isWhole() && (isSideways || event.deltaY > 0)) return;
    event.preventDefault();
    if (isSideways) pan((event.deltaX || event.deltaY) / chart.width);
    else zoom(Math.exp(Math.max(-240, Math.min(240, event.deltaY)) * 0.0022), chart.time(place(event)[0]));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const next = (by) => {
      const order = trace.packages.map((_, at) => at).sort((one, other) => trace.packages[one].begun_ns - trace.packages[other].begun_ns);
      if (order.length === 0) return;
      const now = order.indexOf(chart.selected);
      select(order[now < 0 ? 0 : Math.max(0, Math.min(order.length - 1, now + by))]);
    };
    const keys = {
      ArrowLeft: () => pan(-0.2), ArrowRight: () => pan(0.2), ArrowUp: () => zoom(0.7), ArrowDown: () => zoom(1 / 0.7), "+": () => zoom(0.7), "=": () => zoom(0.7),
      "-": () => zoom(1 / 0.7), 0: () => show(0, end), Home: () => show(0, end), n: () => next(1), p: () => next(-1), Escape: () => select(null),
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  const overview = find("overview");
  const centre = (event) => {
    const box = overview.getBoundingClientRect();
    const middle = ((event.clientX - box.left) / box.width) * end;
    const half = (chart.view.to - chart.view.from) / 2;
    show(middle - half, middle + half);
  };
  overview.addEventListener("pointerdown", (event) => {
    overview.setPointerCapture(event.pointerId);
    centre(event);
  });
  overview.addEventListener("pointermove", (event) => {
    if (event.buttons === 1) centre(event);
  });
  find("zoom-in").onclick = () => zoom(0.6);
  find("zoom-out").onclick = () => zoom(1 / 0.6);
  find("pan-left").onclick = () => pan(-0.3);
  find("pan-right").onclick = () => pan(0.3);
  find("reset").onclick = () => show(0, end);
  window.addEventListener("resize", redraw);
  window.addEventListener("hashchange", follow);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    chart.readColours();
    redraw();
  });

  heading();
  tiles();
  showFindings();
  legend(lanes);
  gutter(lanes, chart);
  deviceTable();
  linkTable();
  decisionTable();
  canvas.setAttribute("aria-label", `Timeline of ${trace.devices.length} devices and ${trace.packages.length} packages; the tables below list its figures`);
  chart.draw();
  redraw();
  follow();
  document.documentElement.dataset.shown = "yes";
})();
