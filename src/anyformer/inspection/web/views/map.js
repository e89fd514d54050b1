// The attention map of one head: a picture with rulers and marginals, or lines between two columns of tokens.

import { h, replace, svg } from "look/element";
import { byTokens, heatmap, legend, paint, rangeOf } from "look/heatmap";
import { buttons, isOn, knob, row, scales, scroll, select, toggle } from "look/controls";
import { bars } from "look/bars";
import { tokens } from "look/tokens";
import { place } from "look/palette";
import { count, number, percent, quoted, visible } from "look/format";
import { clamp, rowOf, sum, times } from "look/lists";
import { note, roomOf } from "look/parts";
import { LEAST, cropped, follow, windowIn, zoomBy } from "look/zoom";

const SHOWN = { weights: "weight", scores: "score", values: "weight times value length" };
const LINES = 64; // tokens up to which lines are offered, and every key of a row is named
const STRONGEST = 16; // keys named of a longer row

/** Rows without one column, each summing to 1 again. */
const withoutSink = (data, nr, nc, sink) => {
  const next = Float32Array.from(data);
  for (let i = 0; i < nr; i++) {
    let rest = 0;
    for (let j = 0; j < nc; j++) if (j !== sink && data[i * nc + j] === data[i * nc + j]) rest += data[i * nc + j];
    for (let j = 0; j < nc; j++) next[i * nc + j] = j === sink ? NaN : rest > 0 ? data[i * nc + j] / rest : data[i * nc + j];
  }
  return next;
};

/** Means down the columns over the rows that can see them, and the entropy of each row in bits. */
const marginalsOf = (data, nr, nc) => {
  const columns = new Float64Array(nc), seen = new Float64Array(nc), rows = new Float64Array(nr);
  for (let i = 0; i < nr; i++) {
    for (let j = 0; j < nc; j++) {
      const value = data[i * nc + j];
      if (value !== value) continue;
      columns[j] += value;
      seen[j] += 1;
      if (value > 0) rows[i] -= value * Math.log2(value);
    }
  }
  for (let j = 0; j < nc; j++) columns[j] = seen[j] ? columns[j] / seen[j] : NaN;
  return { rows, columns };
};

const lines = (data, nr, nc, left, right, { range, query, onSelect, width }) => {
  const gap = 22, wide = Math.min(480, Math.max(120, width - 260)), side = 112;
  const height = Math.max(nr, nc) * gap;
  const root = svg("svg", { width: wide + 2 * side, height, viewBox: `0 0 ${wide + 2 * side} ${height}`, class: "chart lines", role: "img",
    "aria-label": `Lines from each query on the left to the keys it reads on the right` });
  const y = (i) => (i + 0.5) * gap;
  for (let i = 0; i < nr; i++) {
    for (let j = 0; j < nc; j++) {
      const share = place(data[i * nc + j], ...range);
      if (!(share > 0.02)) continue;
      const on = i === query, middle = side + wide / 2;
      root.append(svg("path", { d: `M${side} ${y(i)}C${middle} ${y(i)} ${middle} ${y(j)} ${side + wide} ${y(j)}`, fill: "none",
        stroke: on ? "var(--query)" : "var(--line)", "stroke-width": (0.5 + 4 * share).toFixed(2), "stroke-opacity": (on ? 0.25 + 0.75 * share : 0.08 + 0.3 * share).toFixed(2) }));
    }
  }
  const word = (token, i, x, attributes) => root.append(svg("text", { x, y: y(i) + 4, ...attributes }, visible(token.text).slice(0, 14)));
  left.forEach((token, i) => word(token, i, side - 10, { "text-anchor": "end", class: i === query ? "from on" : "from", onclick: () => onSelect(i) }));
  right.forEach((token, i) => word(token, i, side + wide + 10));
  return scroll("Lines", root);
};

