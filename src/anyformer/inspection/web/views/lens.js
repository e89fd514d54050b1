// The logit lens: a grid of layers by positions with each layer's first choice, the ten best of one cell, and how the final
// answer rises through the layers.

import { announce, h } from "look/element";
import { bars } from "look/bars";
import { chart } from "look/chart";
import { arrow, row, scroll, slider, toggle } from "look/controls";
import { legend } from "look/heatmap";
import { cut, number, percent, quoted, visible, whole } from "look/format";
import { colour, onColour, place } from "look/palette";
import { clamp, placeIn, rowOf, sum, times } from "look/lists";
import { note, roomOf, titled } from "look/parts";

export const draw = (panel, answer, look) => {
  const { facts } = answer;
  panel.append(controls(look, facts));
  const drawn = facts.kind === "numbers" ? drawNumbers : facts.count === 1 && facts.kind === "classes" ? drawClasses : drawGrid;
  return drawn(panel, answer, look);
};

const controls = (look, facts) => row(
  facts.has_norm ? toggle(look, { name: "norm", label: "Final norm", fallback: true }) : null,
  facts.count > facts.window ? slider(look, { name: "start", label: "From token", min: 0, max: facts.count - 1, step: 16, fallback: 0 }) : null,
  h("span", { class: "soft small" }, check(facts)));

const check = (facts) => {
  if (facts.has_norm && !facts.normed) return `Without the norm the last row is not the model's answer: its logits are off by ${number(facts.error)}.`;
  return facts.error === 0 ? "✓ The last row is the model's own logits." : `The last row's logits are within ${number(facts.error)} of the model's own.`;
};

const layerOf = (look, facts) => {
  const { length } = facts.layers;
  return placeIn(look.option("layer", length - 1), length, length - 1);
};

/** The position looked at, and how to choose another: the shared query where the selected site has the same tokens. */
const positionOf = (look, facts) => {
  const shared = look.site?.queries === facts.axis;
  const wanted = shared ? look.selection.query : Number(look.option("position", facts.start + facts.tokens.length - 1));
  const at = clamp((Number.isInteger(wanted) ? wanted : 0) - facts.start, 0, facts.tokens.length - 1);
  return [at, (t) => (shared ? { query: facts.start + t } : { position: facts.start + t })];
};

/** A table of buttons: one tab stop, arrow keys move. cell(r, c) -> {text, share, said}. */
const grid = ({ label, rows, columns, corner, cell, selected: [sr, sc], onSelect }) => {
  const buttons = rows.map((_, r) => columns.map((_, c) => {
    const { text, share, said } = cell(r, c);
    const here = r === sr && c === sc;
    return h("button", { type: "button", tabindex: here ? 0 : -1, title: said, "aria-label": said, "aria-current": here ? "true" : null,
      data: { focus: `lens-${r}-${c}`, row: r, column: c }, onclick: () => onSelect(r, c), style: { background: colour(share), color: onColour(share) } }, text);
  }));
  const table = h("table", { role: "grid", class: "lens", "aria-label": label },
    h("thead", {}, h("tr", {}, h("th", { scope: "col", class: "fixed" }, corner), columns.map((text, c) => h("th", { scope: "col", class: c === sc ? "mono on" : "mono" }, text)))),
    h("tbody", {}, rows.map((name, r) => h("tr", {}, h("th", { scope: "row", class: r === sr ? "fixed on" : "fixed" }, name), buttons[r].map((each) => h("td", {}, each))))));
  table.addEventListener("keydown", (event) => {
    const move = arrow(event, { line: columns.length });
    const now = event.target.closest("button")?.dataset;
    if (!move || !now) return;
    event.preventDefault();
    const to = [[rows.length, Number(now.row) + move[0]], [columns.length, Number(now.column) + move[1]]].map(([n, i]) => clamp(i, 0, n - 1));
    buttons[to[0]][to[1]].focus();
    onSelect(...to);
  });
  return scroll(`${label}, scrolls`, table);
};

