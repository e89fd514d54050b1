// Reads answers of the server or of an exported page; see README.md.

const TYPES = {
  F32: Float32Array, F64: Float64Array, U8: Uint8Array, I8: Int8Array, U16: Uint16Array, I16: Int16Array,
  U32: Uint32Array, I32: Int32Array, BOOL: Uint8Array,
};
const KEPT = 64;

export const readAnswer = (buffer) => {
  const length = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, length)));
  const { __metadata__: metadata = {}, ...entries } = header;
  const arrays = {};
  for (const [name, entry] of Object.entries(entries)) {
    const [start, end] = entry.data_offsets.map((at) => at + 8 + length);
    const bytes = buffer.slice(start, end); // its own buffer, so that every type may begin anywhere
    if (entry.dtype === "I64") arrays[name] = { data: Float64Array.from(new BigInt64Array(bytes), Number), shape: entry.shape };
    else arrays[name] = { data: new TYPES[entry.dtype](bytes), shape: entry.shape };
  }
  return { facts: JSON.parse(metadata.facts ?? "{}"), arrays };
};

/** An error of the server or the page, with what to do about it. */
export class LookError extends Error {
  constructor(message, fix = "", kind = "error") {
    super(message);
    this.fix = fix;
    this.kind = kind; // "error" | "absent" (an exported page does not hold it)
  }
}

const agrees = (entry, view, params) =>
  entry.view === view && entry.reads.every((name) => String(entry.params[name] ?? "") === String(params[name] ?? ""));

const canonical = (params) => {
  const words = new URLSearchParams();
  for (const name of Object.keys(params).sort()) if (params[name] !== undefined && params[name] !== null) words.set(name, params[name]);
  return words.toString();
};

/** Answers from the server. */
export const served = (base) => {
  let kept = [];
  const request = async (path, options) => {
    let response;
    try {
      response = await fetch(base + path, options);
    } catch {
      throw new LookError("The server does not answer.", "It may have been stopped: run anyformer look again.");
    }
    if (response.ok) return response;
    const told = await response.json().catch(() => ({}));
    throw new LookError(told.error ?? `The server answered ${response.status}.`, told.fix ?? "");
  };
  return {
    live: true,
    manifest: async (capture) => (await request(`/api/manifest${capture ? `?capture=${encodeURIComponent(capture)}` : ""}`)).json(),
    trust: async (manifest) => (await request(`/api/trust?capture=${encodeURIComponent(manifest.capture)}`)).json(),
    ask: async (view, params) => {
      const known = kept.find((entry) => agrees(entry, view, params));
      if (known) return known.answer;
      const response = await request(`/api/view/${encodeURIComponent(view)}?${canonical(params)}`);
      const answer = readAnswer(await response.arrayBuffer());
      const reads = ["capture", ...(response.headers.get("look-reads") ?? "").split(",").filter(Boolean)];
      if (response.headers.get("look-keep") !== "no") kept = [{ view, reads, params: { ...params }, answer }, ...kept].slice(0, KEPT);
      return answer;
    },
    renew: async (body, capture = null) => {
      const headers = { "content-type": "application/json" };
      return (await request(`/api/new${capture === null ? "" : `?capture=${encodeURIComponent(capture)}`}`, { method: "POST", headers, body: JSON.stringify(body) })).json();
    },
  };
};

const unpack = async (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
};

/** Answers inside an exported page: {manifest, answers: [{view, reads, params, data}]}, data gzipped in base64. */
export const held = (packed) => ({
  live: false,
  manifest: async () => packed.manifest,
  trust: async (manifest) => manifest.trust,
  ask: async (view, params) => {
    const entry = packed.answers.find((each) => agrees(each, view, params));
    if (!entry) throw new LookError("This page does not hold that selection.", "", "absent");
    entry.answer ??= readAnswer(await unpack(entry.data));
    return entry.answer;
  },
  holds: (view) => packed.answers.filter((each) => each.view === view).map(({ reads, params }) => ({ reads, params })),
});
