// Training: one head at every checkpoint of a run, its statistics over the steps, and the loss; a run that still trains is
// followed by the bytes that its metrics have gained, every two seconds.

import { announce, h, replace } from "look/element";
import { cut, number, percent, quoted, whole } from "look/format";
import { byTokens, heatmap, legend } from "look/heatmap";
import { button, row, select } from "look/controls";
import { chart, wholeTicks } from "look/chart";
import { rowOf, times } from "look/lists";
import { note, roomOf, soft } from "look/parts";

const EVERY = 2000; // milliseconds between two looks at a run
const PLAY = 700; // milliseconds a checkpoint stays while playing
const LINES = 8; // heads drawn in one chart
const POINTS = 600; // of a curve

const followed = new Map(); // what was read of each run so far; it outlives a redraw

const thin = (points) => {
  if (points.length <= POINTS) return points;
  return times(POINTS, (i) => points[Math.round((i * (points.length - 1)) / (POINTS - 1))]);
};
const line = (name, points) => { const few = thin(points); return { name, x: few.map((p) => p[0]), values: few.map((p) => p[1]) }; };

const upper = (text) => text[0].toUpperCase() + text.slice(1);
const SPLITS = { valid: "validation" };
/** A chart over the steps. */
const curves = (series, options) => {
  const xs = series.flatMap((one) => one.x);
  return chart({ series, x: { label: "step", ticks: wholeTicks(Math.min(...xs), Math.max(...xs), Math.max(2, Math.floor(options.width / 140))) }, ...options });
};

