// Positions of every kind: maps, curves and the binary counter, with the model's own kind first; and shuffled tokens.

import { h } from "look/element";
import { bars } from "look/bars";
import { chart, wholeTicks } from "look/chart";
import { button, row, select, slider, toggle } from "look/controls";
import { formula, frac, mtext, sqrt } from "look/formula";
import { count, number, percent, quoted } from "look/format";
import { heatmap, legend, rangeOf } from "look/heatmap";
import { placeIn, rowOf, times } from "look/lists";
import { beside, note, readout, roomOf, small, soft, titled } from "look/parts";

export const draw = (panel, answer, look) => {
  const { facts } = answer;
  const width = roomOf(panel, 720);
  const pictures = PICTURES[facts.kind](answer);
  const names = Object.keys(pictures);
  const draw = pictures[look.option("picture", names[0])] ?? pictures[names[0]];
  const [first] = facts.kinds;
  const box = h("div", {});
  panel.append(row(
    select(look, { name: "scheme", label: "Kind", fallback: first.kind, options: facts.kinds.map(({ kind, name, own }) => [kind, own ? `${name} (this model)` : name]) }),
    select(look, { name: "picture", label: "Picture", fallback: names[0], options: names.map((name) => [name, name]) }),
    facts.grid ? null : slider(look, { name: "length", label: "Positions", min: 8, max: 256, step: 8, fallback: 64, format: String })),
  FORMULAS[facts.kind](), box);
  const told = draw({ ...answer, box, look, width });
  if (facts.shuffles) shuffling(panel, answer, look, width);
  const has = `This model has ${first.own ? first.name : "no positions of its own"}; ${facts.name} is shown with its usual settings.`;
  return { ...told, summary: `${facts.own ? `This model has ${facts.name}.` : has} ${told.summary}` };
};

const FORMULAS = {
  sinusoid: () => formula("PE_p,2i = sin (", frac("p", "10000^2i/D"), ") ,", mtext(" then cos of the same")),
  learned: () => formula("x_p = token_p + P:value_p"),
  rope: () => formula("score = ( R_m:query q:query ) · ( R_n:key k:key ) = q:query · R_n:key−m:query k:key"),
  alibi: () => formula("score =", frac("q:query · k:key", sqrt("C")), "− slope_h:head | m:query − n:key |"),
  buckets: () => formula("score = q:query · k:key + b:value_h:head,bucket(n:key−m:query)"),
  shaw: () => formula("score = q:query · ( k:key + a:value_n:key−m:query )"),
};

// ---- what a picture is made of ----
// A picture is a function of `on` = {box, facts, arrays, look, width}: it draws into the box and tells its summary and values.

const whole = (look, name, fallback, length) => placeIn(look.option(name, fallback), length, fallback);
const column = (array, at) => times(array.shape[0], (i) => array.data[i * array.shape[1] + at]);
const two = (data) => { const most = Math.max(...rangeOf(data).map(Math.abs), 1e-9); return [-most, most]; };
const numbers = (length, from = 0) => times(length, (i) => String(i + from));
const line = (values, name = "") => [{ name, values }];

/** A heat map whose cell is chosen by two options of the page. */
const field = (look, names, { shape, ...more }) => heatmap({ shape, ...more,
  selected: names.map((name, i) => whole(look, name, 0, shape[i])), onSelect: (i, j) => look.select({ [names[0]]: i, [names[1]]: j }) });

