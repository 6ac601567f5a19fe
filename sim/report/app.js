"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const names = Object.keys(data.rows);
const rows = data.rows.order.map((_, i) => Object.fromEntries(names.map((n) => [n, data.rows[n][i]])));
const dark = matchMedia("(prefers-color-scheme: dark)");
const narrow = matchMedia("(max-width: 600px)");
const PAGE = 20;
const chosen = Object.fromEntries(data.filters.map((f) => [f.column, new Set()]));
let withOracles = rows.every((r) => r.oracle);
const several = new Set(rows.map((r) => r.work)).size > 1;
let sort = { column: several ? "rank" : "ms_per_token", down: false };
let shown = PAGE;
let drawing = 0;

const COLUMNS = [
  ["rank", "#"], ["tokens_per_s", "tokens/s", 2], ["eviction", "eviction"], ["prefetch", "prefetch"],
  ["hardware", "machine"], ["capacity_gib", "cache GiB", 2], ["ms_per_token", "ms/token", 2],
  ["ms_per_pass_p95", "p95 ms", 2], ["of_bound", "of bound", "%"], ["headroom", "headroom", "%"],
  ["of_best", "of best", "%"], ["hit_rate", "hits", "%"],
  ["vram_gib", "VRAM GiB", 2], ["cycles", "cycles", 2], ["of_base", `x ${data.baseline}`, 3],
];
if (several) COLUMNS.splice(1, 0, ["trace", "trace"]);
if (rows.some((r) => r.seeds > 1)) COLUMNS.splice(COLUMNS.findIndex((c) => c[0] === "eviction"), 0, ["seeds_interval", "95 % over seeds"]);
for (const r of rows) r.seeds_interval = r.seeds > 1 ? `${show(r.tokens_per_s_low, 2)} to ${show(r.tokens_per_s_high, 2)}` : "";
const known = new Set(COLUMNS.map((c) => c[0]).concat("room"));
for (const f of data.filters) if (!known.has(f.column)) COLUMNS.push([f.column, f.heading]);
const isText = (column) => typeof rows[0][column] === "string";

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function show(value, digits) {
  if (value === null || value === undefined) return "";
  if (digits === "%") return (100 * value).toFixed(1) + " %";
  return typeof value === "number" && digits !== undefined ? value.toFixed(digits) : String(value);
}

function passing(oracles) {
  const found = rows.filter((r) =>
    data.filters.every((f) => !chosen[f.column].size || chosen[f.column].has(r[f.column])));
  const real = found.filter((r) => !r.oracle);
  return oracles || !real.length ? found : real;  // whoever asks for an oracle by name gets it
}

// ---- filters ----
function chip(text, checked, change) {
  const box = element("input", { type: "checkbox", checked });
  box.addEventListener("change", () => change(box.checked));
  return element("label", { className: "chip" }, box, text);
}

function drawFilters() {
  const nav = document.getElementById("filters");
  for (const f of data.filters) {
    const set = element("fieldset", {}, element("legend", { textContent: f.heading, title: meaning(f.column) }));
    set.dataset.column = f.column;
    for (const value of f.values) {
      set.append(chip(value, false, (on) => {
        if (on) chosen[f.column].add(value); else chosen[f.column].delete(value);
        update();
      }));
    }
    nav.append(set);
  }
  if (rows.some((r) => r.oracle) && !withOracles) {
    const set = element("fieldset", {}, chip("show policies that see the future", false, (on) => {
      withOracles = on;
      update();
    }));
    set.dataset.column = "oracle";
    nav.append(set);
  }
}

// ---- table ----
function compare(a, b) {
  const x = a[sort.column], y = b[sort.column];
  if (x === null || y === null) return (x === null) - (y === null) || a.order - b.order;
  const order = typeof x === "string" ? x.localeCompare(y) : x - y;
  return (sort.down ? -order : order) || a.order - b.order;
}

// What a heading means, for whoever points at it.
function meaning(column) { return data.words[column] || ""; }

function drawHead() {
  const line = element("tr");
  for (const [column, heading] of COLUMNS) {
    const button = element("button", { type: "button", textContent: heading, title: meaning(column) });
    button.addEventListener("click", () => {
      const better = column === "tokens_per_s" || column.startsWith("of_") ||
        column === "hit_rate" || column === "headroom";
      sort = { column, down: sort.column === column ? !sort.down : better };
      drawTable(passing(withOracles));
    });
    const cell = element("th", { className: isText(column) ? "text" : "" }, button);
    if (sort.column === column) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    line.append(cell);
  }
  document.querySelector("#ranking thead").replaceChildren(line);
}

