// What the answer becomes without a head, an edge or a token: the selected one, some that are chosen, or every head in turn.

import { h, replace } from "look/element";
import { heatmap, legend } from "look/heatmap";
import { bars } from "look/bars";
import { button, buttons, isOn, row, toggle } from "look/controls";
import { tokens } from "look/tokens";
import { count, number, percent, quoted, signed, visible, whole } from "look/format";
import { times } from "look/lists";
import { note, readout, roomOf, small, table } from "look/parts";

const bold = (text, kind = null) => h("b", { class: kind }, text);
const headName = (label, head) => `${label}, head ${head}`;
const listed = (text) => (text ? text.split(",").filter(Boolean) : []);

/** The address with one thing more or less in a list of things removed. */
const flip = (look, name, word) => {
  const now = listed(look.option(name, ""));
  const next = now.includes(word) ? now.filter((each) => each !== word) : [...now, word];
  look.select({ [name]: next.join(",") || null });
};

export const draw = async (panel, { facts }, look) => {
  const { site, head, query, key } = look.selection;
  const at = look.site;
  const queries = look.tokens(at.queries), keys = look.tokens(at.keys);
  const text = (list, i) => (list[i] ? quoted(list[i].text) : String(i));
  const { target, removed } = facts;
  const isNumber = target.kind === "value";
  const named = isNumber ? target.name : quoted(target.name);
  const where = facts.place === null ? "" : ` after ${text(look.tokens(at.stack === "encoder" ? "decoder" : at.stack), facts.place)}`;

  panel.append(row(
    facts.by_token && buttons(look, { name: "of", label: "Answer", options: [["answer", "of the model"], ["query", "at the query"]], fallback: "answer" }),
    facts.heads ? toggle(look, { name: "all", label: `Every head in turn (${count(facts.heads, "pass", "passes")})` }) : null));
  panel.append(readout("The model answers ", isNumber ? `${number(target.value)}.` : [bold(named), `${where} with probability ${percent(target.probability)}.`]));

  // ---- the selection, one thing at a time
  const words = {
    head: `head ${head} of ${at.label}`, edge: `the edge ${text(queries, query)} → ${text(keys, key)} in this head`,
    edges: `the same edge in all ${at.kind === "cross" ? "cross-attention" : "layers"} and heads`, token: `the token ${text(keys, key)}: nobody else sees it`,
    mixer: `all of ${at.label}'s ${at.kind === "other" ? at.mixer : "attention"}`, feed: `the feed-forward network of ${at.label.replace(/ · .*$/, "")}`,
  };
  const short = {
    head: "this head", edge: "this edge in this head", edges: "this edge in all heads", token: `token ${keys[key] ? quoted(keys[key].text, 14) : key}`,
    mixer: at.kind === "other" ? `this ${at.mixer}` : "all heads of this layer", feed: "this layer's feed",
  };
  const change = isNumber ? "change of the number" : "change of the log-probability";
  const narrow = roomOf(panel) < 480;
  const shown = facts.what_if.filter((each) => each.change !== null);
  const far = Math.max(...shown.map((each) => Math.abs(each.change)), 1e-12);
  panel.append(h("h3", {}, "What if this were removed?"),
    readout("Query ", bold(text(queries, query), "query"), ", key ", bold(text(keys, key), "key"), ": attention ", bold(number(facts.weight)), "; beside each below, the ", change, " of the answer."),
    bars({ label: `${change} without each`, range: [-far, far], items: facts.what_if.map(({ what, change: by, probability, why }) => ({
      name: short[what], value: by ?? 0, on: what === "head", colour: by > 0 ? "var(--value)" : "var(--accent)",
      label: by === null ? `cannot be removed: ${why}` : `${signed(by)}${probability === null || narrow ? "" : ` → ${percent(probability)}`}`,
    })) }));

  // ---- what is chosen to be removed together
  const [gone, goneEdges, goneTokens] = ["heads", "edges", "tokens"].map((name) => listed(look.option(name, "")));
  const spell = (i) => (facts.key_part ? `${facts.key_part}.${i}` : String(i));
  const adding = (name, all, word, what) => {
    const pressed = all.includes(word);
    return button(`${pressed ? "Put back" : "Remove"} ${what}`, () => flip(look, name, word), { focus: name, pressed, primary: !pressed && name === "heads" });
  };
  panel.append(h("h3", {}, "Remove several at once"), row(
    facts.has_heads ? [adding("heads", gone, `${site}.${head}`, "this head"), adding("edges", goneEdges, `${site}.${head}.${query}.${key}`, "this edge")] : null,
    facts.key_part !== null ? adding("tokens", goneTokens, spell(key), `the token ${text(keys, key)}`) : null,
    gone.length + goneTokens.length + goneEdges.length ? button("Put all back", () => look.select({ heads: null, tokens: null, edges: null })) : null));
  if (facts.key_part !== null && keys.length <= 256) {
    const isGone = keys.map((_, i) => goneTokens.includes(spell(i)));
    panel.append(tokens({ tokens: keys.map((token, i) => (isGone[i] ? { ...token, text: `${token.text} ✕`, note: "removed" } : token)),
      values: isGone.map((is) => (is ? 1 : null)), range: [0, 2], selected: key, onSelect: (i) => look.select({ key: i }), label: "Tokens that can be removed", focus: "removable" }));
  }
  const labels = [
    ...[...gone, ...goneEdges].map((word) => {
      const [s, n, q, k] = word.split(".").map(Number);
      const { label = s, queries: from, keys: to } = look.manifest.sites[s] ?? {};
      return q === undefined ? ["heads", word, headName(label, n)] : ["edges", word, `${headName(label, n)}: ${text(look.tokens(from), q)} → ${text(look.tokens(to), k)}`];
    }),
    ...goneTokens.map((word) => { const [place, part = ""] = word.split(".").reverse(); return ["tokens", word, `token ${text(look.tokens(part), Number(place))}`]; }),
  ];
  if (removed) {
    panel.append(readout("Removed: ", h("span", { class: "controls" }, labels.map(([name, word, label]) =>
      button(`${label} ✕`, () => flip(look, name, word), { label: `Put back ${label}`, focus: `back-${word}` })))));
    const top = Math.max(...removed.answers.flatMap(({ before, after }) => [before, after]), 1e-12);
    panel.append(bars({ label: "Answers before and after", ...(isNumber ? {} : { range: [0, top], format: percent }), items: removed.answers.flatMap(({ name, before, after, id }) => [
      { name: `${visible(name)} before`, value: before, colour: "var(--soft)" },
      { name: `${visible(name)} after`, value: after, on: id === target.id },
    ]) }), readout(`All of it together: ${change} `, bold(signed(removed.change)), "."));
    if (removed.pruning) {
      const { why, saved, of, names } = removed.pruning;
      panel.append(note(why ? `Removing these heads for good is not possible: ${why}.` : [`Removed for good, these heads save ${count(saved, "parameter")} (${percent(saved / of)}): `,
        h("code", {}, `anyformer convert MODEL NEW --prune-heads ${names}`), "."]));
    }
  }

  // ---- every head
  const rows = facts.what_if.map((each) => [words[each.what], each.what === "edge" ? facts.weight : "", each.change ?? each.why, each.probability ?? ""]);
  const place = h("div", { class: "every" });
  panel.append(place);
  if (isOn(look, "all")) {
    place.append(note("Every head in turn …"));
    try {
      const found = await look.ask("remove", { every: 1 });
      const heads = headsOf(found);
      replace(place, grid(found, heads, look, roomOf(panel)));
      rows.push(...heads.map((each) => [`${headName(each.label, each.head)}, alone`, each.weight, each.change, ""]));
    } catch (error) {
      replace(place, small(`Every head in turn is not there: ${error.message}`));
    }
  }
  const first = facts.what_if.find((each) => each.what === "head" && each.change !== null) ?? shown[0];
  return { columns: ["removed", "attention", change, "probability after"], rows, summary: first ? `Without ${words[first.what]} the ${isNumber ? "number" : `log-probability of ${named}`} changes by ${signed(first.change)}; its attention from ${text(queries, query)} to ${text(keys, key)} is ${number(facts.weight)}.` : "" };
};

