// The page itself: header, views, the path of the selection, the panel with its title, values and exports, and the keys.
//
// start(source): source is `served(base)` or `held(packed)` of look/answer. A view's module has
//   export const draw = (panel, answer, look) => ({summary, columns, rows})
// and is called again, with an empty panel, after each change of the selection.

import { knob, row } from "look/controls";
import { announce, h, replace } from "look/element";
import { count, cut, number, percent, quoted, visible, whole } from "look/format";
import { placeIn, times } from "look/lists";
import { force, theme } from "look/palette";
import { makeStore } from "look/store";
import { csvOf, pngOf, save, svgOf } from "look/export";
import { startTour } from "look/tour";
import { grid, note } from "look/parts";
import { findToken, showExport, showKeys, showNew, showTrust } from "look/dialogs";

const byId = (id) => document.getElementById(id);
const root = document.documentElement.dataset; // theme, busy, ready: what the sheet and the tests read
const MOST_ROWS = 400; // of the values table on the page; the CSV file has all
const MOST_OPTIONS = 1024; // tokens in a list to choose from

const storage = {
  get: (name) => { try { return localStorage.getItem(name); } catch { return null; } },
  set: (name, value) => { try { localStorage.setItem(name, value); } catch { /* a sandboxed frame keeps nothing */ } },
};

const state = (title, ...inside) => h("div", { class: "state" }, h("strong", {}, title), ...inside);
const problem = (title, error) => {
  const box = state(title, h("p", {}, error.message ?? String(error)), error.fix ? h("p", {}, error.fix) : null);
  box.classList.add("error");
  return box;
};

