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
  ["ms_per_pass_p95", "p95 ms", 2], ["of_best", "of best", "%"], ["hit_rate", "hits", "%"],
  ["vram_gib", "VRAM GiB", 2], ["cycles", "cycles", 2], ["of_base", `x ${data.baseline}`, 3],
];
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
    const set = element("fieldset", {}, element("legend", { textContent: f.heading }));
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

function drawHead() {
  const line = element("tr");
  for (const [column, heading] of COLUMNS) {
    const button = element("button", { type: "button", textContent: heading });
    button.addEventListener("click", () => {
      const better = column === "tokens_per_s" || column === "hit_rate" || column === "of_best";
      sort = { column, down: sort.column === column ? !sort.down : better };
      drawTable(passing(withOracles));
    });
    const cell = element("th", { className: isText(column) ? "text" : "" }, button);
    if (sort.column === column) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
    line.append(cell);
  }
  document.querySelector("thead").replaceChildren(line);
}

function drawTable(found) {
  drawHead();
  const fastest = Math.max(...found.map((r) => r.tokens_per_s || 0));
  const body = document.querySelector("tbody");
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
function config(narrowColumns) {
  const style = getComputedStyle(document.documentElement);
  const [text, quiet, line] = ["--text", "--quiet", "--line"].map((n) => style.getPropertyValue(n).trim());
  const font = getComputedStyle(document.body).fontFamily;
  return {
    background: null, font, view: { stroke: null },
    axis: { labelColor: quiet, titleColor: quiet, gridColor: line, domainColor: line, tickColor: line,
      titleFontWeight: "normal", labelFontSize: 11, titleFontSize: 12 },
    legend: { labelColor: text, titleColor: quiet, titleFontWeight: "normal", orient: "top", labelFontSize: 12,
      columns: narrow.matches ? narrowColumns : 6, symbolStrokeWidth: 2, labelLimit: 170, rowPadding: 3, symbolOpacity: 1,
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
    actions: false, renderer: values.length > 1500 ? "canvas" : "svg", config: config(chart.key === "causes" ? 1 : 2),
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
// Over several traces: geometric mean over traces of the mean ratio to the baseline. Tokens/s of two models do not compare.
function overall(found) {
  const logs = new Map(), works = new Set();
  for (const r of found) {
    if (r.oracle || !r.of_base) continue;
    works.add(r.work);
    const of = logs.get(r.policy) || logs.set(r.policy, new Map()).get(r.policy);
    of.set(r.work, (of.get(r.work) || []).concat(Math.log(r.of_base)));
  }
  const mean = (x) => x.reduce((a, b) => a + b, 0) / x.length;
  return [...logs].filter(([, of]) => of.size === works.size)
    .map(([policy, of]) => ({ policy, ratio: Math.exp(mean([...of.values()].map(mean))) }))
    .sort((a, b) => b.ratio - a.ratio);
}

function answer(found) {
  const place = document.getElementById("answer");
  const works = [...new Set(found.map((r) => r.work))].sort();
  if (!works.length) return void (place.textContent = "No cell passes the filters.");
  if (works.length === 1) return void (place.textContent = fastest(found));
  const ranked = overall(found);
  const first = ranked.length
    ? `Over ${works.length} traces, by the geometric mean of ratios to ${data.baseline}: ` +
      ranked.slice(0, 3).map((r) => `${r.policy} ${r.ratio.toFixed(3)}x`).join(", ") + "."
    : `No policy has cells beside ${data.baseline} on all ${works.length} traces.`;
  place.replaceChildren(first, ...works.map((work) =>
    element("div", { textContent: `${work}. ${fastest(found.filter((r) => r.work === work))}` })));
}

function fastest(found) {
  const best = found.find((r) => !r.oracle) || found[0];
  let text = `Fastest: ${best.policy} on ${best.hardware} with ${best.room} of experts, ${show(best.tokens_per_s, 2)} ` +
    `tokens/s (${show(best.ms_per_token, 2)} ms a token)`;
  if (best.of_best !== null) text += `, ${show(best.of_best, "%")} of what foresight allows there`;
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