function drawTable(found) {
  drawHead();
  const fastest = Math.max(...found.map((r) => r.tokens_per_s || 0));
  const body = document.querySelector("#ranking tbody");
  body.replaceChildren(...[...found].sort(compare).slice(0, shown).map((r) => {
    const line = element("tr", { className: r.oracle ? "oracle" : "" });
    for (const [column, , digits] of COLUMNS) {
      const cell = element("td", { textContent: show(r[column], digits), className: isText(column) ? "text" : "" });
      if (column === "tokens_per_s") {
        cell.classList.add("speed");
        cell.style.setProperty("--share", 100 * (r.tokens_per_s || 0) / fastest + "%");
      }
      line.append(cell);
    }
    line.addEventListener("click", () => toggleDetail(line, r));
    return line;
  }));
  document.getElementById("count").textContent =
    `${found.length} of ${rows.length} cells` + (withOracles ? "; italic: they see the future" : "") +
    ". Click a line for what binds it.";
  const more = document.getElementById("more");
  more.hidden = found.length <= shown;
  more.textContent = `Show all ${found.length}`;
}

function toggleDetail(line, r) {
  if (line.nextElementSibling?.classList.contains("detail")) return line.nextElementSibling.remove();
  const text = `Cell ${r.cell}. ${r.binds} ` + data.filters.map((f) => `${f.heading}: ${r[f.column]}`).join(" · ");
  line.after(element("tr", { className: "detail" }, element("td", { colSpan: COLUMNS.length, textContent: text })));
}

document.getElementById("more").addEventListener("click", () => { shown = Infinity; update(); });

// ---- charts ----
function config(narrowColumns, wideColumns) {
  const style = getComputedStyle(document.documentElement);
  const [text, quiet, line] = ["--text", "--quiet", "--line"].map((n) => style.getPropertyValue(n).trim());
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null, font, view: { stroke: null },
    axis: { labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
      titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12, labelLimit: 330 },
    legend: { labelColor: text, titleColor: quiet, titleFontWeight: "normal", orient: "top", labelFontSize: 12,
      columns: narrow.matches ? narrowColumns : wideColumns, symbolStrokeWidth: 2, labelLimit: 170, rowPadding: 3, symbolOpacity: 1,
      symbolBaseFillColor: quiet, symbolBaseStrokeColor: quiet,
      layout: { top: { anchor: "start", direction: narrow.matches ? "vertical" : "horizontal" } } },
  };
}

async function drawChart(chart, box, found) {
  const keep = new Set(chart.columns.concat(["oracle"]));
  const values = found.map((r) => {
    const slim = Object.fromEntries(Object.entries(r).filter(([n]) => keep.has(n)));
    if (narrow.matches && "label" in slim) slim.label = r.short;
    return slim;
  });
  const spec = structuredClone(chart.spec);
  spec.data = { name: "rows", values };
  if (spec.height.step) spec.height = spec.height.step * Math.max(1, Math.min(values.length, data.bars));
  const result = await vegaEmbed(box, spec, {
    actions: false, renderer: values.length > 1500 ? "canvas" : "svg", config: config(chart.key === "causes" ? 1 : 2, box.closest(".many") ? 3 : 6),
  });
  return result.view;
}

async function drawCharts() {
  const turn = ++drawing;
  for (const chart of data.charts) {
    const found = passing(withOracles || chart.bounds);
    const plots = document.querySelector(`#${chart.key} .plots`);
    const groups = [...new Set(found.map((r) => r[chart.panels]))].sort();
    plots.classList.toggle("many", groups.length > 1);
    const boxes = groups.map((group) => {
      const box = element("div", { className: "plot" });
      return [element("figure", {}, element("figcaption", { textContent: group }), box), box];
    });
    for (const old of plots.querySelectorAll(".plot")) old.view?.finalize();
    plots.replaceChildren(...boxes.map((b) => b[0]));
    for (let i = 0; i < groups.length; i++) {
      const part = found.filter((r) => r[chart.panels] === groups[i]);
      boxes[i][1].view = await drawChart(chart, boxes[i][1], part);
      if (turn !== drawing) return;
    }
  }
  document.body.dataset.drawn = String(turn);
}

// ---- the answer, and everything again after a change ----
// Over several traces: geometric mean over traces of the mean ratio to the baseline, with its interval over requests.
// Tokens/s of two models do not compare. `sim/report/across.py` says more.
function overall(found) {
  const works = new Map();
  for (const r of found) {
    if (r.oracle || !r.of_base) continue;
    (works.get(r.work) || works.set(r.work, []).get(r.work)).push(r);
  }
  const mean = (x) => x.reduce((a, b) => a + b, 0) / x.length;
  const policies = new Map();
  for (const [work, of] of works) {
    const drawn = draw(of);
    for (const r of of) {
      const p = policies.get(r.policy) || policies.set(r.policy, new Map()).get(r.policy);
      const here = p.get(work) || p.set(work, { logs: [], shares: [], draws: [] }).get(work);
      here.logs.push(Math.log(r.of_base));
      here.shares.push(r.of_bound ? Math.log(r.of_bound) : NaN);
      if (drawn) here.draws.push(drawn(r));
    }
  }
  const best = new Map([...works.keys()].map((work) =>
    [work, Math.max(...[...policies.values()].filter((of) => of.has(work)).map((of) => mean(of.get(work).logs)))]));
  return [...policies].filter(([, of]) => of.size === works.size).map(([policy, of]) => {
    const each = [...of.values()];
    const made = { policy, ratio: Math.exp(mean(each.map((w) => mean(w.logs)))), low: null, high: null,
      wins: [...of].filter(([work, w]) => mean(w.logs) === best.get(work)).length,
      of_bound: Math.exp(mean(each.map((w) => mean(w.shares)))) };
    if (each.every((w) => w.draws.length)) {
      const all = Array.from({ length: data.draws.count }, (_, i) => mean(each.map((w) => mean(w.draws.map((d) => d[i])))));
      all.sort((a, b) => a - b);
      const at = (q) => Math.exp(all[Math.round(q * (all.length - 1))]), tail = (1 - data.draws.level) / 2;
      [made.low, made.high] = [at(tail), at(1 - tail)];
    }
    return made;
  }).sort((a, b) => b.ratio - a.ratio);
}

