// Attention step by step: a spreadsheet whose rows are keys and whose columns are the steps. A changed score, mask or
// scale runs through all later steps here, in the same order as in core/attend.py, with doubles.

import { append, h, replace, svg } from "look/element";
import { number, percent, quoted, visible } from "look/format";
import { arrow, button, buttons, row as controlRow, scroll } from "look/controls";
import { formula, frac, mtext, row, sqrt, sup } from "look/formula";
import { best, clamp, placeIn, rowOf, sum, times } from "look/lists";
import { note, small } from "look/parts";

const PAGE = 64; // keys shown at once
const TERMS = 4; // of a sum, before the rest is dots
const FIGURES = 8; // of a vector in a formula
const NAMES = [ // by EPFL and by Cornell
  ["Queries, keys, values", "Scores", "Divide by the root", "Softmax", "Weight times value", "Sum"],
  ["Prepare inputs", "Scores", "Softmax", "Weight times value", "Sum and project"],
];

// ---- arithmetic ----

const unchanged = (projection = null) => ({ scores: new Map(), visible: new Map(), root: true, projection });
const isChanged = (changes) => changes.scores.size > 0 || changes.visible.size > 0 || !changes.root;

// What was changed by hand, for each selection; it outlives a redraw, and goes with the capture.
const changed = new WeakMap();
const changesOf = ({ manifest, selection: { site, head, query } }, facts) => {
  if (!changed.has(manifest)) changed.set(manifest, {});
  return changed.get(manifest)[facts.example ? "lecture" : [site, head, query]] ??= unchanged();
};

/** Every step of every key under the changes: the arithmetic of `score_steps`. */
export const recompute = ({ facts, arrays }, changes) => {
  const { soft_cap: cap, partial } = facts;
  const scores = Array.from(arrays.scores.data, (score, j) => changes.scores.get(j) ?? score);
  const related = scores.map((score, j) => score + arrays.relative.data[j]);
  const scaled = related.map((score) => (changes.root ? score * facts.scale : score));
  const capped = scaled.map((score) => (cap === null ? score : cap * Math.tanh(score / cap)));
  const biased = capped.map((score, j) => score + arrays.bias.data[j]);
  const seen = Array.from(arrays.visible.data, (sees, j) => changes.visible.get(j) ?? sees === 1);
  const masked = biased.map((score, j) => (seen[j] ? score : -Infinity));
  const top = masked.reduce((a, b) => Math.max(a, b), -Infinity);
  const powers = masked.map((score) => (top === -Infinity ? 0 : Math.exp(score - top)));
  const total = sum(powers);
  const weights = powers.map((power) => (total === 0 ? 0 : power / total)); // a token that sees nothing takes nothing

  const start = partial ? facts.first : 0; // the first key whose vectors are here
  const [held, width] = arrays.v.shape;
  const k = (j) => rowOf(arrays.k, j - start);
  const v = (j) => rowOf(arrays.v, j - start);
  const value = (j) => (arrays.beside ? Array.from(v(j), (x, c) => x + rowOf(arrays.beside, j - start)[c]) : v(j));
  const weighted = (j) => Array.from(value(j), (x) => weights[j] * x);
  const z = times(width, () => 0);
  for (let j = start; j < start + held; j++) weighted(j).forEach((x, c) => { z[c] += x; });
  if (partial) { // the other keys keep their shares of each other, so their sum only grows or shrinks
    const outside = (list) => sum(list.filter((_, j) => j < start || j >= start + held));
    const before = outside(arrays.weights.data);
    const grown = before > 0 ? outside(weights) / before : 0;
    arrays.outside.data.forEach((x, c) => { z[c] += x * grown; });
  }
  return { scores, related, scaled, capped, biased, seen, masked, weights, z, top, total, k, v, value, weighted };
};

