// A view as a file: svgOf(panel, caption) and pngOf(panel, caption) draw what the panel shows on white; csvOf(columns, rows);
// save(name, content, type) hands it to the browser's downloads.

import { h, svg } from "look/element";

const FONT = ["font-family", "font-size", "font-weight", "font-style"];
const KEPT = ["display", "position", "inset", "top", "left", "right", "bottom", "width", "height", "min-width", "max-width", "min-height", "margin", "padding", "box-sizing",
  "grid-template-columns", "grid-template-rows", "grid-column", "gap", "flex-wrap", "flex-direction", "flex", "align-items", "justify-content", "justify-items", "color", "background-color",
  "border-top", "border-right", "border-bottom", "border-left",  "border-radius", "border-collapse", ...FONT, "font-variant-numeric", "line-height", "text-align", "text-transform", "white-space", "overflow", "text-overflow", "vertical-align", "opacity", "transform", "list-style", "letter-spacing"];
const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", ...FONT, "text-anchor", "opacity", "white-space"];

// What one uses, not what one reads: left out of a picture.
const CONTROL = ".control, button:not(.token):not(.thumb):not(.name), select, input, textarea, .unseen";

const copyOf = (node) => {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  if (node.nodeType !== Node.ELEMENT_NODE || node.matches(CONTROL) || node.hidden) return null;
  const style = getComputedStyle(node);
  if (style.display === "none") return null;
  const drawn = node instanceof HTMLCanvasElement;
  const copy = drawn ? h("img", { src: enlarged(node).toDataURL("image/png"), alt: "" }) : node.cloneNode(false);
  copy.removeAttribute("style");
  const inside = node instanceof SVGElement && node.ownerSVGElement;
  for (const name of inside ? DRAWN : node instanceof SVGElement ? [...KEPT, ...DRAWN] : KEPT) {
    const value = style.getPropertyValue(name);
    if (value) copy.style.setProperty(name, value);
  }
  if (!inside) copy.style.setProperty("overflow", "visible"); // a picture does not scroll
  // A line stays a line, also where the picture's letters are a hair wider.
  const words = [...node.childNodes].some((child) => child.nodeType === Node.TEXT_NODE && child.data.trim());
  if (words && !inside && node.getBoundingClientRect().height < 2 * parseFloat(style.lineHeight || "20")) copy.style.setProperty("white-space", style.whiteSpace.startsWith("pre") ? "pre" : "nowrap");
  if (node.matches(".legend")) { copy.style.removeProperty("width"); copy.style.setProperty("flex-wrap", "nowrap"); }
  for (const child of drawn ? [] : node.childNodes) {
    const inner = copyOf(child);
    if (inner) copy.append(inner);
  }
  return node.matches(".controls") && !copy.textContent.trim() && !copy.querySelector("img, svg") ? null : copy;
};

/** How wide what is drawn really is: words, pictures and drawings, not the boxes around them. */
const inkWidth = (panel) => {
  const left = panel.getBoundingClientRect().left;
  let right = 240;
  const walk = document.createTreeWalker(panel, NodeFilter.SHOW_TEXT);
  const range = document.createRange();
  for (let node = walk.nextNode(); node; node = walk.nextNode()) {
    if (node.parentElement.closest(CONTROL)) continue;
    range.selectNodeContents(node);
    right = Math.max(right, range.getBoundingClientRect().right - left);
  }
  for (const node of panel.querySelectorAll("canvas, svg, img, .fill, td")) right = Math.max(right, node.getBoundingClientRect().right - left);
  return right;
};

/** A canvas of one pixel a cell as large as it is shown, twice: pictures in a picture are smoothed, and cells have edges. */
const enlarged = (canvas) => {
  const box = canvas.getBoundingClientRect();
  const by = Math.max(1, Math.round((2 * box.width) / canvas.width), Math.round((2 * box.height) / canvas.height));
  const large = h("canvas", { width: canvas.width * Math.min(by, 64), height: canvas.height * Math.min(by, 64) });
  const pen = large.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(canvas, 0, 0, large.width, large.height);
  return large;
};

/** The panel as an SVG text: its own vector parts stay vectors, canvases become pictures inside. */
export const svgOf = (panel, caption) => {
  const box = panel.getBoundingClientRect();
  const width = Math.ceil(Math.max(inkWidth(panel), Math.min(box.width, caption.length * 6.5))) + 32;
  const copy = copyOf(panel);
  for (const name of ["width", "height", "min-height", "max-width", "margin"]) copy.style.removeProperty(name);
  const body = h("div", { xmlns: "http://www.w3.org/1999/xhtml", style: { background: "#ffffff", padding: "16px", width: `${width}px`, "box-sizing": "border-box" } },
    copy, h("p", { style: { font: "12px system-ui, sans-serif", color: "#5d636c", margin: "16px 0 0" } }, caption));
  document.body.append(body); // measured once as it will stand: without controls it is less high than the panel
  const height = Math.ceil(body.getBoundingClientRect().height);
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` },
    svg("title", {}, caption), svg("rect", { width, height, fill: "#ffffff" }), svg("foreignObject", { width, height }, body));
  return { text: new XMLSerializer().serializeToString(root), width, height };
};

/** The same picture as a PNG, twice as fine. */
export const pngOf = async (panel, caption) => {
  const { text, width, height } = svgOf(panel, caption);
  const image = new Image();
  image.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(text);
  await image.decode();
  const canvas = h("canvas", { width: width * 2, height: height * 2 });
  const pen = canvas.getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.scale(2, 2);
  pen.drawImage(image, 0, 0);
  return new Promise((done) => canvas.toBlob(done, "image/png"));
};

// A cell that begins like a formula would be run by a spreadsheet: it is kept a text by an apostrophe.
const field = (value) => {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : String(value);
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

export const csvOf = (columns, rows) => [columns, ...rows].map((row) => row.map(field).join(",")).join("\r\n") + "\r\n";

export const save = (name, content, type) => {
  const blob = content instanceof Blob ? content : new Blob([content], { type });
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};