// Draws of whole requests of one trace, the same for all its cells: log ratios of a row to its baseline, or null.
function draw(of) {
  const n = of[0].blocks.length;
  if (n < data.draws.fewest || of.some((r) => r.blocks.length !== n)) return null;
  let state = 1;
  const next = () => {  // mulberry32: equal pages draw alike
    state = (state + 0x6D2B79F5) | 0;
    let t = Math.imul(state ^ (state >>> 15), 1 | state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  };
  const chosen = Array.from({ length: data.draws.count }, () => Array.from({ length: n }, () => Math.floor(next() * n)));
  const sums = new Map();
  const logs = (r) => sums.get(r) ||
    sums.set(r, chosen.map((places) => Math.log(places.reduce((sum, at) => sum + r.blocks[at], 0)))).get(r);
  return (r) => logs(rows[r.base]).map((log, i) => log - logs(r)[i]);
}

const OVERALL = [["policy", "policy"], ["ratio", `x ${data.baseline}`, 3], ["interval", "95 % interval"],
  ["wins", "wins"], ["over_bound", "of bound", "%"]];
function drawOverall(ranked, traces) {
  const place = document.getElementById("overall");
  place.hidden = !ranked.length;
  if (!ranked.length) return;
  const heads = OVERALL.map(([key, text]) =>
    element("th", { textContent: text, title: meaning(key), className: key === "policy" ? "text" : "" }));
  place.querySelector("p").textContent = `Ratios to ${data.baseline} on ${traces} traces, geometric mean. Intervals: ` +
    `${meaning("interval")}.`;
  place.querySelector("thead").replaceChildren(element("tr", {}, ...heads));
  place.querySelector("tbody").replaceChildren(...ranked.map((r) => element("tr", {}, ...[
    element("td", { textContent: r.policy, className: "text" }), element("td", { textContent: show(r.ratio, 3) }),
    element("td", { textContent: span(r) || "too few requests" }),
    element("td", { textContent: `${r.wins} of ${traces}` }),
    element("td", { textContent: Number.isNaN(r.of_bound) ? "" : show(r.of_bound, "%") })])));
}

function span(r) { return r.low === null ? "" : `${show(r.low, 3)} to ${show(r.high, 3)}`; }

function answer(found) {
  const place = document.getElementById("answer");
  const works = [...new Set(found.map((r) => r.work))].sort();
  const ranked = works.length > 1 ? overall(found) : [];
  drawOverall(ranked, works.length);
  if (!works.length) return void (place.textContent = "No cell passes the filters.");
  if (works.length === 1) return void (place.textContent = fastest(found));
  const first = ranked.length
    ? `Over ${works.length} traces, by the geometric mean of ratios to ${data.baseline}: ` +
      ranked.slice(0, 3).map((r) => `${r.policy} ${r.ratio.toFixed(3)}x` + (span(r) && ` (${span(r)})`)).join(", ") + "."
    : `No policy has cells beside ${data.baseline} on all ${works.length} traces.`;
  place.replaceChildren(first, ...works.map((work) =>
    element("div", { textContent: `${work}. ${fastest(found.filter((r) => r.work === work))}` })));
}

function fastest(found) {
  const best = found.find((r) => !r.oracle) || found[0];
  let text = `Fastest: ${best.policy} on ${best.hardware} with ${best.room} of experts, ${show(best.tokens_per_s, 2)} ` +
    `tokens/s (${show(best.ms_per_token, 2)} ms a token)`;
  if (best.of_best !== null) text += `, ${show(best.of_best, "%")} of what foresight allows there`;
  if (best.of_bound !== null) text += `, ${show(best.of_bound, "%")} of the bound on time`;
  return text + `. ${best.binds}`;
}

function update() {
  const found = passing(withOracles);
  answer(found);
  drawTable(found);
  return drawCharts();
}

drawFilters();
update();
dark.addEventListener("change", drawCharts);
narrow.addEventListener("change", drawCharts);