export const draw = (panel, answer, look) => {
  const { facts, arrays: { map } } = answer;
  const { query, key } = look.selection;
  const { site } = look;
  const [nr, nc] = map.shape;
  const queries = look.queries(site), keys = look.tokens(site.keys);
  const isWeights = facts.show === "weights";
  const other = facts.kind === "other";
  const name = other ? "share" : SHOWN[facts.show];

  let { data } = map;
  const whole = marginalsOf(data, nr, nc);
  const sink = isWeights && isOn(look, "sink") ? whole.columns.reduce((best, value, j) => (value > whole.columns[best] || !(whole.columns[best] >= 0) ? j : best), 0) : null;
  if (sink !== null) data = withoutSink(data, nr, nc, sink);
  const marginals = sink === null ? whole : marginalsOf(data, nr, nc);
  const [low, high] = rangeOf(data);
  const both = facts.show === "scores" || low < 0;
  const far = Math.max(-low, high) || 1;
  const range = both ? [-far, far] : [0, high || 1];
  const style = both ? { range, scale: "linear", sides: "two" } : { range, scale: look.option("scale", "sqrt"), sides: "one" };

  const start = [facts.row, facts.column], view = windowIn(look, start, [nr, nc]);
  const large = Math.max(nr, nc) > LEAST, zoom = (by, at = [query, key]) => zoomBy(look, view, [nr, nc], by, at);

  const canDraw = nr <= LINES && nc <= LINES && !both;
  const drawn = canDraw ? look.option("draw", "map") : "map";
  panel.append(row(
    canDraw && buttons(look, { name: "draw", label: "Draw", options: [["map", "Map"], ["lines", "Lines"]], fallback: "map" }),
    facts.has_scores && select(look, { name: "show", label: "Show", options: [["weights", "weights"], ["scores", "scores before softmax"], ["values", "weights × value length"]], fallback: "weights" }),
    facts.heads > 1 && buttons(look, { name: "over", label: "Of", options: [["head", "this head"], ["mean", "mean of heads"]], fallback: "head" }),
    both ? null : scales(look),
    view.size[0] * view.size[1] <= 4096 ? toggle(look, { name: "numbers", label: "Numbers" }) : null,
    isWeights && toggle(look, { name: "sink", label: "Hide the sink" }),
    drawn === "map" && large ? h("div", { class: "segments", role: "group", "aria-label": "Zoom" },
      [["Nearer", 1, "+"], ["Farther", -1, "−"], ["All", 0, "All"]].map(([word, by, sign]) =>
        knob(sign, () => zoom(by), { "aria-label": `Zoom: ${word.toLowerCase()}`, focus: `zoom-${by}`, disabled: by < 1 && !view.zoomed }))) : null));

  if (other) panel.append(note(facts.mixer, look.notes.other));
  const text = (list, i) => (list[i] ? quoted(list[i].text) : String(i));
  const said = (value) => (value === null ? "outside of the window" : Number.isNaN(value) ? "masked" : `${name} ${number(value)}`);
  const exact = (value) => (Number.isNaN(value) ? "masked" : value);
  // What is drawn is a window of a long map: its rows and columns, counted from the window's corner.
  const down = query - facts.row, across = key - facts.column;
  const valueAt = (i, j) => (i >= 0 && i < nr && j >= 0 && j < nc ? data[i * nc + j] : null);
  const mine = down >= 0 && down < nr ? rowOf({ data, shape: [nr, nc] }, down) : null;
  const shownKeys = keys.slice(facts.column, facts.column + nc);
  const width = roomOf(panel);

  const readout = h("p", { class: "readout" });
  const say = (r, c, value) => replace(readout, "Query ", h("b", { class: "query" }, text(queries, r)), ", key ", h("b", { class: "key" }, text(keys, c)), ": ", h("b", {}, said(value)));
  const sayMine = () => say(query, key, mine?.[across] ?? null);
  const toSteps = !other && look.manifest.views.some(({ name: each, applies }) => each === "steps" && applies) ? () => look.select({ view: "steps" }) : null;
  // Where one row reads, as text: of the selected query, and of the one under the pointer.
  const asTokens = mine && drawn === "map" && look.manifest.kind !== "image" && nc <= LINES, where = h("div", {});
  const reads = (r, row) => asTokens && !where.contains(document.activeElement) && replace(where, h("h3", {}, `Where ${text(queries, r)} reads`), tokens({ tokens: shownKeys, values: Array.from(row, (v) => (Number.isNaN(v) ? null : v)), ...style,
    selected: key, start: facts.column, onSelect: (i) => look.select({ key: i }), label: "Keys of this query", focus: "row", numbers: nc <= 24 }));
  let hovered = query;
  const hover = (r) => {
    if (r !== hovered) reads(r, r === query ? mine : rowOf({ data, shape: [nr, nc] }, r - facts.row));
    hovered = r;
  };

  if (facts.long) panel.append(minimap(answer, look, width));
  if (drawn === "lines") panel.append(lines(data, nr, nc, queries, keys, { range, query, onSelect: (i) => look.select({ query: i }), width }));
  else {
    const [r0, c0] = view.corner, [tall, wide] = view.size;
    const { rows, columns } = byTokens(...[[queries, r0, tall], [keys, c0, wide]].map(([list, from, many]) => list.slice(from, from + many).map((token) => token.text)));
    const bands = (list, from, many) => (facts.segments ? list.slice(from, from + many).map(({ segment }) => segment) : []);
    const part = view.zoomed ? cropped(data, nc, start, view) : data;
    panel.append(heatmap({
      data: part, shape: view.size, whole: facts.shape, ...style, selected: [query, key], onSelect: (r, c) => look.select({ query: r, key: c, ...follow(view, [r, c]) }), width,
      onZoom: large ? zoom : null, onOpen: toSteps,
      onHover: (r, c, value) => { if (r === null) sayMine(); else say(r, c, value); hover(r ?? query); }, describe: (r, c) => `query ${text(queries, r)}, key ${text(keys, c)}: ${said(valueAt(r - facts.row, c - facts.column))}`,
      rows: { ...rows, start: r0, bands: bands(queries, r0, tall) }, columns: { ...columns, start: c0, bands: bands(keys, c0, wide) },
      numbers: isOn(look, "numbers") && tall * wide <= 4096,
      marginals: isWeights && !facts.long ? { rows: marginals.rows.slice(r0, r0 + tall), columns: marginals.columns.slice(c0, c0 + wide), rowsName: "Entropy of each row", columnsName: "Mean weight that each key gets" } : null,
      label: `Attention map, ${look.describe()}`,
    }));
  }
  sayMine();
  if (facts.segments && drawn === "map") panel.append(note(`Bands: ${facts.segments}.`));
  if (view.zoomed && drawn === "map") panel.append(note(`Queries ${view.corner[0]} to ${view.corner[0] + view.size[0] - 1} and keys ${view.corner[1]} to ${view.corner[1] + view.size[1] - 1} of ${facts.shape.join(" by ")}. ${look.notes.zoom}`));
  panel.append(readout, toSteps ? h("p", {}, knob("Step by step for this cell", toSteps, { class: "link", focus: "to-steps" })) : "", h("p", {}, drawn === "lines" ? h("span", { class: "soft small" }, `The thicker a line, the larger the ${name}: up to ${number(range[1])}. ${look.notes.faint}`)
    : legend({ ...style, masked: data.some(Number.isNaN), name: isWeights && !facts.long ? h("span", {}, look.notes.bars) : "" })));

  if (asTokens) {
    reads(query, mine);
    panel.append(where);
  } else if (mine && drawn === "map" && isWeights) panel.append(...strongest(mine, sink === null ? facts : { column: facts.column }, keys, look, text(queries, query)));

  const known = isWeights && sink === null ? facts.strongest?.[0] : null; // of a long row, also beyond the window
  const top = mine?.reduce((best, v, j) => (v > mine[best] || Number.isNaN(mine[best]) ? j : best), 0);
  const [best, most] = known ?? [top + facts.column, mine?.[top]];
  const summary = mine ? `${look.site.label}, ${other ? facts.mixer : facts.over === "mean" ? "mean of heads" : `head ${look.selection.head}`}: ${text(queries, query)} ${facts.show === "scores" ? "has its highest score for" : "reads most from"} ${text(keys, best)} (${isWeights ? percent(most) : number(most)})${sink === null ? "" : `, without the sink ${text(keys, sink + facts.column)}`}.` : "";
  if (nc <= LINES) {
    return { summary, scale: style.scale, columns: ["query", ...keys.map((token, j) => `${visible(token.text)} ${j}`)],
      rows: times(nr, (i) => [`${visible(queries[i + facts.row].text)} ${i + facts.row}`, ...Array.from(rowOf({ data, shape: [nr, nc] }, i), exact)]) };
  }
  return { summary, scale: style.scale, columns: ["key", "number", `${name} for ${text(queries, query)}`],
    rows: Array.from(mine ?? [], (v, j) => [visible(shownKeys[j].text), j + facts.column, exact(v)]) };
};

