// A view as a file: drawings, pictures and tables; see README.md.

import { h, svg } from "look/element";

const FONT = ["font-family", "font-size", "font-weight", "font-style"];
const PLACE = /^([xy][12]?|c[xy]|r[xy]?|d[xy]?|points|width|height|transform)$/;
// How a shape is drawn that does not say: only what differs is written.
const USUAL = { "stroke-width": "1", "stroke-dasharray": "none", "stroke-linejoin": "miter", "text-anchor": "start", opacity: "1" };
const MARGIN = 16;

const round = (value) => Math.round(value * 100) / 100;

/** A colour as attributes of a fill or a stroke: few programs that read SVG know rgba(). */
const ink = (name, colour, opacity = 1) => {
  const [r, g, b, a = 1] = colour.match(/[\d.]+/g) ?? [0, 0, 0, 0];
  const seen = round(a * opacity);
  return seen ? { [name]: `rgb(${r},${g},${b})`, [`${name}-opacity`]: seen < 1 ? seen : null } : { [name]: "none" };
};

/** What is drawn with: from the panel's corner, in its font, and how far to the right and down anything reaches. */
const penOf = (panel) => {
  const { left, top } = panel.getBoundingClientRect();
  const usual = getComputedStyle(panel), rises = {};
  const measured = h("canvas", {}).getContext("2d");
  const pen = { right: 240, bottom: 0, range: document.createRange(), x: (x) => round(x - left + MARGIN), y: (y) => round(y - top + MARGIN) };
  pen.reach = (box) => {
    pen.right = Math.max(pen.right, pen.x(box.right));
    pen.bottom = Math.max(pen.bottom, pen.y(box.bottom));
  };
  pen.fontOf = (style) => Object.fromEntries(FONT.map((name) => [name, style.getPropertyValue(name)]).filter(([name, value]) => style === usual || value !== usual.getPropertyValue(name)));
  /** The share of a line's box that is above its baseline. */
  pen.rise = (style) => {
    const font = `${style.fontStyle} ${style.fontWeight} ${style.fontSize} ${style.fontFamily}`;
    measured.font = font;
    const { fontBoundingBoxAscent: up, fontBoundingBoxDescent: down } = rises[font] ??= measured.measureText("x");
    return up / (up + down);
  };
  pen.root = svg("svg", pen.fontOf(usual));
  return pen;
};

/** Background, border, shadow without blur, and outline of a box. */
const boxOf = (pen, style, box) => {
  const parts = [], radius = Math.min(parseFloat(style.borderTopLeftRadius) || 0, box.height / 2);
  const add = (x, y, width, height, look) => parts.push(svg("rect", { x: pen.x(x), y: pen.y(y), width: round(width), height: round(height), ...look }));
  const around = (out, look) => add(box.left - out, box.top - out, box.width + 2 * out, box.height + 2 * out, { rx: radius + out > 0 && radius ? round(radius + out) : null, ...look });
  const ring = (colour, width, out) => around(out, { fill: "none", ...ink("stroke", colour), "stroke-width": width });
  const paper = ink("fill", style.backgroundColor);
  if (paper.fill !== "none") around(0, paper);
  const sides = ["top", "right", "bottom", "left"].map((side) => [parseFloat(style.getPropertyValue(`border-${side}-width`)), style.getPropertyValue(`border-${side}-color`)]);
  const [[thick, colour]] = sides;
  if (sides.every((side) => String(side) === String(sides[0]))) { if (thick) ring(colour, thick, -thick / 2); }
  else {
    sides.forEach(([wide, shade], i) => wide && add(i === 1 ? box.right - wide : box.left, i === 2 ? box.bottom - wide : box.top, i % 2 ? wide : box.width, i % 2 ? box.height : wide, ink("fill", shade)));
  }
  for (const shadow of style.boxShadow.split(/,(?![^(]*\))/).reverse()) { // the first lies on top
    const [x, y, blur, spread] = shadow.match(/-?[\d.]+(?=px)/g)?.map(Number) ?? [];
    if (spread && !x && !y && !blur) ring(shadow.match(/rgba?\(.*?\)/)[0], spread, (shadow.includes("inset") ? -spread : spread) / 2);
  }
  const wide = style.outlineStyle === "none" ? 0 : parseFloat(style.outlineWidth);
  if (wide) ring(style.outlineColor, wide, parseFloat(style.outlineOffset) + wide / 2);
  if (parts.length) pen.reach(box);
  return parts;
};

/** Where the lines of a text begin and end, without the spaces around them. */
const linesOf = ({ range }, node) => {
  const lines = [];
  let at = 0, top = NaN;
  for (const letter of node.data) {
    const from = at;
    at += letter.length;
    range.setStart(node, from);
    range.setEnd(node, at);
    const box = letter.trim() && range.getClientRects()[0];
    if (!box) continue;
    if (Math.abs(box.top - top) < 2) lines.at(-1)[1] = at;
    else lines.push([from, at]);
    top = box.top;
  }
  return lines;
};