const drawGrid = (panel, { facts, arrays }, look) => {
  const [L, T, K] = arrays.ids.shape;
  const layer = layerOf(look, facts);
  const [at, move] = positionOf(look, facts);
  const { layers, tokens } = facts;
  const best = (l, t, k = 0) => {
    const n = (l * T + t) * K + k, id = arrays.ids.data[n];
    return { id, name: facts.names[id] ?? `#${id}`, p: Math.exp(arrays.logprobs.data[n]) };
  };
  const told = (l, t, between = ", ", after = "") => `${quoted(best(l, t).name)}${between}${percent(best(l, t).p)}${after}`;
  const by = (array, l, t) => arrays[array].data[l * T + t];
  const chosen = (t) => best(L - 1, t).name;
  const where = facts.next ? "after" : "at";
  const here = quoted(tokens[at].text), answer = quoted(chosen(at));

  const cells = grid({
    label: "First choice of each layer at each position", rows: layers, columns: tokens.map((token) => cut(visible(token.text), 12)),
    corner: facts.next ? "next after" : "", selected: [layer, at],
    cell: (l, t) => ({ text: cut(visible(best(l, t).name), 12), share: place(best(l, t).p, 0, 1), said: `${layers[l]}, ${where} ${quoted(tokens[t].text)}: ${told(l, t)}` }),
    onSelect: (l, t) => { announce(`${layers[l]}: ${told(l, t)}`); look.select({ layer: l === L - 1 ? null : l, ...move(t) }); },
  });
  panel.append(cells, legend({ range: [0, 1], format: percent, name: h("span", {}, "probability of the first choice") }));

  const on = cells.querySelector("[aria-current]").parentNode;
  if (on.offsetLeft + on.offsetWidth > cells.clientWidth) cells.scrollLeft = on.offsetLeft + on.offsetWidth - cells.clientWidth; // in sight

  /** A number of each layer at this position, and what all positions together have. */
  const lines = (array, name, together, drawn = Number) => {
    const line = (of) => times(L, (l) => drawn(of(rowOf(arrays[array], l))));
    return [{ name: "here", values: line((row) => row[at]) }, ...(T > 1 ? [{ name, values: line(together) }] : [])];
  };
  const valuesOf = (series) => series.flatMap((each) => each.values);
  // Ranks run from 1 at the top to the size of the vocabulary: their logarithm is drawn, upside down.
  const ranks = lines("ranks", "median", (row) => row.toSorted()[Math.floor(T / 2)], (rank) => -Math.log10(rank));
  const nats = lines("divergence", "mean", (row) => sum(row) / T);
  const size = { width: clamp(roomOf(panel) / (panel.clientWidth > 700 ? 2 : 1) - 24, 280, 480), height: 168 };
  panel.append(h("div", { class: "columns" },
    titled(`${layers[layer]}, ${where} ${here}`,
      bars({ label: "Ten most probable", range: [0, best(layer, at).p], format: percent, items: times(K, (k) => {
        const { id, name, p } = best(layer, at, k);
        return { name: visible(name), value: p, on: id === best(L - 1, at).id };
      }) }),
      note(`Bold: ${answer}, the model's own first choice.`)),
    titled(`Rank of ${answer} by layer`,
      byLayer(facts, ranks, { label: "rank", range: [Math.min(-1, ...valuesOf(ranks)), 0], format: (v) => whole(10 ** -v) }, "Rank of the final answer by layer", size),
      h("h3", {}, "Distance to the final answer"),
      byLayer(facts, nats, { label: "KL, nats", range: [0, Math.max(1e-6, ...valuesOf(nats))] }, "KL divergence from the final distribution by layer", size))));

  const settled = times(L, (l) => by("ranks", l, at)).findLastIndex((rank) => rank !== 1) + 1;
  return {
    summary: `${facts.next ? "After" : "At"} ${here} the model answers ${told(L - 1, at, " (", ")")}; it is first from ${from(settled, facts)} on. `
      + `${layers[layer]} answers ${told(layer, at, " (", ")")}, ${number(by("divergence", layer, at))} nats from the end.`,
    columns: ["layer", "position", "token", "first choice", "probability", "final choice", "its probability", "its rank", "KL to final (nats)", "entropy (nats)"],
    rows: layers.flatMap((name, l) => tokens.map((token, t) => [name, facts.start + t, token.text, best(l, t).name, best(l, t).p, chosen(t),
      Math.exp(by("chosen_logprobs", l, t)), ...["ranks", "divergence", "entropy"].map((array) => by(array, l, t))])),
  };
};

