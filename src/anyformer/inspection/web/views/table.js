// A table's columns: what the class token reads of each, what is lost when a column is shuffled, and column by column.
// Options: row (0: all rows), sort ("attention", "table", "permutation"), group, layer ("mean" or a number).

import { h } from "look/element";
import { bars } from "look/bars";
import { buttons, row, select, toggle } from "look/controls";
import { formula } from "look/formula";
import { count, number, percent, quoted } from "look/format";
import { heatmap, legend, rangeOf } from "look/heatmap";
import { best, sum, times } from "look/lists";
import { beside, note, part, roomOf, soft, titled } from "look/parts";

export const draw = (panel, answer, look) => {
  const { facts, arrays } = answer;
  const width = roomOf(panel, 720);
  const attention = meanBy(arrays.from_class, look.option("layer", "mean"));
  const drops = arrays.drops?.data ?? null;
  const order = sorted(facts, { attention, permutation: drops ?? attention }[look.option("sort", "attention")], look);
  panel.append(row(
    facts.rows > 1 ? select(look, { name: "row", label: "Rows", fallback: 0, options: [[0, `all ${facts.rows} rows`], ...times(Math.min(facts.rows, 200), (i) => [i + 1, `row ${i + 1}`])] }) : null,
    select(look, { name: "layer", label: "Layers", fallback: "mean", options: [["mean", "mean of all"], ...facts.layers.map((name, i) => [i, name])] }),
    buttons(look, { name: "sort", label: "Sort by", fallback: "attention", options: ["attention", "table", ...(drops ? ["permutation"] : [])].map((name) => [name, name]) }),
    new Set(facts.groups).size > 1 ? toggle(look, { name: "group", label: "Numbers and categories apart" }) : null));
  panel.append(beside(
    part("Class token → column", grouped(facts, order, look, attention, (i) => percent(attention[i]), "What the class token reads of each column")),
    part("Lost when the column is shuffled", permutation(facts, arrays, order, look))),
  soft(facts.note), pairs(facts, arrays, order, look, width), tokensOf(facts, arrays, order, look));
  const most = best(attention);
  const of = (i, values) => [values[i], 1 + values.filter((value) => value > values[i]).length]; // with its rank
  return {
    summary: `${who(facts)}the class token reads ${quoted(facts.names[most])} most (${percent(attention[most])}) and itself ${percent(facts.itself)}${facts.others > 0.001 ? `; tokens that are no columns have ${percent(facts.others)}` : ""}. ${agreement(facts)}`,
    columns: ["column", "kind", "value", "attention", "rank", ...(drops ? ["lost when shuffled", "spread", "rank"] : []), "token length"],
    rows: order.map((i) => {
      const [drop, rank] = drops ? of(i, drops) : [];
      return [...["names", "groups", "values"].map((name) => facts[name][i]), ...of(i, attention), ...(drops ? [drop, arrays.spread.data[i], rank] : []), arrays.tokens.data[i]];
    }),
  };
};

const who = (facts) => (facts.rows === 1 ? "In this row " : facts.row === 0 ? `Over ${count(facts.rows, "row")} ` : `In row ${facts.row} `);

const agreement = ({ permutation }) => {
  if (!permutation) return "";
  const { correlation } = permutation;
  if (correlation === null) return "Shuffling gives the columns no order to compare with.";
  return `Attention and shuffling order the columns ${correlation > 0.7 ? "alike" : correlation > 0.3 ? "partly alike" : "differently"} (Spearman ${number(correlation, 2)}).`;
};

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
    note(`${metric} ${number(whole)} on ${count(rows, "row")}, ${count(repeats, "shuffle")} each. ${agreement(facts)}`)];
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
    label: "Attention between columns, mean over heads and layers", focus: "pairs", announce: look.announce, numbers: look.option("numbers", "0") === "1", selected,
    describe, onSelect: (i, j) => look.select({ reading: order[i], read: order[j] }) }),
  h("p", { class: "readout" }, describe(...selected, data[selected[0] * count + selected[1]])), legend({ range, scale }));
};

const tokensOf = (facts, arrays, order, look) => {
  const values = arrays.tokens.data;
  return titled("Column tokens", formula("token_j = x_j W:value_j + b:value_j"),
    note(look.notes.length),
    bars({ label: "Length of each column's token", items: order.map((i) => ({ name: facts.values[i] === "" ? facts.names[i] : `${facts.names[i]}: ${facts.values[i]}`, value: values[i], colour: "var(--value)" })), range: [0, Math.max(1e-9, ...values)] }));
};