/** Every head with what it is worth, the one that speaks most for the answer first. */
const headsOf = ({ facts, arrays }) => {
  const at = ({ data, shape }, r, head) => data[r * shape[1] + head];
  return facts.sites.flatMap(({ heads, label, saved }, r) => times(heads, (head) => (
    { label, head, saved, change: at(arrays.change, r, head), weight: at(arrays.weight, r, head) }))).sort((a, b) => a.change - b.change);
};

/** A map of layers and heads: what each head alone is worth, with the weights it saves. */
const grid = ({ facts, arrays }, heads, look, width) => {
  const { data, shape } = arrays.change;
  const far = Math.max(...[...data].filter(Number.isFinite).map(Math.abs), 1e-12);
  const { sites, target: { kind, name, unit } } = facts;
  const chosen = sites.findIndex((each) => each.site === look.selection.site);
  const describe = (r, c, value) => `${headName(sites[r].label, c)}: ${Number.isNaN(value) ? "there is none" : `${unit} ${signed(value)}`}`;
  const style = { range: [-far, far], sides: "two" };
  const grouped = sites.some((each) => each.groups < each.heads);
  return [
    h("h3", {}, "Every head in turn"),
    note(`Each cell is one pass without that head: the change of the ${unit}${kind === "value" ? "" : ` of ${quoted(name)}`}. A cell selects the head.`),
    heatmap({ data, shape, ...style, rows: { labels: sites.map((each) => each.label.replace(/^\S+ layer (\d+) · cross$/, "Cross layer $1").replaceAll(" ", "\u00a0")) }, columns: { labels: times(shape[1], (c) => String(c)), kind: "head" },
      selected: chosen < 0 ? null : [chosen, look.selection.head], onSelect: (r, c) => { if (c < sites[r].heads) look.select({ site: sites[r].site, head: c }); },
      describe, width, label: "What each head is worth", focus: "importance" }),
    h("p", {}, legend({ ...style, name: "below 0: the head spoke for the answer · " })),
    note(`A head of ${sites[0]?.label ?? "a layer"} has ${count(sites[0]?.saved ?? 0, "parameter")} of ${count(facts.parameters, "parameter")} in all.${grouped ? look.notes.grouped : ""}`,
      facts.rank === null ? "" : ` Rank correlation between the size of the change and the head's largest attention weights: ${number(facts.rank)}.`),
    table("Heads that speak most for the answer", ["head", `change of the ${unit}`, "largest attention, mean", "parameters"],
      heads.slice(0, 10).map((each) => [headName(each.label, each.head), signed(each.change), number(each.weight), whole(each.saved)])),
  ];
};