/** The keys that the query reads most, and what all others have together: of a long row the server says them. */
const strongest = (mine, facts, keys, look, name) => {
  const order = Array.from(mine, (value, j) => [j + facts.column, value]).filter(([, value]) => !Number.isNaN(value)).sort((a, b) => b[1] - a[1]);
  const best = facts.strongest ?? order.slice(0, STRONGEST);
  const rest = facts.rest ?? sum(order.slice(STRONGEST).map(([, value]) => value));
  const items = best.map(([j, value]) => ({ name: `${visible(keys[j].text)}  ${j}`, value, on: j === look.selection.key, colour: "var(--key)", onclick: () => look.select({ key: j }) }));
  return [h("h3", {}, `Where ${name} reads most`), bars({ items, format: (value) => percent(value), label: `Keys that ${name} reads most` }),
    note(`All other keys together: ${percent(Math.max(0, rest))}.`)];
};

/** The whole map, pooled, with the window that is drawn below it. */
const minimap = (answer, look, width) => {
  const { facts } = answer;
  const { data, shape } = answer.arrays.overview;
  const [rows, columns] = shape;
  const size = Math.min(256, width - 8), tall = Math.min(320, Math.round((size * rows) / columns));
  const style = { width: `${size}px`, height: `${tall}px` };
  const canvas = paint(h("canvas", { "aria-hidden": "true", style }), data, shape, {});
  const [stepR, stepC] = facts.step;
  const sx = size / columns / stepC, sy = tall / rows / stepR;
  const [nr, nc] = answer.arrays.map.shape;
  const over = svg("svg", { class: "over", width: size, height: tall, "aria-hidden": "true" },
    svg("rect", { x: facts.column * sx, y: facts.row * sy, width: Math.max(4, nc * sx), height: Math.max(4, nr * sy), fill: "none", stroke: "var(--key)", "stroke-width": 2 }));
  const field = h("div", { class: "field", style, onclick: (event) => {
    const box = field.getBoundingClientRect();
    look.select({ top: null, left: null, query: Math.min(facts.shape[0] - 1, Math.floor((event.clientY - box.top) / sy)), key: Math.min(facts.shape[1] - 1, Math.floor((event.clientX - box.left) / sx)) });
  } }, canvas, over);
  const moves = [["query", "queries"], ["key", "keys"]].flatMap(([name, many], i) => [["Earlier", -128], ["Later", 128]].map(([word, by]) =>
    knob(`${word} ${many}`, () => look.select({ top: null, left: null, [name]: clamp(look.selection[name] + by, 0, facts.shape[i] - 1) }), { focus: `window-${word} ${many}` })));
  return h("div", { class: "whole" }, h("div", { class: "heatmap" }, field),
    h("div", {}, note(`The whole map, ${count(facts.shape[0], "query", "queries")} by ${count(facts.shape[1], "key")}: a point shows the largest weight of ${stepR} by ${stepC} cells. Below: the exact ${nr} by ${nc} cells inside the frame.`),
      row(moves)));
};