const from = (l, facts) => (l === 0 ? "the embedding" : facts.layers[l].toLowerCase());

/** Lines over the layers. */
const byLayer = (facts, series, y, label, more) => {
  const every = Math.ceil(facts.layers.length / 7);
  const ticks = facts.layers.map((_, l) => [l, l ? String(l - 1) : "emb."]).filter(([l]) => l % every === 0);
  return chart({ series, x: { label: "layer", ticks }, y, label, ...more });
};

/** A classifier: one answer a layer, so the columns are its classes. */
const drawClasses = (panel, { facts, arrays }, look) => {
  const [L, , K] = arrays.ids.shape;
  const layer = layerOf(look, facts);
  const ids = (l) => Array.from(arrays.ids.data.subarray(l * K, (l + 1) * K));
  const classes = ids(L - 1);
  const share = (l, id) => {
    const k = ids(l).indexOf(id);
    return k < 0 ? null : Math.exp(arrays.logprobs.data[l * K + k]);
  };
  const name = (id) => facts.names[id] ?? `class ${id}`;
  const told = (l, id) => (share(l, id) === null ? "below the first ten" : percent(share(l, id)));
  const by = (l) => ["ranks", "divergence", "entropy"].map((array) => arrays[array].data[l]);
  panel.append(grid({ label: "Probability of each class by layer", rows: facts.layers, columns: classes.map((id) => cut(name(id), 16)), corner: "class", selected: [layer, 0],
    cell: (l, c) => ({ text: told(l, classes[c]), share: place(share(l, classes[c]) ?? 0, 0, 1), said: `${facts.layers[l]}, ${quoted(name(classes[c]))}: ${told(l, classes[c])}` }),
    onSelect: (l) => look.select({ layer: l === L - 1 ? null : l }) }));
  if (facts.many) panel.append(note(look.notes.labels));
  panel.append(byLayer(facts, classes.slice(0, 6).map((id) => ({ name: cut(name(id), 14), values: times(L, (l) => share(l, id)) })),
    { label: "probability", range: [0, 1], format: percent }, "Probability of the classes by layer", { width: roomOf(panel, 720), height: 220, mark: layer }));
  const [rank, nats] = by(layer);
  return {
    summary: `The model answers ${quoted(name(classes[0]))} (${told(L - 1, classes[0])}); after ${from(layer, facts)} it has ${told(layer, classes[0])}, rank ${whole(rank)}, ${number(nats)} nats from the end.`,
    columns: ["layer", "class", "probability", "rank of the final class", "KL to final (nats)", "entropy (nats)"],
    rows: facts.layers.flatMap((layerName, l) => ids(l).map((id) => [layerName, name(id), share(l, id), ...by(l)])),
  };
};

/** A head of numbers: its values after each layer. */
const drawNumbers = (panel, { facts, arrays }) => {
  const [L, T, O] = arrays.values.shape;
  const valuesOf = (l) => times(O, (o) => arrays.values.data[l * T * O + o]);
  const told = (l) => valuesOf(l).map((value) => number(value)).join(", ");
  const names = times(O, (o) => facts.outputs[o]);
  panel.append(byLayer(facts, names.slice(0, 8).map((name, o) => ({ name, values: times(L, (l) => valuesOf(l)[o]) })),
    { label: O === 1 ? names[0] : "answer" }, "The answer after each layer", { width: roomOf(panel, 720) }));
  return {
    summary: `The model answers ${told(L - 1)}; after the embedding alone it would be ${told(0)}.`,
    columns: ["layer", ...names], rows: facts.layers.map((name, l) => [name, ...valuesOf(l)]),
  };
};