export const start = async (source) => {
  const began = performance.now();
  const chosen = storage.get("look-theme");
  if (chosen === "light" || chosen === "dark") root.theme = chosen;
  let manifest;
  try {
    manifest = await source.manifest(new URLSearchParams(location.hash.slice(1)).get("capture"));
  } catch (error) {
    replace(byId("panel"), problem("The model cannot be shown", error));
    return;
  }

  const keys = { on: storage.get("look-keys") !== "off" };
  let shown = null; // what the view returned: {summary, columns, rows, scale}
  let exactOpen = false, othersOpen = false;
  let turn = 0;

  const bounded = (selection) => {
    const { views, sites, axes } = manifest;
    const site = placeIn(selection.site, sites.length), at = sites[site];
    const view = views.find(({ name }) => name === selection.view) ?? views.find(({ applies }) => applies);
    const inside = (name, axis) => placeIn(selection[name], axes[axis]?.tokens.length ?? 1);
    return { ...selection, view: view?.name ?? "", site, head: placeIn(selection.head, at?.heads ?? 1), query: inside("query", at?.queries), key: inside("key", at?.keys) };
  };
  const own = () => source.live && { capture: manifest.capture };

  const store = makeStore({ view: "map", site: 0, head: 0, query: 0, key: 0, ...manifest.start, ...own() }, async (selection, changed) => {
    if (changed.includes("capture") && source.live && selection.capture !== manifest.capture) {
      try { adopt(await source.manifest(selection.capture)); } catch (error) { replace(byId("panel"), problem("That input is gone", error)); return; }
    }
    show();
  });
  const look = {
    get selection() { return bounded(store.selection); },
    get manifest() { return manifest; },
    get site() { return manifest.sites[look.selection.site] ?? null; },
    get live() { return source.live; },
    get notes() { return manifest.views.find(({ name }) => name === look.selection.view)?.notes ?? {}; },
    select: (changes) => store.select(changes),
    option: (name, fallback) => store.option(name, fallback),
    ask: (view, params = {}) => {
      const { view: _, ...now } = look.selection;
      return source.ask(view, { ...now, ...own(), ...params });
    },
    newest: async () => { const next = await source.renew({ newest: true }, manifest.capture); adopt(next); store.select({ capture: next.capture, step: null }); },
    tokens: (axis) => manifest.axes[axis]?.tokens ?? [],
    queries: (site) => namesOf(manifest, site),
    describe: (selection = look.selection) => words(manifest, selection),
  };

  const canRenew = () => source.live && Boolean(manifest.renew);

  // ---- header ----
  const header = () => {
    const [now, other] = theme() === "dark" ? ["dark", "light"] : ["light", "dark"];
    const tool = (text, focus, onclick, more) => knob(text, onclick, { class: "plain", focus, ...more });
    const given = (word, value, more) => (value ? [h("dt", {}, word), h("dd", more, value)] : null);
    replace(byId("top"),
      h("div", { class: "bar" },
        h("h1", { class: "brand" }, manifest.title, h("span", {}, " · anyformer look")),
        h("span", { class: "push" }),
        knob("checking numbers …", null, { class: "chip trust", focus: "trust", disabled: true }),
        canRenew() ? [tool("New input", "new", () => renew(false)), tool("Compare", "compare", () => renew(true))] : null,
        tool("Tour", "tour", () => startTour(look)), tool("Keys", "keys", openKeys),
        tool(now === "dark" ? "Light" : "Dark", "theme", () => {
          root.theme = other;
          storage.set("look-theme", other);
          redraw();
          document.querySelector("[data-focus=theme]")?.focus();
        }, { "aria-label": `Theme: ${now}. Switch to ${other}.` })),
      h("dl", { class: "given" }, given("Input", manifest.input, { class: "input" }), given("Output", manifest.target, { class: "input" }),
        given(manifest.kind === "text" ? "Next" : "Prediction", manifest.prediction?.length && h("ol", { class: "answers" },
          manifest.prediction.slice(0, 5).map(({ name, probability, logit }, i) => {
            const [answer, beside] = probability === null ? [number(logit, 6), visible(name)] : [visible(name), percent(probability)];
            return h("li", {}, i ? answer : h("strong", {}, answer), " ", h("span", { class: "soft" }, beside));
          })))),
      h("div", { class: "trail", role: "group", "aria-label": "Selection" }));
  };
  const check = async () => {
    const mine = manifest;
    let trust;
    try { trust = await source.trust(mine); } catch (error) { trust = { ok: false, checks: [{ name: error.message, value: null, tolerance: null, ok: false }] }; }
    const chip = document.querySelector(".trust");
    if (mine !== manifest || !chip || !trust) return;
    chip.className = `chip trust ${trust.ok ? "good" : "warn"}`;
    chip.disabled = false;
    chip.textContent = trust.ok ? "✓ numbers checked" : "! check the numbers";
    chip.onclick = () => showTrust(trust);
  };
  const redraw = () => { header(); check(); show(); };
  const adopt = (next) => { manifest = next; header(); check(); };
  const openKeys = () => showKeys(manifest.keys ?? [], { get on() { return keys.on; }, set on(value) { keys.on = value; storage.set("look-keys", value ? "on" : "off"); } });
  const renew = (compare) => showNew(manifest.renew, async (body) => {
    const next = await source.renew(body, compare ? manifest.capture : null);
    adopt(next);
    store.select({ capture: next.capture, ...(compare ? { view: "compare", other: null } : { query: next.start.query, key: next.start.key }) });
  }, compare);
  const compare = () => {
    const there = manifest.views.some(({ name, applies }) => name === "compare" && applies);
    if (there && look.selection.view !== "compare") store.select({ view: "compare" });
    else if (canRenew()) renew(true);
    else announce("Nothing can be compared in this page.");
  };

  const step = (name, by, length) => store.select({ [name]: placeIn(look.selection[name] + by, length) });
  const trail = () => {
    const { site: index, head, query, key } = look.selection;
    const site = look.site;
    const box = document.querySelector(".trail");
    if (!site) { replace(box, h("span", { class: "soft" }, "No layer of this model was called.")); return; }
    const several = (name, label, options, now, kind = "") => h("span", { class: kind },
      h("select", { "aria-label": label, data: { focus: `trail-${name}` }, onchange: (event) => store.select({ [name]: Number(event.target.value) }) },
        options.map((text, i) => h("option", { value: i, selected: i === now }, text))));
    const token = (name, list, now) => {
      if (list.length > MOST_OPTIONS) return h("span", { class: name }, h("input", { type: "number", min: 0, max: list.length - 1, value: now,
        "aria-label": `${name}, a token's number`, data: { focus: `trail-${name}` }, onchange: (event) => store.select({ [name]: placeIn(event.target.value, list.length) }) }));
      return several(name, name === "query" ? "Query token" : "Key token", list.map((each, i) => `${quoted(each.text, 18)} ${i}`), now, name);
    };
    const arrows = (name, length, what) => [[-1, "‹", "Previous"], [1, "›", "Next"]].map(([by, sign, word]) =>
      knob(sign, () => step(name, by, length), { class: "plain", "aria-label": `${word} ${what}`, disabled: placeIn(look.selection[name] + by, length) === look.selection[name], focus: `trail-${name}${by}` }));
    const walked = (name, label, options, now) => { const [back, on] = arrows(name, options.length, label.toLowerCase()); return h("span", {}, back, several(name, label, options, now), on); };
    const dot = (sign, kind = "dot") => h("span", { class: kind, "aria-hidden": "true" }, sign);
    replace(box, walked("site", "Layer", manifest.sites.map((each) => each.label), index), dot("·"), walked("head", "Head", times(site.heads, (i) => `head ${i}`), head), dot("·"),
      token("query", look.queries(site), query), dot("→", "dot to"), token("key", look.tokens(site.keys), key));
  };

  // ---- views ----
  const nav = () => {
    const now = look.selection.view;
    const entry = (view) => h("li", {}, knob(view.title, () => store.select({ view: view.name }), {
      "aria-current": view.name === now ? "page" : null, focus: `view-${view.name}`, ...(view.applies ? {} : { "aria-disabled": "true", "aria-describedby": `why-${view.name}` }) }),
    view.applies ? null : h("span", { class: "why", id: `why-${view.name}` }, view.why));
    const [ours, others] = [true, false].map((applies) => manifest.views.filter((view) => Boolean(view.applies) === applies));
    const folded = h("details", { class: "others", open: othersOpen || others.some(({ name }) => name === now), ontoggle: () => { othersOpen = folded.open; } },
      h("summary", { data: { focus: "others" } }, `Not for this model (${others.length})`), h("ol", {}, others.map(entry)));
    const strip = byId("views"), left = strip.scrollLeft;
    replace(strip, h("ol", {}, ours.map(entry)), others.length ? folded : null);
    strip.scrollLeft = left;
    const current = strip.querySelector("[aria-current]"); // on a narrow screen the views are a strip: the current one stays in sight
    if (current && (current.offsetLeft < strip.scrollLeft || current.offsetLeft + current.offsetWidth > strip.scrollLeft + strip.clientWidth)) strip.scrollLeft = current.offsetLeft - 16;
  };


  const absent = (view) => {
    const held = source.holds(view.name);
    const name = ({ params, reads }) => {
      const at = (word, say) => reads.includes(word) && say(Number(params[word] ?? 0));
      return [at("site", (i) => manifest.sites[i]?.label), at("head", (i) => `head ${i}`), at("query", (i) => `query ${i}`)].filter(Boolean).join(" · ") || "the start";
    };
    const go = ({ params, reads }) => store.select(Object.fromEntries(reads.map((word) => [word, params[word] ?? null])));
    return state("Not in this page",
      h("p", {}, held.length ? `This page holds ${count(held.length, "selection")} of this view. ` : "This page holds nothing of this view. ", "Run ", h("code", {}, "anyformer look"), " for everything."),
      row(held.slice(0, 12).map((entry) => knob(name(entry), () => go(entry)))));
  };

  const caption = () => [manifest.title, manifest.input ? quoted(manifest.input, 80) : null, look.describe(), shown?.scale ? `${shown.scale} scale` : null, `anyformer ${manifest.version}`].filter(Boolean).join(" · ");
  const saved = (end, content, type) => {
    const { view, site, head } = look.selection;
    save(`look-${view}-site${site}-head${head}.${end}`, content, type);
  };

  /** Draws the view once more in light colours, off to the side, and hands the panel to `use`. */
  const inLight = async (use) => {
    const { view } = look.selection;
    const { draw } = await import(`look/views/${view}`);
    const answer = await look.ask(view);
    const panel = h("div", { class: "drawing aside", style: { width: `${document.querySelector(".drawing")?.clientWidth ?? 800}px` } });
    document.body.append(panel);
    force("light");
    try {
      await draw(panel, answer, look);
      panel.style.position = "static";
      return await use(panel);
    } finally {
      force(null);
      panel.remove();
    }
  };
  const exports = [
    ["PNG", async () => saved("png", await inLight((panel) => pngOf(panel, caption())), "image/png")],
    ["SVG", async () => saved("svg", await inLight((panel) => svgOf(panel, caption()).text), "image/svg+xml")],
    ["CSV", () => saved("csv", csvOf(shown.columns ?? [], shown.rows ?? []), "text/csv")],
  ];
  const guarded = (go) => async () => { try { await go(); announce("Saved"); } catch (error) { announce(`Not saved: ${error.message}`); } };

  const exact = () => {
    const { columns = [], rows = [] } = shown ?? {};
    if (!columns.length) return null;
    const kinds = columns.map((_, i) => (rows.some((cells) => typeof cells[i] === "number") ? "number" : null));
    const cell = (value, i) => (Number.isInteger(value) ? whole(value) : typeof value === "number" ? number(value, 6) : cut(String(value ?? ""), i < 3 ? 60 : Infinity));
    const table = () => grid(columns, rows.slice(0, MOST_ROWS).map((cells) => cells.map(cell)), (i) => kinds[i]);
    const body = h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Exact values" });
    const fill = () => { if (!body.firstChild) body.append(table(), rows.length > MOST_ROWS ? note(`The first ${MOST_ROWS} of ${count(rows.length, "row")}; the CSV file has all.`) : ""); };
    const box = h("details", { class: "exact", open: exactOpen, ontoggle: () => { exactOpen = box.open; if (box.open) fill(); } },
      h("summary", { data: { focus: "exact" } }, `Exact values (${count(rows.length, "row")})`), body);
    if (exactOpen) fill();
    return box;
  };

  const show = async () => {
    const mine = ++turn;
    root.busy = "yes";
    const { view: name } = look.selection;
    const view = manifest.views.find((each) => each.name === name);
    const focused = document.activeElement?.closest?.("[data-focus]")?.dataset.focus;
    nav();
    trail();
    document.title = `${view?.title ?? "look"} · ${manifest.title}`;
    const main = byId("panel");
    const frame = (...inside) => {
      main.style.minHeight = `${main.offsetHeight}px`; // nothing jumps while the new panel is built
      replace(main, h("div", { class: "view" }, ...inside));
    };
    const settle = () => {
      main.style.minHeight = "";
      // Only what the redrawing took away is given back.
      if (focused && document.activeElement === document.body) document.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
      root.busy = "no";
    };
    if (!view) { frame(state("Nothing to show", h("p", {}, "No view applies to this model."))); settle(); return; }
    const lead = (...actions) => h("div", { class: "lead" }, h("div", { class: "words" }, h("h2", {}, view.title), h("p", { class: "read" }, view.read)), ...actions);
    if (!view.applies) { frame(lead(), state("Not for this model", h("p", {}, view.why), name === "compare" && canRenew() ? knob("Compare with another input", () => renew(true), { focus: "begin-compare" }) : null)); settle(); return; }
    const slow = setTimeout(() => { if (mine === turn) { frame(lead(), h("p", { class: "state" }, "Computing …")); main.setAttribute("aria-busy", "true"); } }, 200);
    try {
      const [{ draw }, answer] = await Promise.all([import(`look/views/${name}`), look.ask(name)]);
      clearTimeout(slow);
      if (mine !== turn) return;
      const panel = h("div", { class: "drawing" });
      frame(lead(row(exports.map(([word, go]) => knob(word, guarded(go), { "aria-label": `Export as ${word}`, focus: `export-${word}` })))), panel);
      const before = performance.now();
      shown = (await draw(panel, answer, look)) ?? {};
      performance.measure("look:draw", { start: before, end: performance.now() });
      if (mine !== turn) return;
      if (view.claim) panel.after(h("p", { class: "soft small claim" }, "A claim of the lectures about it, measured: ", h("code", {}, `anyformer lab run ${view.claim}`)));
      if (shown.summary) panel.after(h("p", { class: "summary" }, shown.summary));
      const values = exact();
      if (values) main.firstChild.append(values);
    } catch (error) {
      clearTimeout(slow);
      if (mine !== turn) return;
      if (error.kind === "absent") frame(lead(), absent(view));
      else {
        frame(lead(), problem("This view cannot be drawn", error), row(knob("Try again", show)));
        if (!error.kind) console.error(error);
      }
    }
    main.removeAttribute("aria-busy");
    settle();
  };

  // ---- keys ----
  const cycle = (name, values) => { const next = values[(values.indexOf(look.option(name, values[0])) + 1) % values.length]; store.select({ [name]: next === values[0] ? null : next }); announce(`${name}: ${next}`); };
  const actions = {
    "[": () => step("site", -1, manifest.sites.length), "]": () => step("site", 1, manifest.sites.length),
    "{": () => step("head", -1, look.site?.heads ?? 1), "}": () => step("head", 1, look.site?.heads ?? 1),
    "?": openKeys, "/": () => findToken(look), e: () => showExport(exports.map(([word, go]) => [word, guarded(go)])),
    c: () => cycle("scale", ["sqrt", "linear", "log"]), n: () => cycle("numbers", ["0", "1"]), s: () => cycle("sink", ["0", "1"]), d: compare,
    Escape: () => { const { query = 0, key = 0 } = manifest.start ?? {}; store.select({ query, key }); },
  };
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]") || event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, select")) return;
    if (!keys.on && event.key.length === 1) return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (window.innerWidth !== width) { width = window.innerWidth; show(); } });

  header();
  replace(byId("foot"), h("p", {}, "Attention shows where information was read, not why.", manifest.views.some(({ name, applies }) => name === "remove" && applies)
    ? [" Try ", knob("Remove", () => store.select({ view: "remove" }), { class: "link" }), " to test it."] : null),
    h("p", {}, `anyformer ${manifest.version}`, source.live ? null : [" · an exported page: it needs no network and holds a part of the model; run ", h("code", {}, "anyformer look"), " for everything."]));
  await show();
  check();
  performance.measure("look:interactive", { start: began, end: performance.now() });
  root.ready = "yes";
};

/** The tokens of a site's rows: in cross-attention those that the decoder writes while it reads the ones before them. */
const namesOf = ({ axes }, { kind, queries }) => (kind === "cross" && axes[queries]?.written) || (axes[queries]?.tokens ?? []);

/** "Layer 3 · head 5 · "boy" → "young"": the selection in words. */
const words = (manifest, { site, head, query, key }) => {
  const at = manifest.sites[site];
  if (!at) return "";
  const name = (list, i) => (list?.[i] ? quoted(list[i].text) : String(i));
  return `${at.label} · head ${head} · ${name(namesOf(manifest, at), query)} → ${name(manifest.axes[at.keys]?.tokens, key)}`;
};
