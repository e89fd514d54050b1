// A table's columns: what the class token reads of each, what is lost when a column is shuffled, and column by column.

import { h } from "look/element";
import { bars } from "look/bars";
import { buttons, row, select, toggle } from "look/controls";
import { formula } from "look/formula";
import { count, number, percent, quoted, signed } from "look/format";
import { heatmap, legend, rangeOf } from "look/heatmap";
import { best, sum, times } from "look/lists";
import { beside, note, part, readout, roomOf, soft, titled } from "look/parts";

export const draw = (panel, answer, look) => {
  const { facts, arrays } = answer;
  const width = roomOf(panel, 720);
  const attention = arrays.from_class && meanBy(arrays.from_class, look.option("layer", "mean"));
  const drops = arrays.drops?.data, empty = arrays.empty?.data;
  const by = Object.fromEntries(Object.entries({ attention, "empty cell": empty?.map(Math.abs), permutation: drops }).filter(([, values]) => values));
  const [first = "table", ...more] = Object.keys(by);
  const order = sorted(facts, by[look.option("sort", first)], look);
  panel.append(row(
    facts.rows > 1 && select(look, { name: "row", label: "Rows", fallback: 0, options: times(Math.min(facts.rows, 200) + 1, (i) => [i, i ? `row ${i}` : `all ${facts.rows} rows`]) }),
    attention && select(look, { name: "layer", label: "Layers", fallback: "mean", options: [["mean", "mean of all"], ...facts.layers.map((name, i) => [i, name])] }),
    first !== "table" && buttons(look, { name: "sort", label: "Sort by", fallback: first, options: [first, "table", ...more].map((name) => [name, name]) }),
    new Set(facts.groups).size > 1 && toggle(look, { name: "group", label: "Numbers and categories apart" })));
  panel.append(beside(
    attention && part("Class token → column", grouped(facts, order, look, attention, (i) => percent(attention[i]), "What the class token reads of each column")),
    empty && part("Changed when the cell is left empty", emptied(facts, empty, order, look)),
    part("Lost when the column is shuffled", permutation(facts, arrays, order, look))));
  if (attention) panel.append(soft(facts.note), pairs(facts, arrays, order, look, width), tokensOf(facts, arrays, order, look));
  const exact = Object.entries({ attention, "change when empty": empty, "lost when shuffled": drops, spread: arrays.spread?.data, "token length": arrays.tokens?.data }).filter(([, values]) => values);
  return {
    summary: `${attention ? reading(facts, attention) : facts.found} ${facts.agreement}`,
    columns: ["column", "kind", "value", ...exact.map(([name]) => name)],
    rows: order.map((i) => [...["names", "groups", "values"].map((name) => facts[name][i]), ...exact.map(([, values]) => values[i])]),
  };
};

const reading = (facts, attention) => {
  const most = best(attention);
  return `${facts.who} the class token reads ${quoted(facts.names[most])} most (${percent(attention[most])}) and itself ${percent(facts.itself)}${facts.others > 0.001 ? `; tokens that are no columns have ${percent(facts.others)}` : ""}.`;
};

const emptied = (facts, change, order, look) => [
  grouped(facts, order.filter((i) => Number.isFinite(change[i])), look, change, (i) => signed(change[i]), "Change when each cell is left empty"),
  note(`With all cells the ${facts.empty.what} is ${number(facts.empty.whole, 6)}.`)];

/** (L,H,F) to (F,): the mean over heads, of one layer or of all. */
const meanBy = ({ data, shape: [layers, heads, features] }, layer) => {
  const all = times(layers, (l) => l), one = all.filter((l) => String(l) === layer);
  const rows = (one.length ? one : all).flatMap((l) => times(heads, (head) => (l * heads + head) * features));
  return Float32Array.from({ length: features }, (_, f) => sum(rows.map((from) => data[from + f])) / rows.length);
};

const apart = (look) => look.option("group", "0") === "1";

/** The columns by those numbers, largest first, or as the table has them; apart, kind by kind, where that is asked for. */
const sorted = (facts, by, look) => {
  const order = facts.names.map((_, i) => i);
  if (by) order.sort((a, b) => by[b] - by[a]);
  return apart(look) ? kindsOf(facts, order).flatMap(([, list]) => list) : order;
};
const kindsOf = ({ groups }, order) => [...new Set(groups)].map((kind) => [kind, order.filter((i) => groups[i] === kind)]).filter(([, list]) => list.length);

/** Bars of the columns; apart, with the sum of each kind, where that is asked for. */
const grouped = (facts, order, look, values, text, label) => {
  const shown = order.map((i) => values[i]);
  const range = [Math.min(0, ...shown), Math.max(1e-9, ...shown)];
  const one = (list, label) => bars({ items: list.map((i) => ({ name: facts.names[i], value: values[i], label: text(i) })), range, label });
  if (!apart(look)) return one(order, label);
  return kindsOf(facts, order).map(([kind, list]) => h("div", {},
    note(`${kind === "number" ? "Numbers" : "Categories"}: ${count(list.length, "column")}, together ${number(sum(list.map((i) => values[i])))}`), one(list, `${label}: ${kind}`)));
};

const permutation = (facts, arrays, order, look) => {
  if (!facts.permutation) return note(facts.why_no_permutation ?? "");
  const { metric, whole, rows, repeats } = facts.permutation;
  const drops = arrays.drops.data, spread = arrays.spread.data;
  return [grouped(facts, order.filter((i) => Number.isFinite(drops[i])), look, drops, (i) => `${number(drops[i])} ± ${number(spread[i], 2)}`, `${metric} lost when each column is shuffled`),
    note(`${metric} ${number(whole)} on ${count(rows, "row")}, ${count(repeats, "shuffle")} each. ${facts.agreement}`)];
};

const pairs = (facts, arrays, order, look, width) => {
  const count = order.length;
  const data = Float32Array.from(order.flatMap((i) => order.map((j) => arrays.pairs.data[i * count + j])));
  const names = order.map((i) => facts.names[i]);
  const range = [0, rangeOf(data)[1]];
  const scale = look.option("scale", "sqrt");
  const selected = ["reading", "read"].map((name) => Math.max(0, order.indexOf(Number(look.option(name, order[0])))));
  const describe = (i, j, value) => `${quoted(names[i])} reads ${quoted(names[j])}: ${number(value)}`;
  return titled("Column → column", heatmap({ data, shape: [count, count], rows: { labels: names, name: "reads", kind: "query" }, columns: { labels: names, name: "is read", kind: "key" }, range, scale, width, most: 40,
    label: "Attention between columns, mean over heads and layers", focus: "pairs", numbers: look.option("numbers", "0") === "1", selected,
    describe, onSelect: (i, j) => look.select({ reading: order[i], read: order[j] }) }),
  readout(describe(...selected, data[selected[0] * count + selected[1]])), legend({ range, scale }));
};

const tokensOf = (facts, arrays, order, look) => {
  const values = arrays.tokens.data;
  return titled("Column tokens", formula("token_j = x_j W:value_j + b:value_j"),
    note(look.notes.length),
    bars({ label: "Length of each column's token", items: order.map((i) => ({ name: facts.values[i] === "" ? facts.names[i] : `${facts.names[i]}: ${facts.values[i]}`, value: values[i], colour: "var(--value)" })), range: [0, Math.max(1e-9, ...values)] }));
};
