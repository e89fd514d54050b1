// Makes elements; see README.md.

const SVG = "http://www.w3.org/2000/svg";

const fill = (node, props, children) => {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") for (const [key, word] of Object.entries(value)) node.dataset[key] = word;
    else if (name === "style") for (const [key, word] of Object.entries(value)) setStyle(node, key, word);
    else if (name === "value" || name === "checked" || name === "selected") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  append(node, children);
  return node;
};

const setStyle = (node, name, value) => {
  if (name.startsWith("--") || name.includes("-")) node.style.setProperty(name, String(value));
  else node.style[name] = String(value);
};

export const append = (node, children) => {
  for (const child of [children].flat(Infinity)) {
    if (child === null || child === undefined || child === false || child === true) continue;
    node.append(child instanceof Node ? child : String(child));
  }
  return node;
};

/** An HTML element. @returns {HTMLElement} */
export const h = (tag, props, ...children) => fill(document.createElement(tag), props, children);

/** An SVG element: svg("rect", {x: 0, width: 8, fill: "var(--accent)"}). @returns {SVGElement} */
export const svg = (tag, props, ...children) => fill(document.createElementNS(SVG, tag), props, children);

/** Says something to those who hear the page. */
export const announce = (text) => { document.getElementById("live").textContent = text; };

/** Puts new children in the place of the old ones. */
export const replace = (node, ...children) => {
  node.replaceChildren();
  return append(node, children);
};