const textOf = (pen, node) => {
  const { range } = pen, parent = node.parentElement, style = getComputedStyle(parent);
  const edge = /right|end/.test(style.textAlign) ? 1 : style.textAlign === "center" ? 0.5 : 0;
  return linesOf(pen, node).map(([from, to]) => {
    const text = node.data.slice(from, to);
    range.setStart(node, from);
    range.setEnd(node, to);
    // In a formula a name of one letter is slanted, and a bracket as high as what is in it.
    const look = parent.localName === "mi" && to - from === 1 ? { "font-family": "serif", "font-style": "italic" } : {};
    let box = range.getBoundingClientRect(), high = 1;
    if (parent.localName === "mo" && /[()]/.test(text)) {
      const whole = parent.getBoundingClientRect();
      high = whole.height / box.height;
      box = whole;
    }
    pen.reach(box);
    const x = pen.x(box.left + edge * box.width), y = pen.y(box.top + box.height * pen.rise(style));
    return svg("text", { ...(high > 1 ? { transform: `translate(${x} ${y}) scale(1 ${high})` } : { x, y }), "text-anchor": [null, "middle", "end"][2 * edge],
      ...ink("fill", style.color), ...pen.fontOf(style), ...look }, style.whiteSpace.startsWith("pre") ? text : text.replace(/\s+/g, " "));
  });
};

/** The line of a fraction or of a root in a formula. */
const ruleOf = (pen, node, box) => {
  if (!/^m(frac|sqrt)$/.test(node.localName)) return [];
  const [first, second] = [...node.children].map((child) => child.getBoundingClientRect());
  const x = pen.x(box.left), middle = second && pen.y((first.bottom + second.top) / 2), foot = pen.y(first.bottom), head = pen.y(box.top) + 1, turn = pen.x(first.left) - 1;
  const d = second ? `M${x} ${middle}` : `M${x} ${(foot + head) / 2}L${(x + turn) / 2} ${foot}L${turn} ${head}`;
  return [svg("path", { d: `${d}H${pen.x(box.right)}`, fill: "none", ...ink("stroke", getComputedStyle(node).color) })];
};

/** A canvas of one pixel a cell as large as it is shown, twice: pictures in a picture are smoothed, and cells have edges. */
const pictureOf = (pen, canvas, box) => {
  const by = Math.max(1, Math.round((2 * box.width) / canvas.width), Math.round((2 * box.height) / canvas.height));
  const large = h("canvas", { width: canvas.width * Math.min(by, 64), height: canvas.height * Math.min(by, 64) });
  const brush = large.getContext("2d");
  brush.imageSmoothingEnabled = false;
  brush.drawImage(canvas, 0, 0, large.width, large.height);
  const image = svg("image", { x: pen.x(box.left), y: pen.y(box.top), width: round(box.width), height: round(box.height), preserveAspectRatio: "none" });
  image.setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", large.toDataURL("image/png")); // the older name, which all know
  pen.reach(box);
  return image;
};

/** A drawing of the page, or a part of one, with what the style sheet says written into it. */
const tracedOf = (pen, node) => {
  const style = getComputedStyle(node);
  if (style.display === "none") return null;
  const whole = node.localName === "svg", shape = !whole && node.localName !== "g";
  const look = whole ? {} : Object.fromEntries([...node.attributes].filter(({ name }) => PLACE.test(name)).map(({ name, value }) => [name, value]));
  if (whole) {
    const { a, b, c, d, e, f } = node.getScreenCTM();
    look.transform = `matrix(${a} ${b} ${c} ${d} ${pen.x(e)} ${pen.y(f)})`;
  }
  for (const [name, usual] of Object.entries(USUAL)) {
    const value = style.getPropertyValue(name).replaceAll("px", "");
    if ((shape || name === "opacity") && value !== usual) look[name] = value;
  }
  if (shape) {
    Object.assign(look, ink("fill", style.fill, style.fillOpacity), ink("stroke", style.stroke, style.strokeOpacity), node.closest("text") && pen.fontOf(style));
    pen.reach(node.getBoundingClientRect());
  }
  return svg(whole ? "g" : node.localName, look, [...node.childNodes].map((child) => child.data ?? tracedOf(pen, child)));
};

const draw = (pen, node, into) => {
  if (node.nodeType === Node.TEXT_NODE) into.append(...textOf(pen, node));
  if (node.nodeType !== Node.ELEMENT_NODE) return;
  const style = getComputedStyle(node), box = node.getBoundingClientRect();
  if (style.display === "none") return;
  if (style.opacity < 1) into = into.appendChild(svg("g", { opacity: style.opacity }));
  if (node.localName === "svg") { into.append(tracedOf(pen, node)); return; }
  for (const each of node.getClientRects()) into.append(...boxOf(pen, style, each));
  if (node.localName === "canvas") into.append(pictureOf(pen, node, box));
  into.append(...ruleOf(pen, node, box));
  for (const child of node.childNodes) draw(pen, child, into);
};

/** The panel as an SVG text. It is set for paper (look.css), and is not of use afterwards. */
export const svgOf = (panel, caption) => {
  panel.classList.add("paper");
  for (const input of panel.querySelectorAll(".steps [type=number]")) input.replaceWith(input.value);
  for (const row of panel.querySelectorAll(".controls")) if (!row.innerText.trim() && !row.querySelector("canvas, svg")) row.remove();
  panel.append(h("p", { class: "caption" }, caption));
  panel.style.width = `${panel.scrollWidth}px`;
  const pen = penOf(panel), { root } = pen;
  for (const child of panel.childNodes) draw(pen, child, root);
  const width = Math.ceil(pen.right) + MARGIN, height = Math.ceil(pen.bottom) + MARGIN;
  for (const [name, value] of Object.entries({ width, height, viewBox: `0 0 ${width} ${height}` })) root.setAttribute(name, value);
  root.setAttributeNS("http://www.w3.org/XML/1998/namespace", "xml:space", "preserve");
  root.prepend(svg("title", {}, caption), svg("rect", { width, height, fill: "#ffffff" }));
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