/** A map of a matrix (or of the array of that name), its cell chosen by two options of the page; the values table has the chosen row. */
const map = (matrix, rows, columns, title, { names = ["place", "channel"], range = null, sides = "two", labels = [], focus = "positions" } = {}) => ({ box, arrays, look, width }) => {
  const { data, shape } = arrays[matrix] ?? matrix;
  const [nr, nc] = shape;
  const bounds = range ?? (sides === "two" ? two(data) : [0, rangeOf(data)[1]]);
  const [down, across] = [labels[0] ?? numbers(nr), labels[1] ?? numbers(nc)];
  const at = [whole(look, names[0], 0, nr), whole(look, names[1], 0, nc)];
  const describe = (i, j, value) => `${rows} ${down[i]}, ${columns} ${across[j]}: ${number(value)}`;
  const chosen = describe(...at, data[at[0] * nc + at[1]]);
  box.append(field(look, names, { data, shape, rows: { labels: down, name: rows }, columns: { labels: across, name: columns }, range: bounds, sides, width, most: 24, label: title, focus, describe }),
  readout(`${chosen} · ${rows} down, ${columns} across`), legend({ range: bounds, sides }));
  const listed = nr <= 16 ? times(nr, (i) => i) : [at[0]];
  return { summary: `${title}: ${chosen}.`, columns: [columns, ...listed.map((i) => `${rows} ${down[i]}`)], rows: times(nc, (j) => [across[j], ...listed.map((i) => data[i * nc + j])]) };
};
const pairs = (matrix, rows, columns, title, more) => map(matrix, rows, columns, title, { names: ["place", "other"], ...more });

/** Lines over one axis; `xs` are its numbers: 0, 1, 2 ... where not given. */
const curves = ({ box, width }, series, { x, xs = [...series[0].values.keys()], y = "", title, ...more }) => {
  box.append(chart({ series: series.map((each) => ({ x: xs, ...each })), x: { label: x, ticks: wholeTicks(xs[0], xs.at(-1)) }, y: { label: y }, width, height: 280, label: title, ...more }));
  return { summary: title + ".", columns: [x, ...series.map((each) => each.name || y || "value")], rows: xs.map((at, i) => [at, ...series.map((each) => each.values[i])]) };
};
const ofHeads = (array, most) => times(most, (head) => ({ name: `head ${head}`, values: rowOf(array, head) }));
const byOffset = (series, y, title) => (on) => curves(on, series(on.arrays), { x: "key − query", xs: [...on.arrays.offsets.data], y, title });

/** A slider over a list, and where it stands. */
const pick = ({ box, look }, name, label, length, wanted) => {
  const fallback = Math.min(wanted, length - 1);
  box.append(row(slider(look, { name, label, min: 0, max: length - 1, fallback, format: String })));
  return whole(look, name, fallback, length);
};

const distance = (title, y, x = "distance") => (on) => {
  const { distance: { data }, spread } = on.arrays;
  const at = pick(on, "distance", "Distance", data.length, 1);
  const told = curves(on, line(data), { x, y, mark: at, title, onSelect: (value) => on.look.select({ distance: value }) });
  return { ...told, summary: `${title}: ${number(data[at])} at ${x} ${at}${spread ? `, spread over pairs ${number(spread.data[at], 2)}` : ""}.` };
};

// ---- one list of pictures a kind ----

const ofTable = (what) => ({
  "map": map("table", "position", "channel", what),
  "one position": (on) => {
    const { table } = on.arrays;
    const at = pick(on, "place", "Position", table.shape[0], 2);
    const other = Math.min(50, table.shape[0] - 1);
    return curves(on, [...new Set([at, other])].map((each) => ({ name: `position ${each}`, values: rowOf(table, each) })), { x: "channel", title: `The vector of position ${at} beside that of ${other}` });
  },
  "one channel": (on) => {
    const at = pick(on, "channel", "Channel", on.arrays.table.shape[1], 4);
    return curves(on, line(column(on.arrays.table, at), `channel ${at}`), { x: "position", title: `Channel ${at} over the positions` });
  },
});

