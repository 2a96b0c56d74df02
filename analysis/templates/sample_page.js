// The page of single samples. "data" is described in analysis/sample_page.py; its columns have one value per sample.

const byId = (id) => document.getElementById(id);

async function unpack(id) {
  const bytes = Uint8Array.from(atob(byId(id).textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

async function loadModule(id) {
  const url = URL.createObjectURL(new Blob([await unpack(id)], { type: "text/javascript" }));
  return import(url).finally(() => URL.revokeObjectURL(url));
}

function element(name, text = "", attributes = {}) {
  const created = Object.assign(document.createElement(name), attributes);
  created.textContent = text;
  return created;
}

const format = (value, decimals) =>
  value === null ? "–" : value.toLocaleString("en", { minimumFractionDigits: decimals, maximumFractionDigits: decimals });

const data = JSON.parse(await unpack("data"));
const style = element("style", await unpack("datatables-css"));
document.head.prepend(style); // before the rules of this page
const { jQuery } = await loadModule("datatables");
await loadModule("vega");

byId("fpr").value = data.focus;
let fpr = data.focus; // the index of the selected FPR
let selected = null; // the index of the selected sample
const atFpr = new Set(["flip_rate", "votes"]);
const valueOf = (name, s) => (atFpr.has(name) ? data[name][fpr][s] : data[name][s]);

// --- The table ---

const numberColumns = data.properties.map(({ name, title, decimals }) => ({
  title,
  type: "num",
  data: ({ s }) => valueOf(name, s) ?? -Infinity, // missing values are sorted below all others
  render: (value, type) => (type === "display" ? format(value === -Infinity ? null : value, decimals) : value),
}));
const columns = [
  {
    title: "Sample",
    type: "num",
    data: ({ s }) => data.id[s],
    render: (id, type) => (type === "display" ? element("a", id, { href: `#sample-${id}` }) : id),
    cellType: "th",
  },
  { title: "Member", data: ({ s }) => (data.member[s] ? "yes" : "no") },
  ...numberColumns,
  { title: "Chosen by", data: ({ s }) => data.chosen_by[s], visible: data.chosen_by.some((rule) => rule !== "all") },
  {
    title: "Text",
    className: "text",
    data: ({ s }) => data.text[s],
    render: (text, type) => (type === "display" ? element("span", text.slice(0, 120)) : text),
  },
];
const table = jQuery("#samples").DataTable({
  data: data.id.map((_, s) => ({ s })),
  columns,
  order: [],
  pageLength: 25,
  autoWidth: false,
  layout: { topStart: null, topEnd: null, bottomStart: null, bottomEnd: { paging: { type: "simple_numbers", buttons: 5 } } },
  language: { emptyTable: "There are no samples.", zeroRecords: "No sample satisfies the conditions." },
  createdRow: (row, { s }) => {
    row.dataset.sample = data.id[s];
    row.classList.toggle("selected", s === selected);
  },
});

function readRanges() {
  const ranges = {};
  for (const input of document.querySelectorAll("input[data-property]")) {
    if (input.value === "") continue;
    ranges[input.dataset.property] ??= { low: -Infinity, high: Infinity };
    ranges[input.dataset.property][input.dataset.end] = Number(input.value);
  }
  return Object.entries(ranges);
}

function filterSamples() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const membership = byId("membership").value;
  const rule = byId("chosen")?.value ?? "";
  const ranges = readRanges();
  table.search.fixed("conditions", (_text, { s }) => {
    if (membership && String(data.member[s]) !== membership) return false;
    if (rule && data.chosen_by[s] !== rule) return false;
    const inRanges = ranges.every(([name, { low, high }]) => {
      const value = valueOf(name, s);
      return value !== null && low <= value && value <= high;
    });
    if (!inRanges) return false;
    const text = words.length ? data.text[s].toLowerCase() : "";
    return words.every((word) => text.includes(word));
  });
  table.draw();
  const count = table.rows({ search: "applied" }).count();
  byId("count").textContent = `${count.toLocaleString("en")} of ${data.id.length.toLocaleString("en")} samples`;
}

function selectFpr() {
  fpr = Number(byId("fpr").value);
  table.rows().invalidate();
  if (selected !== null) showSample();
}

byId("fpr").addEventListener("change", selectFpr);
for (const control of byId("filters").querySelectorAll("input, select")) {
  control.addEventListener(control.tagName === "SELECT" ? "change" : "input", filterSamples);
}
byId("filters").addEventListener("submit", (event) => event.preventDefault());
byId("filters").addEventListener("reset", () => {
  // The fields are empty after this event; the FPR stays, since it is no condition.
  setTimeout(() => {
    byId("fpr").value = fpr;
    filterSamples();
  });
});
byId("samples").addEventListener("click", (event) => {
  const row = event.target.closest("tr[data-sample]");
  if (row && !event.target.closest("a")) location.hash = `sample-${row.dataset.sample}`;
});

// --- The selected sample ---

function fillTable(id, titles, rows) {
  const head = element("tr");
  head.append(...titles.map((title) => element("th", title, { scope: "col" })));
  const body = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map((cell, i) => element(i ? "td" : "th", cell, i ? { className: cell === "yes" ? "yes" : "" } : { scope: "row" })));
    return row;
  });
  const parts = [element("thead"), element("tbody")];
  parts[0].append(head);
  parts[1].append(...body);
  byId(id).replaceChildren(...parts);
}

