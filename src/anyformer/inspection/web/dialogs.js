// The page's few dialogs: keys, find a token, export, a new input. Each is a native <dialog>: Esc closes it, focus goes back.

import { knob, row } from "look/controls";
import { h, replace } from "look/element";
import { number, visible } from "look/format";
import { soft, table } from "look/parts";

const open = (title, ...children) => {
  const box = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), ...children,
    row(knob("Close", () => box.close())));
  box.addEventListener("close", () => box.remove());
  document.body.append(box);
  box.showModal();
  return box;
};

export const showKeys = (list, keys) => open("Keys",
  h("dl", {}, list.map(([text, ...keys]) => [h("dt", {}, keys.map((key, i) => [i ? " " : null, h("kbd", {}, key)])), h("dd", {}, text)])),
  h("label", { class: "control controls" }, h("input", { type: "checkbox", checked: keys.on, onchange: (event) => { keys.on = event.target.checked; } }), "Single-letter keys are on"));

/** Finds a token of the site's axes: Enter or a click selects it as the query or the key. */
export const findToken = (look) => {
  const site = look.site;
  if (!site) return null;
  const found = h("div", { class: "found", role: "group", "aria-label": "Tokens found" });
  const box = open("Find a token", h("label", {}, h("span", { class: "unseen" }, "Part of the token"), h("input", { type: "text", autocomplete: "off", placeholder: "part of a token", oninput: () => list() })), found);
  const input = box.querySelector("input");
  const hit = (list, part) => list.map(({ text }, i) => [text, i]).filter(([text]) => text.toLowerCase().includes(part));
  const list = () => {
    const part = input.value.toLowerCase();
    const lines = part && [["query", look.queries(site)], ["key", look.tokens(site.keys)]].flatMap(([name, list]) => hit(list, part).slice(0, 20).map(([text, i]) =>
      knob(`${visible(text)} · ${name} ${i}`, () => { box.close(); look.select({ [name]: i }); })));
    replace(found, lines, part && !lines.length ? soft("No token has this part.") : null);
  };
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") found.querySelector("button")?.click(); });
  input.focus();
  return box;
};

export const showExport = (actions) => {
  const box = open("Export", soft("The picture is drawn on white, with a caption; the table has every value."),
    row(actions.map(([name, go]) => knob(name, () => { box.close(); go(); }))));
  return box;
};

/** What was checked of this capture, with the numbers. */
export const showTrust = (trust) => open(trust.ok ? "Checked" : "Beyond tolerance", h("p", {}, trust.says),
  table("Checks", ["Check", "Difference", "Tolerance", "Result"], trust.checks.map(({ name, value, tolerance, ok }) => [name, number(value), number(tolerance), ok ? "within" : "beyond"]), { numbers: [1, 2] }));

const inBase64 = (file) => new Promise((done, failed) => {
  const reader = new FileReader();
  reader.onload = () => done(reader.result.slice(reader.result.indexOf(",") + 1));
  reader.onerror = () => failed(reader.error);
  reader.readAsDataURL(file);
});

/** Asks for another input, to look at or to compare; `go(body)` resolves when the new capture is there. */
export const showNew = (kind, go, compare = false) => {
  const image = kind === "image", rows = kind === "table";
  const field = image ? h("input", { type: "file", accept: "image/*", "aria-label": "An image" })
    : h("textarea", { rows: rows ? 8 : 4, "aria-label": rows ? "A row, as JSON" : "A text" });
  const told = h("p", { class: "soft small", role: "status" });
  const body = async () => {
    if (!image) return { input: field.value, compare };
    if (!field.files.length) throw new Error("Choose an image first.");
    return { image: await inBase64(field.files[0]), compare };
  };
  const send = knob(compare ? "Compare" : "Look", async () => {
    send.disabled = true;
    told.textContent = "Reading …";
    try { await go(await body()); box.close(); } catch (error) { told.textContent = [error.message, error.fix].filter(Boolean).join(" "); send.disabled = false; }
  }, { class: "primary" });
  const box = open(compare ? "Compare with another input" : "Another input", soft(rows ? "One row as JSON, such as {\"age\": 41, \"city\": \"Bern\"}." : image ? "An image for the same model." : "A text for the same model."),
    field, told, row(send));
  field.focus();
  return box;
};