const time = (seconds) => {
  if (seconds === null || seconds === undefined) return "";
  const s = Math.round(seconds), minutes = Math.floor(s / 60);
  if (s < 60) return `${s} s`;
  return s < 3600 ? `${minutes} min ${s % 60} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

// ---- following a run ----

const read = async (run, capture) => {
  const none = () => ({ steps: [], evaluations: [], probes: [] });
  const known = followed.get(run) ?? { since: 0, file: 0, ...none() };
  let news;
  do {
    const response = await fetch(`/look/api/run?run=${run}&capture=${capture ?? ""}&since=${known.since}&file=${known.file}`);
    if (!response.ok) return null;
    news = await response.json();
    if (news.again) Object.assign(known, none());
    for (const name in none()) known[name].push(...news[name]);
    if (known.steps.length > 4 * POINTS) known.steps = thin(known.steps);
    Object.assign(known, { since: news.since, file: news.file, news });
  } while (news.more);
  followed.set(run, known);
  return known;
};

const strip = ({ news, steps }, name) => {
  const last = steps.at(-1);
  const [unit, speed] = Object.entries(news.speed).find(([word]) => word.endsWith("_per_s")) ?? [];
  const facts = [
    ["Status", news.status], ["Step", `${whole(news.step ?? 0)}${news.total === null ? "" : ` of ${whole(news.total)}`}`],
    ["Loss", last ? number(last[1]) : "none yet"], ["Learning rate", last ? number(last[2]) : ""],
    [unit ? `${upper(unit.replace("_per_s", ""))} per second` : "Speed", number(speed)], ["Time left", news.running ? time(news.left) : ""],
  ];
  return h("div", { class: "run" }, name ? h("strong", {}, name) : null,
    h("dl", {}, facts.filter(([, value]) => value !== "").map(([word, value]) =>
      h("div", {}, h("dt", { class: "soft small" }, word), h("dd", { data: { fact: word } }, value)))));
};

// ---- the view ----

export const draw = (panel, { facts, arrays }, look) => {
  const width = Math.max(280, roomOf(panel));
  const style = { range: [0, 1], scale: look.option("scale", "sqrt") };
  const { steps, statistics } = facts;
  const titleOf = (name) => upper(facts.names[name][0]);
  const end = steps.length - 1;
  const wanted = steps.indexOf(Number(look.option("step", steps.at(-1) ?? 0)));
  let at = wanted < 0 ? end : wanted;

  const status = h("div", {});
  panel.append(status);

  // The head at one checkpoint, with the slider that moves through them.
  const place = h("div", { class: "checkpoint" });
  const output = h("output", {});
  const [, T, S] = arrays.maps?.shape ?? [0, 0, 0];
  const showAt = (i) => {
    at = i;
    const data = Float32Array.from(rowOf({ data: arrays.maps.data, shape: [steps.length, T * S] }, i), (value) => (value / 255) ** 2);
    const loss = Object.entries(facts.losses[i]).filter(([, value]) => value !== null).map(([name, value]) => `${SPLITS[name] ?? name} loss ${number(value)}`);
    const says = facts.predictions[i].map((one) => `${quoted(one.name)} ${one.probability === null ? number(one.logit) : percent(one.probability)}`);
    const { query, key } = look.selection;
    output.textContent = `Step ${whole(steps[i])}`;
    replace(place,
      h("p", {}, h("strong", {}, output.textContent), ` · ${[...loss, ...(says.length ? [`answers ${says.join(", ")}`] : [])].join(" · ")}`),
      heatmap({ data, shape: [T, S], ...byTokens(facts.queries, facts.keys), ...style, width: Math.min(width, 560),
        label: `Attention at step ${steps[i]}`, focus: "step-map", selected: query < T && key < S ? [query, key] : null,
        onSelect: (q, k) => look.select({ query: q, key: k, step: steps[i] }),
        describe: (q, k, value) => `step ${steps[i]}, query ${facts.queries[q]}, key ${facts.keys[k]}: ${number(value)}` }),
      legend(style), facts.cut ? note(`The first ${T} of ${facts.tokens} tokens.`) : null);
  };
  if (arrays.maps && steps.length) {
    const input = h("input", { type: "range", min: 0, max: end, step: 1, "aria-label": "Checkpoint", data: { focus: "checkpoint" }, class: "long",
      oninput: () => { stop(); go(Number(input.value)); }, onchange: () => look.select({ step: steps[Number(input.value)] }) });
    const go = (i) => {
      showAt(i);
      input.value = String(i);
      input.setAttribute("aria-valuetext", `Step ${steps[i]}`);
    };
    let timer = null;
    const play = button("Play", () => {
      if (timer) { stop(); look.select({ step: steps[at] }); return; }
      play.textContent = "Pause";
      if (at === end) go(0);
      timer = setInterval(() => { if (!panel.isConnected || at >= end) stop(); else go(at + 1); }, PLAY);
    }, { disabled: end < 1, focus: "play" });
    const stop = () => { clearInterval(timer); timer = null; play.textContent = "Play"; };
    panel.append(h("h3", {}, `${facts.label} · head ${facts.head} at each checkpoint`),
      row(h("label", { class: "control" }, "Checkpoint", input, output), play), place);
    go(at);
  } else panel.append(soft(steps.length ? look.notes.other : look.notes.early));
  if (steps.length && steps.length < 3) panel.append(note(look.notes.few));

  // Statistics of the heads over the steps.
  const choose = (step) => { const near = steps.reduce((a, b) => (Math.abs(b - step) < Math.abs(a - step) ? b : a), steps[0]); if (near !== undefined) look.select({ step: near }); };
  const chosenOf = (name, names, fallback) => (names.includes(look.option(name, fallback)) ? look.option(name, fallback) : fallback);
  const heads = arrays.heads?.shape[1] ?? 0;
  const valueOf = (k, head, s) => arrays.heads.data[(k * heads + head) * statistics.length + s];
  if (heads && steps.length) {
    const name = chosenOf("statistic", statistics, "entropy");
    const s = statistics.indexOf(name);
    const overSteps = (head) => steps.map((_, k) => valueOf(k, head, s));
    const change = (head) => { const all = overSteps(head).filter(Number.isFinite); return all.length ? Math.max(...all) - Math.min(...all) : -1; };
    const drawn = [facts.head, ...times(heads, (i) => i).filter((i) => i !== facts.head).sort((a, b) => change(b) - change(a))].slice(0, LINES);
    const lines = drawn.map((head) => ({ name: `head ${head}`, x: steps, values: overSteps(head) }));
    panel.append(h("h3", {}, `Heads of ${facts.label[0].toLowerCase()}${facts.label.slice(1)} over the steps`),
      row(select(look, { name: "statistic", label: "Statistic", options: statistics.map((word) => [word, `${titleOf(word)}, ${facts.names[word][2]}`]), fallback: "entropy" })),
      lines.some(({ values }) => values.some(Number.isFinite))
        ? curves(lines, { mark: steps[at], width, height: 260, onSelect: choose, label: `${titleOf(name)} of ${drawn.length} heads over ${steps.length} checkpoints` })
        : soft(name === "induction" ? look.notes.induction : look.notes.none));
    if (heads > LINES) panel.append(note(`The selected head and the ${LINES - 1} that change most, of ${heads}.`));
  }

  // The loss, and what probes measured while it trained.
  const losses = h("div", {}), probes = h("div", {});
  panel.append(h("h3", {}, "Loss"), losses);
  const drawCurves = () => {
    const live = [...followed.values()].filter((known) => known.steps.length);
    const several = live.length > 1;
    const series = live.length
      ? live.flatMap(({ news, steps: passed, evaluations }) => {
        const finite = (points) => points.filter((p) => Number.isFinite(p[1]));
        const valid = several ? [] : finite(evaluations.map((one) => [one.step, one.loss]));
        return [line(`${several ? `${cut(news.name, 12)} ` : ""}training`, finite(passed)), ...(valid.length ? [line("validation", valid)] : [])];
      }).slice(0, LINES)
      : Object.entries(facts.curves).map(([name, points]) => line(SPLITS[name] ?? name, points));
    replace(losses, series.length ? curves(series, { mark: steps[at] ?? null, width, height: 240, onSelect: steps.length ? choose : null, label: "Loss over the steps" }) : soft("Nothing is logged yet."));
    const own = followed.get(0)?.probes ?? [];
    const found = own.length ? {} : facts.probes;
    for (const { step, ...measured } of own) for (const [name, value] of Object.entries(measured)) (found[name] ??= []).push([step, value]);
    const names = Object.keys(found);
    if (!names.length) { replace(probes); return; }
    const chosen = chosenOf("probe", names, names[0]);
    replace(probes, h("h3", {}, "Probes"), row(select(look, { name: "probe", label: "Measured while it trained", options: names.map((name) => [name, name.replaceAll("_", " ").replaceAll("/", " · ")]), fallback: names[0] })),
      curves([line(null, found[chosen])], { mark: steps[at] ?? null, width, height: 200, label: `${chosen} over the steps` }));
  };
  panel.append(probes);
  if (!look.live) followed.clear();
  drawCurves();

  const later = ({ news: { checkpoint } }) => (checkpoint !== null && checkpoint !== facts.own
    ? row(button(`Look at the newest checkpoint, step ${whole(checkpoint)}`, async () => {
      try { await look.newest(); } catch (error) { announce(error.message); }
    }, { focus: "newest" })) : null);
  const showStatus = (all) => {
    const focused = status.contains(document.activeElement);
    replace(status, all.map((known) => strip(known, all.length > 1 ? known.news.name : null)), all.length ? later(all[0]) : null);
    if (focused) status.querySelector("button")?.focus();
  };
  const follow = async () => {
    if (!panel.isConnected) return;
    let running = false, newest = null;
    try {
      const all = await Promise.all(facts.runs.map((_, i) => read(i, look.manifest.capture)));
      if (!panel.isConnected) return;
      const there = all.filter(Boolean);
      running = there.some((known) => known.news.running);
      newest = all[0]?.news.checkpoint ?? null;
      showStatus(there);
      drawCurves();
    } catch {
      replace(status, soft(look.notes.gone));
      return;
    }
    if (newest !== null && newest > (steps.at(-1) ?? -1) && String(newest) !== look.option("seen", "")) {
      announce(`A new checkpoint: step ${newest}`);
      look.select({ seen: newest }); // draws anew, and goes on from there
      return;
    }
    if (running) setTimeout(follow, EVERY);
  };
  const known = facts.runs.map((_, i) => followed.get(i)).filter(Boolean);
  if (look.live && known.length) showStatus(known); // what is known stands while the next look is under way
  if (look.live && facts.runs.length) follow();

  const orNone = (value) => (Number.isFinite(value) ? value : null);
  const first = facts.losses[0]?.training, last = facts.losses.at(-1)?.training;
  return {
    summary: steps.length ? `${steps.length} checkpoints of ${facts.run}, from step ${whole(steps[0])} to ${whole(steps.at(-1))}${first != null && last != null ? `; the training loss goes from ${number(first)} to ${number(last)}` : ""}.` : `${facts.run} has no checkpoint yet.`,
    columns: ["Step", "Head", ...statistics.map(titleOf), "Training loss"],
    rows: steps.flatMap((step, k) => times(heads, (head) => [String(step), `head ${head}`, ...statistics.map((_, s) => orNone(valueOf(k, head, s))), facts.losses[k].training ?? null])),
  };
};