const PICTURES = {
  sinusoid: ({ arrays }) => ({
    ...ofTable("Sinusoids"),
    "dot products": pairs("products", "position", "position", "Dot products of positions"),
    "dot product by distance": distance("Dot product of two positions", "dot product"),
    ...(arrays.counter && { "binary counter": counter }),
  }),
  learned: ({ facts }) => ({
    "similarity": pairs("similarity", "position", "position", "Cosine of learned positions", { range: [-1, 1] }),
    ...(facts.grid && { "one patch": patch }),
    "similarity by distance": distance("Mean cosine of two positions", "cosine"),
    ...ofTable("Learned positions"),
    ...(facts.channels && { "interpolation": interpolation }),
  }),
  rope: () => ({
    "score by distance": distance("Score of two equal vectors", "score", "m − n"),
    "score of every pair": pairs("scores", "query m", "key n", "Score of two equal vectors"),
    "pairs": map("cos", "position", "pair", "Cosine of the angle that a pair of channels turns by", { range: [-1, 1] }),
    "one pair": (on) => {
      const { cos, sin, wavelengths } = on.arrays;
      const at = pick(on, "channel", "Pair", cos.shape[1], 0);
      return curves(on, [...line(column(cos, at), "cos"), ...line(column(sin, at), "sin")], { x: "position", title: `Pair ${at} turns once in ${number(wavelengths.data[at])} positions` });
    },
    "longer texts": scaling,
  }),
  alibi: () => ({
    "by distance": (on) => curves(on, ofHeads(on.arrays.distance, on.facts.shown), { x: "distance", y: "added to the score", title: "What each head adds to a score" }),
    "slopes": ({ box, arrays: { slopes: { data } } }) => {
      box.append(bars({ label: "Slope of each head", items: [...data].map((value, i) => ({ name: `head ${i}`, value, colour: "var(--head)" })) }));
      return { summary: `Slopes from ${number(data[0])} to ${number(data.at(-1))}: the first heads look near, the last ones far.`, columns: ["head", "slope"], rows: [...data].map((value, i) => [i, value]) };
    },
    "every pair": (on) => {
      const head = Math.min(on.look.selection.head, on.facts.shown - 1);
      const { data, shape: [, t, s] } = on.arrays.bias;
      return pairs({ data: rowOf({ data, shape: [0, t * s] }, head), shape: [t, s] }, "query", "key", `What head ${head} adds`)(on);
    },
  }),
  buckets: ({ arrays }) => ({
    ...(arrays.bias && { "learned bias": byOffset(({ bias }) => ofHeads(bias, Math.min(8, bias.shape[0])), "bias", "Learned bias of each head by distance") }),
    "bucket by distance": (on) => ({ ...byOffset(({ buckets }) => line(buckets.data), "bucket", "Bucket of each distance")(on),
      summary: `${on.facts.buckets} buckets: near distances have their own, far ones share, all beyond ${on.facts.reach} the last.` }),
    "every pair": pairs("matrix", "query", "key", "Bucket of every pair", { sides: "one" }),
  }),
  shaw: ({ facts }) => {
    const labels = numbers(2 * facts.k + 1, -facts.k);
    return {
      "vectors": map("keys", "distance", "channel", "Learned vector of each distance", { labels: [labels] }),
      "similarity": pairs("similarity", "distance", "distance", "Cosine of the vectors of two distances", { range: [-1, 1], labels: [labels, labels] }),
      "length by distance": byOffset(({ norms }) => line(norms.data), "length", "Length of each distance's vector"),
    };
  },
};

const counter = ({ box, arrays, look }) => {
  const range = [-1, 1];
  const one = (title, { data, shape }, kind) => titled(title, field(look, ["place", "channel"], { data: Float32Array.from(data), shape, rows: { labels: numbers(shape[0]), name: "number" }, range, sides: "two", width: 200, most: 22,
    label: title, focus: `counter-${kind}`, describe: (i, j, value) => `number ${i}, column ${j}: ${number(value)}` }));
  const signs = { ...arrays.counter, data: Float32Array.from(arrays.counter.data, (bit) => (bit ? 1 : -1)) };
  box.append(beside(one("Binary", signs, "bits"), one("Waves of the bits", arrays.waves, "waves"), one("Sinusoids, 8 channels", arrays.small, "small")),
    legend({ range, sides: "two" }), note(look.notes.counter));
  return { summary: look.notes.bits, columns: ["number", "binary", ...times(arrays.small.shape[1], (c) => `channel ${c}`)],
    rows: times(arrays.counter.shape[0], (i) => [i, rowOf(arrays.counter, i).join(""), ...rowOf(arrays.small, i)]) };
};