/** z (C') through this head's rows of W_O (C',D). */
const projected = (z, projection) => {
  if (!projection) return null;
  const { data, shape: [, width] } = projection;
  return times(width, (d) => sum(z.map((x, c) => x * data[c * width + d])));
};
const withOthers = (out, { others, out_bias: bias }) => out && Array.from(out, (x, d) => x + others.data[d] + (bias ? bias.data[d] : 0));
const largest = (values, none = 1) => values.reduce((most, x) => Math.max(most, Math.abs(x)), 0) || none;
const length = (values) => Math.hypot(...values);
const told = (values) => `${values.length} numbers, length ${number(length(values))}`;
const same = (a, b) => a === b || Math.abs(a - b) <= 1e-12 * Math.max(1, Math.abs(b));

// ---- columns and their formulas ----

const signed = (value) => (value < 0 ? row("(", value, ")") : value);
const list = (values, most = FIGURES) => row("[", Array.from(values).slice(0, most).flatMap((x, n) => (n ? [",", x] : [x])), values.length > most ? ", ⋯" : null, "]");
const product = (a, b, asRows) => (asRows ? `${a} ${b}^⊤` : `${b}^⊤ ${a}`);
/** x W_K, or W_K^T x; cross-attention reads the memory M. */
const read = (sign, x, asRows) => (asRows ? `${x} W_${sign}` : `W_${sign}^⊤ ${x}`);
const made = (name, sign) => (on) =>
  [on[name], "=", on.facts.plain ? null : [read(sign, `${on.facts.crossed ? "m" : "x"}_${on.n}`, on.asRows), "="], list(on.now[name](on.j))];

/** The steps from left to right: [name, its numbers among six and among five, title, words, formula, the colour of a
    vector]. A formula has q, k, v, p and n (the key's number) by name. */
const COLUMNS = [
  ["k", [1, 1], "k", "Key vector", made("k", "K"), "key"],
  ["v", [1, 1], "v", "Value vector", made("v", "V"), "value"],
  ["scores", [2, 2], "q·k", "Score", ({ arrays, now, j, q, k, asRows, changes }) => {
    const query = Array.from(arrays.q.data), key = now.k(j);
    const terms = query.slice(0, TERMS).flatMap((x, c) => [c ? "+" : null, signed(x), "·", signed(key[c])]);
    const moved = changes.scores.has(j);
    return [product(q, k, asRows), "=", moved ? null : [terms, query.length > TERMS ? "+ ⋯ =" : "="], now.scores[j], moved ? mtext(" (changed)") : null];
  }],
  ["related", [2, 2], "+ relative", "Score with its relative position", ({ arrays, now, i, j, q, k, n }) =>
    [`${q} · ( ${k} + a_${i},${n} ) =`, now.scores[j], "+", signed(arrays.relative.data[j]), "=", now.related[j]]],
  ["scaled", [3, 2], "÷ √d", "Scaled score", ({ facts, arrays, now, j, changes }) => {
    if (!changes.root) return [now.related[j], mtext(` (the ${facts.root ? "root" : "factor"} is left out)`)];
    if (!facts.root) return [now.related[j], "·", facts.scale, "=", now.scaled[j]];
    return [frac(facts.plain ? "x·x" : "q·k", sqrt("D_K")), "=", frac(now.related[j], sqrt(String(arrays.q.shape[0]))), "=", now.scaled[j]];
  }],
  ["capped", [3, 2], "cap", "Capped score", ({ facts: { soft_cap: cap }, now, j }) =>
    ["c · tanh", frac("s", "c"), "=", cap, "· tanh", frac(now.scaled[j], cap), "=", now.capped[j]]],
  ["biased", [3, 2], "+ bias", "Score with its bias", ({ arrays, now, j }) =>
    ["s + b =", now.capped[j], "+", signed(arrays.bias.data[j]), "=", now.biased[j]]],
  ["masked", [4, 3], "mask", "Masked score", ({ now, j }) =>
    (now.seen[j] ? [now.masked[j], mtext(" (visible: unchanged)")] : [now.biased[j], "→", -Infinity, mtext(" (hidden: its weight becomes 0)")])],
  ["weights", [4, 3], "softmax", "Weight", ({ now, j, p, n }) => {
    const shift = Math.abs(now.top) > 300 ? now.top : 0; // e to such a power has no double: both sides are divided by the largest
    const total = now.total * (shift || now.top === -Infinity ? 1 : Math.exp(now.top));
    return [p, "=", frac(`e^s_${n}`, "∑ e^s_l"), "=", frac(sup("e", now.masked[j] - shift), total), "=", now.weights[j]];
  }],
  ["weighted", [5, 4], "weight × v", "Weighted value", ({ now, j, p, v }) =>
    [p, v, "=", now.weights[j], "·", list(now.value(j), TERMS), "=", list(now.weighted(j), TERMS)], "value"],
];

