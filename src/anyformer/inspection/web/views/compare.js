// Compare: two captures. The difference of one head's maps, how far every head has moved, and both answers side by side.

import { h } from "look/element";
import { count, cut, number, percent, quoted, visible } from "look/format";
import { byTokens, heatmap, legend } from "look/heatmap";
import { buttons, isOn, row, select, slider } from "look/controls";
import { times } from "look/lists";
import { beside, roomOf, soft, table, titled } from "look/parts";

const SIDES = ["First", "Second"];

const largest = (data) => { let most = 0; for (const value of data) if (Math.abs(value) > most) most = Math.abs(value); return most || 1e-6; };

const who = (names) => h("dl", { class: "given pair" }, names.map((one, i) => {
  const other = names[1 - i];
  const words = [one.input !== other.input || one.model === other.model ? quoted(one.input, 80) : null, one.model !== other.model ? one.model : null];
  return [h("dt", {}, SIDES[i]), h("dd", {}, words.filter(Boolean).join(" · "))];
}));

const answers = ({ predictions, numbers }) => {
  const words = numbers ? number : percent;
  const cell = (value) => (value === null ? "not in top 10" : words(value));
  const change = (first, second) => (first === null || second === null ? "" : `${second > first ? "+" : ""}${words(second - first)}`);
  return table("Answers of both", ["Answer", ...SIDES, "Change"], predictions.map(({ name, first, second }) =>
    [`"${cut(visible(name), 40)}"`, cell(first), cell(second), change(first, second)]), { numbers: [1, 2, 3] });
};

export const draw = (panel, { facts, arrays }, look) => {
  const { selection } = look;
  const width = roomOf(panel);
  const scale = look.option("scale", "sqrt");
  const mode = facts.shared ? look.option("maps", "difference") : "side";
  panel.append(who(facts.names), row(
    facts.others.length > 1 && select(look, { name: "other", label: "Second", options: facts.others.map((text, i) => [i, cut(text, 40)]), fallback: 0 }),
    facts.shared && buttons(look, { name: "maps", label: "Maps", options: [["difference", "Difference"], ["side", "Side by side"]], fallback: "difference" }),
    mode === "difference" && facts.count > facts.window
      && slider(look, { name: "from", label: "First token drawn", min: 0, max: Math.max(0, facts.count - facts.window), step: Math.min(64, facts.window), fallback: 0 }),
  ));
  if (!facts.shared) panel.append(soft(look.notes.apart));
  else if (!facts.same) panel.append(soft(`The inputs differ: ${count(facts.queries.length, "query", "queries")} and ${count(facts.keys.length, "key")} that both have are compared. ${look.notes.rest}`));

  // One map: of shared tokens, which have places in the first input, or of a side's own.
  const map = (title, what, { data, shape }, queries, keys, shared, style) => {
    const at = shared ? [facts.query_places.indexOf(selection.query), facts.key_places.indexOf(selection.key)] : [selection.query, selection.key];
    return titled(`${title} · ${facts.label} · head ${facts.head}`, heatmap({ data, shape, ...byTokens(queries, keys), ...style,
      selected: at[0] >= 0 && at[1] >= 0 ? at : null, onSelect: (i, j) => look.select(shared ? { query: facts.query_places[i], key: facts.key_places[j] } : { query: i, key: j }),
      describe: (i, j, value) => `${what}: query ${quoted(queries[i] ?? "")}, key ${quoted(keys[j] ?? "")}: ${number(value)}` }));
  };
  if (mode === "difference") {
    const most = largest(arrays.difference.data);
    const style = { range: [-most, most], sides: "two" };
    panel.append(map("Second minus first", "Difference", arrays.difference, facts.queries, facts.keys, true,
      { ...style, width, label: "Difference of the two maps", focus: "difference", numbers: isOn(look, "numbers") }), legend(style));
  } else {
    const style = { range: [0, 1], scale };
    panel.append(beside(...SIDES.map((side, i) => {
      const name = side.toLowerCase();
      const own = facts[`${name}_queries`];
      return map(side, side, arrays[`${name}_own`] ?? arrays[name], own ?? facts.queries, facts[`${name}_keys`] ?? facts.keys, !own,
        { ...style, width: width >= 720 ? (width - 24) / 2 : width, label: `${side} map`, focus: `side-${i}` });
    })), legend(style));
  }

  const { distances } = facts;
  const heads = Math.max(...distances.map((list) => list.length), 1);
  const moved = Float32Array.from(distances.flatMap((list) => times(heads, (head) => list[head] ?? NaN)));
  let best = 0;
  moved.forEach((value, i) => { if (value > (moved[best] || 0)) best = i; });
  const most = Math.max(moved[best] || 0, 1e-6);
  const headName = (site, head) => `${facts.labels[site]}, head ${head}`;
  panel.append(h("h3", {}, "How far each head has moved"),
    heatmap({ data: moved, shape: [distances.length, heads], rows: { labels: facts.labels }, columns: { labels: times(heads, (i) => `head ${i}`), kind: "head" },
      range: [0, most], scale, width, label: "Distance of every head", focus: "distances", selected: [facts.site, facts.head],
      onSelect: (site, head) => { if (distances[site][head] !== undefined) look.select({ site, head }); },
      describe: (site, head, value) => `${headName(site, head)}: ${number(value)} bits` }),
    legend({ range: [0, most], scale, format: (value) => `${number(value)} bits` }));
  if (facts.predictions.length) panel.append(h("h3", {}, "What they answer"), answers(facts));

  const here = distances[facts.site]?.[facts.head] ?? null;
  const { first, second, difference } = arrays;
  const cells = () => Array.from(difference.data, (value, at) => {
    const columns = difference.shape[1];
    return [facts.queries[Math.floor(at / columns)], facts.keys[at % columns], first.data[at], second.data[at], value];
  });
  return {
    summary: `${headName(facts.site, facts.head)} has moved by ${here === null ? "an unknown amount" : `${number(here)} bits`} (0: the same map, 1: nothing in common). The head that moved most is ${headName(Math.floor(best / heads), best % heads)}, by ${number(moved[best])} bits.`,
    columns: difference ? ["Query", "Key", ...SIDES, "Difference"] : ["Layer", "Head", ...SIDES, "Distance in bits"],
    rows: difference ? cells() : distances.flatMap((list, site) => list.map((value, head) => [facts.labels[site], `head ${head}`, null, null, value])),
  };
};
