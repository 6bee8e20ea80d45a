// SPDX-License-Identifier: Apache-2.0
#include "tessera/report/watch_page.h"

#include <string_view>

namespace tessera::report {
namespace {

constexpr std::string_view kHead = R"HTML(<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; base-uri 'none'; form-action 'none'">
<title>tessera</title>
<style>
:root { --ink: #222; --faint: #777; --line: #ddd; --paper: #fff; --panel: #f7f7f5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e6e6; --faint: #9a9a9a; --line: #3a3a3a; --paper: #161616; --panel: #1f1f1f; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 0 1rem 3rem; font: 15px/1.45 system-ui, sans-serif; color: var(--ink); background: var(--paper); }
h1 { font-size: 1.2rem; margin: .8rem 0; } h2 { font-size: 1.05rem; margin: 1.6rem 0 .5rem; } h3 { font-size: .9rem; margin: 0 0 .2rem; font-weight: 600; }
.bar { position: sticky; top: 0; z-index: 1; background: var(--paper); padding: .4rem 0; display: flex; flex-wrap: wrap; gap: .4rem 1.2rem; align-items: center; border-bottom: 1px solid var(--line); }
.bar label { display: inline-flex; gap: .4rem; align-items: center; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; white-space: nowrap; }
td.long { white-space: normal; overflow-wrap: anywhere; }
#charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 26rem), 1fr)); gap: 1rem; }
.chart { background: var(--panel); border-radius: 6px; padding: .6rem; }
.chart svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
.chart svg:focus { outline: 2px solid #4c78a8; outline-offset: 2px; }
.read { min-height: 1.4em; font-size: .8rem; color: var(--faint); }
.swatch { display: inline-block; width: .8em; height: .8em; border-radius: 2px; margin-right: .4em; }
pre { white-space: pre-wrap; overflow-wrap: anywhere; background: var(--panel); padding: .6rem; border-radius: 6px; margin: .3rem 0; }
.stack { display: flex; width: 16rem; height: 1em; background: var(--line); margin-top: .25em; }
text { fill: var(--faint); font-size: 11px; } .grid { stroke: var(--line); stroke-width: 1; } .cursor { stroke: var(--faint); }
</style>
</head>
<body>
<h1>tessera <span id="when"></span></h1>
<div class="bar">
<label>x axis <select id="axis"><option value="step">steps</option><option value="samples">samples</option><option value="tokens">tokens</option><option value="hours">hours</option></select></label>
<label>smoothing <input id="smooth" type="range" min="0" max="0.99" step="0.01" value="0.6"></label>
<label><input id="log" type="checkbox"> logarithmic</label>
<span id="legend"></span>
</div>
<div class="wide"><table id="runs"></table></div>
<div id="charts" aria-label="curves"></div>
<section id="times" hidden><h2>Time of the last step, ms</h2><div class="wide"><table></table></div></section>
<section id="memory" hidden><h2>Memory by kind and rank</h2><div></div></section>
<section id="mesh" hidden><h2>Mesh and stages</h2><div></div></section>
<section id="experts" hidden><h2>Loads of experts</h2><div></div></section>
<section id="differences" hidden><h2>Differences of the configurations</h2><div class="wide"><table></table></div></section>
<section id="samples" hidden><h2>Samples</h2><div></div></section>
<section id="checkpoints" hidden><h2>Checkpoints</h2><div></div></section>
<section id="events" hidden><h2>Warnings and errors</h2><div></div></section>
<script>
)HTML";

constexpr std::string_view kScript = R"JS('use strict';
const byId = id => document.getElementById(id);
const token = new URLSearchParams(location.search).get('token') || '';
const colors = ['#4c78a8', '#f58518', '#54a24b', '#e45756', '#72b7b2', '#b279a2', '#9d755d', '#bab0ac'];
const notDrawn = new Set(['step', 'samples', 'tokens', 'time', 'epoch']);
const first = ['loss', 'lr', 'grad_norm', 'tokens_per_s', 'matrix_share', 'padding_share', 'step_ms', 'mem_peak_bytes'];
const hidden = new Set();
let runs = [];

function element(name, text, attributes) {
  const out = document.createElement(name);
  if (text !== undefined && text !== null) out.textContent = text;
  for (const key in attributes || {}) out.setAttribute(key, attributes[key]);
  return out;
}
function drawn(name, attributes, text) {
  const out = document.createElementNS('http://www.w3.org/2000/svg', name);
  for (const key in attributes) out.setAttribute(key, attributes[key]);
  if (text !== undefined) out.textContent = text;
  return out;
}
function shown(value) {
  if (value === undefined || value === null) return '';
  if (typeof value !== 'number') return String(value);
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e6) return String(value);
  if (size >= 1e9) return (value / 1e9).toPrecision(3) + 'G';
  if (size >= 1e6) return (value / 1e6).toPrecision(3) + 'M';
  if (size >= 1e4) return (value / 1e3).toPrecision(3) + 'k';
  if (size !== 0 && size < 1e-3) return value.toExponential(2);
  return value.toPrecision(4);
}
function duration(seconds) {
  if (typeof seconds !== 'number') return '';
  if (seconds < 60) return Math.round(seconds) + 's';
  if (seconds < 3600) return Math.floor(seconds / 60) + 'm' + Math.round(seconds % 60) + 's';
  if (seconds < 86400) return Math.floor(seconds / 3600) + 'h' + Math.floor(seconds % 3600 / 60) + 'm';
  return (seconds / 86400).toFixed(1) + ' days';
}
// The x values of a split of a run; evaluations have steps alone, which training lines translate.
function axisOf(run, split) {
  const axis = byId('axis').value, train = run.train || {}, steps = (run[split] || {}).step || [];
  if (axis === 'step') return steps;
  const name = axis === 'hours' ? 'time' : axis;
  const known = train[name] || [];
  const hours = value => axis === 'hours' && typeof value === 'number' ? (value - known[0]) / 3600 : value;
  if (split === 'train') return known.map(hours);
  const at = train.step || [];
  return steps.map(step => {
    let low = 0, high = at.length - 1;
    while (low < high) { const middle = (low + high) >> 1; if (at[middle] < step) low = middle + 1; else high = middle; }
    return hours(known[low]);
  });
}
// An exponential mean that forgets its beginning, and passes over what is not a number.
function smoothed(values, weight) {
  let sum = 0, total = 0;
  return values.map(value => {
    if (typeof value !== 'number') return null;
    sum = weight * sum + (1 - weight) * value;
    total = weight * total + (1 - weight);
    return sum / total;
  });
}
function linesOf(name) {
  const weight = Number(byId('smooth').value), out = [];
  runs.forEach((run, i) => {
    if (hidden.has(run.name)) return;
    const color = colors[i % colors.length], values = (run.train || {})[name];
    if (values) {
      const x = axisOf(run, 'train');
      if (weight > 0) out.push({run: run.name, color, x, y: values, faint: true});
      out.push({run: run.name, color, x, y: weight > 0 ? smoothed(values, weight) : values});
    }
    const held = (run.eval || {})['eval_' + name] || (values ? null : (run.eval || {})[name]);
    if (held) out.push({run: run.name + ' held out', color, x: axisOf(run, 'eval'), y: held, dots: true});
  });
  return out;
}
const width = 600, height = 240, left = 56, right = 10, top_ = 8, bottom = 24;
function ticks(low, high, count) {
  const raw = (high - low) / count, power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map(f => f * power).find(s => s >= raw) || raw;
  // Ticks are counted: the sum of a number and a step below its rounding is the number.
  const out = [], first = Math.ceil(low / step), last = Math.floor(high / step + 1e-9);
  for (let i = 0; i < 16 && first + i <= last; ++i) out.push((first + i) * step);
  return out;
}
function chart(name) {
  const lines = linesOf(name), log = byId('log').checked;
  const scale = v => log ? Math.log10(v) : v;
  let x0 = Infinity, x1 = -Infinity, y0 = Infinity, y1 = -Infinity;
  for (const line of lines) line.x.forEach((x, i) => {
    const y = line.y[i];
    if (typeof x !== 'number' || typeof y !== 'number' || (log && y <= 0)) return;
    x0 = Math.min(x0, x); x1 = Math.max(x1, x); y0 = Math.min(y0, scale(y)); y1 = Math.max(y1, scale(y));
  });
  const box = element('div', null, {class: 'chart', 'data-name': name});
  box.append(element('h3', name));
  const read = element('div', '', {class: 'read', 'aria-live': 'polite'});
  if (x0 > x1) { box.append(element('div', 'no numbers yet', {class: 'read'})); return box; }
  if (x0 === x1) x1 = x0 + 1;
  if (y1 - y0 <= 1e-9 * Math.max(Math.abs(y0), Math.abs(y1), 1e-9)) { const room = Math.abs(y0) / 2 || 0.5; y0 -= room; y1 += room; }
  const px = x => left + (x - x0) / (x1 - x0) * (width - left - right);
  const py = y => height - bottom - (scale(y) - y0) / (y1 - y0) * (height - top_ - bottom);
  const svg = drawn('svg', {viewBox: `0 0 ${width} ${height}`, tabindex: 0, role: 'img',
    'aria-label': name + ': arrow keys read the curve'});
  for (const y of ticks(y0, y1, 5)) {
    const at = height - bottom - (y - y0) / (y1 - y0) * (height - top_ - bottom);
    svg.append(drawn('line', {class: 'grid', x1: left, x2: width - right, y1: at, y2: at}));
    svg.append(drawn('text', {x: left - 6, y: at + 4, 'text-anchor': 'end'}, shown(log ? Math.pow(10, y) : y)));
  }
  for (const x of ticks(x0, x1, 5))
    svg.append(drawn('text', {x: px(x), y: height - 6, 'text-anchor': 'middle'}, shown(x)));
  for (const line of lines) {
    let path = '', pen = 'M';
    line.x.forEach((x, i) => {
      const y = line.y[i];
      if (typeof x !== 'number' || typeof y !== 'number' || (log && y <= 0)) { pen = 'M'; return; }
      path += pen + px(x).toFixed(1) + ' ' + py(y).toFixed(1);
      pen = 'L';
      if (line.dots) svg.append(drawn('circle', {cx: px(x), cy: py(y), r: 2.5, fill: line.color}));
    });
    svg.append(drawn('path', {d: path, fill: 'none', stroke: line.color, 'stroke-width': line.faint ? 1 : 1.8,
      opacity: line.faint ? 0.3 : 1, 'stroke-dasharray': line.dots ? '4 3' : 'none', 'data-run': line.run}));
  }
  const cursor = drawn('line', {class: 'cursor', y1: top_, y2: height - bottom, visibility: 'hidden'});
  svg.append(cursor);
  let at = 0.5;
  const show = () => {
    const x = x0 + at * (x1 - x0);
    cursor.setAttribute('x1', px(x)); cursor.setAttribute('x2', px(x)); cursor.setAttribute('visibility', 'visible');
    const words = [];
    for (const line of lines) {
      if (line.faint) continue;
      let best = -1;
      line.x.forEach((v, i) => {
        if (typeof v === 'number' && typeof line.y[i] === 'number' &&
            (best < 0 || Math.abs(v - x) < Math.abs(line.x[best] - x))) best = i;
      });
      if (best >= 0) words.push(`${line.run} ${shown(line.y[best])} at ${shown(line.x[best])}`);
    }
    read.textContent = words.join(' · ');
  };
  svg.addEventListener('pointermove', event => {
    const area = svg.getBoundingClientRect();
    at = Math.min(1, Math.max(0, ((event.clientX - area.left) / area.width * width - left) / (width - left - right)));
    show();
  });
  svg.addEventListener('keydown', event => {
    const step = {ArrowLeft: -0.01, ArrowRight: 0.01, Home: -1, End: 1}[event.key];
    if (step === undefined) return;
    event.preventDefault();
    at = Math.min(1, Math.max(0, at + step));
    show();
  });
  box.append(svg, read);
  return box;
}
function row(cells, name) {
  const out = element('tr');
  for (const cell of cells) {
    const td = element(name || 'td');
    if (cell instanceof Node) td.append(cell); else td.textContent = shown(cell);
    out.append(td);
  }
  return out;
}
function nameOf(run, i) {
  const out = element('span');
  out.append(element('span', '', {class: 'swatch', style: 'background:' + colors[i % colors.length]}), run.name);
  return out;
}
function section(id, items) {
  const place = byId(id);
  place.hidden = items.length === 0;
  place.lastElementChild.replaceChildren(...items);
}
function differences() {
  const place = byId('differences'), paths = new Set();
  for (const run of runs) for (const path in run.config || {}) paths.add(path);
  const rows = [];
  for (const path of paths) {
    const values = runs.map(run => JSON.stringify((run.config || {})[path]));
    if (values.every(value => value === values[0])) continue;
    rows.push(row([path, ...values.map(value => value === undefined ? '' : value)]));
  }
  place.hidden = runs.length < 2 || rows.length === 0;
  place.querySelector('table').replaceChildren(row(['key', ...runs.map(run => run.name)], 'th'), ...rows);
}
function times() {
  const place = byId('times'), timed = runs.filter(run => run.step_ms !== undefined);
  const parts = ['step', 'data', 'forward', 'backward', 'reduce', 'optimizer', 'comm'].filter(part =>
    timed.some(run => run[part + '_ms'] !== undefined));
  place.hidden = timed.length === 0;
  place.querySelector('table').replaceChildren(
    row(['run', ...parts.map(part => part === 'comm' ? 'collectives, within these' : part)], 'th'),
    ...timed.map(run => row([run.name, ...parts.map(part => run[part + '_ms'])])));
}
function bytes(value) {
  if (typeof value !== 'number') return '';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  while (value >= 1024 && unit < 4) { value /= 1024; ++unit; }
  return (unit === 0 ? value : value.toPrecision(3)) + ' ' + units[unit];
}
const percent = share => typeof share === 'number' ? (100 * share).toFixed(1) + ' %' : '';
// A bar of colored parts; `whole` is its full width. The same numbers follow as text, for readers who cannot see it.
function stack(parts, whole) {
  const out = element('div', null, {class: 'stack', 'aria-hidden': 'true'});
  for (const [name, value, color] of parts) {
    if (typeof value !== 'number' || !(value > 0) || !(whole > 0)) continue;
    out.append(element('div', '', {title: name, style: `background:${color};width:${Math.min(100, 100 * value / whole)}%`}));
  }
  return out;
}
function tableOf(head, rows) {
  const box = element('div', null, {class: 'wide'}), table = element('table');
  table.append(row(head, 'th'), ...rows);
  box.append(table);
  return box;
}
const objects = list => Array.isArray(list) ? list.filter(one => one && typeof one === 'object') : [];
const ranksOf = run => run.ranks ? objects(run.ranks.ranks) : [];
const leftOut = run => run.ranks.more_ranks > 0 ? [element('div', `and ${run.ranks.more_ranks} more ranks`)] : [];
// The planned bytes of a rank above the peaks that each rank has counted.
function memoryOf(run) {
  const ranks = ranksOf(run), planned = run.ranks.planned || {};
  const kinds = [...new Set([...Object.keys(planned), ...ranks.flatMap(rank => Object.keys(rank.memory || {}))])].slice(0, 16);
  const sum = memory => kinds.reduce((all, kind) => all + (typeof memory[kind] === 'number' ? memory[kind] : 0), 0);
  const whole = Math.max(sum(planned), ...ranks.map(rank => sum(rank.memory || {})));
  const line = (name, memory, peak, resident) => row([name,
    stack(kinds.map((kind, i) => [kind, memory[kind], colors[i % colors.length]]), whole),
    bytes(peak), bytes(resident), ...kinds.map(kind => bytes(memory[kind]))]);
  const heads = kinds.map((kind, i) => nameOf({name: kind}, i));
  const out = element('div');
  out.append(element('h3', `${run.name}, step ${shown(run.ranks.step)}: peak of each kind`),
    tableOf(['rank', '', 'peak of the sum', 'resident', ...heads],
      [line('planned', planned, sum(planned), null),
       ...ranks.map(rank => line(rank.rank, rank.memory || {}, rank.peak_bytes, rank.resident_bytes))]),
    ...leftOut(run));
  return out;
}
function meshOf(run) {
  const known = run.ranks, stages = objects(known.stages).slice(0, 64), out = element('div');
  const waits = share => stack([['waits', share, colors[3]]], 1);
  out.append(element('h3', `${run.name}, step ${shown(known.step)}: ${shown(known.mesh)}`));
  if (stages.length > 0) out.append(
    element('div', `${shown(known.schedule)}: a stage waits ${percent(known.planned_waits)} of the time if all stages take equally long`),
    tableOf(['stage', '', 'waits for other stages'], stages.map(one => row([one.stage, waits(one.waits), percent(one.waits)]))));
  const rows = ranksOf(run).map(rank => row([rank.rank, rank.host, rank.pp, rank.dp, rank.cp, rank.tp, rank.step_ms,
    percent(rank.collectives), percent(rank.waits)]));
  out.append(tableOf(['rank', 'host', 'stage', 'dp', 'cp', 'tp', 'step, ms', 'collectives', 'of these, other stages'], rows), ...leftOut(run));
  return out;
}
// A row for each layer and a cell for each expert; the numbers of a layer stand next to it.
function expertsOf(run) {
  const known = run.experts, out = element('div');
  out.append(element('h3', `${run.name}, steps ${shown(known.step - known.steps + 1)} to ${shown(known.step)}: darker means more tokens, red more than twice the mean`));
  out.append(tableOf(['layer', 'experts', 'largest load / mean', 'without tokens', 'dropped'], objects(known.layers).map(layer => {
    const counts = (Array.isArray(layer.chosen) ? layer.chosen : []).filter(count => typeof count === 'number');
    const total = counts.reduce((all, count) => all + count, 0), mean = total / Math.max(1, counts.length);
    const side = Math.max(2, Math.min(24, 640 / Math.max(1, counts.length)));
    const cells = drawn('svg', {width: side * counts.length, height: 16, 'aria-hidden': 'true', class: 'experts'});
    counts.forEach((count, e) => {
      const load = mean > 0 ? count / mean : 0;
      const cell = drawn('rect', {x: e * side, y: 0, width: side, height: 16, fill: load > 2 ? colors[3] : colors[0],
        'fill-opacity': Math.min(1, load / 2).toFixed(2)});
      cell.append(drawn('title', {}, `expert ${e}: ${count}`));
      cells.append(cell);
    });
    return row([layer.name, cells, mean > 0 ? Math.max(...counts) / mean : '', counts.filter(count => count === 0).length,
      total > 0 ? percent(layer.dropped / total) : '']);
  })));
  return out;
}
function paint() {
  const focused = document.activeElement && document.activeElement.closest ? document.activeElement.closest('.chart') : null;
  const focusedName = focused ? focused.dataset.name : null;
  const heads = ['run', 'state', 'step', 'of', 'loss', 'held out', 'lr', 'tokens/s', 'memory', 'left'];
  byId('runs').replaceChildren(row(heads, 'th'), ...runs.map((run, i) => row([nameOf(run, i), run.state, run.step,
    run.max_steps, run.loss, run.eval_loss, run.lr, run.tokens_per_s, run.mem_peak_bytes, duration(run.eta_s)])));
  byId('legend').replaceChildren(...(runs.length < 2 ? [] : runs.map((run, i) => {
    const label = element('label'), box = element('input', null, {type: 'checkbox'});
    box.checked = !hidden.has(run.name);
    box.addEventListener('change', () => { if (box.checked) hidden.delete(run.name); else hidden.add(run.name); paint(); });
    label.append(box, nameOf(run, i));
    return label;
  })));
  const names = new Set();
  for (const run of runs) {
    for (const name in run.train || {}) names.add(name);
    for (const name in run.eval || {}) if (!name.startsWith('eval_') || !((run.train || {})[name.slice(5)])) names.add(name);
  }
  const order = [...first.filter(name => names.has(name)), ...[...names].filter(name => !first.includes(name)).sort()];
  byId('charts').replaceChildren(...order.filter(name => !notDrawn.has(name) && !name.endsWith('tokens') && !name.startsWith('experts.')).map(chart));
  if (focusedName) {
    const again = [...document.querySelectorAll('.chart')].find(box => box.dataset.name === focusedName);
    if (again && again.querySelector('svg')) again.querySelector('svg').focus({preventScroll: true});
  }
  times();
  const placed = runs.filter(run => ranksOf(run).length > 0);
  section('memory', placed.map(memoryOf));
  section('mesh', placed.filter(run => ranksOf(run).length > 1).map(meshOf));
  section('experts', runs.filter(run => run.experts).map(expertsOf));
  differences();
  section('samples', runs.flatMap(run => (run.samples || []).slice(-3).reverse().map(sample => {
    const out = element('div');
    out.append(element('h3', `${run.name}, step ${shown(sample.step)}`), element('pre', sample.text));
    return out;
  })));
  section('checkpoints', runs.filter(run => (run.checkpoints || []).length > 0)
    .map(run => element('div', run.name + ': ' + run.checkpoints.join(', '))));
  section('events', runs.flatMap(run => (run.events || []).slice(-10).map(line => element('pre', run.name + ': ' + line))));
}
for (const id of ['axis', 'smooth', 'log']) byId(id).addEventListener('input', paint);
async function ask() {
  try {
    const answer = await fetch('/api/runs?token=' + encodeURIComponent(token));
    if (!answer.ok) throw new Error(await answer.text());
    runs = await answer.json();
    byId('when').textContent = '';
    paint();
  } catch (error) {
    byId('when').textContent = '(no answer: ' + error.message + ')';
  }
  setTimeout(ask, 2000);
}
if (window.tesseraRuns) { runs = window.tesseraRuns; paint(); } else ask();
)JS";

/// Escapes JSON for use in a script: "</script>" and "<!--" would end it.
std::string in_script(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string watch_page(const json::Value& data) {
  std::string out(kHead);
  if (!data.is_null()) out += "window.tesseraRuns = " + in_script(data.dump()) + ";\n";
  out += kScript;
  return out + "</script>\n</body>\n</html>\n";
}

}  // namespace tessera::report