/** The columns that this layer has, up to a step; a step that changes nothing is left out. Plain: x is q, k and v. */
const columnsOf = ({ plain, scale, root, ...facts }, last, five) => {
  const idle = { v: plain, related: !facts.related, scaled: scale === 1, capped: facts.soft_cap === null, biased: !facts.biased };
  return COLUMNS.filter(([name, at]) => at[five] <= last && !idle[name]).map(([name, at, title, words, formula, colour]) => ({ name, step: at[five], formula, colour,
    title: name === "scaled" && !root ? "× scale" : plain ? title.replace(/\b[qkv]\b/g, "x") : title, words: plain && name === "k" ? "Vector" : words }));
};

/** The whole head in matrices, by either convention. */
const matrices = (facts, asRows, masked) => {
  const [q, k, v] = ["query", "key", "value"].map((kind, n) => `${facts.plain ? "X" : "QKV"[n]}:${kind}`);
  const scores = product(q, k, asRows);
  const scaled = facts.scale === 1 ? scores : facts.root ? frac(scores, sqrt("D_K")) : [facts.scale, scores];
  const softmax = ["softmax (", facts.soft_cap === null ? scaled : ["cap (", scaled, ")"], facts.biased ? "+ B" : null, masked ? "+ M" : null, ")"];
  return formula(facts.plain ? null : [q, k, v].map((name, n) => [name, "=", read("QKV"[n], facts.crossed && n ? "M" : "X", asRows), ","]), "Z =", asRows ? [softmax, v] : [v, softmax]);
};

// ---- the view ----

