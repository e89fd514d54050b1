// The selection and its address; see README.md.

const NUMBERS = ["site", "head", "query", "key"];
const STEPS = ["capture", "view", "site", "head"];

export const makeStore = (defaults, onChange) => {
  let selection = { ...defaults };

  const fromAddress = () => {
    const given = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
    const next = { ...defaults, ...given };
    for (const name of NUMBERS) {
      const value = Number(next[name]);
      next[name] = Number.isInteger(value) && value >= 0 ? value : defaults[name];
    }
    return next;
  };

  const address = () => {
    const words = new URLSearchParams();
    for (const [name, value] of Object.entries(selection)) words.set(name, String(value));
    return "#" + words.toString();
  };

  const select = (changes, { quiet = false } = {}) => {
    const next = { ...selection };
    for (const [name, value] of Object.entries(changes)) {
      if (value === null || value === undefined) delete next[name];
      else next[name] = NUMBERS.includes(name) ? Number(value) : String(value);
    }
    const changed = Object.keys({ ...next, ...selection }).filter((name) => next[name] !== selection[name]);
    if (!changed.length) return;
    selection = next;
    const push = changed.some((name) => STEPS.includes(name)) && !quiet;
    try {
      history[push ? "pushState" : "replaceState"](null, "", address());
    } catch {
      // A sandboxed frame may refuse: the selection still holds, only the address does not follow.
    }
    onChange(selection, changed);
  };

  const follow = () => {
    const next = fromAddress();
    const changed = Object.keys({ ...next, ...selection }).filter((name) => next[name] !== selection[name]);
    selection = next;
    if (changed.length) onChange(selection, changed);
  };
  window.addEventListener("popstate", follow);
  window.addEventListener("hashchange", follow);
  selection = fromAddress();

  return {
    get selection() { return selection; },
    select,
    option: (name, fallback) => selection[name] ?? fallback,
  };
};