const decisionWord = { 1: "yes", 0: "no", "-": "–" };
const IN = "IN references";
const OUT = "OUT references";
const CALLED = "Replicas: member";
const NOT_CALLED = "Replicas: non-member";
const colorScale = { domain: [IN, OUT, CALLED, NOT_CALLED], range: [data.colors.in, data.colors.out, "#000000", "#000000"] };
const embedOptions = { actions: false, renderer: "svg" };
const config = { font: "system-ui, sans-serif", axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal", labelLimit: 140 } };

function lossesOf(s) {
  const references = data.reference_loss_nats[s].map((loss, m) => ({
    model: data.reference_models[m],
    loss,
    kind: data.reference_member[s][m] === "1" ? IN : OUT,
  }));
  const replicas = data.replica_loss_nats[s].map((loss, b) => ({
    model: data.replica_models[b],
    loss,
    kind: data.decisions[fpr][s][b] === "1" ? CALLED : NOT_CALLED,
  }));
  return [...references, ...replicas].filter(({ loss }) => loss !== null);
}

function drawLosses(s) {
  const values = lossesOf(s);
  const losses = values.map(({ loss }) => loss);
  const low = Math.min(...losses);
  const margin = 0.05 * (Math.max(...losses) - low) || 0.1;
  const domain = [low - margin, Math.max(...losses) + margin];
  const x = { field: "loss", type: "quantitative", scale: { domain, nice: false }, axis: { tickCount: 6, labelOverlap: true } };
  const y = { field: "kind", type: "nominal", sort: colorScale.domain, scale: { domain: colorScale.domain }, title: null };
  const color = { field: "kind", type: "nominal", scale: colorScale, legend: null };
  const isReference = { or: [{ field: "kind", equal: IN }, { field: "kind", equal: OUT }] };
  const width = Math.max(160, byId("losses").clientWidth - 170);
  const histogram = {
    width,
    height: 100,
    transform: [{ filter: isReference }],
    mark: { type: "bar", opacity: 0.45, binSpacing: 0 },
    encoding: {
      x: { ...x, bin: { extent: domain, step: (domain[1] - domain[0]) / 20 }, title: null, axis: { tickCount: 6, labels: false, ticks: false } },
      y: { aggregate: "count", type: "quantitative", stack: null, title: "References", axis: { tickMinStep: 1, format: "d" } },
      color,
    },
  };
  const strip = {
    width,
    height: 130,
    encoding: { y },
    layer: [
      {
        mark: { type: "tick", thickness: 1.5, size: 20 },
        encoding: {
          x: { ...x, title: "Loss (nats per token)" },
          color,
          tooltip: [
            { field: "model", title: "Model" },
            { field: "kind", title: "Kind" },
            { field: "loss", title: "Loss", format: ".4f" },
          ],
        },
      },
      {
        transform: [{ filter: isReference }],
        mark: { type: "errorbar", extent: "stdev", thickness: 2, color: "#1a1a1a" },
        encoding: { x: { ...x, title: "Loss (nats per token)" } },
      },
      {
        transform: [{ filter: isReference }],
        mark: { type: "point", filled: true, size: 45, color: "#1a1a1a" },
        encoding: { x: { ...x, aggregate: "mean", title: "Loss (nats per token)" } },
      },
    ],
  };
  const description = `Losses of sample ${data.id[s]} under IN references, OUT references and replicas`;
  return window.vegaEmbed("#losses", { description, data: { values }, vconcat: [histogram, strip], spacing: 4, config }, embedOptions);
}

const pieceText = (piece) => piece.replaceAll("▁", " ");

function drawTokens(tokens) {
  const values = tokens.piece.flatMap((piece, t) => [
    { position: t + 1, token: pieceText(piece), kind: IN, loss: tokens.in[t] },
    { position: t + 1, token: pieceText(piece), kind: OUT, loss: tokens.out[t] },
  ]);
  const specification = {
    description: "Mean loss of each token under IN and OUT references",
    data: { values: values.filter(({ loss }) => loss !== null) },
    width: Math.max(160, byId("token-losses").clientWidth - 70),
    height: 150,
    mark: { type: "line", point: { size: 18 }, strokeWidth: 1.2 },
    encoding: {
      x: { field: "position", type: "quantitative", title: "Position of the token", axis: { tickMinStep: 1 } },
      y: { field: "loss", type: "quantitative", title: "Loss (nats)" },
      color: { field: "kind", type: "nominal", scale: { domain: [IN, OUT], range: [data.colors.in, data.colors.out] }, legend: { orient: "top", title: null } },
      tooltip: [
        { field: "token", title: "Token" },
        { field: "kind", title: "Kind" },
        { field: "loss", title: "Loss", format: ".3f" },
      ],
    },
    config,
  };
  return window.vegaEmbed("#token-losses", specification, embedOptions);
}

async function showSample() {
  const s = selected;
  byId("hint").hidden = true;
  byId("selected").hidden = false;
  byId("sample-title").textContent = `Sample ${data.id[s]}: a ${data.member[s] ? "member" : "non-member"}`;
  const facts = data.properties.map(({ name, title, decimals }) => {
    const value = format(valueOf(name, s), decimals);
    return `${title}: ${value}${name === "votes" ? ` of ${data.replica_models.length}` : ""}`;
  });
  byId("facts").textContent = facts.join(" · ");
  byId("picture-fpr").textContent = data.fprs[fpr];
  fillTable(
    "references",
    ["Reference", "Trained on the sample", "Loss"],
    data.reference_models.map((model, m) => [model, data.reference_member[s][m] === "1" ? "yes" : "no", format(data.reference_loss_nats[s][m], 4)]),
  );
  fillTable(
    "decisions",
    ["Replica", "Loss", ...data.fprs],
    data.replica_models.map((model, b) => [model, format(data.replica_loss_nats[s][b], 4), ...data.decisions.map((decision) => decisionWord[decision[s][b]])]),
  );
  byId("text").textContent = data.text[s] || "There is no text.";
  const tokens = data.token_losses[data.id[s]];
  byId("tokens").hidden = !tokens;
  await drawLosses(s);
  if (tokens) {
    fillTable(
      "token-table",
      ["Token", "IN", "OUT", "OUT minus IN"],
      tokens.piece.map((piece, t) => [pieceText(piece), format(tokens.in[t], 3), format(tokens.out[t], 3), format(tokens.in[t] === null || tokens.out[t] === null ? null : tokens.out[t] - tokens.in[t], 3)]),
    );
    await drawTokens(tokens);
  }
  byId("sample").dataset.shown = `${data.id[s]} ${data.fprs[fpr]}`; // for tests: the pictures are drawn
}

const positionOf = new Map(data.id.map((id, s) => [id, s]));

async function followLink() {
  const match = /^#sample-(\d+)$/.exec(location.hash);
  if (!match || !positionOf.has(Number(match[1]))) return;
  selected = positionOf.get(Number(match[1]));
  for (const row of document.querySelectorAll("#samples tbody tr")) {
    row.classList.toggle("selected", row.dataset.sample === match[1]);
  }
  await showSample();
  byId("sample-title").focus();
}

addEventListener("hashchange", followLink);
let resizing;
addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => selected !== null && showSample(), 200);
});
filterSamples();
await followLink();