export const draw = (panel, answer, look) => {
  const { facts, arrays } = answer;
  const changes = changesOf(look, facts);
  const usual = facts.plain ? "cornell" : "epfl";
  const five = Number(look.option("numbering", usual) === "cornell");
  const asRows = look.option("convention", "rows") !== "columns";
  const names = NAMES[five].map((name) => (name === "Sum and project" && !facts.projected ? "Sum" : name));
  const last = names.length;
  const step = placeIn(look.option("step", last) - 1, last, last - 1) + 1;
  const base = facts.count_from;
  const i = facts.query + base, token = quoted(facts.token);
  const count = facts.keys.length;
  const own = recompute(answer, unchanged());
  let now = own;

  const from = look.option("from", null);
  const first = facts.partial || from === null ? facts.first : placeIn(from, count);
  const stop = Math.min(count, first + PAGE);
  const keys = times(stop - first, (n) => first + n);
  const columns = columnsOf(facts, step, five);

  const reset = button("Reset", () => { Object.assign(changes, unchanged(changes.projection)); update(true); });
  const root = h("input", { type: "checkbox", disabled: facts.partial, data: { focus: "root" }, onchange: () => { changes.root = root.checked; update(); } });
  append(panel, [
    controlRow(
      buttons(look, { name: "numbering", label: "Steps", options: [["epfl", "6 (EPFL)"], ["cornell", "5 (Cornell)"]], fallback: usual }),
      buttons(look, { name: "convention", label: "Tokens are", options: [["rows", "rows: XW"], ["columns", "columns: WᵀX"]], fallback: "rows" }),
      facts.scale === 1 ? null : h("label", { class: "control", title: facts.partial ? "too many keys to compute again here" : null }, root, facts.root ? `divide by √${arrays.q.shape[0]}` : `multiply by ${number(facts.scale)}`),
      reset,
      button(facts.example ? "Back to the model" : "Lecture example", () => look.select({ example: facts.example ? null : "lecture" }))),
    scrubber(look, names, step),
    matrices(facts, asRows, own.seen.includes(false)),
    facts.example ? note(look.notes.lecture) : null,
    h("div", { class: "vectors" }, (facts.plain ? [["x", "query"]] : [["x", ""], ["q", "query"]]).filter(([name]) => arrays[name])
      .map(([name, kind]) => vector(`${name}${low(i)} of ${token}`, arrays[name].data, kind))),
  ]);

  const explained = h("div", { class: "readout worked" });
  let shown = null; // the column and the key that are explained
  const explain = (column, j) => {
    shown = [column, j];
    const n = j + base;
    const [q, k, v] = Array.from(facts.plain ? "xxx" : "qkv", (letter, at) => `${letter}:${["query", "key", "value"][at]}_${at ? n : i}`);
    const moved = !column.colour && !same(now[column.name][j], own[column.name][j]);
    replace(explained, h("div", {}, h("b", {}, column.words), " of key ", h("span", { class: "key" }, quoted(facts.keys[j])), ` (${n})`,
      moved ? h("span", { class: "soft" }, `, changed: the model has ${number(own[column.name][j])}`) : null),
    formula(column.formula({ facts, arrays, now, i, j, n, q, k, v, p: `p_${i},${n}`, asRows, changes })));
  };

  // The table: each cell is {node, focus: what takes the focus, set: writes the numbers of now}.
  const cells = new Map();
  const cellAt = (column, j) => cells.get(`${column.name} ${j}`);
  const widest = { k: largest(arrays.k.data), v: largest(arrays.v.data), weighted: Math.max(...keys.map((j) => largest(own.weighted(j), 0)), 1e-12) };
  const put = (map, j, value, given) => { if (value === given) map.delete(j); else map.set(j, value); update(); };
  const star = (moved) => (moved ? " ∗" : "");
  const makeCell = ({ name, words, colour }, j) => {
    const label = `${quoted(facts.keys[j])}, key ${j + base}`;
    if (name === "scores") {
      const given = arrays.scores.data[j];
      const write = () => { input.value = String(Number(now.scores[j].toPrecision(4))); };
      const input = h("input", { type: "number", step: "any", "aria-label": `${words} of ${label}, can be changed`, data: { focus: `score-${j}` },
        oninput: () => put(changes.scores, j, input.value ? Number(input.value) : given, given),
        onchange: () => { if (!input.value) write(); } });
      const mark = h("span", { class: "mark", "aria-hidden": "true" });
      return { node: h("td", {}, input, mark), focus: input, set: (all) => {
        mark.textContent = star(changes.scores.has(j));
        if (all || document.activeElement !== input) write();
      } };
    }
    if (name === "masked") {
      const box = h("input", { type: "checkbox", "aria-label": `${label} is visible`, data: { focus: `seen-${j}` }, onchange: () => put(changes.visible, j, box.checked, own.seen[j]) });
      const text = h("span", { class: "figure" });
      return { node: h("td", {}, box, text), focus: box, set: () => { box.checked = now.seen[j]; text.textContent = number(now.masked[j]) + star(changes.visible.has(j)); } };
    }
    const node = h("td", { data: { focus: `cell-${name}-${j}` } });
    const set = () => {
      const value = colour ? now[name](j) : now[name][j];
      const text = colour ? told(value) : number(value) + star(!same(value, own[name][j]));
      replace(node, colour ? strip(value, colour, { top: widest[name] }) : [name === "weights" ? share(value) : null, text]);
      node.setAttribute("aria-label", `${words} of ${label}: ${text.replace(" ∗", ", changed")}`);
    };
    return { node, focus: node, set };
  };

  let at = null; // [column, key] of the table's one tab stop
  const stand = (column, j) => {
    for (const cell of cells.values()) cell.focus.tabIndex = -1;
    at = [columns.indexOf(column), j];
    for (const each of columns) { // of the current row also its score and its mask, which can be changed
      const cell = cellAt(each, j);
      if (each === column || cell.focus !== cell.node) cell.focus.tabIndex = 0;
    }
    explain(column, j);
  };
  const line = (j) => h("tr", { "aria-selected": String(j === look.selection.key && !facts.example) },
    h("th", { scope: "row", class: "fixed mono key" }, h("span", { class: "soft" }, `${j + base} `), visible(facts.keys[j])),
    columns.map((column) => {
      const cell = makeCell(column, j);
      cell.focus.addEventListener("focus", () => stand(column, j));
      cell.node.addEventListener("mouseenter", () => explain(column, j));
      cells.set(`${column.name} ${j}`, cell);
      return cell.node;
    }));
  const heading = (corner, text) => h("tr", {}, h("th", { scope: "col", class: "fixed" }, corner),
    columns.map((column) => h("th", { scope: "col", class: text === "title" ? column.colour : null }, column[text])));
  const grid = h("table", { role: "grid", class: "steps", "aria-label": `Steps of ${token}, one row a key` },
    h("thead", {}, heading("Step", "step"), heading("Key", "title")), h("tbody", {}, keys.map(line)));
  grid.addEventListener("keydown", (event) => {
    const typing = event.target.matches("input[type=number]");
    const move = event.key === "Enter" ? [event.shiftKey ? -1 : 1, 0] : typing ? (event.key === "Escape" ? [0, 1] : null) : arrow(event);
    if (!at || !move) return;
    event.preventDefault();
    event.stopPropagation();
    cellAt(columns[clamp(at[0] + move[1], 0, columns.length - 1)], clamp(at[1] + move[0], first, stop - 1)).focus.focus();
  });
  const result = h("div", { class: "vectors" });
  append(panel, [explained, scroll("Steps, key by key", grid), count > PAGE ? pager(look, first, stop, own.weights, base) : null, step === last ? result : null]);

  const finish = () => {
    const edited = isChanged(changes);
    const out = edited ? projected(now.z, changes.projection) : arrays.out.data;
    const total = arrays.total.data;
    const whole = edited ? withOthers(facts.projected ? out : now.z, arrays) : total;
    const verdict = edited
      ? whole && `With your changes the layer's output for ${token} moves by ${number(length(Array.from(whole, (x, d) => x - total[d])))}; its length is ${number(length(total))}.`
      : `The steps together give the layer's own output: largest difference ${number(facts.gap)}.`;
    replace(result, vector(`${five && !facts.projected ? "a" : "z"}${low(i)}, the sum`, now.z, "value"),
      facts.projected ? [vector(asRows ? "z W_O, this head" : "W_Oᵀ z, this head", out, "head"), vector("all heads and bias", whole, "")] : null,
      arrays.expected && verdict ? small(verdict) : null);
  };

  const rows = [];
  const update = (all = false) => {
    now = recompute(answer, changes);
    for (const cell of cells.values()) cell.set(all);
    reset.disabled = !isChanged(changes);
    root.checked = changes.root;
    rows.splice(0, rows.length, ...facts.keys.map((text, j) => [j + base, text, now.seen[j] ? "yes" : "no", now.scores[j], now.related[j], now.scaled[j], now.capped[j], now.biased[j],
      Number.isFinite(now.masked[j]) ? now.masked[j] : "−∞", now.weights[j]]));
    if (shown) explain(...shown);
    if (isChanged(changes) && facts.projected && changes.projection === null && step === last) fetchProjection(look, changes, finish);
    finish();
  };
  update(true);
  if (columns.length && keys.length) {
    const chosen = keys.includes(look.selection.key) && !facts.example;
    stand(columns.find((each) => each.name === "weights") ?? columns.at(-1), chosen ? look.selection.key : first + best(now.weights.slice(first, stop)));
  }

  const most = best(own.weights);
  return {
    summary: `${facts.label}${facts.example ? "" : `, head ${facts.head}`}: ${token} takes most from ${quoted(facts.keys[most])} (${percent(own.weights[most])}); `
      + `it sees ${own.seen.filter(Boolean).length} of ${count} keys.`,
    columns: ["key", "token", "visible", "q·k", "with relative", "scaled", "capped", "biased", "masked", "weight"], rows,
  };
};