const patch = (on) => {
  const [rows, columns] = on.facts.grid;
  const at = [whole(on.look, "row", 0, rows), whole(on.look, "column", 0, columns)];
  const near = { data: rowOf(on.arrays.similarity, at[0] * columns + at[1]), shape: [rows, columns] };
  on.box.append(note(on.look.notes.patch));
  return map(near, "row", "column", `Cosine to the patch in row ${at[0]}, column ${at[1]}`, { names: ["row", "column"], range: [-1, 1] })({ ...on, width: Math.min(on.width, 420) });
};

const interpolation = (on) => {
  const { box, facts, look, arrays: { trained, resized } } = on;
  const at = pick(on, "of", "Channel", facts.channels.length, 0), title = `Channel ${facts.channels[at]}`;
  const [before, after] = [trained, resized].map((array) => Float32Array.from(column(array, at)));
  box.append(note(look.notes.interpolation));
  const field = (data, shape, how) => { box.append(h("h3", {}, how)); return map({ data, shape }, "row", "column", `${title}, ${how}`, { names: ["row", "column"], range: two(after), focus: how })({ ...on, width: Math.min(on.width, 420) }); };
  if (facts.resized) { field(before, facts.trained, "trained"); return field(after, facts.resized, "interpolated"); }
  const told = curves(on, [{ name: "interpolated", values: after }, { name: "trained", values: before, x: times(before.length, (i) => i * facts.apart) }], { x: `position of ${facts.longer}`, title });
  return { ...told, columns: told.columns.slice(0, 2), rows: told.rows.map((cells) => cells.slice(0, 2)) };
};

const scaling = (on) => {
  const { facts } = on;
  const told = curves(on, facts.scalings.map((name, i) => ({ name, values: rowOf(on.arrays.scaled_distance, i) })), { x: "m − n", y: "score", mark: facts.trained,
    title: `Score of two equal vectors, stretched ${number(facts.stretch, 1)} times beyond ${facts.trained} positions` });
  on.box.append(note(on.look.notes.scaling));
  return told;
};

// ---- shuffled tokens ----

const shuffling = (panel, { facts, arrays }, look, width) => {
  panel.append(h("h3", {}, "Shuffle the tokens"), soft(look.notes.shuffle),
    row(toggle(look, { name: "shuffle", label: "Shuffle tokens" }), facts.shuffled ? button("Another order", () => look.select({ seed: (Number(look.option("seed", 0)) + 1) % 1000 })) : null));
  if (!facts.shuffled) return;
  const { why, order, reads_order: readers } = facts.shuffled;
  if (why) { panel.append(soft(why)); return; }
  const items = [["as it is", "as_is"], ["without positions", "without_positions"], ["and without the mask", "without_mask"]].map(([name, key]) => ({ name, value: facts.shuffled[key] }))
    .filter(({ value }) => value !== null).map((item) => ({ ...item, label: item.value < 1e-5 ? `${number(item.value)} (rounding)` : percent(item.value) }));
  const tokens = look.tokens(facts.stack);
  panel.append(bars({ items, range: [0, Math.max(1e-9, ...items.map((item) => item.value))], label: "Largest change of a token's vector" }),
    small(`Shuffled: ${order.slice(0, 24).map((i) => quoted(tokens[i]?.text ?? String(i), 12)).join(" ")}${order.length > 24 ? " …" : ""}`),
    chart({ series: items.map((item, i) => ({ name: item.name, values: rowOf(arrays.change, i) })), x: { label: "token, as shuffled", ticks: wholeTicks(0, order.length - 1) }, y: { label: "change" }, width, height: 200, label: look.notes.change }),
    note(`Change of ${count(order.length, "token")}: largest difference over largest value.`,
      readers.length ? ` ${readers.join(" and ")} goes along the tokens: it knows their order without positions.` : ""));
};