// ---- pieces ----

const low = (n) => String(n).replace(/\d/g, (digit) => String.fromCharCode(0x2080 + Number(digit)));

/** Numbers as small bars above and below zero. */
const strip = (values, kind, { top = largest(values), label = null } = {}) => svg("svg", { class: "strip", viewBox: `0 0 ${values.length} 2`, width: clamp(values.length * 4, 24, 128), height: 20,
  preserveAspectRatio: "none", ...(label ? { role: "img", "aria-label": label } : { "aria-hidden": "true" }) },
svg("line", { x2: values.length, y1: 1, y2: 1 }),
Array.from(values, (value, n) => {
  const tall = Math.min(1, Math.abs(value) / top);
  return svg("rect", { x: n + 0.1, width: 0.8, y: value < 0 ? 1 : 1 - tall, height: tall, fill: `var(--${kind || "soft"})` });
}));

/** A vector with its name: bars, and its numbers where they are few. */
const vector = (name, values, kind) => h("div", { class: "vector" }, h("span", { class: `name small ${kind}` }, name), values ? strip(values, kind, { label: name }) : null,
  h("span", { class: "soft small" }, !values ? "needs W_O, which this page does not hold" : values.length <= 4 ? Array.from(values, (x) => number(x)).join("  ") : told(values)));

/** A weight as a bar in front of its number. */
const share = (weight) => h("span", { class: "share", "aria-hidden": "true" }, h("span", { style: { width: `${Math.round(weight * 48)}px` } }));

const group = (label, kind, ...children) => h("div", { class: `controls ${kind}`, role: "group", "aria-label": label }, ...children);

const scrubber = (look, names, step) => {
  const last = names.length, name = names[step - 1];
  const go = (to) => look.select({ step: to === last ? null : to });
  const by = (text, label, way, end, focus) => button(text, () => go(step + way), { label, disabled: step === end, focus });
  return group("Steps", "scrubber",
    by("‹", "Previous step", -1, 1, "step-back"),
    h("input", { type: "range", min: 1, max: last, value: step, "aria-label": "Step", "aria-valuetext": `${step}: ${name}`, data: { focus: "step" }, onchange: (event) => go(Number(event.target.value)) }),
    by("›", "Next step", 1, last, "step-on"),
    h("span", {}, h("b", {}, `Step ${step} of ${last}`), ` · ${name}`));
};

const pager = (look, first, stop, weights, base) => {
  const go = (text, from, disabled, label, focus) => button(text, () => look.select({ from }), { disabled, label, focus });
  return group("Keys shown", "",
    go("‹", Math.max(0, first - PAGE), first === 0, "Earlier keys", "keys-back"),
    h("span", { class: "small" }, `Keys ${first + base} to ${stop - 1 + base} of ${weights.length}, with ${percent(sum(weights.slice(first, stop)))} of the weight`),
    go("›", stop, stop === weights.length, "Later keys", "keys-on"),
    go("From the first", 0, first === 0), go("Around the largest", null, look.option("from", null) === null));
};

const fetchProjection = async (look, changes, then) => {
  changes.projection = false; // asked for
  try {
    changes.projection = (await look.ask("steps", { part: "projection", query: 0 })).arrays.projection;
    then();
  } catch (error) {
    if (error.kind !== "absent") throw error;
  }
};
